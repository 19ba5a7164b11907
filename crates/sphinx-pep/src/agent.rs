//! The agent: flows, and the stages that their packets pass.

mod leaving;
mod moving;

use std::collections::VecDeque;

use bytes::Bytes;

use self::moving::Moving;
use crate::{
    Bypass, Config, Counts, FlowKey, FlowReport, MS, Release, Side, Stage, Status, Time, acks,
    eln::LossReport,
    flow::{Flow, Syn},
    radio::{Departure, Queue},
    rdb,
    returning::Returning,
    rsfc,
    segment::Segment,
    snoop::{Context, Snoop},
    table::Table,
};

/// How long the lag must have been small before flows are helped again.
const CALM_NS: Time = 100 * MS;

/// Most reports of flows that have ended and that wait for [`Agent::poll_ended`]; beyond it the oldest is forgotten.
const ENDED_MAX: usize = 4096;
/// Most loss reports that are kept while nobody takes them.
const REPORTS_MAX: usize = 1024;

/// Why a packet comes out of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It has just come in and is passed on.
    Passed,
    /// It has just come in, and what comes before it in the stream is in front of its payload.
    Bundled,
    /// An acknowledgement that has just come in, without all or some of its SACK blocks.
    Concealed,
    /// An acknowledgement that has just come in, with the echo of congestion (ECE) or a smaller window, and perhaps without SACK blocks.
    Slowed,
    /// A copy of an acknowledgement that has come in, of fewer bytes, which goes before it.
    Reconstructed,
    /// A packet that the hop has lost, or may have, sent again.
    Repair,
    /// A packet that came earlier and had been held back.
    Released,
}

/// A packet that comes out of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The side to which it goes.
    pub to: Side,
    /// A whole IP packet.
    pub packet: Bytes,
    /// Why it comes out.
    pub cause: Cause,
}

/// Totals of some of the flows, of which the others are to be added.
#[derive(Debug)]
struct Adding {
    /// The slot of the table from which the next step goes on.
    next: usize,
    counts: Counts,
}

/// An agent in the path between fixed and mobile hosts. The crate's documentation says how it is driven.
///
/// Packets towards mobile hosts pass several stages: that of [`Config::stage`], that of [`Config::ack_filter`] with its queue, or the queue of
/// [`Config::radio`].
#[derive(Debug)]
pub struct Agent {
    config: Config,
    now: Time,
    table: Table,
    queue: Option<Queue>,
    /// The queue in front of the hop in the place of `queue`, with [`Config::ack_filter`] or [`Config::ack_cc`]: fair to each flow.
    fair: Option<acks::Queue>,
    /// What repairs took on the hop in queues that are gone, and a nanosecond for each change of a queue: what waits then leaves at another time than was
    /// foretold.
    repairing: Time,
    out: VecDeque<Output>,
    /// What one call to a flow's agent puts out, kept for its memory; empty between calls.
    scratch: Vec<Output>,
    departing: Vec<(Output, Option<acks::Ack>)>,
    arriving: Vec<Output>,
    rate_doubted: u64,
    /// Totals of flows that are forgotten, and of packets that belong to none.
    past: Counts,
    /// Totals while they are added up in steps.
    adding: Option<Adding>,
    ended: VecDeque<FlowReport>,
    reports: VecDeque<LossReport>,
    marks: VecDeque<acks::Mark>,
    moving: Moving,
    shared: rdb::Shared,
    clients: rsfc::Clients,
    /// Until then, acknowledgements may have passed that the agent did not see.
    blind_until: Time,
    flows_seen: u64,
    /// Until when packets only pass, if they came too late.
    overloaded: Option<Time>,
    overloads: u64,
    packets_refused: u64,
    lag_ns_max: Time,
    /// The earliest time since which packets of the next call may have waited.
    waiting_since: Option<Time>,
}

impl Agent {
    /// An agent that knows no flows.
    pub fn new(config: Config) -> Agent {
        let mut agent = Agent {
            config,
            now: 0,
            table: Table::default(),
            queue: None,
            fair: None,
            repairing: 0,
            out: VecDeque::new(),
            scratch: Vec::new(),
            departing: Vec::new(),
            arriving: Vec::new(),
            rate_doubted: 0,
            past: Counts::default(),
            adding: None,
            ended: VecDeque::new(),
            reports: VecDeque::new(),
            marks: VecDeque::new(),
            moving: Moving::default(),
            shared: rdb::Shared::default(),
            clients: rsfc::Clients::default(),
            blind_until: 0,
            flows_seen: 0,
            overloaded: None,
            overloads: 0,
            packets_refused: 0,
            lag_ns_max: 0,
            waiting_since: None,
        };
        agent.set_queues();
        agent
    }

    /// A whole IP packet came from one side. Whatever it is, it is taken.
    pub fn handle_packet(&mut self, now: Time, from: Side, packet: Bytes) {
        self.now = self.now.max(now);
        if self.config.dry_run {
            let (to, packet) = (from.other(), packet.clone());
            let cause = Cause::Passed;
            self.out.push_back(Output { to, packet, cause });
        }
        self.see_calm();
        if self.overloaded.is_some() && !Segment::opens_or_resets(&packet) {
            self.pass_late(from, packet);
            return self.drain_queue();
        }
        match Segment::parse(packet) {
            Ok(segment) => self.segment(from, &segment),
            Err((why, packet)) => self.pass(from, packet, why),
        }
        self.evict();
        self.drain_queue();
    }

    /// A packet of several segments came, which the kernel has joined. True if it is to go on as it is, now: the agent leaves its flow
    /// alone, or understands no flow in it. False if it has to be cut into segments first, which come by
    /// [`handle_packet`](Agent::handle_packet): nothing has been done with it then.
    pub fn pass_joined(&mut self, now: Time, from: Side, packet: &[u8]) -> bool {
        self.now = self.now.max(now);
        self.see_calm();
        let config = &self.config;
        // These stages work segment by segment, on what comes from either side.
        let others = config.rsfc.is_some()
            || config.returning != Returning::Pass
            || config.pace
            || config.reports;
        let filters = config.ack_filter.is_some() || config.ack_cc.is_some();
        let (is_nothing, is_thick) = match config.flow_stage() {
            // Nothing is done with data from the hop where only acknowledgements towards it are filtered.
            Stage::Pass => (!others && !self.goes_over_hop(from), false),
            // A stream with packets that long is not thin.
            Stage::Rdb(_) => (false, !others && !filters),
            Stage::Snoop(_) => (false, false),
        };
        // The agent's own queue counts in segments.
        if config.dry_run || self.queue.is_some() || (self.fair.is_some() && !is_nothing) {
            return false;
        }
        let why = match Segment::ends(packet) {
            Err(why) => why,
            Ok(_) if self.overloaded.is_some() && config.rsfc.is_none() => Bypass::Overload,
            Ok((source, destination)) => {
                let key = FlowKey::between(from, source, destination);
                let Some(mut flow) = self.table.take(&key) else {
                    return false;
                };
                // A flow that has these is followed segment by segment until its end.
                let begun = flow.snoop.is_some() || flow.watch.is_some();
                // The end of a stream (FIN) has to be seen, or its connection would never count as over.
                let looks = begun || Segment::ends_stream(packet);
                let (is_nothing, is_thick) = (is_nothing && !looks, is_thick && !looks);
                let why = flow.bypass().or(is_thick.then_some(Bypass::Joined));
                if is_nothing && let Some(timestamps) = Segment::timestamps(packet) {
                    self.see_timestamps(key, from, timestamps);
                    if let Some(acks) = &mut flow.acks {
                        acks.echoed(timestamps.1);
                    }
                }
                let passes = why.is_some() || is_nothing;
                if passes {
                    flow.counts.count(from);
                }
                if let Some(why) = why {
                    flow.counts.bypass(why);
                }
                self.table.put(self.now, key, flow);
                return passes;
            }
        };
        self.past.count(from);
        self.past.bypass(why);
        true
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(key) = self.table.due(self.now) {
            let Some(mut flow) = self.table.take(&key) else {
                break;
            };
            let asleep = flow.asleep;
            self.with_snoop(&mut flow, |snoop, context| {
                if !asleep && snoop.deadline().is_some_and(|at| at <= context.now) {
                    snoop.timeout(context);
                }
            });
            self.let_go_in_time(key, &mut flow);
            self.report(key, &mut flow);
            self.table.put(self.now, key, flow);
        }
        self.evict();
        self.drain_queue();
    }

    /// The base station has seen the hop lose this. Only an agent of a mobile host ([`Place::Mobile`](crate::Place::Mobile)) does
    /// something about it, and only for flows that it knows.
    pub fn handle_report(&mut self, now: Time, report: &LossReport) {
        self.now = self.now.max(now);
        self.see_calm();
        if self.overloaded.is_some() {
            return;
        }
        let Some(mut flow) = self.table.take(&report.flow) else {
            return;
        };
        if flow.bypass().is_none() {
            self.with_snoop(&mut flow, |snoop, context| {
                snoop.lost(context, &report.ranges);
            });
        }
        self.table.put(self.now, report.flow, flow);
        self.drain_queue();
    }

    /// The next report for the agent of a mobile host.
    pub fn poll_report(&mut self) -> Option<LossReport> {
        self.reports.pop_front()
    }

    /// Whoever drives the agent is late: what it hands over next has waited for so many nanoseconds, at
    /// most. Beyond [`Config::lag_ns_max`] the agent costs more than it helps, and only passes packets: what
    /// it holds goes, its caches are dropped. SYNs and resets are still read, so that no flow is taken for
    /// another one afterwards, and windows of uploads are still written ([`Config::rsfc`]). It helps again once the lag has been small for 100 ms.
    pub fn handle_lag(&mut self, now: Time, lag_ns: Time) {
        self.now = self.now.max(now);
        self.lag_ns_max = self.lag_ns_max.max(lag_ns);
        if lag_ns <= self.config.lag_ns_max {
            return self.see_calm();
        }
        let until = self.now + CALM_NS;
        if self.overloaded.replace(until).is_some() {
            return;
        }
        self.overloads += 1;
        self.forget_all(Release::Overload);
        self.drain_queue();
    }

    /// Packets may have passed that were not handed over, as the queue to the agent was full: for a while, it does not know which windows have been told.
    pub fn handle_unseen(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.blind_until = self.now.saturating_add(rsfc::BLIND_NS);
    }

    /// Whether a packet has numbers that fit its connection, which nobody knows who has not seen that: its host has sent it, where others may send packets in its name.
    /// Not of a connection whose beginning was missed. To be asked before the packet is handed over.
    pub fn is_of_host(&self, from: Side, packet: &Bytes) -> bool {
        let Ok((source, destination)) = Segment::ends(packet) else {
            return false;
        };
        let key = FlowKey::between(from, source, destination);
        let Some(flow) = self.table.get(&key).filter(|flow| flow.has_begun()) else {
            return false;
        };
        let segment = Segment::parse(packet.clone());
        segment.is_ok_and(|segment| flow.fits(from, &segment))
    }

    /// So many packets, in all, came out that the kernel did not take. They are only counted ([`Status::packets_refused`]).
    pub fn handle_refused(&mut self, packets: u64) {
        self.packets_refused = packets;
    }

    /// What is handed over from now on has waited for the agent since then, at most: a time that is not
    /// later than any of theirs. It is counted for each flow (`waited_ns_max`).
    pub fn handle_waiting(&mut self, since: Time) {
        self.waiting_since = Some(since);
    }

    /// What the agent does at present.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Goes on with other settings. A profile and matches are for flows that begin from now on. What waits in a queue that
    /// is no longer wanted goes at once.
    pub fn reconfigure(&mut self, now: Time, config: Config) {
        self.now = self.now.max(now);
        if config.dry_run != self.config.dry_run {
            // In a dry run, what counts as held has passed, and so has what waits.
            self.forget_all(Release::Followed);
            self.moving.tell_nobody();
            let fair = self.fair.take().filter(|_| !self.config.dry_run);
            self.out
                .extend(fair.into_iter().flat_map(acks::Queue::into_outputs));
        }
        if (config.returning, config.pace) != (self.config.returning, self.config.pace) {
            for key in self.table.by_use() {
                let Some(mut flow) = self.table.take(&key) else {
                    continue;
                };
                self.let_go(key, &mut flow);
                self.table.put_back(flow);
            }
        }
        // Those that have passed in a dry run, or without this stage, have told other windows than is known.
        self.handle_unseen(now);
        // What has just had no room is seen to, before its queue goes.
        self.drain_queue();
        let place = self.config.place;
        self.config = Config { place, ..config };
        self.set_queues();
        self.drain_queue();
    }

    /// Whether packets only pass, as they came too late.
    pub fn is_overloaded(&self) -> bool {
        self.overloaded.is_some()
    }

    /// How often the agent has become too late, and has begun to only pass packets.
    pub fn overloads(&self) -> u64 {
        self.overloads
    }

    /// How often packets waited behind the agent's own queue for a while: the rate that it was given
    /// ([`ReturnQueue`](acks::ReturnQueue)) is probably more than the link carries.
    pub fn rate_doubted(&self) -> u64 {
        self.rate_doubted
    }

    /// The longest lag that the agent was told of, in nanoseconds.
    pub fn lag_ns_max(&self) -> Time {
        self.lag_ns_max
    }

    /// The next packet that goes now.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When [`handle_timeout`](Agent::handle_timeout) is to be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        let queue = self.queue.as_ref().and_then(Queue::next_event);
        let fair = self.fair.as_ref().and_then(acks::Queue::next_event);
        let queues = queue.into_iter().chain(fair);
        self.table.next_deadline().into_iter().chain(queues).min()
    }

    /// Totals of all flows.
    pub fn counts(&self) -> Counts {
        let mut counts = self.past.clone();
        for (_, flow) in self.table.newest() {
            counts.add(&flow.counts);
        }
        counts
    }

    /// The flows that are known, in the order of their ends.
    pub fn flows(&self) -> Vec<FlowReport> {
        let flows = self.table.sorted().into_iter();
        flows.map(|(key, flow)| flow.report(key)).collect()
    }

    /// So many of the flows that are known, the one used last first.
    pub fn newest_flows(&self, most: usize) -> Vec<FlowReport> {
        let flows = self.table.newest().take(most);
        flows.map(|(key, flow)| flow.report(key)).collect()
    }

    /// All numbers of the agent. It takes time in the order of the flows known.
    pub fn status(&self) -> Status {
        self.status_with(self.counts())
    }

    /// The same, in steps that look at so many flows at most, between which packets need not wait: to be called until it is no longer `None`. Each flow counts as it was at
    /// some moment since the first of these calls, and one that was forgotten since then as it was in the end. So no total is less than it was then, or
    /// than it was told before.
    pub fn status_in_steps(&mut self, flows: usize) -> Option<Status> {
        let mut adding = match self.adding.take() {
            Some(adding) => adding,
            None => Adding {
                next: 0,
                counts: self.past.clone(),
            },
        };
        let end = adding.next.saturating_add(flows.max(1));
        for flow in self.table.in_slots(adding.next..end) {
            adding.counts.add(&flow.counts);
        }
        adding.next = end;
        if end < self.table.slots() {
            self.adding = Some(adding);
            return None;
        }
        Some(self.status_with(adding.counts))
    }

    fn status_with(&self, counts: Counts) -> Status {
        Status {
            flows: self.flows_seen,
            flows_known: self.table.len(),
            memory_bytes: self.memory_bytes(),
            overloaded: self.is_overloaded(),
            overloads: self.overloads,
            packets_refused: self.packets_refused,
            rate_doubted: self.rate_doubted,
            flows_handed_over: self.moving.handed_over,
            flows_taken_over: self.moving.taken_over,
            lag_ns_max: self.lag_ns_max,
            counts,
        }
    }

    /// The next flow that has been reset, has been forgotten or whose ports are used again, oldest
    /// first. The last 4096 of them wait to be taken.
    pub fn poll_ended(&mut self) -> Option<FlowReport> {
        self.ended.pop_front()
    }

    /// Flows seen so far.
    pub fn flows_seen(&self) -> u64 {
        self.flows_seen
    }

    /// Flows known at present.
    pub fn flows_known(&self) -> usize {
        self.table.len()
    }

    /// Bytes of memory that the flows take, as they are counted against the limit of 64 MB, and what waits for other agents, 32 MB at most.
    pub fn memory_bytes(&self) -> usize {
        self.table.bytes() + self.moving.bytes()
    }

    /// Leaves alone a packet that belongs to no flow as far as is known.
    fn pass(&mut self, from: Side, packet: Bytes, why: Bypass) {
        self.past.count(from);
        self.past.bypass(why);
        let (to, cause) = (from.other(), Cause::Passed);
        let mut counts = std::mem::take(&mut self.past);
        self.leave(Output { to, packet, cause }, &mut counts);
        self.past = counts;
    }

    /// Lets a packet go on that comes while the agent is late. Windows of uploads are written all the same: no packet has to wait for that, and what a
    /// sender has once been told that it may send, nobody can take back.
    fn pass_late(&mut self, from: Side, packet: Bytes) {
        let segment = match self.config.rsfc {
            Some(_) => Segment::parse(packet.clone()).ok(),
            None => None,
        };
        let flow = segment.and_then(|segment| {
            let key = FlowKey::of(from, &segment);
            Some((segment, key, self.table.take(&key)?))
        });
        let Some((segment, key, mut flow)) = flow else {
            return self.pass(from, packet, Bypass::Overload);
        };
        let lowered = match flow.bypass() {
            Some(_) => None,
            None => self.see_upload(key, from, &segment, &mut flow),
        };
        flow.counts.count(from);
        flow.counts.bypass(Bypass::Overload);
        let (packet, cause) = match lowered {
            Some(lowered) => (lowered, Cause::Slowed),
            None => (packet, Cause::Passed),
        };
        let to = from.other();
        self.leave(Output { to, packet, cause }, &mut flow.counts);
        self.table.put(self.now, key, flow);
    }

    /// Lets go of what is held for all flows, and of what is cached.
    fn forget_all(&mut self, why: Release) {
        for key in self.table.by_use() {
            let Some(mut flow) = self.table.take(&key) else {
                continue;
            };
            self.with_snoop(&mut flow, |snoop, context| snoop.forget(context, why));
            self.let_go(key, &mut flow);
            if let Some(watch) = &mut flow.watch {
                watch.forget();
            }
            // Putting it back does not count as a use: hosts that are silent stay so in the table.
            self.table.put_back(flow);
        }
    }

    fn see_calm(&mut self) {
        self.overloaded = self.overloaded.filter(|until| self.now < *until);
    }

    fn segment(&mut self, from: Side, segment: &Segment) {
        let key = FlowKey::of(from, segment);
        let mut known = self.table.take(&key);
        let mut syn = Syn::Same;
        let is_over = known.take_if(|flow| {
            if segment.syn {
                syn = flow.syn(self.now, from, segment, &self.config);
            }
            syn == Syn::New
        });
        let next = is_over.and_then(|mut flow| {
            let next = flow.next(self.now, from, segment, &self.config);
            // The ports are used again.
            self.retire(key, flow, Release::Followed);
            next
        });
        let mut flow = known.unwrap_or_else(|| {
            self.flows_seen += 1;
            let new = || Box::new(Flow::new(self.now, from, segment));
            let mut flow = next.unwrap_or_else(new);
            flow.is_wanted = self.config.wants(&key);
            flow
        });
        flow.counts.count(from);
        let waited = self.waiting_since.map(|at| self.now.saturating_sub(at));
        flow.counts.waited_ns_max = flow.counts.waited_ns_max.max(waited.unwrap_or(0));
        let is_reset = segment.rst && flow.is_reset_by(from, segment);
        if syn == Syn::Doubtful || (segment.rst && !is_reset) {
            self.pass_doubtful(key, from, segment, &mut flow);
            return self.table.put(self.now, key, flow);
        }
        flow.see_options(segment);
        if !segment.syn {
            flow.opened(self.now, from, segment, &self.config);
            flow.see_numbers(from, segment);
        }
        let is_plain = !segment.syn && !segment.rst;
        if is_plain && flow.bypass().is_none() && !flow.may_be_taken(from, segment) {
            self.pass_beyond(key, from, segment, &mut flow);
            return self.table.put(self.now, key, flow);
        }
        if let Some(timestamps) = segment.options.timestamps
            && self.fair.is_some()
        {
            self.see_timestamps(key, from, timestamps);
        }
        if self.config.reports || flow.watch.is_some() {
            self.watch(key, from, segment, &mut flow);
        }
        let before = flow.snoop.as_ref().map(Snoop::progress);
        self.pass_stages(key, from, segment, &mut flow);
        if self.moving.tells_others() {
            self.mirror(key, from, segment, &flow, before);
        }
        if is_reset {
            // The connection is over: what is known of it helps nobody.
            return self.retire(key, flow, Release::Followed);
        }
        self.table.put(self.now, key, flow);
    }

    /// Lets a SYN or a reset go on of which nobody knows whether it ends the connection: behind what is held, and nothing is forgotten.
    #[inline(never)]
    fn pass_doubtful(&mut self, key: FlowKey, from: Side, segment: &Segment, flow: &mut Flow) {
        self.with_snoop(flow, |snoop, context| {
            snoop.let_go(context, Release::Followed);
        });
        self.let_go(key, flow);
        if let Some(why) = flow.bypass() {
            flow.counts.bypass(why);
        }
        let (to, cause) = (from.other(), Cause::Passed);
        let packet = segment.packet.clone();
        self.leave(Output { to, packet, cause }, &mut flow.counts);
    }

    /// Lets data go on that is beyond all that its receiver has room for, and that it discards. Whoever does not know where a stream is may send such, in the name of its
    /// host: kept until the stream is there, it would be sent again in the place of what belongs there.
    #[inline(never)]
    fn pass_beyond(&mut self, key: FlowKey, from: Side, segment: &Segment, flow: &mut Flow) {
        self.let_go(key, flow);
        let (to, cause) = (from.other(), Cause::Passed);
        // It may be in the window all the same, where that has passed unseen; and tell one, of data the other way.
        let lowered = match self.goes_over_hop(from) {
            true => self.lower(key, segment, cause, flow),
            false => None,
        };
        let packet = segment.packet.clone();
        let output = Output { to, packet, cause };
        let output = lowered.as_ref().map_or(output, |it| slowed(it, to));
        self.leave(output, &mut flow.counts);
    }

    fn pass_stages(&mut self, key: FlowKey, from: Side, segment: &Segment, flow: &mut Flow) {
        let pass = |to| Output {
            to,
            packet: segment.packet.clone(),
            cause: Cause::Passed,
        };
        if let Some(why) = flow.bypass() {
            self.with_snoop(flow, |snoop, context| {
                snoop.forget(context, Release::Followed);
            });
            self.let_go(key, flow);
            flow.counts.bypass(why);
            return self.leave(pass(from.other()), &mut flow.counts);
        }
        let plain = !segment.syn && !segment.rst;
        if !self.goes_over_hop(from) {
            self.see_from_hop(segment, flow);
        }
        if plain && !self.goes_over_hop(from) {
            self.see_upload(key, from, segment, flow);
        }
        if let (Some(bundler), Stage::Rdb(settings)) = (&mut flow.bundler, &self.config.stage) {
            let to = self.config.place.sender().other();
            let peer = |side| match side {
                Side::Fixed => key.fixed,
                Side::Mobile => key.mobile,
            };
            let mut context = rdb::Context {
                now: self.now,
                settings,
                dry_run: self.config.dry_run,
                to,
                receiver: peer(to).ip(),
                shared: &mut self.shared,
                counts: &mut flow.counts,
            };
            let output = match (plain, from == to) {
                (true, false) => bundler.data(&mut context, segment),
                (true, true) if segment.ack => bundler.acknowledgment(&mut context, segment),
                _ => pass(from.other()),
            };
            if from != to {
                self.see_to_hop(segment, flow);
            }
            if from == to {
                return self.leave_home(output, flow);
            }
            let lowered = self.lower(key, segment, output.cause, flow);
            let output = lowered.as_ref().map_or(output, |it| slowed(it, to));
            return self.depart(key, lowered.as_ref().unwrap_or(segment), output, flow);
        }
        match self.goes_over_hop(from) {
            true => {
                let paced = self.see_to_hop(segment, flow);
                let departs = self.departure(key, segment.packet.len());
                let departs = departs.map(|it| Departure {
                    at: it.at.max(paced.unwrap_or(0)),
                    ..it
                });
                // What is cached is what goes: a repair would tell the window that was taken back.
                let lowered = self.lower(key, segment, Cause::Passed, flow);
                let (segment, output) = match &lowered {
                    Some(lowered) => (lowered, slowed(lowered, from.other())),
                    None => (segment, pass(from.other())),
                };
                if plain {
                    self.with_snoop(flow, |snoop, context| snoop.data(context, segment, departs));
                }
                self.depart(key, segment, output, flow);
            }
            false if plain && segment.ack && flow.snoop.is_some() => {
                let arrives = std::mem::take(&mut flow.asleep);
                self.with_snoop(flow, |snoop, context| {
                    snoop.acknowledgment(context, segment);
                    match arrives {
                        true => snoop.arrive(context, false),
                        false => snoop.resume_more(context),
                    }
                });
            }
            false => {
                // A reset, or a SYN: nothing held back may come behind it.
                self.with_snoop(flow, |snoop, context| {
                    snoop.forget(context, Release::Followed);
                });
                self.leave_home(pass(from.other()), flow);
            }
        }
    }

    /// Lets the watch of an upload see a segment.
    fn watch(&mut self, key: FlowKey, from: Side, segment: &Segment, flow: &mut Flow) {
        if segment.syn || segment.rst || flow.bypass().is_some() {
            return;
        }
        if from == Side::Mobile {
            flow.watch_from(segment, &self.config);
        }
        if let Some(watch) = &mut flow.watch {
            match from {
                Side::Mobile => watch.data(self.now, segment, &mut flow.counts),
                Side::Fixed if segment.ack => watch.acknowledgment(segment),
                Side::Fixed => {}
            }
            self.report(key, flow);
        }
    }

    /// Puts the losses of a flow's upload that are to be reported by now into the reports for the mobile host.
    fn report(&mut self, key: FlowKey, flow: &mut Flow) {
        let Some(watch) = &mut flow.watch else { return };
        while let Some(report) = watch.report(self.now, key) {
            if !self.config.dry_run && self.reports.len() < REPORTS_MAX {
                self.reports.push_back(report);
            }
        }
    }

    /// Calls a flow's agent, if it has one, and sends what it wants sent.
    fn with_snoop(&mut self, flow: &mut Flow, call: impl FnOnce(&mut Snoop, &mut Context<'_>)) {
        let Some(snoop) = &mut flow.snoop else { return };
        let repairing = self.queue.as_ref().map_or(0, Queue::repairing);
        snoop.see_queue(self.repairing.saturating_add(repairing));
        let mut context = Context {
            now: self.now,
            hop: self.config.place.sender().other(),
            counts: &mut flow.counts,
            out: &mut self.scratch,
        };
        call(snoop, &mut context);
        if self.scratch.is_empty() {
            return;
        }
        let mut out = std::mem::take(&mut self.scratch);
        for output in out.drain(..) {
            // What is sent again has the window that it went with, perhaps before windows were lowered.
            if output.cause == Cause::Repair
                && let Some(upload) = &mut flow.upload
                && let Ok(segment) = Segment::parse(output.packet.clone())
            {
                upload.passes(&segment);
            }
            match self.goes_over_hop(output.to.other()) {
                true => self.leave(output, &mut flow.counts),
                false => self.leave_home(output, flow),
            }
        }
        self.scratch = out;
    }

    fn evict(&mut self) {
        loop {
            if let Some(key) = self.table.to_rest(self.now) {
                let Some(mut flow) = self.table.take(&key) else {
                    return;
                };
                let forget = |snoop: &mut Snoop, context: &mut Context<'_>| {
                    snoop.forget(context, Release::Evicted);
                };
                self.with_snoop(&mut flow, forget);
                self.table.put_to_rest(flow);
            } else if let Some(key) = self.table.to_evict(self.now) {
                let Some(flow) = self.table.take(&key) else {
                    return;
                };
                self.retire(key, flow, Release::Evicted);
            } else {
                return;
            }
        }
    }

    /// Lets go of a flow; its numbers go into the totals.
    fn retire(&mut self, key: FlowKey, mut flow: Box<Flow>, why: Release) {
        self.with_snoop(&mut flow, |snoop, context| snoop.forget(context, why));
        self.let_go(key, &mut flow);
        self.past.add(&flow.counts);
        if let (Some(adding), Some(place)) = (&mut self.adding, flow.place)
            && adding.next <= place
        {
            adding.counts.add(&flow.counts);
        }
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(flow.report(key));
        self.table.forget(flow);
    }
}

/// A segment of which the window has become smaller.
fn slowed(segment: &Segment, to: Side) -> Output {
    let (packet, cause) = (segment.packet.clone(), Cause::Slowed);
    Output { to, packet, cause }
}

impl Counts {
    fn count(&mut self, from: Side) {
        match from {
            Side::Fixed => self.from_fixed += 1,
            Side::Mobile => self.from_mobile += 1,
        }
    }

    /// Bypasses of one kind.
    pub fn bypasses(&self, why: Bypass) -> u64 {
        self.bypassed.get(&why).copied().unwrap_or(0)
    }

    /// Releases of one kind.
    pub fn releases(&self, why: Release) -> u64 {
        self.released.get(&why).copied().unwrap_or(0)
    }
}
