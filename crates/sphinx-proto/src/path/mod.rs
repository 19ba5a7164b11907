//! The path: packet numbers that go on whatever happens, and what is known of the addresses in use.
//!
//! | what | lives as long as | here |
//! | --- | --- | --- |
//! | packet numbers, what was sent, what arrived | the path | [`PacketSpace`] |
//! | round trip, losses, rate, MTU, marks, probes | the pair of addresses | [`Address`] |
//! | candidates for other addresses | until they are validated or forgotten | [`Validation`] |
//!
//! A peer that moves keeps the path; its [`Address`] is replaced as one value (RFC 9000 §9.4).

mod acks;
mod address;
mod arrivals;
mod ecn;
mod fragments;
mod gathering;
mod monitor;
mod mtu;
mod pacer;
mod pauses;
mod reordering;
mod rtt;
mod sent;
mod settling;
mod skips;
mod space;
mod stock;
#[cfg(test)]
mod tests;
mod timer;
mod validation;

use crate::blocks::{EPSILON, Horizon};
use crate::cc::{CcKind, RateControl};
use crate::config::{Config, PathMemory};
use crate::receiver::Receiver;
use crate::session::BASE_DATAGRAM;
use crate::types::{PacketMeta, Tuple};
use crate::wire::SymbolId;
use crate::{BlockId, Nanos, PacketNumber, PathId, Time};

use acks::Acks;
pub(crate) use acks::{Marks, SACK_DELAY_MAX};
use address::{Address, Settings};
pub use ecn::{EcnMode, EcnUse};
pub(crate) use fragments::fragments_for;
pub use monitor::Losses;
pub(crate) use monitor::Monitor;
pub use mtu::mtu_candidates;
pub(crate) use pacer::Pacer;
pub(crate) use rtt::Rtt;
pub(crate) use sent::Carried;
use settling::Scratch;
pub(crate) use space::{Arrived, Contents, PacketSpace, Riding};
use stock::Stock;
pub(crate) use timer::Probes;
pub(crate) use validation::PathPacket;
use validation::{Validated, Validation};

/// The id of the only path that a session has.
pub(crate) const PATH: PathId = PathId::FIRST;
/// A sender whose packets are further apart than this is thin (Redundant Data Bundling, `tcp_thin_dpifl_itt_lower_bound`).
const THIN_INTERVAL: Nanos = 10_000_000;

/// How long the newest packet that a SACK acknowledges was on its way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Round trip without the peer's delay.
    pub(crate) rtt: Nanos,
    /// From the sender's clock to the receiver's, which have no origin in common: differences matter.
    pub(crate) one_way: i64,
}

/// A path of a session.
pub(crate) struct Path {
    /// Some packet numbers are.
    leaves_numbers_out: bool,
    id: PathId,
    /// Until the peer has answered from there, nothing but challenges and their answers leaves.
    is_validated: bool,
    /// Since when it does not answer although others do.
    suspect_since: Option<Time>,
    settings: Settings,
    space: PacketSpace,
    address: Address,
    validation: Validation,
    stock: Stock,
    scratch: Scratch,
    /// Losses that turned out to be late packets.
    losses_spurious: u64,
    /// Times that the path MTU fell.
    mtu_falls: u64,
    /// What the latest SACK said of delays.
    reading: Option<Reading>,
    /// Of a quiet session: from when on no larger MTU is looked for, since nothing is carried that would need it.
    rests_from: Option<Time>,
}

impl Path {
    pub(crate) fn new(config: &Config, now: Time) -> Self {
        let settings = Settings::new(config);
        Self {
            // The paper's receiver counts losses by the numbers that are missing.
            leaves_numbers_out: config.paper.is_none(),
            id: PATH,
            is_validated: true,
            suspect_since: None,
            address: Address::first(&settings, config, now),
            settings,
            space: PacketSpace::new(now),
            validation: Validation::default(),
            stock: Stock::default(),
            scratch: Scratch::default(),
            losses_spurious: 0,
            mtu_falls: 0,
            reading: None,
            rests_from: config.quiet.then_some(now),
        }
    }

    /// Another path, on which packets travel between these addresses once they are validated. `random` is for its first challenge;
    /// `chosen`: this end begins it, and asks until there is an answer.
    pub(crate) fn further(
        &self,
        id: PathId,
        tuple: Tuple,
        now: Time,
        random: [u8; 8],
        chosen: bool,
    ) -> Self {
        let settings = self.settings.clone();
        let mut validation = Validation::default();
        let mut stock = Stock::default();
        if chosen {
            validation.choose(now, tuple, random);
        } else {
            stock.add(random);
        }
        Self {
            id,
            leaves_numbers_out: self.leaves_numbers_out,
            is_validated: false,
            suspect_since: None,
            address: Address::further(&settings, tuple, self.rtt().smoothed(), now),
            settings,
            space: PacketSpace::new(now),
            validation,
            stock,
            scratch: Scratch::default(),
            losses_spurious: 0,
            mtu_falls: 0,
            reading: None,
            rests_from: self.rests_from,
        }
    }

    /// A random value for another path's first challenge.
    pub(crate) fn take_random(&mut self) -> Option<[u8; 8]> {
        self.stock.take()
    }

    // ---- what is known --------------------------------------------------------------------------

    pub(crate) fn id(&self) -> PathId {
        self.id
    }

    /// Whether the peer has answered from there.
    pub(crate) fn is_validated(&self) -> bool {
        self.is_validated
    }

    /// Whether the path does not answer although others do.
    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect_since.is_some()
    }

    /// When it becomes suspect, if others can take over.
    pub(crate) fn suspect_at(&self) -> Option<Time> {
        let wait = self.probe_wait();
        (self.space.sent.packets_in_flight() > 0).then(|| self.address.timer.suspect_at(wait))
    }

    /// When the peer is to be asked on another path what has arrived on this one, so that its answer is there by the time at which this one
    /// becomes suspect.
    pub(crate) fn ask_elsewhere_at(&self) -> Option<Time> {
        let oldest = self.space.sent.oldest_in_flight()?;
        let rtt = &self.address.rtt;
        // One SACK that is lost is nothing special.
        let late = 2 * acks::sack_delay(rtt.smoothed()) + rtt.variance();
        self.address
            .timer
            .ask_elsewhere_at(oldest, rtt.smoothed(), late)
    }

    /// The peer has been asked about this path on another one.
    pub(crate) fn on_asked_elsewhere(&mut self, now: Time) {
        self.address.timer.on_asked_elsewhere(now);
    }

    /// Nothing has come back for too long.
    pub(crate) fn suspect(&mut self, now: Time) {
        self.suspect_since.get_or_insert(now);
    }

    /// Whether packets are in flight.
    pub(crate) fn has_in_flight(&self) -> bool {
        self.space.sent.packets_in_flight() > 0
    }

    /// Where everything but challenges and their answers goes.
    pub(crate) fn tuple(&self) -> Tuple {
        self.address.tuple
    }

    pub(crate) fn rtt(&self) -> &Rtt {
        &self.address.rtt
    }

    /// What the latest SACK said of delays, once.
    pub(crate) fn take_reading(&mut self) -> Option<Reading> {
        self.reading.take()
    }

    pub(crate) fn monitor(&self) -> &Monitor {
        &self.address.monitor
    }

    pub(crate) fn cc(&self) -> &dyn RateControl {
        &self.address.cc
    }

    /// Largest UDP payload that the path carries, as far as is known.
    pub(crate) fn mtu(&self) -> u16 {
        self.address.mtu.current()
    }

    /// Next packet number.
    pub(crate) fn next_pn(&self) -> PacketNumber {
        self.space.sent.next_pn()
    }

    /// Whether so few packets of new data are under way that their sender has little to send, and packets are known to be lost
    /// (`docs/protocol.md` §5.5). Repairs do not count: else those that leave alone would keep the next ones from riding.
    pub(crate) fn is_thin(&self) -> bool {
        let in_flight = self.space.sent.sources_in_flight();
        let busy = in_flight.saturating_mul(THIN_INTERVAL);
        busy < self.address.rtt.smoothed() && self.address.monitor.knows_loss()
    }

    /// Largest packet number that the peer has acknowledged.
    pub(crate) fn largest_acked(&self) -> Option<PacketNumber> {
        self.space.sent.largest_acked()
    }

    pub(crate) fn losses_spurious(&self) -> u64 {
        self.losses_spurious
    }

    pub(crate) fn mtu_falls(&self) -> u64 {
        self.mtu_falls
    }

    /// What is worth remembering; `None` until rate and losses have been measured.
    pub(crate) fn memory(&self) -> Option<PathMemory> {
        Some(PathMemory {
            rate: self.address.cc.measured_rate()?,
            rtt: self.address.cc.min_rtt()?,
            plr: self.address.monitor.worth_remembering()?,
            datagram_len: self.mtu(),
        })
    }

    /// From now on no more than this is sent, IP bytes per second, whatever rate control allows.
    pub(crate) fn set_limit(&mut self, limit: Option<u64>) {
        self.settings.set_limit(limit);
        self.address.cc.set_limit(limit);
    }

    /// From now on the window grows by so many times of what it would alone.
    pub(crate) fn set_gain(&mut self, gain: f64) {
        self.address.cc.set_gain(gain);
    }

    /// From now on this controls the rate, beginning with what has been found out so far.
    pub(crate) fn set_cc(&mut self, now: Time, kind: CcKind) {
        if self.settings.set_cc(kind) {
            let from = (self.next_pn(), self.packet_bytes());
            self.address
                .change_rate_control(&self.settings, from, false, now);
        }
    }

    // ---- sending ---------------------------------------------------------------------------------

    /// Whether rate control allows another packet now.
    pub(crate) fn is_open(&mut self, now: Time) -> bool {
        self.has_window() && {
            let Address { pacer, cc, .. } = &mut self.address;
            pacer.ready(now, || cc.pacing_rate())
        }
    }

    fn has_window(&self) -> bool {
        self.address.bytes_in_flight < self.address.cc.cwnd()
    }

    /// When the pacer lets packets leave, if the window does. With a `backlog` none of them is awaited more than others: once the
    /// rate is found, they may be more at a time.
    pub(crate) fn next_departure(&self, backlog: bool) -> Option<Time> {
        let rate = self.address.cc.pacing_rate();
        let patient = backlog && !self.address.cc.is_starting();
        self.has_window()
            .then(|| self.address.pacer.next(rate, patient))
    }

    /// There is nothing to send: pacing rests.
    pub(crate) fn rest(&mut self) {
        self.address.pacer.rest();
    }

    /// Rate control would have allowed another packet.
    pub(crate) fn on_app_limited(&mut self, now: Time) {
        self.address.cc.on_app_limited(now);
    }

    /// Packets sent since `from` left later than that.
    pub(crate) fn left_late(&mut self, from: Time) {
        self.address.cc.on_late(from);
    }

    /// A packet of symbols leaves: it takes its time on the path.
    pub(crate) fn pace(&mut self, ip_bytes: u32) {
        self.address.pacer.spent(u64::from(ip_bytes));
    }

    /// Packet [`Self::next_pn`] carries fragment `after` of `count`.
    pub(crate) fn note_fragment(&mut self, after: u32, count: u8) {
        self.space.sent_fragment(after, count);
    }

    /// Packet [`Self::next_pn`] carries these symbols behind its own.
    pub(crate) fn note_riders(&mut self, riders: Box<[Riding]>) {
        self.space.sent_riders(riders);
    }

    /// Packet [`Self::next_pn`] leaves, which is to be acknowledged. The number behind it may be left out.
    #[inline]
    pub(crate) fn record(&mut self, now: Time, ip_bytes: u32, carried: Carried) {
        let pn = self.next_pn();
        self.space.sent.record(now, ip_bytes, carried, true);
        let latest = std::mem::replace(&mut self.space.last_sent, now);
        let span = 2 * self.address.rtt.smoothed();
        self.space.pauses.note(now, latest, span);
        if self.space.sent.packets_in_flight() == 1 {
            self.address.timer.on_news(now);
        }
        if carried.counts() {
            self.address.mtu.on_sent(ip_bytes);
            self.address.bytes_in_flight += u64::from(ip_bytes);
            let in_flight = self.address.bytes_in_flight;
            self.address.cc.on_sent(now, pn, ip_bytes, in_flight);
        }
        self.leave_number_out();
    }

    /// As many packets leave as may now, at most so many. They carry source symbols of this block, one behind the other from this one on, and take their time on the path. Their
    /// numbers follow each other: the last one may be before a number that is left out.
    pub(crate) fn record_run(
        &mut self,
        now: Time,
        ip_bytes: u32,
        (block, index): (BlockId, u16),
        most: u16,
    ) -> u16 {
        let first = self.next_pn();
        let mut count = 0;
        while count < most && self.next_pn() - first == u64::from(count) && self.is_open(now) {
            let symbol = SymbolId::Source(index + count);
            let carried = Carried::Symbol {
                block,
                round: 0,
                symbol,
            };
            self.record(now, ip_bytes, carried);
            self.pace(ip_bytes);
            count += 1;
        }
        count
    }

    /// Packet [`Self::next_pn`] leaves, which is not to be acknowledged. The number behind it may be left out.
    pub(crate) fn record_unacknowledged(
        &mut self,
        now: Time,
        ip_bytes: u32,
        carried: Carried,
        contents: &mut impl Contents,
    ) {
        self.space.sent.record(now, ip_bytes, carried, false);
        // An end that only receives would keep all its SACKs.
        self.forget_settled(now, contents);
        self.leave_number_out();
    }

    fn leave_number_out(&mut self) {
        if self.leaves_numbers_out {
            self.space.sent.skip(&mut self.stock);
        }
    }

    /// A packet number that was left out and that the peer is to know of.
    pub(crate) fn poll_spent_skip(&mut self) -> Option<PacketNumber> {
        let spent = self.space.sent.poll_spent_skip()?;
        self.space.sent.draw_skip(&mut self.stock);
        Some(spent)
    }

    // ---- the peer's packets ----------------------------------------------------------------------

    /// What has arrived.
    pub(crate) fn acks(&self) -> &Acks {
        &self.space.acks
    }

    /// A packet has opened; whether it is to be acknowledged, and carries the last-of-flight mark. `true`: its number
    /// is above all others.
    #[inline]
    pub(crate) fn on_packet(&mut self, meta: &PacketMeta, marks: Marks) -> bool {
        let acks = &mut self.space.acks;
        let newest = acks.largest().is_none_or(|pn| meta.packet_number > pn);
        let rtt = marks.told_on.unwrap_or(self.address.rtt.smoothed());
        acks.on_packet(meta, marks, rtt);
        if marks.eliciting {
            self.space.gathering.on_packet(meta.received_at);
        }
        self.on_packet_from(
            meta.now,
            (meta.tuple, meta.packet_number),
            meta.datagram_len,
            newest,
        );
        newest
    }

    /// So many more packets have opened, which came right behind this one: with the numbers behind its own, which is above all others, at the same time, from the same place,
    /// with the same marks. All is as if each had been told of.
    pub(crate) fn on_followers(&mut self, meta: &PacketMeta, marks: Marks, count: u64) {
        let rtt = marks.told_on.unwrap_or(self.address.rtt.smoothed());
        let acks = &mut self.space.acks;
        acks.on_followers(meta, marks, (rtt, count));
        if marks.eliciting {
            self.space.gathering.on_followers(count);
        }
        if self.is_validated && self.address.tuple.is_same(&meta.tuple) {
            // The first packet of the run has shown that the peer is there.
            return;
        }
        for number in 1..=count {
            let place = (meta.tuple, meta.packet_number.saturating_add(number));
            self.on_packet_from(meta.now, place, meta.datagram_len, true);
        }
    }

    /// Until when packets may gather that are about to arrive, if they do so fast enough. The block of which the latest one was
    /// lacks so many `symbols`.
    pub(crate) fn gather_until(&self, now: Time, symbols: Option<u32>) -> Option<Time> {
        let acks = &self.space.acks;
        if acks.flight_is_over() {
            // What comes next begins a message, which is not to wait.
            return None;
        }
        let (rtt, packets) = (self.address.rtt.smoothed(), acks.packets_per_sack());
        self.space.gathering.until(now, rtt, (packets, symbols))
    }

    /// The peer says that no packet has this number.
    pub(crate) fn on_skipped(&mut self, packet_number: PacketNumber) {
        self.space.acks.on_skipped(packet_number);
    }

    /// There are news that are worth a SACK at once.
    pub(crate) fn want_sack(&mut self, now: Time) {
        self.space.acks.want_sack(now);
    }

    /// Writes BLOCKS and SACK frames into `out`, at most `room` bytes.
    pub(crate) fn write_feedback(
        &mut self,
        now: Time,
        room: usize,
        receiver: &mut Receiver,
        out: &mut Vec<u8>,
    ) {
        let budget = (now, receiver.streams().window().credit(), room);
        let blocks = |limit, flight_over, out: &mut Vec<u8>| {
            receiver.write_blocks(limit, flight_over, out);
        };
        self.space.acks.write(budget, self.id, out, blocks);
    }

    /// Writes the SACK once more into `out`, for another path than this one: at most `room` bytes.
    pub(crate) fn write_sack_again(
        &mut self,
        now: Time,
        room: usize,
        receiver: &Receiver,
        out: &mut Vec<u8>,
    ) {
        let budget = (now, receiver.streams().window().credit(), room);
        self.space.acks.write_again(budget, self.id, out);
    }

    /// The ECN field of the next packet.
    pub(crate) fn codepoint(&self) -> u8 {
        self.address.ecn.codepoint(self.address.cc.can_scale())
    }

    /// What is in use of ECN, and how many packets the peer has received with a mark.
    pub(crate) fn ecn(&self) -> (EcnUse, u64) {
        let can_scale = self.address.cc.can_scale();
        (self.address.ecn.in_use(can_scale), self.space.ecn.marked())
    }

    /// The peer has received so many packets with ECT(1).
    pub(crate) fn on_ect1(&mut self, count: u64) {
        self.space.ecn.on_ect1(count);
    }

    // ---- timers ----------------------------------------------------------------------------------

    /// Present probe timeout without backoff.
    pub(crate) fn probe_timeout(&self) -> Nanos {
        // The peer waits as long with its SACKs as this end does.
        let rtt = &self.address.rtt;
        rtt.pto(acks::sack_delay(rtt.smoothed()))
    }

    /// How long a symbol's fate may stay unknown; longer the longer nothing is heard.
    pub(crate) fn probe_wait(&self) -> Nanos {
        let pto = self.probe_timeout();
        self.address.timer.wait(pto, &self.address.monitor)
    }

    /// What is left of the time of datagrams is measured by this.
    pub(crate) fn horizon(&self, now: Time) -> Horizon {
        let rtt = &self.address.rtt;
        let pause = now.saturating_sub(self.space.last_sent);
        let pause = pause.max(self.space.pauses.longest());
        let behind = packets_behind(self.address.monitor.plr());
        let shown = rtt.smoothed().saturating_add(behind * pause);
        Horizon {
            now,
            rtt: rtt.smoothed(),
            loss_after: rtt.loss_delay().max(shown) + acks::sack_delay(rtt.smoothed()),
        }
    }

    /// When a packet will count as lost by time.
    pub(crate) fn loss_deadline(&self) -> Option<Time> {
        self.space.sent.loss_deadline()
    }

    /// When a probe is due. `waiting`: something waits for the peer although nothing can be sent.
    pub(crate) fn probe_deadline(&self, waiting: bool) -> Option<Time> {
        if self.space.sent.packets_in_flight() == 0 && !waiting {
            return None;
        }
        let wait = self.probe_wait();
        Some(self.address.timer.deadline(self.space.last_sent, wait))
    }

    /// The probe timer has run out.
    pub(crate) fn on_probe_timeout(&mut self, now: Time) {
        let pto = self.probe_timeout();
        if self.address.timer.on_timeout(now, pto) {
            self.address.cc.on_persistent_loss(now);
            self.address.ecn.on_silence(self.space.sent.next_pn());
        }
    }

    /// How many packets the present probe timeout sends.
    pub(crate) fn probes(&self) -> Probes {
        self.address.timer.probes(&self.address.monitor)
    }

    // ---- addresses -------------------------------------------------------------------------------

    fn on_packet_from(
        &mut self,
        now: Time,
        place: (Tuple, PacketNumber),
        len: usize,
        newest: bool,
    ) {
        let tuple = place.0;
        let current = &mut self.address.tuple;
        if !self.is_validated || !current.is_same(&tuple) {
            let random = &mut self.stock;
            self.validation.on_packet(now, place, len, newest, random);
            if !self.is_validated {
                self.validation.await_answers();
            }
            return;
        }
        if newest {
            self.validation.on_packet_from_peer(current);
            current.local_ip = tuple.local_ip.or(current.local_ip);
        }
    }

    /// A packet that had opened before has come again, from `tuple`.
    pub(crate) fn on_replay(
        &mut self,
        now: Time,
        tuple: Tuple,
        packet_number: PacketNumber,
        len: usize,
    ) {
        if !self.is_validated {
            // There is no place yet that the peer could be at home at.
            return;
        }
        let present = (&self.address.tuple, self.probe_timeout());
        let (place, random) = ((tuple, packet_number), &mut self.stock);
        self.validation.on_replay(now, place, len, present, random);
    }

    /// The peer challenges this end.
    pub(crate) fn on_challenge(&mut self, tuple: Tuple, challenge: [u8; 8], len: usize) {
        self.validation.on_challenge(tuple, challenge, len);
    }

    /// An answer to a challenge came from `tuple`; whether the peer is found there now.
    pub(crate) fn on_response(&mut self, now: Time, tuple: Tuple, answer: [u8; 8]) -> bool {
        let present = (self.address.tuple, self.probe_timeout());
        let validated = self.validation.on_response(now, tuple, answer, present);
        self.move_to(now, validated)
    }

    /// Whether the peer is found elsewhere now, since it does not answer from where it was.
    pub(crate) fn poll_moved(&mut self, now: Time) -> bool {
        let validated = self.validation.poll_proven(now, self.address.tuple);
        self.move_to(now, validated)
    }

    fn move_to(&mut self, now: Time, validated: Option<Validated>) -> bool {
        let Some(Validated { tuple, round_trip }) = validated else {
            return false;
        };
        if std::mem::replace(&mut self.is_validated, true) && self.address.tuple.same_hosts(&tuple)
        {
            // A NAT has changed its mapping.
            self.address.tuple = tuple;
        } else {
            let since = (self.next_pn(), round_trip);
            self.address = self.address.successor(&self.settings, tuple, since, now);
        }
        true
    }

    /// An answer to the peer's challenge.
    pub(crate) fn poll_response(&mut self) -> Option<PathPacket> {
        self.validation.poll_response(usize::from(BASE_DATAGRAM))
    }

    /// A copy of a challenge that is due.
    pub(crate) fn poll_challenge(&mut self, now: Time) -> Option<PathPacket> {
        let pto = self.probe_timeout();
        let len_max = usize::from(BASE_DATAGRAM);
        self.validation.poll_challenge(now, pto, len_max)
    }

    /// When [`Self::poll_challenge`] has something to do.
    pub(crate) fn challenge_timeout(&self) -> Option<Time> {
        self.validation.timeout()
    }

    /// The peer is found there, as `config` says, and knows nothing of what has left: that counts as lost, which says nothing about the path.
    pub(crate) fn begin_again(&mut self, config: &Config, now: Time, contents: &mut impl Contents) {
        self.settings = self.settings.again(config);
        self.address = self
            .address
            .again(&self.settings, config, self.next_pn(), now);
        self.give_up_flight(now, contents);
    }

    // ---- randomness ------------------------------------------------------------------------------

    /// How many random values are to be supplied.
    pub(crate) fn random_wanted(&self) -> usize {
        self.stock.wanted()
    }

    /// Eight bytes that nobody can guess.
    pub(crate) fn add_random(&mut self, random: [u8; 8]) {
        self.stock.add(random);
        self.space.sent.draw_skip(&mut self.stock);
    }

    // ---- path MTU --------------------------------------------------------------------------------

    /// UDP payload of a path MTU probe that is due.
    pub(crate) fn poll_mtu_probe(&mut self, now: Time) -> Option<u16> {
        if self.rests_from.is_some_and(|from| now > from) {
            // What is due waits until the path is used again; as long as it does not, nobody is woken for it.
            self.address.mtu.put_off(now);
            return None;
        }
        let rtt = self.address.rtt.smoothed();
        self.address.mtu.poll(now, rtt)
    }

    /// Whether, as the path is in use, a path MTU probe is due, or is once more has left.
    pub(crate) fn may_probe_mtu(&self, now: Time) -> bool {
        self.address.mtu.may_be_due(now)
    }

    /// When [`Self::poll_mtu_probe`] has something to do.
    pub(crate) fn mtu_timeout(&self) -> Option<Time> {
        let at = self.address.mtu.timeout()?;
        self.rests_from.is_none_or(|from| at <= from).then_some(at)
    }

    /// The path carries symbols, sent or received.
    pub(crate) fn note_use(&mut self, now: Time) {
        if let Some(from) = &mut self.rests_from {
            *from = now + REST_AFTER;
        }
    }

    /// The operating system refused a UDP payload of `size` as too large.
    pub(crate) fn datagram_too_large(&mut self, now: Time, size: usize) {
        let size = u16::try_from(size).unwrap_or(u16::MAX);
        let before = self.mtu();
        self.address.mtu.too_large(now, size);
        self.mtu_falls += u64::from(self.mtu() < before);
        self.tell_packet_size();
    }
}

/// A path that has carried no symbol for so long is at rest.
const REST_AFTER: Nanos = 3_000_000_000;

/// Of so many packets behind one that is lost at least one arrives: the probability that all are lost is at most [`EPSILON`].
fn packets_behind(plr: f64) -> u64 {
    let plr = plr.clamp(EPSILON, 0.5);
    ((EPSILON / plr).ln() / plr.ln()).ceil().max(1.0) as u64
}
