//! RSFC, receiver-side flow control: an upload that fills its sender's link gets a smaller window, so that its packets wait less in front of that link (rules in
//! `docs/rsfc.md`, whose section numbers comments give).
//!
//! `measure` knows what an upload's packets take, `control` what window they get, `ledbat` that of one which yields, `clients` what the uploads of one host share.

mod clients;
mod control;
mod ledbat;
mod measure;

use bytes::Bytes;
use serde::Serialize;

pub(crate) use self::clients::Clients;
pub use self::control::State;
use self::{clients::Seen, control::Control, ledbat::Ledbat, measure::Measure};
use crate::{
    FlowKey, MS, Time,
    segment::{Segment, Slowing},
    sequence::nearest,
    stats::Counts,
};

/// §1: an upload counts as bulk from so many bytes on.
const BULK_BYTES: u64 = 64 << 10;
/// §4: the room that a sender has whose packets do not wait, from its first byte on, and how many times the most that it has sent in a round trip: more than it
/// can use, in slow start too.
const ROOM_BYTES: u64 = 128 << 10;
const ROOM_FLIGHTS: u64 = 4;

/// §2: for so long, an upload learns from others of its host what its packets wait.
const BEGINNING_NS: Time = 1_000 * MS;

/// Two acknowledgements that are no further apart may be of the same receiver.
const STEP_BYTES: u64 = 4 << 20;

/// Where acknowledgements have passed unseen, others pass as they are for so long, and one in any case: then what was told is known, as the receiver's own
/// right edge is as far.
pub(crate) const BLIND_NS: Time = 1_000 * MS;

/// What an upload is to leave to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The upload fills the link and not its queue.
    #[default]
    Rsfc,
    /// The upload takes the capacity that nobody else wants (LEDBAT, RFC 9840).
    Rledbat,
}

/// What is done about uploads that come over the hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rsfc {
    /// What uploads are to leave to others.
    pub mode: Mode,
    /// How long packets may wait in front of the link, in nanoseconds; if none, the shortest round trip, but
    /// [`TARGET_NS_MIN`] at least, or 60 ms with [`Mode::Rledbat`].
    pub target_ns: Option<Time>,
}

/// The shortest [`Rsfc::target_ns`]: timestamps have milliseconds.
pub const TARGET_NS_MIN: Time = 5 * MS;

/// Why an upload is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unclamped {
    /// Its timestamps count neither milliseconds nor microseconds: nobody knows what its packets wait.
    Clock,
    /// Its windows are those of several connections.
    Mptcp,
    /// Without timestamps nobody knows what its packets wait.
    NoTimestamps,
}

/// The state of an upload, for people and programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What is done about the upload at present.
    pub state: State,
    /// What its last packet has waited in front of the link, in nanoseconds.
    pub waited_ns: Option<Time>,
    /// Payload of the upload in bytes per second.
    pub bytes_per_second: u64,
    /// The shortest round trip of the last half minute, in nanoseconds.
    pub rtt_ns_min: Option<Time>,
    /// The window that the receiver told last, and that which went on, in bytes.
    pub window_received: u64,
    /// The window that went on last, in bytes.
    pub window_written: u64,
}

/// What a flow begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) now: Time,
    /// Position of the upload's first byte.
    pub(crate) first: u64,
    /// Scale of the receiver's window.
    pub(crate) scale: u8,
    pub(crate) mss: u16,
    pub(crate) unclamped: Option<Unclamped>,
}

/// What a call may change besides the flow.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) key: FlowKey,
    pub(crate) settings: &'a Rsfc,
    /// Until then, acknowledgements may have passed unseen ([`BLIND_NS`]).
    pub(crate) blind_until: Time,
    pub(crate) clients: &'a mut Clients,
    pub(crate) counts: &'a mut Counts,
}

/// The state of one upload.
#[derive(Debug)]
pub(crate) struct Upload {
    scale: u8,
    unclamped: Option<Unclamped>,
    counted: bool,
    /// That its timestamps have a unit which tells nothing was counted already.
    clock_counted: bool,
    /// When the upload became bulk.
    bulk_since: Time,
    measure: Measure,
    control: Control,
    /// Decides on the window in the place of `control`, with [`Mode::Rledbat`].
    ledbat: Option<Ledbat>,
    mss: u64,
    /// Position behind what has come, the timestamp of what came up to there, and how much has come.
    highest: u64,
    highest_sent: u32,
    bytes: u64,
    /// What the receiver acknowledged, and the right edge that the sender was told.
    acknowledged: u64,
    edge: u64,
    /// The same of acknowledgements of what has not come by here: it counts once that is known to have been sent.
    unseen: Option<(u64, u64)>,
    /// When the last acknowledgement came that was looked at.
    seen: Time,
    received: u64,
    written: u64,
}

impl Upload {
    pub(crate) fn new(setup: Setup) -> Upload {
        Upload {
            scale: setup.scale.min(14),
            unclamped: setup.unclamped,
            counted: false,
            clock_counted: false,
            bulk_since: setup.now,
            measure: Measure::default(),
            control: Control::new(u64::from(setup.mss)),
            ledbat: None,
            mss: u64::from(setup.mss),
            highest: setup.first,
            highest_sent: 0,
            bytes: 0,
            acknowledged: setup.first,
            // What the SYN, whose window has no scale, may have told.
            edge: setup.first + u64::from(u16::MAX),
            unseen: None,
            seen: setup.now,
            received: 0,
            written: 0,
        }
    }

    /// The round trip of the handshake.
    pub(crate) fn set_rtt(&mut self, now: Time, rtt: Time) {
        self.measure.set_rtt(now, rtt);
    }

    /// An acknowledgement goes to the upload's sender as it is.
    pub(crate) fn passes(&mut self, segment: &Segment) {
        let position = nearest(self.acknowledged, segment.acknowledgment);
        let received = u64::from(segment.window) << self.scale;
        self.edge = self.edge.max(position + received);
    }

    fn state(&self) -> State {
        let ledbat = self.ledbat.as_ref().map(Ledbat::state);
        ledbat.unwrap_or(self.control.state())
    }

    /// What is known of it, if it is an upload.
    pub(crate) fn report(&self) -> Option<Report> {
        (self.bytes >= BULK_BYTES && self.unclamped.is_none()).then(|| Report {
            state: self.state(),
            waited_ns: self.measure.waited(),
            bytes_per_second: self.measure.rate(),
            rtt_ns_min: self.measure.rtt_min(),
            window_received: self.received,
            window_written: self.written,
        })
    }

    /// A segment of the upload comes over the hop, and passes.
    pub(crate) fn data(&mut self, context: &mut Context<'_>, segment: &Segment) {
        if segment.options.mptcp {
            self.unclamped = Some(Unclamped::Mptcp);
        }
        let start = nearest(self.highest, segment.sequence);
        let end = start + segment.payload as u64;
        let is_beyond = end > self.highest;
        self.bytes += segment.payload as u64;
        self.highest = self.highest.max(end);
        let unseen = self
            .unseen
            .take_if(|(position, _)| *position <= self.highest + 1);
        if let Some((position, edge)) = unseen {
            self.acknowledged = self.acknowledged.max(position);
            self.edge = self.edge.max(edge);
        }
        if self.bytes >= BULK_BYTES && !self.counted {
            self.counted = true;
            self.bulk_since = context.now;
            match self.unclamped {
                Some(why) => *context.counts.unclamped.entry(why).or_default() += 1,
                None => context.counts.uploads += 1,
            }
        }
        let Some(timestamps) = segment
            .options
            .timestamps
            .filter(|_| self.unclamped.is_none())
        else {
            return;
        };
        // What was only overtaken has left before what overtook it, or at the same time as far as clocks tell.
        let is_again = !is_beyond && timestamps.0.wrapping_sub(self.highest_sent) as i32 > 0;
        if is_beyond {
            self.highest_sent = timestamps.0;
        }
        let now = context.now;
        self.measure.data(now, timestamps, segment.payload, end);
        if self.bytes < BULK_BYTES || segment.payload == 0 {
            return;
        }
        let before = self.state();
        let target = context.settings.target_ns;
        match context.settings.mode {
            _ if self.measure.has_other_unit() => self.leave_open(context.counts),
            Mode::Rsfc => {
                self.ledbat = None;
                let rates = (self.measure.rate(), self.measure.link_rate());
                let waited = self.measure.waits();
                let rtt_min = self.measure.rtt_min().unwrap_or(Time::MAX);
                let begins = now.saturating_sub(self.bulk_since) < BEGINNING_NS;
                let seen = Seen {
                    rates,
                    waited,
                    rtt_min,
                    begins,
                };
                let common = context.clients.share(now, context.key, seen);
                if begins {
                    self.measure.expect(common.short, common.rtt_min);
                }
                let rates = (common.rate, common.link);
                self.control.see(now, target, rates, &mut self.measure);
            }
            Mode::Rledbat => {
                let ledbat = self.ledbat.get_or_insert_with(|| Ledbat::new(self.mss));
                if is_again {
                    ledbat.lose();
                }
                ledbat.see(now, target, &self.measure);
            }
        }
        let entered = self.state();
        if entered != before {
            *context.counts.upload_states.entry(entered).or_default() += 1;
        }
    }

    /// What packets wait is not known: no window but §4's, for as long as that is so.
    fn leave_open(&mut self, counts: &mut Counts) {
        if !std::mem::replace(&mut self.clock_counted, true) {
            *counts.unclamped.entry(Unclamped::Clock).or_default() += 1;
        }
        self.control = Control::new(self.mss);
        self.ledbat = None;
    }

    /// An acknowledgement goes to the upload's sender: the packet in its place, with a smaller window, if that is wanted (§4).
    pub(crate) fn acknowledgment(
        &mut self,
        context: &mut Context<'_>,
        segment: &Segment,
    ) -> Option<Bytes> {
        if segment.options.mptcp {
            self.unclamped = Some(Unclamped::Mptcp);
        }
        let position = nearest(self.acknowledged, segment.acknowledgment);
        let received = u64::from(segment.window) << self.scale;
        self.received = received;
        if self.is_elsewhere(position) {
            self.written = received;
            self.see_unseen(position, position + received);
            return None;
        }
        self.acknowledged = self.acknowledged.max(position);
        if let Some((sent, _)) = segment.options.timestamps {
            self.measure.acknowledgment(context.now, sent, position);
        }
        let is_blind = context.now.min(self.seen) < context.blind_until;
        self.seen = context.now;
        let units = match is_blind {
            true => segment.window,
            false => self.units(position, segment.window),
        };
        let slowing = Slowing {
            ece: false,
            window: Some(units),
        };
        let lowered = (units < segment.window).then(|| segment.rewritten(|_| true, &slowing));
        let lowered = lowered.flatten();
        let written = match &lowered {
            Some(_) => u64::from(units) << self.scale,
            None => received,
        };
        self.written = written;
        self.edge = self.edge.max(position + written);
        context.counts.windows_lowered += u64::from(lowered.is_some());
        lowered
    }

    /// Whether what is acknowledged has not come by here, but for a FIN: it goes another way, of which nothing is known, or has passed unseen.
    fn is_elsewhere(&self, position: u64) -> bool {
        position > self.highest + 1
    }

    /// Such an acknowledgement passes as it is. But it may also be of somebody who does not know the stream, and then its reader discards it with the window that it tells. The
    /// last one says all that others of the receiver have, unless it was overtaken.
    fn see_unseen(&mut self, position: u64, edge: u64) {
        self.unseen = match self.unseen {
            Some(known) if position.abs_diff(known.0) <= STEP_BYTES => {
                Some((position.max(known.0), edge.max(known.1)))
            }
            _ => Some((position, edge)),
        };
    }

    /// The window in an acknowledgement of a position: no more than the receiver's, and its right edge not further left than it was.
    fn units(&self, position: u64, received: u16) -> u16 {
        // Where nothing has come, the upload goes another way, or there is none.
        if self.unclamped.is_some() || self.bytes == 0 {
            return received;
        }
        // A right edge that was told is never taken back, so it must not be further away than is of use.
        let room = ROOM_BYTES.max(ROOM_FLIGHTS * self.measure.flight_max());
        let ledbat = self.ledbat.as_ref().map(Ledbat::window);
        let window = ledbat.or(self.control.window());
        let window = window.map_or(room, |window| window.min(room));
        let unit = 1_u64 << self.scale;
        let told = self.edge.saturating_sub(position).div_ceil(unit);
        // Rounded up, or a segment less would fit.
        let wanted = window.div_ceil(unit);
        u16::try_from(told.max(wanted))
            .unwrap_or(u16::MAX)
            .min(received)
    }
}
