//! How packets leave: what goes over the hop waits in the agent's own queue, if it has one. Every packet comes by here: what few of them need is in functions
//! of its own that are not inlined.

use bytes::Bytes;

use super::Agent;
use crate::{
    Cause, FlowKey, Output, Side, Time,
    acks::{self, Ack, Acks, Mark, Marks, Pace},
    flow::Flow,
    radio::{Departure, Queue},
    returning::Returning,
    rsfc,
    segment::{self, Segment},
    stats::Counts,
};

/// Most marks that wait for [`Agent::poll_mark`].
const MARKS_MAX: usize = 1024;

impl Agent {
    /// An agent in front of the thin link says that acknowledgements of a flow wait there too long. Only one that hears ([`Marks::Hear`]) does something
    /// about it, and only for flows that it knows.
    pub fn handle_mark(&mut self, now: Time, mark: &Mark) {
        self.now = self.now.max(now);
        let hears = self.config.ack_cc.is_some_and(|cc| cc.marks == Marks::Hear);
        if !hears || self.is_overloaded() {
            return;
        }
        let Some(mut flow) = self.table.take(&mark.flow) else {
            return;
        };
        if let Some(acks) = flow.acks.as_mut() {
            acks.hear_mark(self.now);
        }
        self.table.put(self.now, mark.flow, flow);
    }

    /// The next mark for the agent of the machine that sends acknowledgements ([`Marks::Tell`]).
    pub fn poll_mark(&mut self) -> Option<Mark> {
        self.marks.pop_front()
    }

    /// Whether packets from this side go over the hop.
    pub(super) fn goes_over_hop(&self, from: Side) -> bool {
        from == self.config.place.sender()
    }

    /// When a packet for the hop that comes now goes over it; `None` if there is no room for it.
    pub(super) fn departure(&self, key: FlowKey, bytes: usize) -> Option<Departure> {
        let (at, takes) = match (&self.fair, &self.queue) {
            (Some(fair), _) => (fair.admits(self.now, Some(key), bytes)?, fair.time(bytes)),
            (None, Some(queue)) => (queue.admits(self.now, bytes)?, queue.time(bytes)),
            (None, None) => (self.now, 0),
        };
        Some(Departure { at, takes })
    }

    /// Lets go over the hop what a stage makes of a segment of a flow that is helped.
    #[inline]
    pub(super) fn depart(
        &mut self,
        key: FlowKey,
        segment: &Segment,
        output: Output,
        flow: &mut Flow,
    ) {
        match flow.acks.is_none() && flow.pacer.is_none() {
            true => self.leave_with(Some(key), output, None, &mut flow.counts),
            false => self.depart_helped(key, segment, output, flow),
        }
    }

    /// What goes over the hop in the place of a segment, if that is to have a smaller window, and why. `cause` is why the segment itself would go.
    #[inline]
    pub(super) fn lower(
        &mut self,
        key: FlowKey,
        segment: &Segment,
        cause: Cause,
        flow: &mut Flow,
    ) -> Option<Segment> {
        match flow.upload {
            Some(_) => self.lower_upload(key, segment, cause, flow),
            None => None,
        }
    }

    #[inline(never)]
    fn lower_upload(
        &mut self,
        key: FlowKey,
        segment: &Segment,
        cause: Cause,
        flow: &mut Flow,
    ) -> Option<Segment> {
        // What is more than what its host has said has its own window, as it is.
        if cause == Cause::Passed && segment.ack && !segment.syn && !segment.rst {
            let from = self.config.place.sender();
            let lowered = self.see_upload(key, from, segment, flow)?;
            return Segment::parse(lowered).ok();
        }
        let upload = flow.upload.as_mut().filter(|_| segment.ack && !segment.syn);
        upload.into_iter().for_each(|upload| upload.passes(segment));
        None
    }

    /// Where something is done about acknowledgements or bursts.
    #[inline(never)]
    fn depart_helped(&mut self, key: FlowKey, segment: &Segment, output: Output, flow: &mut Flow) {
        let Some(acks) = &mut flow.acks else {
            return self.leave_paced(key, output, None, flow);
        };
        let pace = self.pace(key, acks, &mut flow.counts);
        let mut out = std::mem::take(&mut self.departing);
        let counts = &mut flow.counts;
        acks.offer(self.now, pace, (segment, output), counts, &mut out);
        for (output, ack) in out.drain(..) {
            self.leave_paced(key, output, ack, flow);
        }
        self.departing = out;
    }

    /// Which acknowledgements of a flow wait. Tells another agent if it is for that one to let fewer go.
    fn pace(&mut self, key: FlowKey, acks: &mut Acks, counts: &mut Counts) -> Pace {
        let Some(cc) = self.config.ack_cc else {
            let every = self.config.ack_filter.and_then(|filter| filter.every_ns);
            return every.map_or(Pace::AtOnce, Pace::Every);
        };
        let waits = self
            .fair
            .as_ref()
            .is_some_and(|fair| fair.waited(self.now, Some(key)) > cc.mark_ns);
        let most = cc.most;
        match cc.marks {
            Marks::Own => Pace::Ratio {
                most,
                marked: waits,
            },
            Marks::Hear => Pace::Ratio {
                most,
                marked: acks.take_mark(self.now),
            },
            Marks::Tell => {
                if waits && acks.may_tell(self.now) {
                    counts.acks_marked += 1;
                    if !self.config.dry_run && self.marks.len() < MARKS_MAX {
                        self.marks.push_back(Mark { flow: key });
                    }
                }
                Pace::AtOnce
            }
        }
    }

    /// A segment comes for the hop: when it goes on, if it has to wait for that.
    pub(super) fn see_to_hop(&mut self, segment: &Segment, flow: &mut Flow) -> Option<Time> {
        if let Some(arriving) = &mut flow.arriving {
            arriving.data(self.now, segment);
        }
        let pacer = flow.pacer.as_mut().filter(|_| self.config.pace);
        pacer.map(|pacer| pacer.data(self.now, segment))
    }

    /// A segment has come from the hop.
    pub(super) fn see_from_hop(&mut self, segment: &Segment, flow: &mut Flow) {
        if let (Some(acks), Some((_, echo))) = (&mut flow.acks, segment.options.timestamps) {
            acks.echoed(echo);
        }
        if let Some(pacer) = flow.pacer.as_mut().filter(|_| segment.ack) {
            pacer.acknowledgment(self.now, segment);
        }
    }

    /// Lets a packet go over the hop, not in a burst.
    fn leave_paced(&mut self, key: FlowKey, output: Output, ack: Option<Ack>, flow: &mut Flow) {
        if !self.config.pace {
            // Packets that have waited in the pacer go first.
            self.let_pacer_go(key, true, flow);
        }
        let pacer = flow.pacer.as_mut().filter(|_| self.config.pace);
        let goes = match pacer {
            Some(pacer) => pacer.offer(self.now, output, ack, &mut flow.counts),
            None => Some((output, ack)),
        };
        if let Some((output, ack)) = goes {
            self.leave_with(Some(key), output, ack, &mut flow.counts);
        }
        if flow.pacer.as_ref().is_some_and(|it| it.is_full()) {
            self.let_pacer_go(key, false, flow);
        }
    }

    /// What waits so that no burst goes leaves: by now, or all of it.
    fn let_pacer_go(&mut self, key: FlowKey, all: bool, flow: &mut Flow) {
        let now = self.now;
        let next = |flow: &mut Flow| {
            let pacer = flow.pacer.as_mut()?;
            pacer.due(now, all, &mut flow.counts)
        };
        while let Some((output, ack)) = next(flow) {
            self.leave_with(Some(key), output, ack, &mut flow.counts);
        }
    }

    /// Lets a packet leave that came from the hop, or what is made of it.
    #[inline]
    pub(super) fn leave_home(&mut self, output: Output, flow: &mut Flow) {
        match &flow.arriving {
            Some(_) => self.leave_arriving(output, flow),
            None => self.leave(output, &mut flow.counts),
        }
    }

    #[inline(never)]
    fn leave_arriving(&mut self, output: Output, flow: &mut Flow) {
        let what = self.config.returning;
        let Some(arriving) = &mut flow.arriving else {
            return;
        };
        let mut out = std::mem::take(&mut self.arriving);
        match Segment::parse(output.packet.clone()) {
            Ok(segment) if what != Returning::Pass => {
                let counts = &mut flow.counts;
                arriving.offer(self.now, what, (&segment, output), counts, &mut out);
            }
            _ => {
                arriving.let_go(&mut flow.counts, &mut out);
                out.push(output);
            }
        }
        self.leave_all(out, flow);
    }

    fn leave_all(&mut self, mut out: Vec<Output>, flow: &mut Flow) {
        for output in out.drain(..) {
            self.leave(output, &mut flow.counts);
        }
        self.arriving = out;
    }

    /// What acknowledgements of this flow from the hop wait goes: by now, or all of it.
    fn let_arriving_go(&mut self, all: bool, flow: &mut Flow) {
        let Some(arriving) = &mut flow.arriving else {
            return;
        };
        let mut out = std::mem::take(&mut self.arriving);
        match all {
            true => arriving.let_go(&mut flow.counts, &mut out),
            false => arriving.due(self.now, &mut flow.counts, &mut out),
        }
        self.leave_all(out, flow);
    }

    /// Shows a segment, neither SYN nor reset, to what is there for its flow's upload; returns the packet in its place, if that is to have a smaller window.
    pub(super) fn see_upload(
        &mut self,
        key: FlowKey,
        from: Side,
        segment: &Segment,
        flow: &mut Flow,
    ) -> Option<Bytes> {
        let goes_over_hop = self.goes_over_hop(from);
        let (upload, settings) = (flow.upload.as_mut()?, self.config.rsfc.as_ref()?);
        let mut context = rsfc::Context {
            now: self.now,
            key,
            settings,
            blind_until: self.blind_until,
            clients: &mut self.clients,
            counts: &mut flow.counts,
        };
        if !goes_over_hop {
            upload.data(&mut context, segment);
            return None;
        }
        match segment.ack {
            true => upload.acknowledgment(&mut context, segment),
            false => None,
        }
    }

    /// Packets of this flow that were held go now.
    pub(super) fn let_go(&mut self, key: FlowKey, flow: &mut Flow) {
        let now = self.now;
        self.go(key, flow, |acks| acks.let_go(now));
        self.let_pacer_go(key, true, flow);
        self.let_arriving_go(true, flow);
    }

    /// Packets of this flow that were held go if their time has come.
    pub(super) fn let_go_in_time(&mut self, key: FlowKey, flow: &mut Flow) {
        let now = self.now;
        self.go(key, flow, |acks| acks.due(now));
        self.let_pacer_go(key, false, flow);
        self.let_arriving_go(false, flow);
    }

    fn go(
        &mut self,
        key: FlowKey,
        flow: &mut Flow,
        what: impl FnOnce(&mut Acks) -> Option<(Output, Option<Ack>)>,
    ) {
        let held = flow.acks.as_mut().and_then(|acks| what(acks));
        if let Some((output, ack)) = held {
            self.leave_paced(key, output, ack, flow);
        }
    }

    /// Lets a packet leave: through the queue over the hop, at once the other way.
    #[inline]
    pub(super) fn leave(&mut self, output: Output, counts: &mut Counts) {
        let from = output.to.other();
        let key = match &self.fair {
            Some(_) if self.goes_over_hop(from) => {
                let ends = Segment::ends(&output.packet).ok();
                ends.map(|(source, destination)| FlowKey::between(from, source, destination))
            }
            _ => None,
        };
        self.leave_with(key, output, None, counts);
    }

    #[inline]
    fn leave_with(
        &mut self,
        key: Option<FlowKey>,
        output: Output,
        ack: Option<Ack>,
        counts: &mut Counts,
    ) {
        let has_queue = self.fair.is_some() || self.queue.is_some() || self.config.dry_run;
        match has_queue || output.cause == Cause::Repair {
            true => self.leave_by_queue(key, output, ack, counts),
            false => self.out.push_back(output),
        }
    }

    #[inline(never)]
    fn leave_by_queue(
        &mut self,
        key: Option<FlowKey>,
        output: Output,
        ack: Option<Ack>,
        counts: &mut Counts,
    ) {
        let over_hop = self.goes_over_hop(output.to.other());
        let output = match (output.cause, self.config.repair_dscp) {
            (Cause::Repair, Some(dscp)) => Output {
                packet: segment::with_dscp(&output.packet, dscp),
                ..output
            },
            _ => output,
        };
        match (&mut self.fair, &mut self.queue) {
            // In a dry run too: what would wait there tells what would be dropped.
            (Some(fair), _) if over_hop => fair.push(self.now, key, (output, ack), counts),
            _ if self.config.dry_run => {}
            (_, Some(queue)) if over_hop => {
                let is_repair = output.cause == Cause::Repair;
                let bytes = output.packet.len();
                let departs = queue.admits(self.now, bytes);
                if is_repair || departs.is_some() {
                    // Repairs overtake, and wait for less than can be told now.
                    let waits = departs.filter(|_| !is_repair);
                    let waits = waits.map_or(0, |at| at.saturating_sub(self.now));
                    counts.queued_ns += waits;
                    counts.queued_ns_max = counts.queued_ns_max.max(waits);
                    queue.push(output, is_repair);
                } else {
                    counts.dropped_queue += 1;
                }
            }
            _ => self.out.push_back(output),
        }
    }

    #[inline]
    pub(super) fn drain_queue(&mut self) {
        if self.queue.is_some() || self.fair.is_some() {
            self.drain_queues();
        }
    }

    #[inline(never)]
    fn drain_queues(&mut self) {
        while let Some(output) = self.queue.as_mut().and_then(Queue::poll_dropped) {
            self.see_dropped(&output);
        }
        while let Some(output) = self.fair.as_mut().and_then(acks::Queue::poll_dropped) {
            self.see_dropped(&output);
        }
        while let Some(output) = self.queue.as_mut().and_then(|queue| queue.pop(self.now)) {
            self.out.push_back(output);
        }
        while let Some((output, waited)) = self.fair.as_mut().and_then(|fair| fair.pop(self.now)) {
            self.past.queued_ns += waited;
            self.past.queued_ns_max = self.past.queued_ns_max.max(waited);
            if !self.config.dry_run {
                self.out.push_back(output);
            }
        }
    }

    /// The queue has made room for another packet, or had none for this one. What it drops is the sender's business, so it must not be cached any more.
    fn see_dropped(&mut self, output: &Output) {
        let from = output.to.other();
        let ends = Segment::ends(&output.packet).ok();
        let key = ends.map(|(source, destination)| FlowKey::between(from, source, destination));
        let Some((key, mut flow)) = key.and_then(|key| Some((key, self.table.take(&key)?))) else {
            self.past.dropped_queue += 1;
            return;
        };
        flow.counts.dropped_queue += 1;
        if let (Some(snoop), Ok(segment)) = (&mut flow.snoop, Segment::parse(output.packet.clone()))
        {
            snoop.dropped(&segment);
        }
        self.table.put(self.now, key, flow);
    }

    /// A packet has come with timestamps.
    pub(super) fn see_timestamps(&mut self, key: FlowKey, from: Side, timestamps: (u32, u32)) {
        if !self.goes_over_hop(from)
            && let Some(fair) = &mut self.fair
        {
            // In a dry run no packet has waited, so an echo says nothing of the queue.
            let is_doubtful = fair.echoed(self.now, &key, timestamps) && !self.config.dry_run;
            self.rate_doubted += u64::from(is_doubtful);
        }
    }

    /// Follows the settings of the queues. What waits in one that is no longer wanted goes at once.
    pub(super) fn set_queues(&mut self) {
        self.repairing += 1;
        let fair = self.config.return_queue();
        match (self.fair.take(), fair) {
            (Some(mut queue), Some(settings)) => {
                queue.set(settings);
                self.fair = Some(queue);
            }
            (Some(queue), None) if self.config.dry_run => drop(queue),
            (Some(queue), None) => self.out.extend(queue.into_outputs()),
            (None, settings) => self.fair = settings.map(acks::Queue::new),
        }
        let radio = self.config.radio;
        let radio = radio.filter(|_| !self.config.dry_run && self.fair.is_none());
        match (self.queue.take(), radio) {
            (Some(mut queue), Some(radio)) => {
                queue.set(radio);
                self.queue = Some(queue);
            }
            (Some(queue), None) => {
                self.repairing = self.repairing.saturating_add(queue.repairing());
                self.out.extend(queue.into_outputs());
            }
            (None, radio) => self.queue = radio.map(Queue::new),
        }
    }
}
