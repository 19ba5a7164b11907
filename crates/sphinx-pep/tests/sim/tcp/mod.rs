//! A model of TCP: enough of it to be misled, and nothing that depends on a clock or a kernel.
//!
//! Positions count from 0, which is the SYN; data begins at 1.

mod receiving;
mod sending;

use std::{collections::BTreeMap, net::SocketAddr};

use bytes::Bytes;

use super::End;
use super::common::Segment;

pub(crate) type Time = u64;
pub(crate) const MS: Time = 1_000_000;

const SCALE: u8 = 4;
const RTO_MIN: Time = 200 * MS;
const RTO_MAX: Time = 20_000 * MS;
const DELAYED_ACK: Time = 40 * MS;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) isn: u32,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    /// Detects losses by time (RACK-like) and not only by counting.
    pub(crate) rack: bool,
    pub(crate) segment: usize,
    pub(crate) buffer: usize,
    /// Times at which the application does not read.
    pub(crate) stall: Option<(Time, Time)>,
    pub(crate) active: bool,
    pub(crate) data: Vec<u8>,
    /// The data comes in messages of so many bytes, one at a time, so often; otherwise all at once.
    pub(crate) messages: Option<(usize, Time)>,
    /// Aborts after having received this many bytes.
    pub(crate) reset_after: Option<usize>,
}

impl Settings {
    /// What the application has written by now, and when it goes on.
    pub(crate) fn written(&self, now: Time) -> (usize, Option<Time>) {
        let Some((bytes, every)) = self.messages else {
            return (self.data.len(), None);
        };
        let count = 1 + (now / every) as usize;
        match bytes.saturating_mul(count) {
            written if written < self.data.len() => (written, Some(every * count as Time)),
            _ => (self.data.len(), None),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Opening,
    Open,
    Reset,
}

#[derive(Debug)]
struct Flight {
    start: u64,
    end: u64,
    sent: Time,
    again: bool,
    sacked: bool,
    lost: bool,
}

#[derive(Debug)]
pub(crate) struct Tcp {
    pub(crate) settings: Settings,
    state: State,
    // Sending.
    una: u64,
    next: u64,
    flights: Vec<Flight>,
    window: u64,
    peer_scale: u8,
    cwnd: u64,
    threshold: u64,
    recover: Option<u64>,
    duplicates: u32,
    rtt: Option<(Time, Time)>,
    backoff: u32,
    timer: Option<Time>,
    newest_delivered: Time,
    /// What was sent again, and reports of copies of something else.
    resent: Vec<(u64, u64)>,
    foreign_copies: u64,
    // Receiving.
    peer_isn: u32,
    expected: u64,
    pub(crate) received: Vec<u8>,
    behind: BTreeMap<u64, Vec<u8>>,
    recent: Vec<u64>,
    duplicate: Option<(u64, u64)>,
    read: usize,
    fin: Option<u64>,
    told_window: u64,
    unacknowledged: u32,
    ack_at: Option<Time>,
    last_timestamp: u32,
    out: Vec<Bytes>,
}

impl Tcp {
    pub(crate) fn new(settings: Settings) -> Tcp {
        let segment = settings.segment as u64;
        Tcp {
            state: State::Closed,
            una: 0,
            next: 0,
            flights: Vec::new(),
            window: 1 << 16,
            peer_scale: 0,
            cwnd: 10 * segment,
            threshold: u64::MAX,
            recover: None,
            duplicates: 0,
            rtt: None,
            backoff: 0,
            timer: settings.active.then_some(0),
            newest_delivered: 0,
            resent: Vec::new(),
            foreign_copies: 0,
            peer_isn: 0,
            expected: 0,
            received: Vec::new(),
            behind: BTreeMap::new(),
            recent: Vec::new(),
            duplicate: None,
            read: 0,
            fin: None,
            told_window: 0,
            unacknowledged: 0,
            ack_at: None,
            last_timestamp: 0,
            out: Vec::new(),
            settings,
        }
    }

    /// Position behind the data, where FIN is.
    fn end(&self) -> u64 {
        1 + self.settings.data.len() as u64
    }

    fn reads(&self, now: Time) -> bool {
        self.settings
            .stall
            .is_none_or(|(from, to)| now < from || now >= to)
    }

    fn header(&mut self, now: Time) -> Segment {
        let ack = (self.expected > 0).then(|| self.peer_isn.wrapping_add(self.expected as u32));
        let used = self.received.len() - self.read;
        let window = (self.settings.buffer - used.min(self.settings.buffer)) as u64;
        self.told_window = window;
        (self.unacknowledged, self.ack_at) = (0, None);
        let clock = ((now / MS) as u32).wrapping_add(self.settings.isn);
        Segment {
            ack,
            window: (window >> SCALE).min(u64::from(u16::MAX)) as u16,
            timestamps: self
                .settings
                .timestamps
                .then_some((clock, self.last_timestamp)),
            ..Segment::default()
        }
    }

    fn receive_syn(&mut self, now: Time, segment: &Segment) {
        if self.expected > 0 {
            return self.acknowledge(now);
        }
        self.peer_isn = segment.sequence;
        self.expected = 1;
        self.peer_scale = segment.scale.unwrap_or(0);
        self.settings.sack &= segment.sack_permitted;
        self.last_timestamp = segment.timestamps.map_or(0, |it| it.0);
        match (self.settings.active, segment.ack) {
            (false, None) => {
                self.state = State::Opening;
                self.next = 1;
                self.emit(now, 0, 1, false);
                self.arm(now);
            }
            _ => {
                self.receive_ack(now, segment, 1);
                self.acknowledge(now);
                self.send(now);
            }
        }
    }
}

impl End for Tcp {
    const MAY_HANG: bool = false;

    fn take(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.out)
    }

    fn receive(&mut self, now: Time, packet: &[u8]) {
        let Some(segment) = Segment::read(packet) else {
            return;
        };
        if self.state == State::Reset {
            return;
        }
        let position = |reference: u64, isn: u32, number: u32| {
            let offset = number.wrapping_sub(isn).wrapping_sub(reference as u32) as i32;
            reference as i64 + i64::from(offset)
        };
        if segment.rst {
            let at = position(self.expected, self.peer_isn, segment.sequence);
            if at == self.expected as i64 {
                self.state = State::Reset;
            }
            return;
        }
        if segment.syn {
            return self.receive_syn(now, &segment);
        }
        if self.expected == 0 {
            return;
        }
        let start = position(self.expected, self.peer_isn, segment.sequence);
        if let Some((value, _)) = segment.timestamps
            && start <= self.expected as i64
        {
            self.last_timestamp = value;
        }
        if let Some(ack) = segment.ack {
            let ack = position(self.una, self.settings.isn, ack);
            assert!(ack <= self.next as i64, "acknowledges what was never sent");
            self.receive_ack(now, &segment, ack);
        }
        let length = (segment.payload.len() + usize::from(segment.fin)) as i64;
        if length > 0 {
            self.receive_data(now, &segment, start, length);
        }
        self.read_all(now);
        if self
            .settings
            .reset_after
            .is_some_and(|after| self.received.len() >= after)
        {
            let mut reset = self.header(now);
            reset.sequence = self.settings.isn.wrapping_add(self.next as u32);
            reset.rst = true;
            self.out
                .push(reset.packet(self.settings.local, self.settings.remote));
            self.state = State::Reset;
            return;
        }
        self.send(now);
    }

    fn next_event(&mut self, now: Time) -> Option<Time> {
        let stalled = self.read < self.received.len();
        let wake = self
            .settings
            .stall
            .map(|(_, to)| to)
            .filter(|to| stalled && *to > now);
        let (written, writes) = self.settings.written(now);
        // Once what has been written is sent, or may not be sent, time brings more.
        let writes = writes.filter(|_| self.state == State::Open && self.next > written as u64);
        [self.timer, self.ack_at, wake, writes]
            .into_iter()
            .flatten()
            .min()
    }

    fn timeout(&mut self, now: Time) {
        if self.state == State::Reset {
            (self.timer, self.ack_at) = (None, None);
            return;
        }
        self.read_all(now);
        if self.ack_at.is_some_and(|at| at <= now) {
            self.acknowledge(now);
        }
        if self.timer.is_some_and(|at| at <= now) {
            self.timer = None;
            self.backoff = (self.backoff + 1).min(8);
            if self.state != State::Open {
                // The SYN, or its answer, is sent again.
                if self.state == State::Closed {
                    self.backoff = 0;
                }
                self.state = State::Opening;
                self.next = 1;
                self.emit(now, 0, 1, true);
                self.arm(now);
                return;
            }
            self.threshold = (self.in_flight() / 2).max(2 * self.settings.segment as u64);
            self.cwnd = self.settings.segment as u64;
            self.recover = Some(self.next);
            for flight in &mut self.flights {
                // A receiver may have given up what it reported.
                (flight.lost, flight.sacked) = (true, false);
            }
            if self.flights.is_empty() && self.next < self.end() + 1 {
                // Sends a byte to probe a closed window.
                self.emit(now, self.next, self.next + 1, false);
            }
            self.arm(now);
        }
        self.send(now);
    }

    fn is_done(&self) -> bool {
        self.una == self.end() + 1 && self.fin == Some(self.expected.wrapping_sub(1))
    }

    fn is_reset(&self) -> bool {
        self.state == State::Reset
    }

    fn foreign_copies(&self) -> u64 {
        self.foreign_copies
    }

    fn state(&self) -> String {
        format!(
            "{:?} una {} next {} end {} window {} cwnd {} flights {} | expected {} behind {} fin {:?} \
             timers {:?} {:?}",
            self.state,
            self.una,
            self.next,
            self.end(),
            self.window,
            self.cwnd,
            self.flights.len(),
            self.expected,
            self.behind.len(),
            self.fin,
            self.timer,
            self.ack_at
        )
    }

    fn received_bytes(&self) -> usize {
        self.received.len()
    }

    fn received(self) -> Vec<u8> {
        self.received
    }
}
