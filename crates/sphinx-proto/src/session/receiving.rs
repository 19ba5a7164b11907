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
    /// Handles a packet that was opened, that is, decrypted and authenticated. All that the peer
    /// says comes in here. The driver has to store what the result names before it polls for jobs
    /// and events.
    ///
    /// Of a symbol only the length matters here. A malformed body counts as refused and is not acknowledged; a
    /// malformed frame or bundle, or a code that does not exist, ends the session.
    pub fn handle_packet(&mut self, meta: &PacketMeta, header: &Header, body: &[u8]) -> Received {
        let Some(at) = self.path_of(meta, header) else {
            // Its path is closed already or cannot be open yet. What matters of the packet will be
            // sent again.
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

    /// The same for a symbol that was opened into [its place](Self::place_of), if nothing else was
    /// handled since that was asked for. Returns where it belongs; `None` if this session has no
    /// use for it.
    ///
    /// With a `count` above 1, at most [`Place::run`], so many packets are handled at once, with
    /// the same effect as one by one. This one has the highest packet number so far. The others
    /// have the numbers and symbols that follow its own, their symbols lie in their places too, and
    /// they agree with it in everything else.
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

    /// The place of a packet's body before the packet is opened, if its header announces a source
    /// symbol of a block that is being received. The body can be opened right into its place, but
    /// only if that is empty: the header is not authenticated yet.
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

    /// The same for `count` packets, of which this is the first.
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

    /// Handles the next symbol of a [bundle](Received::Bundle) as if it had arrived alone. Returns
    /// where it belongs.
    pub fn handle_bundled(&mut self, now: Time, symbol: &BundledSymbol) -> Placement {
        if !matches!(self.life, Life::Open) {
            return Placement::Discard;
        }
        let placement = self.receiver.on_symbol(&symbol.header, symbol.at.len());
        self.progress(now, placement.map(|_| ()));
        placement.unwrap_or(Placement::Discard)
    }

    /// How much the decoder of sliding windows may keep.
    pub fn window_limits(&self) -> SpanLimits {
        self.receiver.window_limits()
    }

    /// Does what follows from a packet with symbols.
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

    /// Notes the streams on which this end sends and that have ended.
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

    /// The complete block in this slot held these parts, whose costs are filled in, and has been
    /// taken out of its memory. `false`: there can be no such parts, so the peer broke the
    /// protocol.
    pub fn block_unpacked(&mut self, now: Time, slot: Slot, parts: &mut [StreamPart]) -> bool {
        let received = self.receiver.on_parts(slot, parts);
        if let Err(what) = received {
            self.violation(now, what);
        }
        received.is_ok()
    }

    /// The memory of an [abandoned](Received::Abandoned) block has been freed: its slot may be used
    /// again.
    pub fn block_forgotten(&mut self, slot: Slot) {
        self.receiver.on_forgotten(slot);
    }

    /// All of a stream is here, to its end.
    pub fn stream_whole(&mut self, stream: StreamId) {
        self.receiver.on_whole(stream);
        self.note_over();
    }

    /// The application reads no more of a stream on which the peer sends. If it has not read to the
    /// end the peer is told, with `code` as the application's reason. What still arrives must be
    /// [taken](Self::taken) all the same.
    pub fn stop_stream(&mut self, stream: StreamId, code: u64) {
        let is_coming = self.receiver.let_go(stream);
        self.note_over();
        if is_coming && matches!(self.life, Life::Open) {
            let code = code.min(VARINT_MAX);
            self.control_queue.push(&Frame::Stop { stream, code });
        }
    }

    /// The application has taken a part of a stream, of this cost in the window.
    pub fn taken(&mut self, now: Time, stream: StreamId, cost: u64) {
        let is_urgent = self.receiver.on_taken(now, stream, cost);
        self.note_over();
        if is_urgent {
            // The PING makes the feedback that grants more room reliable.
            self.paths.main_mut().scheduler.ping();
            self.paths.main_mut().path.want_sack(now);
        }
    }

    /// The application has accepted the session: what the peer sends may fill the whole window from
    /// now on, not only [`Config::recv_credit`] of it.
    ///
    /// [`Config::recv_credit`]: crate::Config::recv_credit
    pub fn open_window(&mut self, now: Time) {
        if self.receiver.open_window() {
            // The PING makes the feedback reliable.
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

    /// The receive window that the path could use, bytes, if that is more than the present one. It
    /// is known if the peer says that the window held it up, and if the application read as fast as
    /// the path can carry without a queue.
    pub fn recv_window_wanted(&self) -> Option<u64> {
        if self.config.sc.is_some() {
            // With generations the receive buffer is bounded on purpose.
            return None;
        }
        let window = self.receiver.streams().window();
        window.wanted(self.paths.slowest_rtt())
    }

    /// What received blocks that were not read may hold at most, bytes. For a while after the
    /// window has shrunk that is more than the window.
    pub fn recv_window_cost(&self) -> u64 {
        self.receiver.streams().window().cost()
    }

    /// Whether the receive window may become smaller. Not where there may be several paths: each
    /// has packet numbers of its own, so they do not tell whether the peer sent a packet before or
    /// after it accepted the smaller window.
    fn may_shrink(&self) -> bool {
        !self.paths.may_be_several()
    }

    /// When a receive window that has grown and is not used is to shrink to its first size, and
    /// that size.
    pub(super) fn window_idle(&self) -> Option<(Time, u64)> {
        let idle = self.receiver.streams().window_idle();
        idle.filter(|_| self.may_shrink())
    }

    /// Changes the receive window to `size` bytes. A smaller one needs the peer's consent, and
    /// until that has arrived the window does not change again.
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

    /// The next job on payload for the driver.
    #[inline]
    pub fn poll_job(&mut self) -> Option<Job> {
        self.jobs.poll()
    }

    /// The job has been done.
    pub fn job_done(&mut self, id: JobId) {
        self.events.extend(self.jobs.done(id));
    }
}
