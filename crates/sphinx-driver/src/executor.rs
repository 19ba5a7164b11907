//! When jobs on payload are done.

use sphinx_proto::Time;

/// A piece of work on payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Opening a received packet.
    Open,
    /// Restoring a block's missing symbols.
    Decode,
    /// Encoding and sealing a packet that leaves.
    Seal,
}

/// Says when jobs are done: as soon as they are there, or later, as on other cores that are busy.
pub trait Executor {
    /// A job could begin at `now`. `None`: it is done before anything else is. A time: its result is
    /// there at the first call of the driver at or after that time, of opening and decoding in any order; of decoding
    /// sooner if too much of a sliding window waits for it.
    /// Packets leave in the order of their numbers.
    fn done_at(&mut self, now: Time, kind: JobKind) -> Option<Time>;
}

/// Every job is done at once, by the caller and in the buffers where the data is: nothing is copied.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inline;

impl Executor for Inline {
    #[inline]
    fn done_at(&mut self, _now: Time, _kind: JobKind) -> Option<Time> {
        None
    }
}
