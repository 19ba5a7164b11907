//! One session inside the engine: the protocol core, its keys, and the memory that its slots name.

mod exchange;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sphinx_driver::BufferPool;
use sphinx_fec::{BlockDecoder, Encoder, RowMaker};
use sphinx_net::{Ecn, SendQueue};
use sphinx_proto::wire::ConnectionId;
use sphinx_proto::{Event, Nanos, Room, Session, Tuple};

use crate::blocks::{RxBlocks, TxBlocks};
use crate::control::Traffic;
use crate::error::{Error, ErrorKind, closed_by_peer};
use crate::memory::PathFile;
use crate::options::Options;
use crate::routes::Source;
use crate::shared::{Inner, Shared};
use crate::stats::Stats;
use crate::windows::Windows;
use receiving::Assembler;
use sphinx_driver::keys::{Opener, ReplayWindow, Sealer};

/// How often the application's view of the counters is renewed.
const STATS_INTERVAL: Nanos = 5_000_000;

/// Working memory that all sessions of an engine share.
pub(crate) struct Workshop {
    pub(crate) pool: BufferPool,
    pub(crate) encoder: Encoder,
    pub(crate) decoder: BlockDecoder,
    /// Uses all repairs together, those of peeling codes too.
    pub(crate) thorough_decoder: BlockDecoder,
    /// Rows of sliding windows.
    pub(crate) rows: RowMaker,
    pub(crate) queue: SendQueue,
    /// A repair symbol of which parts are sent.
    pub(crate) symbol: Vec<u8>,
    pub(crate) segments_max: usize,
}

/// Where and when a datagram came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) received_at: Nanos,
    pub(crate) tuple: Tuple,
    pub(crate) ecn: Ecn,
}

pub(crate) struct Association {
    core: Session,
    sealer: Sealer,
    opener: Opener,
    replay: ReplayWindow,
    source: Source,
    /// Where to remember the path at the end.
    paths: Option<PathFile>,
    retired: Vec<ConnectionId>,
    /// Symbols of which parts have arrived, by place.
    parts: Vec<Vec<u8>>,
    shared: Arc<Shared>,
    tx: TxBlocks,
    rx: RxBlocks,
    windows: Windows,
    assemblers: BTreeMap<u16, Assembler>,
    invalid: u64,
    replayed: u64,
    bytes_delivered: u64,
    bytes_received: u64,
    /// What the control plane has sent and received for this session.
    control: Traffic,
    /// Datagrams of the endpoint that belonged to nobody, now and when this session began.
    strays: u64,
    strays_before: u64,
    /// How long the session had lasted when it was over for the application.
    lasted: Option<Duration>,
    stats_at: Nanos,
    stats_names: Stats,
    idle_timeout: Duration,
    /// When to look again whether a writer pauses.
    pause_at: Option<Nanos>,
    /// Stream and shape of a block that may be sent once more of what was handed over before has been.
    waiting: Option<(u16, u16, u16)>,
    /// [`Session::window_news`] when streams that are held up were last asked.
    window_news: u64,
    /// Finished streams of which the core has the last block, and the peer not yet.
    ending: Vec<u16>,
    /// How the control connection is to be closed.
    farewell: (u64, String),
}

impl Association {
    pub(crate) fn new(
        core: Session,
        (sealer, opener): (Sealer, Opener),
        (source, paths): (Source, Option<PathFile>),
        shared: Arc<Shared>,
        options: &Options,
        strays: u64,
    ) -> Self {
        let stats_names = Stats {
            icm: options.icm.name(),
            cc: options.cc.name(),
            codec: options.codec.name(),
            profile: options.profile.name(),
            io: "udp",
            ..Stats::default()
        };
        Self {
            core,
            sealer,
            opener,
            replay: ReplayWindow::default(),
            source,
            paths,
            retired: Vec::new(),
            parts: Vec::new(),
            shared,
            tx: TxBlocks::default(),
            rx: RxBlocks::default(),
            windows: Windows::default(),
            assemblers: BTreeMap::new(),
            invalid: 0,
            replayed: 0,
            bytes_delivered: 0,
            bytes_received: 0,
            control: Traffic::default(),
            strays,
            strays_before: strays,
            lasted: None,
            stats_at: 0,
            stats_names,
            idle_timeout: options.idle_timeout,
            pause_at: None,
            waiting: None,
            window_news: 0,
            ending: Vec::new(),
            farewell: (0, String::new()),
        }
    }

    // ---- events ---------------------------------------------------------------------------------

    /// Whether there were any.
    fn handle_events(&mut self, now: Nanos, inner: &mut Inner) -> bool {
        let mut any = false;
        while let Some(event) = self.core.poll_event() {
            any = true;
            match event {
                Event::BlockComplete {
                    stream,
                    block,
                    slot,
                } => {
                    self.assemble(now, (stream, block), slot, inner);
                }
                Event::BlockDelivered { slot, .. } => {
                    let block = self.tx.remove(slot);
                    self.bytes_delivered += block.map_or(0, |block| u64::from(block.data_len));
                }
                Event::Closed { code, reason } => {
                    inner.peer_code = inner.closed.is_none().then_some(code);
                    self.end_in(inner, closed_by_peer(code, &reason));
                }
                Event::PathChanged(tuple) => {
                    self.source.on_path_changed();
                    self.shared.set_remote(tuple.remote);
                }
                Event::ConnectionIdRetired(cid) => self.retired.push(cid),
                Event::PeerLost => {
                    self.farewell = (6, "nothing heard from this end for too long".to_owned());
                    let error = Error::new(
                        ErrorKind::PeerLost,
                        "nothing heard from the peer for the idle timeout",
                    );
                    let hint = "check the network and the other end, then start again";
                    self.end_in(inner, error.with_hint(hint));
                }
                Event::Stalled { held_up } => self.stalled(inner, held_up),
                Event::PeerGone => {
                    self.farewell = (6, "nobody listens at this end's address".to_owned());
                    let message = "the peer is gone: its port is closed (ICMP port unreachable), \
                                   and nothing is heard from it";
                    let hint = "start the other end again, then this one";
                    self.end_in(
                        inner,
                        Error::new(ErrorKind::PeerLost, message).with_hint(hint),
                    );
                }
                Event::Violation(what) => self.violation(inner, now, what),
            }
        }
        any
    }

    fn stalled(&mut self, inner: &mut Inner, held_up: Option<u16>) {
        let seconds = self.idle_timeout.as_secs_f64();
        let (message, hint) = match held_up {
            Some(stream) => (
                format!(
                    "no progress for {seconds} s: the other end answers, but its application has not read \
                     stream {stream}, whose share of the window is full"
                ),
                "see what the program at the other end waits for, or give --idle-timeout more",
            ),
            None => (
                format!(
                    "no progress for {seconds} s: the other end answers, but confirms nothing of what \
                     this end sends"
                ),
                "check the network: it may carry packets in one direction only",
            ),
        };
        self.farewell = (6, "no progress for too long".to_owned());
        let error = Error::new(ErrorKind::Stalled, message);
        self.end_in(inner, error.with_hint(hint));
    }

    fn violation(&mut self, inner: &mut Inner, now: Nanos, what: &'static str) {
        self.core.close(now, 5, what);
        self.farewell = (5, what.to_owned());
        let message = format!("the peer broke the protocol: {what}");
        self.end_in(inner, Error::new(ErrorKind::Protocol, message));
    }

    /// The session is over for the application; the first reason stays.
    pub(crate) fn end(&mut self, error: Error) {
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.lock();
        self.end_in(&mut inner, error);
        shared.notify(inner);
    }

    fn end_in(&mut self, inner: &mut Inner, error: Error) {
        self.lasted.get_or_insert(self.shared.elapsed());
        // Before the application hears of the end: it may exit at once.
        if let (Some(paths), Some(memory)) = (self.paths.take(), self.core.path_memory()) {
            paths.remember(self.core.tuple().remote.ip(), memory);
        }
        inner.closed.get_or_insert(error);
        inner.all_changed();
        // What is still counted is on its way out; the clock stands.
        inner.stats = self.stats();
    }

    // ---- the engine's turn --------------------------------------------------------------------

    /// Everything that is due: timers, events, the application's wishes. `strays` are the datagrams of
    /// the endpoint that belonged to nobody.
    pub(crate) fn service(
        &mut self,
        now: Nanos,
        clock: Instant,
        traffic: Option<Traffic>,
        strays: u64,
    ) {
        self.control = traffic.unwrap_or(self.control);
        self.strays = strays;
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
        }
        if let Some(largest) = self.core.largest_acked() {
            self.sealer.acked(largest);
        }
        self.exchange(now, clock);
    }

    /// Seal what may leave now into the queue, until it holds `limit` bytes.
    pub(crate) fn transmit(&mut self, now: Nanos, limit: usize, workshop: &mut Workshop) {
        while workshop.queue.len_bytes() < limit {
            let Some(transmit) = self.core.poll_transmit(now) else {
                return;
            };
            if let Err(why) = self.seal(&transmit, workshop) {
                // Not even CLOSE could be sent.
                self.core.abandon();
                self.end(Error::new(ErrorKind::Other, format!("cannot send: {why}")));
                return;
            }
        }
    }

    /// When [`Association::service`] and [`Association::transmit`] are to be called next, if nothing
    /// happens before.
    pub(crate) fn poll_timeout(&mut self) -> Option<Nanos> {
        let mut waiting = self.waiting.iter();
        if waiting.any(|(stream, n, symbol_len)| {
            self.core.room_for(*stream, *n, *symbol_len) != Room::Later
        }) {
            // Sending has made room for a block that waits.
            return Some(0);
        }
        self.core
            .poll_timeout()
            .into_iter()
            .chain(self.pause_at)
            .min()
    }

    /// Nothing will happen any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.core.is_finished()
    }

    /// The session is finished: last words to the application. How to close the control connection.
    pub(crate) fn finish(&mut self) -> (u64, String) {
        self.end(Error::new(ErrorKind::Other, "the session has ended"));
        std::mem::take(&mut self.farewell)
    }

    /// The peer has closed the control connection: it no longer knows this session.
    pub(crate) fn refused(&mut self, error: Error) {
        self.end(error);
        self.core.abandon();
    }

    /// Begin to close, for an engine that stops.
    pub(crate) fn stop(&mut self, now: Nanos) {
        const REASON: &str = "the other end has stopped";
        self.core.close(now, 6, REASON);
        self.farewell = (6, REASON.to_owned());
        self.end(Error::new(
            ErrorKind::Interrupted,
            "the endpoint was closed at this end",
        ));
    }

    fn stats(&self) -> Stats {
        let core = self.core.stats();
        let ip_overhead = if self.core.tuple().remote.is_ipv4() {
            28
        } else {
            48
        };
        let control = &self.control;
        Stats {
            silence: Duration::ZERO,
            elapsed: self.lasted.unwrap_or_else(|| self.shared.elapsed()),
            wire_bytes_sent: core.ip_bytes_sent
                + control.bytes_sent
                + ip_overhead * control.datagrams_sent,
            wire_packets_sent: core.packets_sent + control.datagrams_sent,
            wire_bytes_received: core.ip_bytes_received
                + control.bytes_received
                + ip_overhead * control.datagrams_received,
            repair_proactive: core.repair_proactive,
            repair_reactive: core.repair_reactive,
            source_sent: core.source_sent,
            repair_proactive_bytes: core.repair_proactive_bytes,
            repair_reactive_bytes: core.repair_reactive_bytes,
            losses_sent: core.losses_sent,
            losses_received: core.losses_received,
            plr: core.plr,
            rtt: Duration::from_nanos(core.rtt),
            min_rtt: Duration::from_nanos(core.min_rtt),
            pacing_rate: core.pacing_rate,
            cwnd: core.cwnd,
            blocks: core.blocks,
            blocks_second_round: core.blocks_second_round,
            invalid_datagrams: self.invalid
                + core.packets_refused
                + (self.strays - self.strays_before),
            replayed_datagrams: self.replayed,
            bytes_delivered: self.bytes_delivered,
            bytes_received: self.bytes_received,
            symbol_bytes: u32::from(core.symbol_len),
            ..self.stats_names
        }
    }
}

impl Drop for Association {
    /// However the engine ends, nobody waits for it any longer.
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.close_answered = true;
        inner
            .closed
            .get_or_insert_with(|| Error::new(ErrorKind::Other, "the engine has stopped"));
        inner.all_changed();
        self.shared.notify(inner);
    }
}
