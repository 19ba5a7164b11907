//! The agent's own queue in front of the lossy hop: repairs overtake what waits, but not without end, and what it drops is
//! the sender's business. It drops what has waited longest, so that the sender hears of it before what is in the queue has gone: a
//! sender that doubles its rate in each round trip goes on doubling until then.

use std::collections::VecDeque;

use crate::{MS, Output, Time};

/// A hop of known rate. Slightly less than what it can carry keeps the queue here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Radio {
    /// Bits per second, at the IP layer; at least 1.
    pub bits_per_second: u64,
    /// Bytes of packets that may wait.
    pub queue_bytes: usize,
}

/// A packet's time on the hop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    /// When it begins to leave.
    pub(crate) at: Time,
    /// How long the hop is busy with it, in nanoseconds, where the hop's rate is known.
    pub(crate) takes: Time,
}

/// Packets that wait for the hop.
#[derive(Debug)]
pub(crate) struct Queue {
    radio: Radio,
    repairs: VecDeque<Output>,
    packets: VecDeque<Output>,
    bytes: usize,
    /// Bytes of the repairs among them.
    repair_bytes: usize,
    /// Bytes of repairs that others had to wait for, less what went of others: beyond what the queue holds, they go by turns. A receiver may ask
    /// for all that is cached at once, again and again, and nobody else would have anything of the hop meanwhile.
    ahead: usize,
    /// When the hop has taken the packet that left last.
    busy: Time,
    /// Packets that were dropped to make room and wait for [`poll_dropped`](Queue::poll_dropped).
    dropped: VecDeque<Output>,
    /// The time that all repairs so far take on the hop.
    repairing: Time,
}

impl Queue {
    pub(crate) fn new(radio: Radio) -> Queue {
        Queue {
            radio,
            repairs: VecDeque::new(),
            packets: VecDeque::new(),
            bytes: 0,
            repair_bytes: 0,
            ahead: 0,
            busy: 0,
            dropped: VecDeque::new(),
            repairing: 0,
        }
    }

    /// Goes on as another hop; what waits may be more than it has room for.
    pub(crate) fn set(&mut self, radio: Radio) {
        self.radio = radio;
    }

    /// Everything that waits: repairs first.
    pub(crate) fn into_outputs(self) -> impl Iterator<Item = Output> {
        self.repairs.into_iter().chain(self.packets)
    }

    /// The time that all repairs so far take on the hop, and packets that repairs had to wait for. What waits leaves later by what is added meanwhile. Each packet that is dropped adds a
    /// nanosecond: what waits behind it leaves sooner than was foretold, and this says so without making anybody wait less.
    pub(crate) fn repairing(&self) -> Time {
        self.repairing
    }

    /// When a packet that comes now would leave, or `None` if there is no room for it even without what may be dropped.
    pub(crate) fn admits(&self, now: Time, bytes: usize) -> Option<Time> {
        let mut before = self.bytes;
        let mut oldest = self.packets.iter();
        while !self.has_room(before, bytes) {
            before -= oldest.next()?.packet.len();
        }
        Some(self.busy.max(now) + self.time(before))
    }

    /// Takes a packet that is admitted, or a repair. What has waited longest makes room for the former.
    pub(crate) fn push(&mut self, output: Output, is_repair: bool) {
        let bytes = output.packet.len();
        if is_repair {
            self.repairing += self.time(bytes);
            self.repair_bytes += bytes;
            self.repairs.push_back(output);
        } else {
            while !self.has_room(self.bytes, bytes)
                && let Some(oldest) = self.packets.pop_front()
            {
                self.bytes -= oldest.packet.len();
                self.repairing += 1;
                self.dropped.push_back(oldest);
            }
            self.packets.push_back(output);
        }
        self.bytes += bytes;
    }

    /// Repairs, however many there are, take no more than half of the room.
    fn has_room(&self, waiting: usize, bytes: usize) -> bool {
        let beyond = self.repair_bytes.saturating_sub(self.radio.queue_bytes / 2);
        waiting == 0 || waiting - beyond + bytes <= self.radio.queue_bytes
    }

    /// The next packet that was dropped.
    pub(crate) fn poll_dropped(&mut self) -> Option<Output> {
        self.dropped.pop_front()
    }

    /// The next packet that may go.
    pub(crate) fn pop(&mut self, now: Time) -> Option<Output> {
        if now < self.busy {
            return None;
        }
        let are_first = self.ahead < self.radio.queue_bytes || self.packets.is_empty();
        let repair = match are_first {
            true => self.repairs.pop_front(),
            false => None,
        };
        let is_repair = repair.is_some();
        let output = repair.or_else(|| self.packets.pop_front())?;
        let bytes = output.packet.len();
        self.bytes -= bytes;
        if is_repair {
            self.repair_bytes -= bytes;
            self.ahead += if self.packets.is_empty() { 0 } else { bytes };
        } else {
            self.ahead = self.ahead.saturating_sub(bytes);
            if !self.repairs.is_empty() {
                self.repairing += self.time(bytes);
            }
        }
        // A caller that is a little late does not lower the rate.
        let start = self.busy.max(now.saturating_sub(MS));
        self.busy = start + self.time(bytes);
        Some(output)
    }

    /// When the next packet may go.
    pub(crate) fn next_event(&self) -> Option<Time> {
        (self.bytes > 0).then_some(self.busy)
    }

    pub(crate) fn time(&self, bytes: usize) -> Time {
        wire_time(bytes, self.radio.bits_per_second)
    }
}

/// Nanoseconds that bytes take at a rate.
pub(crate) fn wire_time(bytes: usize, bits_per_second: u64) -> Time {
    let bits = bytes as u128 * 8 * 1_000_000_000;
    let time = bits / u128::from(bits_per_second.max(1));
    Time::try_from(time).unwrap_or(Time::MAX / 4)
}
