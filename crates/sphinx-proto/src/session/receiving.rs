//! What a session does with packets that have opened, and with the blocks that they make.

use sphinx_fec::CodeId;
use sphinx_fec::span::SpanLimits;

use super::{Life, REPORT_INTERVAL, Session};
use crate::config::Role;
use crate::path::Marks;
use crate::receiver::Violation;
use crate::sender::Carriage;
use crate::streams::IMPOSSIBLE;
use crate::types::{
    AbandonedBlock, BundledSymbol, Event, Job, PacketMeta, PathNews, Place, Placement, Received,
    Slot, StreamId, StreamPart,
};
use crate::wire::{
    Bundle, Fragment, Frame, FrameIter, Header, PacketKind, Reset, Sack, VARINT_MAX, WindowSpan,
};
use crate::{JobId, PathId, Time};

/// With so many frames on their way the peer hears of numbers left out later: there is no hurry.
pub(super) const FRAMES_BEFORE_SKIPPED: usize = 4;

/// Frames with feedback of one packet that are looked at. Each may be about all that this end has sent, and an honest packet has fewer: of blocks, of each kind of
/// streams, of its own path and a few others.
const FEEDBACK_MAX: usize = 16;

/// What the peer is told that names a path that cannot be.
const NO_PATH: &str = "a path that does not exist";

impl Session {
    /// A packet has opened: the only way in for what the peer says. What the body has for the driver is to be
    /// stored before it polls for jobs and events.
    ///
    /// Of a symbol only the length matters here. A malformed body counts as refused and is not acknowledged; a
    /// malformed frame or bundle, or a code that does not exist, ends the session.
    pub fn handle_packet(&mut self, meta: &PacketMeta, header: &Header, body: &[u8]) -> Received {
        let Some(at) = self.path_of(meta, header) else {
            // Of a path that is no more, or cannot be yet: it will come again.
            return Received::Nothing;
        };
        match header.kind {
            PacketKind::Control => {
                let mut abandoned = Vec::new();
                self.handle_control(at, meta, header, body, &mut abandoned);
                match abandoned.is_empty() {
                    true => Received::Nothing,
                    false => Received::Abandoned(abandoned),
                }
            }
            PacketKind::Fragment => match Fragment::split(body) {
                Some((fragment, _)) => self.handle_fragment(at, meta, header, fragment),
                None => self.malformed(),
            },
            PacketKind::Symbol if header.code == CodeId::Window.to_wire() => {
                match WindowSpan::split(body) {
                    Some((span, _)) => self.handle_window(at, meta, header, span),
                    None => self.malformed(),
                }
            }
            PacketKind::Symbol => match self.handle_symbol(at, meta, header, body.len()) {
                Some(placement) => Received::Symbol(placement),
                None => Received::Nothing,
            },
            PacketKind::Bundle => self.handle_bundle(at, meta, header, body),
        }
    }

    /// The same of a symbol that was opened into [its place](Self::place_of), with nothing else handled since that was asked for: where it belongs, if
    /// it is anything to this session.
    ///
    /// With a `count` of more than 1, at most [`Place::run`], of so many packets at once: the others have the numbers behind this one, which is above all others, and the
    /// symbols behind its own, lie in their places too, and share all the rest with it. They belong where it does, and all is as if each had been handled alone.
    pub fn handle_placed(
        &mut self,
        meta: &PacketMeta,
        header: &Header,
        place: &Place,
        count: u16,
    ) -> Option<Placement> {
        let at = self.path_of(meta, header)?;
        let packets = (self.paper.is_none(), u64::from(count));
        self.received_run(at, meta, header, packets);
        if !matches!(self.life, Life::Open) {
            return None;
        }
        let placement = self.receiver.on_placed(place, count);
        self.say_paper_symbol(header);
        self.progress(meta.now, Ok(()));
        Some(placement)
    }

    /// Where the body of a packet belongs that has not opened yet, if it is to be a source symbol of a block under way. It can be opened right into its place, if no symbol is there: anybody may have written the header.
    pub fn place_of(&self, header: &Header, body_len: usize) -> Option<Place> {
        match header.kind {
            PacketKind::Symbol => self.receiver.place_of(header, body_len),
            PacketKind::Fragment | PacketKind::Control | PacketKind::Bundle => None,
        }
    }

    fn malformed(&mut self) -> Received {
        self.receiver.refuse();
        Received::Nothing
    }

    /// The packet counts as received on the path at this place.
    fn received(&mut self, at: usize, meta: &PacketMeta, header: &Header, eliciting: bool) {
        self.received_run(at, meta, header, (eliciting, 1));
    }

    /// So many packets do, of which this is the first one.
    fn received_run(
        &mut self,
        at: usize,
        meta: &PacketMeta,
        header: &Header,
        (eliciting, count): (bool, u64),
    ) {
        let path = self.paths.at(at).id();
        self.note_sc_arrival(meta.now, path);
        let is_control = header.kind == PacketKind::Control;
        let marks = Marks {
            eliciting,
            last_of_flight: header.last_of_flight,
            is_sign_of_life: is_control && self.config.quiet,
            told_on: self.told_on(at),
        };
        let lane = self.paths.at_mut(at);
        if !is_control {
            lane.path.note_use(meta.now);
        }
        let newest = lane.path.on_packet(meta, marks);
        if count > 1 {
            lane.path.on_followers(meta, marks, count - 1);
        }
        let (now, path) = (meta.now, &lane.path);
        lane.local_ids
            .on_packet(now, header.cid, newest, || path.probe_timeout());
        let ip_bytes = count * (meta.datagram_len as u64 + u64::from(self.config.ip_overhead));
        lane.counts.packets_received += count;
        lane.counts.ip_bytes_received += ip_bytes;
        self.note_paper_packet(meta.packet_number);
        self.silence = 0;
        self.refusals = None;
        self.last_received = meta.now;
        self.asked_at = None;
        self.counts.packets_received += count;
        self.counts.ip_bytes_received += ip_bytes;
    }

    fn handle_symbol(
        &mut self,
        at: usize,
        meta: &PacketMeta,
        header: &Header,
        symbol_len: usize,
    ) -> Option<Placement> {
        self.received(at, meta, header, self.paper.is_none());
        if !matches!(self.life, Life::Open) {
            return None;
        }
        let placement = self.receiver.on_symbol(header, symbol_len);
        self.say_paper_symbol(header);
        self.progress(meta.now, placement.map(|_| ()));
        Some(placement.unwrap_or(Placement::Discard))
    }

    fn handle_fragment(
        &mut self,
        at: usize,
        meta: &PacketMeta,
        header: &Header,
        fragment: Fragment,
    ) -> Received {
        self.received(at, meta, header, true);
        if !matches!(self.life, Life::Open) {
            return Received::Nothing;
        }
        let Some((part, result)) = self.receiver.on_fragment(header, fragment) else {
            return Received::Nothing;
        };
        self.progress(meta.now, result);
        Received::Part(part)
    }

    fn handle_window(
        &mut self,
        at: usize,
        meta: &PacketMeta,
        header: &Header,
        span: WindowSpan,
    ) -> Received {
        self.received(at, meta, header, true);
        if !matches!(self.life, Life::Open) {
            return Received::Nothing;
        }
        let covered = self.receiver.on_window(header, &span);
        self.progress(meta.now, Ok(()));
        covered.map_or(Received::Nothing, |(row, covered)| Received::Window {
            span,
            row,
            covered,
        })
    }

    fn handle_bundle(
        &mut self,
        at: usize,
        meta: &PacketMeta,
        header: &Header,
        body: &[u8],
    ) -> Received {
        self.received(at, meta, header, true);
        if !matches!(self.life, Life::Open) {
            return Received::Nothing;
        }
        let Ok(symbols) = Bundle::split(header, body) else {
            self.violation(meta.now, "malformed bundle");
            return Received::Nothing;
        };
        let symbols = symbols.into_iter();
        Received::Bundle(
            symbols
                .map(|(header, at)| BundledSymbol { header, at })
                .collect(),
        )
    }

    /// The next symbol of a [bundle](Received::Bundle): where it goes. It is handled as if it had come alone.
    pub fn handle_bundled(&mut self, now: Time, symbol: &BundledSymbol) -> Placement {
        if !matches!(self.life, Life::Open) {
            return Placement::Discard;
        }
        let placement = self.receiver.on_symbol(&symbol.header, symbol.at.len());
        self.progress(now, placement.map(|_| ()));
        placement.unwrap_or(Placement::Discard)
    }

    /// What a decoder of sliding windows may hold.
    pub fn window_limits(&self) -> SpanLimits {
        self.receiver.window_limits()
    }

    /// What follows from a packet with symbols.
    fn progress(&mut self, now: Time, result: Result<(), Violation>) {
        while let Some(completed) = self.receiver.next_completed() {
            if self.paper.is_none() {
                self.paths.main_mut().path.want_sack(now);
            }
            let (block, complete) = (completed.block, completed.complete);
            let slot = complete.slot;
            let event = Event::BlockComplete { block, slot };
            match (complete.decoding, completed.window) {
                (None, None) => self.events.push_back(event),
                (decoding, window) => self.jobs.push(slot, decoding, window, event),
            }
        }
        if self.receiver.take_news() {
            self.paths.main_mut().path.want_sack(now);
        }
        if let Err(Violation(what)) = result {
            self.violation(now, what);
        }
    }

    /// Blocks that will never be complete go to `abandoned`.
    fn handle_control(
        &mut self,
        at: usize,
        meta: &PacketMeta,
        header: &Header,
        body: &[u8],
        abandoned: &mut Vec<AbandonedBlock>,
    ) {
        let eliciting = FrameIter::new(body)
            .flatten()
            .any(|frame| frame.is_ack_eliciting());
        self.received(at, meta, header, eliciting);
        let window_news = self.window_news();
        let mut delivered = Vec::new();
        let mut deficits = Vec::new();
        let mut closed = None;
        let mut newest_window = None;
        let mut feedback = 0;
        for frame in FrameIter::new(body) {
            let Ok(frame) = frame else {
                return self.violation(meta.now, "malformed frame");
            };
            if frame.is_feedback() {
                feedback += 1;
                if feedback > FEEDBACK_MAX {
                    continue;
                }
            }
            match frame {
                Frame::Padding => {}
                // Perhaps it waits for news that were lost.
                Frame::Ping if meta.now >= self.reported_at + REPORT_INTERVAL => {
                    self.reported_at = meta.now;
                    self.receiver.report_all();
                }
                Frame::Ping => {}
                Frame::NewConnectionId {
                    path,
                    sequence,
                    cid,
                } => {
                    if !self.paths.offer(path, sequence, cid) {
                        return self.violation(meta.now, NO_PATH);
                    }
                }
                // Only servers are known to be what they were when they are started again.
                Frame::ResetToken {
                    path,
                    sequence,
                    token,
                } if self.config.role == Role::Client => self.paths.tell(path, sequence, token),
                Frame::ResetToken { .. } => {}
                Frame::Skipped {
                    path,
                    packet_number,
                } => match self.paths.index(path) {
                    Some(at) => self.paths.at_mut(at).path.on_skipped(packet_number),
                    None if self.paths.has_been(path) => {}
                    None => return self.violation(meta.now, NO_PATH),
                },
                Frame::PathAbandon { path } => {
                    let is_last = self.paths.len() == 1 && self.paths.index(path).is_some();
                    let may_be = self.paths.has_been(path) || self.paths.is_ready(path);
                    if is_last || !may_be {
                        return self.violation(meta.now, NO_PATH);
                    }
                    if !self.drop_path(meta.now, path, PathNews::Abandoned) {
                        self.take_back(path);
                    }
                }
                Frame::PathStatus(status) => {
                    if !self.on_path_status(&status) {
                        return self.violation(meta.now, NO_PATH);
                    }
                }
                Frame::MaxPaths(paths) => self.on_max_paths(paths),
                Frame::Bond { number, bond } => {
                    if !self.on_bond(number, bond) {
                        return self.violation(meta.now, "a server chose what paths are for");
                    }
                }
                Frame::PathChallenge(data) => {
                    if let Some(at) = self.path_of(meta, header) {
                        let path = &mut self.paths.at_mut(at).path;
                        path.on_challenge(meta.tuple, data, meta.datagram_len);
                    }
                }
                Frame::PathResponse(data) => {
                    if let Some(at) = self.path_of(meta, header) {
                        self.answered(meta, at, data);
                    }
                }
                Frame::Close { code, reason } => closed = Some((code, reason)),
                Frame::Blocks(blocks) => {
                    self.sender.on_blocks(&blocks, &mut delivered);
                    deficits.extend(blocks.deficits);
                }
                Frame::Streams(streams) => {
                    if !self.sender.on_streams(&streams) {
                        return self.violation(meta.now, "took what this end never sent");
                    }
                }
                Frame::Reset(_) | Frame::Stop { .. } if !matches!(self.life, Life::Open) => {}
                Frame::Reset(Reset { ref blocks, .. }) | Frame::Gone(ref blocks)
                    if self.config.sc.is_some() && !blocks.is_empty() =>
                {
                    return self.violation(meta.now, "a generation that is given up");
                }
                Frame::Reset(reset) => {
                    match self.receiver.on_reset(&reset, abandoned) {
                        Ok(is_news) => {
                            let Reset { stream, code, .. } = reset;
                            let event = is_news.then_some(Event::StreamReset { stream, code });
                            self.events.extend(event);
                        }
                        Err(what) => return self.violation(meta.now, what),
                    }
                    self.paths.main_mut().path.want_sack(meta.now);
                }
                Frame::Stop { stream, .. } if !stream.has_sender(self.config.role) => {
                    return self.violation(meta.now, "stopped what this end does not send");
                }
                // It comes again although nothing is sent any more.
                Frame::Stop { stream, .. } if self.sender.streams().has_ended(stream) => {}
                Frame::Stop { stream, .. } if !self.receiver.on_stopped(stream) => {
                    return self.violation(meta.now, IMPOSSIBLE);
                }
                Frame::Stop { stream, code } => {
                    self.events.push_back(Event::StreamStopped { stream, code });
                }
                Frame::Held { number } => self.receiver.on_held(number),
                // Each divides the window among all streams: one in a packet is enough.
                Frame::Window { number, size } => {
                    newest_window = newest_window.max(Some((number, size)));
                }
                Frame::Shrunk { number, credit } => {
                    if !self.receiver.on_shrunk(number, credit) {
                        return self.violation(meta.now, "keeps within what it never had");
                    }
                }
                Frame::Gone(_) | Frame::Flow(_) if !matches!(self.life, Life::Open) => {}
                Frame::Gone(blocks) => {
                    if let Err(what) = self.receiver.on_gone(&blocks, abandoned) {
                        return self.violation(meta.now, what);
                    }
                    self.paths.main_mut().path.want_sack(meta.now);
                }
                Frame::Flow(news) => self.events.push_back(Event::Flow(news)),
                Frame::PaperSymbols(_) | Frame::PaperBlocks(_) if self.paper.is_none() => {
                    return self.violation(meta.now, "feedback of a mode that is not used");
                }
                Frame::Warning(_) if self.config.sc.is_none() => {
                    return self.violation(meta.now, "feedback of a mode that is not used");
                }
                Frame::Warning(warning) => {
                    if let Some(sc) = self.sender.sc_mut() {
                        sc.on_warning(&warning);
                    }
                }
                Frame::PaperSymbols(sack) => self.on_paper_symbols(meta, &sack, &mut delivered),
                Frame::PaperBlocks(sack) => self.on_paper_blocks(meta, &sack, &mut delivered),
                Frame::Sack(sack) => {
                    if !self.on_sack(meta, PathId::FIRST, &sack) {
                        return self.violation(meta.now, "acknowledged a packet never sent");
                    }
                }
                Frame::Ect1 { path, count } => {
                    if !self.paths.has_been(path) {
                        return self.violation(meta.now, NO_PATH);
                    }
                    if let Some(at) = self.paths.index(path) {
                        self.paths.at_mut(at).path.on_ect1(count);
                    }
                }
                Frame::PathSack { path, sack } => {
                    if !self.paths.has_been(path) {
                        return self.violation(meta.now, NO_PATH);
                    }
                    if !self.on_sack(meta, path, &sack) {
                        return self.violation(meta.now, "acknowledged a packet never sent");
                    }
                }
            }
        }
        if let Some((number, size)) = newest_window {
            let kept = (self.sender).on_window(self.credit_number(meta), number, size);
            if let Some(credit) = kept {
                self.control_queue
                    .push_newest(&Frame::Shrunk { number, credit });
            }
        }
        for (block, deficit) in deficits {
            let path = &self.paths.main().path;
            self.sender.on_deficit(meta.now, (block, deficit), path);
        }
        self.tell_skipped();
        self.sender.on_feedback(meta.now, &self.paths.main().path);
        if self.sender.take_progress() || self.window_news() > window_news {
            self.demand.on_progress(meta.now);
        }
        for lane in self.paths.iter_mut() {
            lane.path.settle(meta.now);
        }
        self.foresee_window();
        let delivered = delivered.into_iter();
        let delivered = delivered.map(|slot| Event::BlockDelivered { slot });
        self.events.extend(delivered);
        self.give_up_expired(meta.now);
        self.note_ended();
        if self.control_queue.is_overfull() && matches!(self.life, Life::Open) {
            // As long as the peer keeps this end busy, perhaps no timer runs out.
            self.stalled(meta.now, None);
        }
        if let Some((code, reason)) = closed {
            self.peer_closed(meta.now, code, reason);
        }
    }

    /// Data waits, and rate control allows more on its way than the peer's window holds: that will hold it up, if it does not yet. It takes a
    /// round trip until the window is larger.
    fn foresee_window(&mut self) {
        let window = self.sender.streams().window();
        if self.demand.backlog()
            && window < self.paths.capacity().cwnd
            && let Some(number) = self.sender.note_held()
        {
            self.control_queue.push_newest(&Frame::Held { number });
        }
    }

    /// Streams that this end sends on and that have ended.
    pub(super) fn note_ended(&mut self) {
        for stream in self.sender.take_ended() {
            if stream.opener() != self.config.role {
                self.receiver.on_answer_over(stream);
            }
            self.events.push_back(Event::StreamEnded(stream));
        }
        self.note_over();
    }

    fn note_over(&mut self) {
        let over = self.receiver.take_over().into_iter();
        self.events.extend(over.map(Event::StreamOver));
    }

    /// Tells the peer which numbers it misses that no packet has.
    fn tell_skipped(&mut self) {
        for lane in self.paths.iter_mut() {
            while self.control_queue.len() < FRAMES_BEFORE_SKIPPED
                && let Some(packet_number) = lane.path.poll_spent_skip()
            {
                self.control_queue.push(&Frame::Skipped {
                    path: lane.id(),
                    packet_number,
                });
            }
        }
    }

    /// Symbol-SACK. `false`: the peer acknowledges what was never sent.
    fn on_sack(&mut self, meta: &PacketMeta, path: PathId, sack: &Sack) -> bool {
        self.demand.on_sack(meta.now, self.keep_alive());
        let Some(at) = self.paths.index(path) else {
            // It was abandoned.
            return true;
        };
        let lane = self.paths.at_mut(at);
        let mut carriage = Carriage {
            path,
            horizon: lane.path.horizon(meta.now),
            sender: &mut self.sender,
            control: &mut self.control_queue,
        };
        let was_suspect = lane.path.is_suspect();
        let is_honest = lane.path.on_sack(meta.now, sack, &mut carriage);
        if was_suspect && !lane.path.is_suspect() {
            self.events.push_back(Event::Path(path, PathNews::Back));
            self.paths.arrange();
        }
        self.paths.couple(meta.now, at);
        // Nothing about credit is believed of a SACK that cannot be.
        if is_honest && !sack.ranges.is_empty() {
            let number = self.credit_number(meta);
            self.sender.on_credit(number, sack.credit);
        }
        is_honest
    }

    /// The complete block in this slot holds these parts, whose costs are filled in; its memory is elsewhere now. Whether
    /// there can be such parts: else the peer broke the protocol.
    pub fn block_unpacked(&mut self, now: Time, slot: Slot, parts: &mut [StreamPart]) -> bool {
        let received = self.receiver.on_parts(slot, parts);
        if let Err(what) = received {
            self.violation(now, what);
        }
        received.is_ok()
    }

    /// The memory of an [abandoned](Received::Abandoned) block that the peer sent has gone: its slot is free.
    pub fn block_forgotten(&mut self, slot: Slot) {
        self.receiver.on_forgotten(slot);
    }

    /// All of a stream is here, to its end.
    pub fn stream_whole(&mut self, stream: StreamId) {
        self.receiver.on_whole(stream);
        self.note_over();
    }

    /// The application has let go of a stream that the peer sends on, to its end or not. If not, the peer is told, for a
    /// reason of the application's. What still arrives is to be taken all the same.
    pub fn stop_stream(&mut self, stream: StreamId, code: u64) {
        let is_coming = self.receiver.let_go(stream);
        self.note_over();
        if is_coming && matches!(self.life, Life::Open) {
            let code = code.min(VARINT_MAX);
            self.control_queue.push(&Frame::Stop { stream, code });
        }
    }

    /// The application has taken a part of a stream that cost so much.
    pub fn taken(&mut self, now: Time, stream: StreamId, cost: u64) {
        let is_urgent = self.receiver.on_taken(now, stream, cost);
        self.note_over();
        if is_urgent {
            // The PING makes the news of more room reliable.
            self.paths.main_mut().scheduler.ping();
            self.paths.main_mut().path.want_sack(now);
        }
    }

    /// The application wants what the peer sends: from now on that may fill the whole window, not only [`Config::recv_credit`] of it.
    ///
    /// [`Config::recv_credit`]: crate::Config::recv_credit
    pub fn open_window(&mut self, now: Time) {
        if self.receiver.open_window() {
            // The PING makes the news reliable.
            self.paths.main_mut().scheduler.ping();
            self.paths.main_mut().path.want_sack(now);
        }
    }

    /// The receive window, bytes.
    pub fn recv_window(&self) -> u64 {
        self.receiver.streams().window().size()
    }

    /// The receive window at the beginning, bytes: less is of no use to the streams.
    pub fn recv_window_min(&self) -> u64 {
        self.receiver.streams().window().initial()
    }

    /// The receive window that the path could use, bytes, if it is more than there is: the peer says that the window held it up, and
    /// what it sent was read as fast as the path brings it without a queue.
    pub fn recv_window_wanted(&self) -> Option<u64> {
        if self.config.sc.is_some() {
            // It is bounded on purpose.
            return None;
        }
        let window = self.receiver.streams().window();
        window.wanted(self.paths.slowest_rtt())
    }

    /// The most that received blocks that nobody has taken may hold, bytes: more than the window for a while after it has shrunk.
    pub fn recv_window_cost(&self) -> u64 {
        self.receiver.streams().window().cost()
    }

    /// Whether the receive window may become smaller. Where there may be several paths, what was told before the peer's consent cannot be told from what
    /// comes after: numbers of packets are those of their paths.
    fn may_shrink(&self) -> bool {
        !self.paths.may_be_several()
    }

    /// When a receive window that has grown is to be as at the beginning again, and what that was.
    pub(super) fn window_idle(&self) -> Option<(Time, u64)> {
        let idle = self.receiver.streams().window_idle();
        idle.filter(|_| self.may_shrink())
    }

    /// The receive window is so large from now on, bytes. A smaller one needs the peer's consent: until that is here, nothing changes it again.
    pub fn set_recv_window(&mut self, now: Time, size: u64) {
        if !matches!(self.life, Life::Open) {
            return;
        }
        let size = size.min(VARINT_MAX);
        let is_bounded = self.config.sc.is_some();
        if is_bounded || !self.may_shrink() && size < self.recv_window() {
            return;
        }
        if let Some(number) = self.receiver.resize_window(size) {
            self.control_queue
                .push_newest(&Frame::Window { number, size });
            self.paths.main_mut().path.want_sack(now);
        }
    }

    /// Work to do on payload.
    #[inline]
    pub fn poll_job(&mut self) -> Option<Job> {
        self.jobs.poll()
    }

    /// The job has been done.
    pub fn job_done(&mut self, id: JobId) {
        self.events.extend(self.jobs.done(id));
    }
}
