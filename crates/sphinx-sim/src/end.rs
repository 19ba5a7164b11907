//! One end: a session and the smallest driver that moves real bytes with it.

mod receiving;
mod sending;
mod spans;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use sphinx_fec::{BlockDecoder, Encoder, RowMaker};
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Config, Event, Job, Nanos, Session, Slot, Tuple};

use self::receiving::{RxSlot, RxStream};
use self::sending::TxStream;
use self::spans::Spans;
use crate::data::Rng;
use crate::datagram::Datagram;
use crate::plan::{Plan, Write};

/// A session and its driver.
pub struct End {
    /// The protocol.
    pub session: Session,
    plan: Plan,
    seed: u64,
    peer_seed: u64,
    rng: Rng,
    recv_window: u64,
    /// Where the network finds this end.
    pub address: SocketAddr,
    /// What it calls itself.
    pub own_address: SocketAddr,
    /// Connection ids that this end answers to.
    pub cids: BTreeSet<ConnectionId>,
    /// Those of the peer that it has used, in order.
    pub cids_used: Vec<ConnectionId>,
    /// When its path changed, and to what.
    pub paths: Vec<(Nanos, Tuple)>,

    writes: VecDeque<Write>,
    tx: BTreeMap<u16, TxStream>,
    tx_turn: u16,
    tx_slots: Vec<Vec<u8>>,
    tx_free: Vec<Slot>,
    encoder: Encoder,
    rows: RowMaker,
    last_pn: Option<u64>,

    rx: BTreeMap<u16, RxStream>,
    rx_slots: Vec<RxSlot>,
    rx_held: u64,
    /// The most memory of blocks received and not taken, as the window counts it.
    pub rx_held_max: u64,
    parts: Vec<Vec<u8>>,
    decoder: BlockDecoder,
    thorough_decoder: BlockDecoder,
    jobs: BTreeMap<(Nanos, u64), Job>,
    to_release: VecDeque<(Nanos, Slot)>,
    reader_free_at: Nanos,
    spans: Spans,
    seen: BTreeSet<u64>,
    largest: Option<u64>,

    /// IP bytes of all datagrams that it sent.
    pub ip_bytes_sent: u64,
    /// Bytes delivered in order, of all streams.
    pub bytes_received: u64,
    /// (arrival, stream, offset, length) of every complete block.
    pub blocks_received: Vec<(Nanos, u16, u64, u32)>,
    /// What else the session said: that it ended, and why.
    pub events: Vec<(Nanos, Event)>,
}

impl End {
    pub(crate) fn new(
        config: Config,
        address: SocketAddr,
        plan: Plan,
        seed: u64,
        peer_seed: u64,
    ) -> Self {
        let mut writes = plan.writes.clone();
        writes.sort_by_key(|w| w.at);
        Self {
            recv_window: config.recv_window,
            address,
            own_address: address,
            cids: BTreeSet::from([config.local_cid]),
            cids_used: Vec::new(),
            paths: Vec::new(),
            session: Session::new(config, 0),
            writes: writes.into(),
            plan,
            seed,
            peer_seed,
            rng: Rng::new(seed ^ 0x6a6f_6273),
            tx: BTreeMap::new(),
            tx_turn: 0,
            tx_slots: Vec::new(),
            tx_free: Vec::new(),
            encoder: Encoder::new(),
            rows: RowMaker::new(),
            last_pn: None,
            rx: BTreeMap::new(),
            rx_slots: Vec::new(),
            rx_held: 0,
            rx_held_max: 0,
            parts: vec![Vec::new(); 64],
            decoder: BlockDecoder::new(),
            thorough_decoder: BlockDecoder::new().maximum_likelihood(),
            jobs: BTreeMap::new(),
            to_release: VecDeque::new(),
            reader_free_at: 0,
            spans: Spans::new(),
            seen: BTreeSet::new(),
            largest: None,
            ip_bytes_sent: 0,
            bytes_received: 0,
            blocks_received: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The next time at which this end has something to do.
    pub(crate) fn next_event(&mut self) -> Option<Nanos> {
        let timers = [
            self.session.poll_timeout(),
            self.writes.front().map(|w| w.at),
            self.jobs.first_key_value().map(|((at, _), _)| *at),
            self.to_release.front().map(|r| r.0),
        ];
        timers.into_iter().flatten().min()
    }

    /// Whether everything written so far was cut into blocks and all of it arrived.
    pub fn all_delivered(&self) -> bool {
        self.writes.is_empty()
            && self
                .tx
                .iter()
                .all(|(id, tx)| tx.messages.is_empty() && self.session.stream_delivered(*id))
    }

    /// Whether the stream has arrived to its end.
    pub fn stream_ended(&self, stream: u16) -> bool {
        self.rx.get(&stream).is_some_and(|rx| rx.ended)
    }

    /// Bytes cut into blocks so far.
    pub fn bytes_written(&self) -> u64 {
        self.tx.values().map(|tx| tx.offset).sum()
    }

    /// Streams that this end sends on.
    pub fn streams(&self) -> impl Iterator<Item = u16> + '_ {
        self.tx.keys().copied()
    }

    /// When each of `count` messages of `len` bytes on stream 0 had arrived whole.
    pub fn message_arrivals(&self, len: u64, count: u64) -> Vec<Option<Nanos>> {
        let mut messages = vec![(0, 0); count as usize];
        for &(at, _, offset, bytes) in self.blocks_received.iter().filter(|block| block.1 == 0) {
            let (last, arrived) = &mut messages[(offset / len) as usize];
            *last = at;
            *arrived += u64::from(bytes);
        }
        let whole = |(last, arrived)| (arrived == len).then_some(last);
        messages.into_iter().map(whole).collect()
    }

    /// Memory of blocks handed over and not delivered, as the window counts it.
    pub fn tx_held(&self) -> u64 {
        let blocks = self.tx_slots.iter().filter(|block| !block.is_empty());
        blocks.map(|block| block.len() as u64 + 512).sum()
    }

    /// Send slots in use.
    pub(crate) fn tx_slots_in_use(&self) -> usize {
        self.tx_slots.len() - self.tx_free.len()
    }

    /// Lets this end do what is due and collects what it sends.
    pub(crate) fn drive(&mut self, now: Nanos, out: &mut Vec<Datagram>) {
        if self.session.poll_timeout().is_some_and(|at| at <= now) {
            self.session.handle_timeout(now);
        }
        for _ in 0..self.session.challenges_wanted() {
            let random = self.rng.below(u64::MAX).to_be_bytes();
            self.session.add_challenge(random);
        }
        for _ in 0..self.session.connection_ids_wanted() {
            let cid = ConnectionId::new(self.rng.below(u64::MAX).to_be_bytes());
            let cid = cid.expect("not zero");
            self.cids.insert(cid);
            self.session.add_connection_id(cid);
        }
        while let Some(write) = self.writes.pop_front_if(|w| w.at <= now) {
            let tx = self.tx.entry(write.stream).or_default();
            tx.messages.push_back((write.len, write.end_of_stream));
        }
        while let Some(job) = self.jobs.first_entry().filter(|job| job.key().0 <= now) {
            let job = job.remove();
            self.decode(job);
            self.session.job_done(job.id);
        }
        while let Some((_, slot)) = self.to_release.pop_front_if(|r| r.0 <= now) {
            self.release(now, slot);
        }
        loop {
            while let Some(job) = self.session.poll_job() {
                self.start_job(now, job);
            }
            while let Some(event) = self.session.poll_event() {
                self.on_event(now, event);
            }
            self.slice();
            let before = out.len();
            while let Some(transmit) = self.session.poll_transmit(now) {
                let datagram = self.seal(transmit);
                out.push(datagram);
            }
            if out.len() == before {
                break;
            }
        }
    }

    fn on_event(&mut self, now: Nanos, event: Event) {
        match event {
            Event::BlockDelivered { slot, .. } => {
                self.tx_slots[slot.0 as usize] = Vec::new();
                self.tx_free.push(slot);
            }
            Event::BlockComplete {
                stream,
                block,
                slot,
            } => {
                self.on_block(now, stream, block, slot);
            }
            Event::PathChanged(tuple) => self.paths.push((now, tuple)),
            Event::ConnectionIdRetired(cid) => {
                assert!(self.cids.remove(&cid), "an id of this end");
            }
            other => self.events.push((now, other)),
        }
    }
}
