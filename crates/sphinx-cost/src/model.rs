//! What a link of a given rate asks of a machine.

use crate::meter::{PerStage, STAGES, Stage};

/// What a thread of one end spends on a packet, nanoseconds (or instructions).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threads {
    /// The engine, without the kernel.
    pub engine: f64,
    /// The kernel, in the engine's system calls.
    pub kernel: f64,
    /// Workers, all together.
    pub work: f64,
}

impl Threads {
    /// Adds up what an end's stages take. What the application's thread does is nobody's of these.
    pub fn of(stages: &PerStage) -> Self {
        let sum = |wanted: fn(&Stage) -> bool| {
            let stages = std::iter::zip(STAGES, stages);
            let wanted = stages.filter(|(stage, _)| wanted(stage));
            wanted.map(|(_, cost)| cost).sum()
        };
        Self {
            engine: sum(|stage| !stage.is_kernel() && !matches!(stage, Stage::Slice | Stage::Work)),
            kernel: sum(Stage::is_kernel),
            work: sum(|stage| *stage == Stage::Work),
        }
    }

    /// What the engine's thread spends altogether.
    pub fn engine_and_kernel(&self) -> f64 {
        self.engine + self.kernel
    }

    /// How many are busy where a packet comes every `interval` nanoseconds, if nothing but them holds it up.
    pub fn for_interval(&self, interval: f64) -> Cores {
        Cores {
            engines: self.engine_and_kernel() / interval,
            workers: self.work / interval,
        }
    }

    /// Workers that one engine keeps busy.
    pub fn workers_per_engine(&self) -> f64 {
        self.work / self.engine_and_kernel()
    }
}

/// How many threads are busy at an end, on the average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cores {
    /// Engines: one session has one, so more than 1 needs several sessions on as many shards.
    pub engines: f64,
    /// Workers of all these engines together.
    pub workers: f64,
}

impl Cores {
    /// Processors that suffice: none of them is shared, and each is at most as busy as it can be.
    pub fn needed(&self) -> u64 {
        (self.engines.ceil() + self.workers.ceil()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_the_sums_of_their_stages() {
        let stages: PerStage = std::array::from_fn(|stage| f64::from(1_u32 << stage));
        let threads = Threads::of(&stages);
        let of = |stage: Stage| stages[stage as usize];
        assert_eq!(threads.kernel, of(Stage::Send) + of(Stage::Receive));
        assert_eq!(threads.work, of(Stage::Work));
        let parts = threads.engine + threads.kernel + threads.work + of(Stage::Slice);
        assert_eq!(parts, stages.iter().sum::<f64>());
    }

    #[test]
    fn a_packet_that_takes_longer_than_the_next_one_needs_more_threads() {
        let threads = Threads {
            engine: 200.0,
            kernel: 100.0,
            work: 450.0,
        };
        assert_eq!(threads.workers_per_engine(), 1.5);
        let cores = [1200.0, 300.0, 120.0].map(|interval| threads.for_interval(interval));
        assert_eq!(cores.map(|cores| cores.engines), [0.25, 1.0, 2.5]);
        assert_eq!(cores.map(|cores| cores.workers), [0.375, 1.5, 3.75]);
        assert_eq!(cores.map(|cores| cores.needed()), [2, 3, 7]);
    }
}
