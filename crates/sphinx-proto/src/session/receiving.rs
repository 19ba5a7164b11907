//! What a session does with packets that have opened, and with the blocks that they make.

use sphinx_fec::CodeId;
use sphinx_fec::span::SpanLimits;

use super::{Life, Session};
use crate::path::Marks;
use crate::receiver::Violation;
use crate::types::{
    BundledSymbol, Event, Job, PacketMeta, Place, Placement, Received, Slot, StreamId, StreamPart,
};
use crate::wire::{Bundle, Fragment, Frame, Header, PacketKind, VARINT_MAX, WindowSpan};
use crate::{JobId, Time};

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
            PacketKind::Control => self.handle_control(at, meta, header, body),
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
    pub(super) fn received(
        &mut self,
        at: usize,
        meta: &PacketMeta,
        header: &Header,
        eliciting: bool,
    ) {
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
