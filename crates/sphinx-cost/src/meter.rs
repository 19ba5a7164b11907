//! Time or instructions, given to the stages that take them.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use sphinx_net::InstructionCounter;

/// A part of the way of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The application's bytes go into the piece of a stream, on the application's thread.
    Slice,
    /// Pieces become blocks, and the core hears of them.
    HandOver,
    /// The core chooses what leaves, and a repair is encoded into its frame.
    Encode,
    /// Sealing and header protection.
    Seal,
    /// The send calls.
    Send,
    /// The receive calls.
    Receive,
    /// Header protection is removed.
    Unprotect,
    /// Opening a packet: decryption and authentication.
    Open,
    /// The core hears of a packet; a symbol goes into its block, which is decoded if that completes it.
    Place,
    /// What blocks hold goes to the streams.
    Deliver,
    /// Handling timers.
    Timers,
    /// What workers do: runs of packets and blocks. Only with them.
    Work,
}

/// All of them, in their order.
pub const STAGES: [Stage; 12] = [
    Stage::Slice,
    Stage::HandOver,
    Stage::Encode,
    Stage::Seal,
    Stage::Send,
    Stage::Receive,
    Stage::Unprotect,
    Stage::Open,
    Stage::Place,
    Stage::Deliver,
    Stage::Timers,
    Stage::Work,
];

/// Something for each stage, in the order of [`STAGES`].
pub type PerStage = [f64; STAGES.len()];

impl Stage {
    /// Name of the stage in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slice => "slice",
            Self::HandOver => "hand_over",
            Self::Encode => "encode",
            Self::Seal => "seal",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Unprotect => "unprotect",
            Self::Open => "open",
            Self::Place => "place",
            Self::Deliver => "deliver",
            Self::Timers => "timers",
            Self::Work => "work",
        }
    }

    /// Whether the stage is spent in system calls.
    pub fn is_kernel(&self) -> bool {
        matches!(self, Self::Send | Self::Receive)
    }
}

/// What is counted.
pub(crate) enum Gauge {
    /// Nanoseconds since then.
    Clock(Instant),
    /// Instructions of this thread, and what they were when they could be read last.
    Instructions {
        counter: InstructionCounter,
        last: Cell<u64>,
    },
}

impl Gauge {
    pub(crate) fn clock() -> Self {
        Self::Clock(Instant::now())
    }

    /// # Errors
    /// Where nobody counts them.
    pub(crate) fn instructions() -> io::Result<Self> {
        let counter = InstructionCounter::of_this_thread()?;
        let last = Cell::new(counter.count()?);
        Ok(Self::Instructions { counter, last })
    }

    /// Whether it still counts: one that was lost stands still from then on.
    pub(crate) fn counts(&self) -> bool {
        match self {
            Self::Clock(_) => true,
            Self::Instructions { counter, .. } => counter.count().is_ok(),
        }
    }

    fn read(&self) -> u64 {
        match self {
            Self::Clock(begin) => begin.elapsed().as_nanos() as u64,
            Self::Instructions { counter, last } => {
                // Whoever measures asks `counts` in the end.
                last.set(counter.count().unwrap_or(last.get()));
                last.get()
            }
        }
    }

    /// What a reading adds to what is read: the least of short batches, as something else has the processor in some of them.
    pub(crate) fn own(&self) -> f64 {
        const BATCHES: u32 = 100;
        const READINGS: u32 = 1000;
        let batch = |_| {
            let begin = self.read();
            for _ in 1..READINGS {
                std::hint::black_box(self.read());
            }
            (self.read() - begin) as f64 / f64::from(READINGS)
        };
        (0..BATCHES).map(batch).fold(f64::INFINITY, f64::min)
    }
}

/// What one end's stages have taken.
pub(crate) struct Meter {
    gauge: Rc<Gauge>,
    /// What reading the gauge costs by itself, in its unit.
    own: f64,
    stages: RefCell<PerStage>,
    /// Of the stage under way: what stages within it have taken, and readings for them.
    within: Cell<f64>,
}

impl Meter {
    pub(crate) fn new(gauge: Rc<Gauge>, own: f64) -> Self {
        Self {
            gauge,
            own,
            stages: RefCell::default(),
            within: Cell::new(0.0),
        }
    }

    /// Gives what `work` takes to a stage, but for stages within it.
    pub(crate) fn measure<R>(&self, stage: Stage, work: impl FnOnce() -> R) -> R {
        let outer = self.within.replace(0.0);
        let begin = self.gauge.read();
        let result = work();
        let span = (self.gauge.read() - begin) as f64;
        // One reading of two falls into the span; the other into that of the stage around it.
        self.stages.borrow_mut()[stage as usize] += span - self.own - self.within.get();
        self.within.set(outer + span + self.own);
        result
    }

    pub(crate) fn stages(&self) -> PerStage {
        *self.stages.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_within_another_is_not_part_of_it() {
        let spin = |us: u64| {
            let begin = Instant::now();
            while (begin.elapsed().as_micros() as u64) < us {}
        };
        let meter = Meter::new(Rc::new(Gauge::clock()), 0.0);
        let begin = Instant::now();
        meter.measure(Stage::Place, || {
            meter.measure(Stage::Open, || spin(2000));
            meter.measure(Stage::Open, || spin(1000));
            spin(1000);
        });
        let whole = begin.elapsed().as_nanos() as f64;
        let ns = meter.stages();
        let of = |stage| ns[stage as usize];
        assert!(of(Stage::Open) >= 3e6 && of(Stage::Place) >= 1e6, "{ns:?}");
        assert!(of(Stage::Open) + of(Stage::Place) <= whole, "{ns:?}");
    }
}
