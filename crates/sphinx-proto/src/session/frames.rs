//! What a session does with the frames of control packets.

use super::{Life, REPORT_INTERVAL, Session};
use crate::config::Role;
use crate::receiver::Violation;
use crate::sender::Carriage;
use crate::streams::IMPOSSIBLE;
use crate::types::{AbandonedBlock, Event, PacketMeta, PathNews, Received, Slot, StreamId};
use crate::wire::{FlowNews, Frame, FrameIter, Header, Reset, ResetToken, Sack, Warning};
use crate::{BlockId, CidSequence, PacketNumber, PathId, Time, WindowNumber};

/// While so many frames wait or are in flight, the peer is not told of more skipped packet numbers:
/// that is not urgent.
pub(super) const FRAMES_BEFORE_SKIPPED: usize = 4;

/// Of one packet at most so many frames with feedback are handled, the others are ignored, since
/// each may concern everything that this end has sent. An honest packet has fewer: one for blocks,
/// one for each kind of streams, and one for its own path and each of a few others.
const FEEDBACK_MAX: usize = 16;

/// What the peer is told that names a path that cannot be.
const NO_PATH: &str = "a path that does not exist";
/// What the peer is told that sends a frame of the paper's mode, or of generations, in a session without them.
const OTHER_MODE: &str = "feedback of a mode that is not used";

/// What the frames of a control packet leave to be done once, when all of them have been read.
#[derive(Default)]
struct ControlOutcome<'a> {
    /// Blocks that the peer has.
    delivered: Vec<Slot>,
    /// Blocks that the peer lacks symbols of, and how many.
    deficits: Vec<(BlockId, u32)>,
    /// Blocks that will never be complete.
    abandoned: Vec<AbandonedBlock>,
    /// The newest window: applying one divides it among all streams.
    window: Option<(WindowNumber, u64)>,
    /// The peer has closed the session, with this code and for this reason.
    closed: Option<(u64, &'a str)>,
}

/// A violation of the protocol unless `holds`.
fn ensure(holds: bool, what: &'static str) -> Result<(), Violation> {
    holds.then_some(()).ok_or(Violation(what))
}

impl Session {
    pub(super) fn handle_control(
        &mut self,
        at: usize,
        meta: &PacketMeta,
        header: &Header,
        body: &[u8],
    ) -> Received {
        let eliciting = FrameIter::new(body)
            .flatten()
            .any(|frame| frame.is_ack_eliciting());
        self.received(at, meta, header, eliciting);
        let window_news = self.window_news();
        let mut outcome = ControlOutcome::default();
        match self.handle_frames(meta, header, body, &mut outcome) {
            Ok(()) => self.settle_control(meta, &mut outcome, window_news),
            Err(Violation(what)) => self.violation(meta.now, what),
        }
        // Also after a violation: whoever drives the session must free the memory of these blocks.
        match outcome.abandoned.is_empty() {
            true => Received::Nothing,
            false => Received::Abandoned(outcome.abandoned),
        }
    }

    fn handle_frames<'a>(
        &mut self,
        meta: &PacketMeta,
        header: &Header,
        body: &'a [u8],
        outcome: &mut ControlOutcome<'a>,
    ) -> Result<(), Violation> {
        let mut feedback = 0;
        for frame in FrameIter::new(body) {
            let Ok(frame) = frame else {
                return Err(Violation("malformed frame"));
            };
            if frame.is_feedback() {
                feedback += 1;
                if feedback > FEEDBACK_MAX {
                    continue;
                }
            }
            self.handle_frame(meta, header, frame, outcome)?;
        }
        Ok(())
    }

    fn handle_frame<'a>(
        &mut self,
        meta: &PacketMeta,
        header: &Header,
        frame: Frame<'a>,
        outcome: &mut ControlOutcome<'a>,
    ) -> Result<(), Violation> {
        let now = meta.now;
        match frame {
            Frame::Padding => {}
            Frame::Ping => self.on_ping(now),
            Frame::Close { code, reason } => outcome.closed = Some((code, reason)),

            // Paths.
            Frame::NewConnectionId {
                path,
                sequence,
                cid,
            } => ensure(self.paths.offer(path, sequence, cid), NO_PATH)?,
            Frame::ResetToken {
                path,
                sequence,
                token,
            } => self.on_reset_token(path, sequence, token),
            Frame::Skipped {
                path,
                packet_number,
            } => self.on_skipped(path, packet_number)?,
            Frame::PathAbandon { path } => self.on_path_abandon(now, path)?,
            Frame::PathStatus(status) => ensure(self.on_path_status(&status), NO_PATH)?,
            Frame::MaxPaths(paths) => self.on_max_paths(paths),
            Frame::Bond { number, bond } => {
                ensure(
                    self.on_bond(number, bond),
                    "a server chose what paths are for",
                )?;
            }
            Frame::PathChallenge(data) => self.on_path_challenge(meta, header, data),
            Frame::PathResponse(data) => self.on_path_response(meta, header, data),

            // Feedback.
            Frame::Sack(sack) => self.on_sack(meta, PathId::FIRST, &sack)?,
            Frame::PathSack { path, sack } => {
                ensure(self.paths.has_been(path), NO_PATH)?;
                self.on_sack(meta, path, &sack)?;
            }
            Frame::Ect1 { path, count } => self.on_ect1(path, count)?,
            Frame::Blocks(blocks) => {
                self.sender.on_blocks(&blocks, &mut outcome.delivered);
                outcome.deficits.extend(blocks.deficits);
            }
            Frame::Streams(streams) => {
                ensure(
                    self.sender.on_streams(&streams),
                    "took what this end never sent",
                )?;
            }
            Frame::PaperSymbols(sack) => {
                ensure(self.paper.is_some(), OTHER_MODE)?;
                self.on_paper_symbols(meta, &sack, &mut outcome.delivered);
            }
            Frame::PaperBlocks(sack) => {
                ensure(self.paper.is_some(), OTHER_MODE)?;
                self.on_paper_blocks(meta, &sack, &mut outcome.delivered);
            }
            Frame::Warning(warning) => self.on_warning(&warning)?,

            // Streams and datagrams.
            Frame::Reset(reset) => self.on_reset(now, &reset, &mut outcome.abandoned)?,
            Frame::Stop { stream, code } => self.on_stop(stream, code)?,
            Frame::Gone(blocks) => self.on_gone(now, &blocks, &mut outcome.abandoned)?,
            Frame::Flow(news) => self.on_flow(news),

            // Windows.
            Frame::Held { number } => self.receiver.on_held(number),
            Frame::Window { number, size } => {
                outcome.window = outcome.window.max(Some((number, size)));
            }
            Frame::Shrunk { number, credit } => {
                ensure(
                    self.receiver.on_shrunk(number, credit),
                    "keeps within what it never had",
                )?;
            }
        }
        Ok(())
    }

    /// What follows from all frames of a control packet together. `window_news`: [`Self::window_news`] before the packet.
    fn settle_control(
        &mut self,
        meta: &PacketMeta,
        outcome: &mut ControlOutcome<'_>,
        window_news: u64,
    ) {
        if let Some((number, size)) = outcome.window {
            let kept = (self.sender).on_window(self.credit_number(meta), number, size);
            if let Some(credit) = kept {
                self.control_queue
                    .push_newest(&Frame::Shrunk { number, credit });
            }
        }
        for (block, deficit) in outcome.deficits.drain(..) {
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
        let delivered = outcome.delivered.drain(..);
        let delivered = delivered.map(|slot| Event::BlockDelivered { slot });
        self.events.extend(delivered);
        self.give_up_expired(meta.now);
        self.note_ended();
        if self.control_queue.is_overfull() && matches!(self.life, Life::Open) {
            // The timer that notices this may never expire while the peer keeps this end busy.
            self.stalled(meta.now, None);
        }
        if let Some((code, reason)) = outcome.closed {
            self.peer_closed(meta.now, code, reason);
        }
    }

    /// If data waits and rate control allows more on its way than the peer's window, the window
    /// will soon be the limit. The peer is told at once, as it takes a round trip until a larger
    /// window arrives.
    fn foresee_window(&mut self) {
        let window = self.sender.streams().window();
        if self.demand.backlog()
            && window < self.paths.capacity().cwnd
            && let Some(number) = self.sender.note_held()
        {
            self.control_queue.push_newest(&Frame::Held { number });
        }
    }

    /// Tells the peer which of the packet numbers that it misses were skipped.
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

    // ---- frames ---------------------------------------------------------------------------------

    fn on_ping(&mut self, now: Time) {
        // The peer may ask because feedback was lost: all of it is sent again, at most once per interval.
        if now >= self.reported_at + REPORT_INTERVAL {
            self.reported_at = now;
            self.receiver.report_all();
        }
    }

    fn on_reset_token(&mut self, path: PathId, sequence: CidSequence, token: ResetToken) {
        // Only a server derives its tokens from a secret that survives a restart.
        if self.config.role == Role::Client {
            self.paths.tell(path, sequence, token);
        }
    }

    fn on_skipped(&mut self, path: PathId, packet_number: PacketNumber) -> Result<(), Violation> {
        match self.paths.index(path) {
            Some(at) => self.paths.at_mut(at).path.on_skipped(packet_number),
            None => ensure(self.paths.has_been(path), NO_PATH)?,
        }
        Ok(())
    }

    fn on_path_abandon(&mut self, now: Time, path: PathId) -> Result<(), Violation> {
        let is_last = self.paths.len() == 1 && self.paths.index(path).is_some();
        let may_be = self.paths.has_been(path) || self.paths.is_ready(path);
        ensure(may_be && !is_last, NO_PATH)?;
        if !self.drop_path(now, path, PathNews::Abandoned) {
            self.take_back(path);
        }
        Ok(())
    }

    /// The path is looked up again, here and for the response: a frame before this one may have abandoned it.
    fn on_path_challenge(&mut self, meta: &PacketMeta, header: &Header, data: [u8; 8]) {
        if let Some(at) = self.path_of(meta, header) {
            let path = &mut self.paths.at_mut(at).path;
            path.on_challenge(meta.tuple, data, meta.datagram_len);
        }
    }

    fn on_path_response(&mut self, meta: &PacketMeta, header: &Header, data: [u8; 8]) {
        if let Some(at) = self.path_of(meta, header) {
            self.answered(meta, at, data);
        }
    }

    /// Symbol-SACK of a path that there is or was.
    fn on_sack(&mut self, meta: &PacketMeta, path: PathId, sack: &Sack) -> Result<(), Violation> {
        self.demand.on_sack(meta.now, self.keep_alive());
        let Some(at) = self.paths.index(path) else {
            // The path was abandoned.
            return Ok(());
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
        // The credit of a SACK that cannot be true is ignored.
        if is_honest && !sack.ranges.is_empty() {
            let number = self.credit_number(meta);
            self.sender.on_credit(number, sack.credit);
        }
        ensure(is_honest, "acknowledged a packet never sent")
    }

    fn on_ect1(&mut self, path: PathId, count: u64) -> Result<(), Violation> {
        ensure(self.paths.has_been(path), NO_PATH)?;
        if let Some(at) = self.paths.index(path) {
            self.paths.at_mut(at).path.on_ect1(count);
        }
        Ok(())
    }

    fn on_warning(&mut self, warning: &Warning) -> Result<(), Violation> {
        ensure(self.config.sc.is_some(), OTHER_MODE)?;
        if let Some(sc) = self.sender.sc_mut() {
            sc.on_warning(warning);
        }
        Ok(())
    }

    fn on_reset(
        &mut self,
        now: Time,
        reset: &Reset,
        abandoned: &mut Vec<AbandonedBlock>,
    ) -> Result<(), Violation> {
        if !matches!(self.life, Life::Open) {
            return Ok(());
        }
        self.ensure_no_generation(&reset.blocks)?;
        let is_news = self.receiver.on_reset(reset, abandoned);
        if is_news.map_err(Violation)? {
            let Reset { stream, code, .. } = *reset;
            self.events.push_back(Event::StreamReset { stream, code });
        }
        self.paths.main_mut().path.want_sack(now);
        Ok(())
    }

    fn on_stop(&mut self, stream: StreamId, code: u64) -> Result<(), Violation> {
        if !matches!(self.life, Life::Open) {
            return Ok(());
        }
        ensure(
            stream.has_sender(self.config.role),
            "stopped what this end does not send",
        )?;
        if self.sender.streams().has_ended(stream) {
            // It comes again although nothing is sent any more.
            return Ok(());
        }
        ensure(self.receiver.on_stopped(stream), IMPOSSIBLE)?;
        self.events.push_back(Event::StreamStopped { stream, code });
        Ok(())
    }

    fn on_gone(
        &mut self,
        now: Time,
        blocks: &[(BlockId, u64)],
        abandoned: &mut Vec<AbandonedBlock>,
    ) -> Result<(), Violation> {
        self.ensure_no_generation(blocks)?;
        if !matches!(self.life, Life::Open) {
            return Ok(());
        }
        let gone = self.receiver.on_gone(blocks, abandoned);
        gone.map_err(Violation)?;
        self.paths.main_mut().path.want_sack(now);
        Ok(())
    }

    fn on_flow(&mut self, news: FlowNews) {
        if matches!(self.life, Life::Open) {
            self.events.push_back(Event::Flow(news));
        }
    }

    /// Generations, which are the blocks of their mode, are never given up.
    fn ensure_no_generation(&self, blocks: &[(BlockId, u64)]) -> Result<(), Violation> {
        ensure(
            self.config.sc.is_none() || blocks.is_empty(),
            "a generation that is given up",
        )
    }
}
