//! RDB, redundant data bundling: thin streams repeat what is not acknowledged yet in the room that their next packet has, so that a loss
//! costs one message's interval and not a round trip (rules in `docs/rdb.md`, whose section numbers comments give).
//!
//! `unacked` knows what is in flight, `copies` whom a D-SACK is for, `length` what the path carries, `response` slows down the sender where
//! it should, `runs` knows how many are lost in a row, `shared` is for all flows together.

mod copies;
mod length;
mod response;
mod runs;
mod shared;
mod unacked;

use std::net::IpAddr;

use bytes::Bytes;
use serde::Serialize;

pub use self::response::Slowed;
pub(crate) use self::shared::Shared;
use self::{
    copies::Copies,
    length::Length,
    response::{Responding, Situation},
    unacked::{Sent, Unacked},
};
use crate::{Cause, MS, Output, Side, Time, segment::Segment, sequence::nearest, stats::Counts};

/// §3: copies go along for so long after a sign of loss.
const ACTIVE_NS: Time = 60_000 * MS;
/// §4: no sender waits for less, besides a round trip, before it sends again by time (Linux; RFC 6298 has a second).
const REPEATS_AFTER_NS: Time = 200 * MS;
/// Longest payload, in bytes, for a peer that does not say in its SYN what it takes (RFC 9293).
const MSS_DEFAULT: u16 = 536;
/// Most ranges that are remembered as lost, in case they turn out to have been overtaken.
const JUDGED_MAX: usize = 16;

/// When copies of earlier segments go along with a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// For a minute after a sign of loss, in the flow or of another one to the same host.
    #[default]
    Auto,
    /// Always, as in the paper.
    Paper,
}

/// Which streams count as thin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Thin {
    /// Those with fewer packets in flight than so many intervals ([`Rdb::dpifl_itt_ns`]) are in a round trip.
    #[default]
    Dpifl,
    /// Streams with at most so many packets in flight.
    Spifl(u32),
    /// All streams.
    Always,
}

/// How a sender is slowed down for losses that it did not see, at most once in a round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// `Ecn` where it was negotiated, else `Window`.
    #[default]
    Auto,
    /// By ECE, where ECN (RFC 3168) was negotiated.
    Ecn,
    /// By a smaller window for a round trip: two segments, or half of what is in flight if that is more.
    Window,
    /// The sender is not slowed down.
    None,
}

/// What is done for thin streams. Names are those of the published kernel patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rdb {
    /// When copies of earlier segments go along with a new one.
    pub mode: Mode,
    /// Which streams count as thin.
    pub thin: Thin,
    /// The shortest interval between messages of a thin stream, in nanoseconds; at least 10 ms.
    pub dpifl_itt_ns: Time,
    /// Earlier segments in a packet; 0 for as many as fit. With [`Mode::Auto`], as many as are usually lost in a row on the way to that host,
    /// if these are more.
    pub max_packets: u32,
    /// Longest payload of a packet with copies, in bytes; 0 for what the peer takes.
    pub max_bytes: usize,
    /// What is done about losses that the sender did not see.
    pub response: Response,
    /// Copied bytes of a flow, in percent of its own.
    pub extra_percent: u32,
    /// Copied bytes of all flows together, in bits per second.
    pub max_extra: Option<u64>,
}

/// The shortest [`Rdb::dpifl_itt_ns`].
pub const ITT_NS_MIN: Time = 10 * MS;

impl Default for Rdb {
    fn default() -> Rdb {
        Rdb {
            mode: Mode::default(),
            thin: Thin::default(),
            dpifl_itt_ns: ITT_NS_MIN,
            max_packets: 1,
            max_bytes: 0,
            response: Response::default(),
            extra_percent: 300,
            max_extra: None,
        }
    }
}

/// Why a new segment went without copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Alone {
    /// The receiver already has the data before it.
    Arrived,
    /// The copies of this flow, or of all, are too many already.
    Budget,
    /// There was no sign of loss for a minute.
    Clean,
    /// Nothing was in flight.
    First,
    /// It, or what comes before it, is as long as a segment may be.
    Full,
    /// It has options or flags that are not understood, or ends the stream.
    Marked,
    /// The stream is not thin.
    Thick,
    /// The data before it did not pass this agent.
    Unseen,
    /// The receiver's window is closed.
    Window,
}

/// What a flow begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Position of the sender's first byte.
    pub(crate) first: u64,
    /// Longest payload that the receiver takes, if it said so.
    pub(crate) mss: Option<u16>,
    /// Scale of the receiver's window.
    pub(crate) scale: u8,
    /// ECN (RFC 3168) was negotiated.
    pub(crate) ecn: bool,
    pub(crate) rtt: Option<Time>,
}

/// What a call may change besides the flow.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) settings: &'a Rdb,
    /// Nothing is changed, so nothing is to be learned from answers.
    pub(crate) dry_run: bool,
    /// Where data goes; acknowledgements go the other way.
    pub(crate) to: Side,
    pub(crate) receiver: IpAddr,
    pub(crate) shared: &'a mut Shared,
    pub(crate) counts: &'a mut Counts,
}

/// The agent's state of one flow.
#[derive(Debug)]
pub(crate) struct Bundler {
    unacked: Unacked,
    copies: Copies,
    responding: Responding,
    mss: usize,
    scale: u8,
    ecn: bool,
    /// Position of the right edge of the receiver's window, if any was told.
    edge: Option<u64>,
    rtt: Option<Time>,
    length: Length,
    /// The receiver reports copies (D-SACK, RFC 2883).
    tells_copies: bool,
    /// Ranges that were taken for lost and repaired.
    judged: Vec<(u64, u64)>,
    lost_at: Option<Time>,
    own_bytes: u64,
    copied_bytes: u64,
}

impl Bundler {
    pub(crate) fn new(setup: Setup) -> Bundler {
        Bundler {
            unacked: Unacked::new(setup.first),
            copies: Copies::default(),
            responding: Responding::default(),
            mss: usize::from(setup.mss.unwrap_or(MSS_DEFAULT)),
            scale: setup.scale,
            ecn: setup.ecn,
            edge: None,
            rtt: setup.rtt,
            length: Length::default(),
            tells_copies: false,
            judged: Vec::new(),
            lost_at: None,
            own_bytes: 0,
            copied_bytes: 0,
        }
    }

    /// The round trip of the handshake.
    pub(crate) fn set_rtt(&mut self, rtt: Time) {
        self.rtt = Some(rtt);
    }

    /// Bytes of memory besides the flow's own.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Bundler>() + self.unacked.bytes()
    }

    /// A segment from the sender, and what goes on in its place.
    pub(crate) fn data(&mut self, context: &mut Context<'_>, segment: &Segment) -> Output {
        let bundle = self.bundle(context, segment);
        let cause = match bundle {
            Some(_) => Cause::Bundled,
            None => Cause::Passed,
        };
        let packet = bundle.unwrap_or_else(|| segment.packet.clone());
        let to = context.to;
        Output { to, packet, cause }
    }

    fn bundle(&mut self, context: &mut Context<'_>, segment: &Segment) -> Option<Bytes> {
        if segment.ecn & 2 != 0 {
            self.responding.answered();
        }
        let length = u64::from(segment.sequence_len());
        if length == 0 {
            return None;
        }
        let highest = self.unacked.highest();
        let start = nearest(highest, segment.sequence);
        let end = start + length;
        if start < highest {
            self.see_resent(context, start, end.min(highest));
            self.unacked.skip_to(context.now, end);
            return None;
        }
        if start > highest {
            // The answer (CWR) may be in a segment that did not come by here.
            self.responding.answered();
        }
        self.unacked.skip_to(context.now, start);
        context.counts.data_bytes += segment.payload as u64;
        self.own_bytes += segment.payload as u64;
        let copied = self.copies_for(context, segment, start);
        let (wire_start, packet) = match copied {
            Ok((from, before)) => match segment.with_payload_before(&before) {
                Some(packet) => (from, Some(packet)),
                None => (start, None),
            },
            Err(why) => {
                *context.counts.alone.entry(why).or_default() += 1;
                (start, None)
            }
        };
        if packet.is_some() {
            let bytes = start - wire_start;
            self.copies.bundled(wire_start, start);
            self.copied_bytes += bytes;
            context.counts.bundled += 1;
            context.counts.copied_bytes += bytes;
        }
        // A FIN cannot be repeated as a copy.
        let repeatable = !segment.fin && !segment.urg && segment.payload < self.mss;
        self.unacked.push(Sent {
            start,
            end,
            data: repeatable.then(|| segment.data()),
            first: start,
            wire_start,
            at: context.now,
            resent: false,
            arrived: false,
            seen: true,
        });
        packet
    }

    /// §1, §2: what a new segment repeats, and from where.
    fn copies_for(
        &self,
        context: &mut Context<'_>,
        segment: &Segment,
        start: u64,
    ) -> Result<(u64, Vec<Bytes>), Alone> {
        let settings = context.settings;
        if !segment.may_be_edited() || segment.fin || segment.urg {
            return Err(Alone::Marked);
        }
        let limit = self.longest(context.now, settings, segment);
        if segment.payload >= limit {
            return Err(Alone::Full);
        }
        if !self.is_thin(settings) {
            return Err(Alone::Thick);
        }
        context.counts.thin += 1;
        if self
            .edge
            .is_some_and(|edge| start + segment.payload as u64 > edge)
        {
            return Err(Alone::Window);
        }
        let now = context.now;
        let loses = self
            .lost_at
            .is_some_and(|at| now.saturating_sub(at) < ACTIVE_NS)
            || context.shared.loses(now, context.receiver);
        if settings.mode == Mode::Auto && !loses {
            return Err(Alone::Clean);
        }
        let allowed = u64::from(settings.extra_percent).saturating_mul(self.own_bytes) / 100;
        let mut budget = allowed.saturating_sub(self.copied_bytes);
        if let Some(rate) = settings.max_extra {
            budget = budget.min(context.shared.budget(now, rate));
        }
        let room = limit - segment.payload;
        let most = match (settings.max_packets, settings.mode) {
            (0, _) => usize::MAX,
            (most, Mode::Paper) => most as usize,
            (most, Mode::Auto) => {
                most.max(context.shared.usual_run(now, context.receiver)) as usize
            }
        };
        let (from, before) = match usize::try_from(budget) {
            Ok(budget) if budget < room => self.before(most, budget).map_err(|why| {
                if why == Alone::Full {
                    Alone::Budget
                } else {
                    why
                }
            })?,
            _ => self.before(most, room)?,
        };
        context.shared.spend(start - from);
        Ok((from, before))
    }

    /// The unacknowledged segments at the end of the stream that fit into so many bytes.
    fn before(&self, most: usize, room: usize) -> Result<(u64, Vec<Bytes>), Alone> {
        let mut from = self.unacked.highest();
        let (mut before, mut bytes, mut why) = (Vec::new(), 0, Alone::First);
        for sent in self.unacked.iter().rev() {
            if before.len() >= most {
                break;
            }
            why = match &sent.data {
                _ if sent.arrived => Alone::Arrived,
                None => Alone::Unseen,
                Some(data) if bytes + data.len() > room => Alone::Full,
                Some(data) => {
                    bytes += data.len();
                    from = sent.start;
                    before.push(data.clone());
                    continue;
                }
            };
            break;
        }
        before.reverse();
        if before.is_empty() {
            Err(why)
        } else {
            Ok((from, before))
        }
    }

    /// §2: the longest payload of a bundle that this segment begins.
    fn longest(&self, now: Time, settings: &Rdb, segment: &Segment) -> usize {
        let peer = self.mss.saturating_sub(segment.options_len());
        let wanted = match settings.max_bytes {
            0 => usize::MAX,
            bytes => bytes,
        };
        peer.min(wanted).min(self.length.longest(now))
    }

    fn is_thin(&self, settings: &Rdb) -> bool {
        let in_flight = self.unacked.in_flight() as u64;
        match settings.thin {
            Thin::Always => true,
            Thin::Spifl(most) => in_flight <= u64::from(most),
            Thin::Dpifl => self
                .rtt
                .is_some_and(|rtt| in_flight.saturating_mul(settings.dpifl_itt_ns) < rtt),
        }
    }

    /// Takes note that the sender has sent a range again.
    fn see_resent(&mut self, context: &mut Context<'_>, start: u64, end: u64) {
        self.copies.resent(start, end);
        if end <= self.unacked.acknowledged() {
            return;
        }
        context.counts.resent += 1;
        self.see_loss(context);
        let mut saved = false;
        let arrived: Vec<u64> = match context.dry_run {
            true => self
                .unacked
                .iter()
                .filter(|it| it.arrived && it.is_bundle() && !it.resent)
                .map(|it| it.wire_start)
                .collect(),
            false => Vec::new(),
        };
        for sent in self.unacked.iter_mut() {
            if sent.start >= end || sent.end <= start || sent.resent {
                continue;
            }
            sent.resent = true;
            if !sent.arrived && sent.is_bundle() && !context.dry_run {
                self.length.lost(sent.wire_bytes());
            }
            // A bundle that would have had it has arrived.
            let before = sent.start;
            saved |= arrived.iter().any(|from| *from <= before) && !sent.arrived;
        }
        context.counts.losses_repaired += u64::from(saved);
    }

    fn see_loss(&mut self, context: &mut Context<'_>) {
        self.lost_at = Some(context.now);
        context.shared.lost(context.now, context.receiver);
    }

    /// An acknowledgement, and what goes on in its place.
    pub(crate) fn acknowledgment(
        &mut self,
        context: &mut Context<'_>,
        segment: &Segment,
    ) -> Output {
        let before = self.unacked.acknowledged();
        let position = nearest(before, segment.acknowledgment);
        let copy = duplicate(segment, position);
        if copy.is_some() {
            self.tells_copies = true;
        }
        let mut repaired = false;
        if position >= before {
            let window = u64::from(segment.window) << self.scale.min(14);
            self.edge = Some(position + window);
            repaired = self.see_arrivals(context, segment, position, copy);
            self.unacked.acknowledge(position);
            self.copies.acknowledged(position);
        }
        let ours = copy.is_some_and(|(start, end)| self.copies.explain(start, end));
        if let Some((start, end)) = copy.filter(|_| ours) {
            self.unjudge(context, start, end);
        }
        if repaired {
            self.respond(context);
        }
        self.answer(context, segment, ours)
    }

    /// §5: the acknowledgement as the sender gets it.
    fn answer(&mut self, context: &mut Context<'_>, segment: &Segment, ours: bool) -> Output {
        let slowing = self.responding.slowing(context.now, self.scale);
        let first = segment.sack().first().copied();
        let shows = |block| !ours || Some(block) != first;
        let edited = segment.rewritten(shows, &slowing);
        let packet = edited.unwrap_or_else(|| segment.packet.clone());
        let cause = match (
            packet == segment.packet,
            slowing.ece || slowing.window.is_some(),
        ) {
            (true, _) => Cause::Passed,
            (false, true) => Cause::Slowed,
            (false, false) => Cause::Concealed,
        };
        if ours && cause != Cause::Passed {
            context.counts.dsacks_stripped += 1;
        }
        let to = context.to.other();
        Output { to, packet, cause }
    }

    /// §4: takes note of what an acknowledgement reports for the first time; whether a loss was repaired.
    fn see_arrivals(
        &mut self,
        context: &mut Context<'_>,
        segment: &Segment,
        position: u64,
        copy: Option<(u64, u64)>,
    ) -> bool {
        let sacked: Vec<(u64, u64)> = segment
            .sack()
            .iter()
            .map(|(left, right)| (nearest(position, *left), nearest(position, *right)))
            .filter(|block| Some(*block) != copy && block.0 > position && block.0 < block.1)
            .collect();
        if !sacked.is_empty() {
            self.see_loss(context);
            let run = sacked.iter().map(|block| self.run_before(block.0)).max();
            let (now, receiver) = (context.now, context.receiver);
            context
                .shared
                .lost_in_a_row(now, receiver, run.unwrap_or(0));
        }
        let has = |it: &Sent| {
            it.end <= position
                || sacked
                    .iter()
                    .any(|block| block.0 <= it.start && it.end <= block.1)
        };
        let new: Vec<Sent> = self
            .unacked
            .iter_mut()
            .filter(|it| !it.arrived && has(it))
            .map(|it| {
                it.arrived = true;
                Sent {
                    data: None,
                    ..it.clone()
                }
            })
            .collect();
        let (Some(first), Some(last)) = (new.first(), new.last()) else {
            return false;
        };
        // What it sends again may be joined, and longer than what is led here.
        let patience = self.rtt.unwrap_or(0) + REPEATS_AFTER_NS;
        let may_be_resent = context.now.saturating_sub(first.at) >= patience;
        for it in new.iter().filter(|it| !it.resent) {
            let latency = context.now.saturating_sub(it.at);
            context.counts.acked += 1;
            context.counts.acked_ns += latency;
            context.counts.acked_ns_max = context.counts.acked_ns_max.max(latency);
        }
        if !last.resent {
            let sample = context.now.saturating_sub(last.at);
            self.rtt = Some(self.rtt.map_or(sample, |rtt| (7 * rtt + sample) / 8));
        }
        if context.dry_run {
            return false;
        }
        // The sender's own retransmission does not carry copies, whatever carried these bytes at first.
        let bytes = match last.resent || may_be_resent {
            true => last.end - last.first,
            false => last.end - last.wire_start,
        };
        if last.seen {
            self.length.arrived(context.now, bytes as usize);
        }
        let clear = segment.payload == 0 && !may_be_resent;
        self.judge(context, &new, clear, copy)
    }

    /// How many segments in a row were lost in front of the packet that has just brought what lies there, copies of them included.
    fn run_before(&self, start: u64) -> u32 {
        let mut carriers = self.unacked.iter().rev();
        let carrier = carriers.find(|it| it.wire_start <= start && start <= it.start);
        let is_new = carrier.is_some_and(|it| it.wire_start == start && !it.arrived);
        let lost = carriers.take_while(|it| is_new && it.seen && !it.arrived);
        lost.count() as u32
    }

    /// §4: which of these segments came only as copies. It is clear that a report of a copy would be here, and that the sender has sent nothing
    /// again unseen, or not.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        new: &[Sent],
        clear: bool,
        copy: Option<(u64, u64)>,
    ) -> bool {
        if !new.iter().any(Sent::is_bundle) {
            return false;
        }
        let mut repaired = 0;
        let last = new.last().map_or(0, |it| it.start);
        for it in new.iter().filter(|it| !it.resent) {
            let mut carriers = new
                .iter()
                .filter(|by| by.wire_start <= it.start && it.start < by.start);
            let (Some(carrier), others) = (carriers.next(), carriers.next().is_some()) else {
                continue;
            };
            let told = copy.is_some_and(|copy| copy.0 < it.end && it.start < copy.1);
            let by_last = new
                .iter()
                .any(|by| by.start == last && by.wire_start <= it.start && by.is_bundle());
            match (told, others) {
                // The segment came by itself, and again as a copy: nothing was repaired.
                (true, false) => {}
                (false, _) if by_last && clear && self.tells_copies && !carrier.resent => {
                    repaired += 1;
                    context.counts.losses_repaired += 1;
                    if self.judged.len() == JUDGED_MAX {
                        self.judged.remove(0);
                    }
                    self.judged.push((it.start, it.end));
                }
                _ => context.counts.losses_unknown += 1,
            }
        }
        if repaired > 0 {
            self.see_loss(context);
            let (now, receiver) = (context.now, context.receiver);
            context.shared.lost_in_a_row(now, receiver, repaired);
        }
        repaired > 0
    }

    /// A segment that was taken for lost has come after all: it was overtaken.
    fn unjudge(&mut self, context: &mut Context<'_>, start: u64, end: u64) {
        let known = self.judged.iter().position(|it| *it == (start, end));
        if let Some(index) = known {
            self.judged.remove(index);
            context.counts.losses_repaired = context.counts.losses_repaired.saturating_sub(1);
            context.counts.overtaken += 1;
        }
    }

    /// §6: a loss was repaired that the sender does not know of.
    fn respond(&mut self, context: &mut Context<'_>) {
        let situation = Situation {
            ecn: self.ecn,
            rtt: self.rtt.unwrap_or(0),
            flight_bytes: self.unacked.flight_bytes(),
            mss: self.mss as u64,
        };
        let response = context.settings.response;
        if let Some(slowed) = self.responding.loss(context.now, response, situation) {
            *context.counts.slowed.entry(slowed).or_default() += 1;
        }
    }
}

/// The first SACK block, if it tells of a copy: it is below the acknowledgement, or within the second one (RFC 2883).
fn duplicate(segment: &Segment, position: u64) -> Option<(u64, u64)> {
    let mut blocks = segment
        .sack()
        .iter()
        .map(|(left, right)| (nearest(position, *left), nearest(position, *right)));
    let first = blocks.next().filter(|block| block.0 < block.1)?;
    let within = |block: (u64, u64)| block.0 <= first.0 && first.1 <= block.1;
    (first.1 <= position || blocks.next().is_some_and(within)).then_some(first)
}
