//! What a session sends next.

use super::{BASE_DATAGRAM, CLOSE_TIMES, Life, MS, Session};
use crate::Nanos;
use crate::blocks::{Idle, SymbolChoice, WindowChoice};
use crate::path::{Carried, fragments_for};
use crate::sender::Carriage;
use crate::types::{Content, Transmit};
use crate::wire::{FRAGMENT_PREFIX_LEN, Fragment, Frame, Header, OVERHEAD, PacketKind};

/// Bytes of a control packet that feedback leaves for a PING and new connection ids.
const CONTROL_RESERVE: usize = 16 + 8 * (1 + 8 + 8);
/// From this round of repair on symbols that do not fit the path leave whole every other time of this
/// length.
const RISK_FROM_ROUND: u8 = 4;
const RISK_TIME: Nanos = 2_000 * MS;
/// Longest encoding of a CLOSE frame.
const CLOSE_LEN_MAX: usize = 300;
/// Control packets that say nothing that must arrive, and those that ask for an answer.
const UNACKNOWLEDGED: (Carried, bool) = (Carried::Frames { reliable: false }, false);
const ACKNOWLEDGED: (Carried, bool) = (Carried::Frames { reliable: false }, true);

impl Session {
    /// The next packet to send now.
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<Transmit> {
        match &mut self.life {
            Life::Open => {}
            Life::Closing {
                code,
                reason,
                copies,
                since,
            } => {
                let due = CLOSE_TIMES
                    .get(*copies)
                    .is_some_and(|after| *since + after <= now);
                if !due {
                    return None;
                }
                *copies += 1;
                // What has arrived counts for the peer, even if it hears of it only now.
                let mut body = Vec::new();
                self.receiver.report_all();
                let room = usize::from(BASE_DATAGRAM) - OVERHEAD - CLOSE_LEN_MAX;
                self.path
                    .write_feedback(now, room, &mut self.receiver, &mut body);
                Frame::Close {
                    code: *code,
                    reason,
                }
                .encode(&mut body);
                return Some(self.control(now, body, UNACKNOWLEDGED));
            }
            Life::Draining { answers, .. } => {
                *answers = answers.checked_sub(1)?;
                let mut body = Vec::new();
                Frame::Close {
                    code: 0,
                    reason: "",
                }
                .encode(&mut body);
                return Some(self.control(now, body, UNACKNOWLEDGED));
            }
            Life::Finished => return None,
        }
        self.note_waiting(now);
        if let Some(transmit) = self.poll_path(now) {
            return Some(transmit);
        }
        if let Some(size) = self.path.poll_mtu_probe(now) {
            let mut body = vec![0; usize::from(size) - OVERHEAD];
            body[0] = 1;
            return Some(self.control(now, body, (Carried::MtuProbe(size), true)));
        }
        if let Some(transmit) = self.poll_control(now) {
            return Some(transmit);
        }
        if let Some(transmit) = self.poll_symbol(now) {
            return Some(transmit);
        }
        // Behind the probes, so that its acknowledgement tells of them too.
        self.small_probes = self.small_probes.checked_sub(1)?;
        let mut body = Vec::new();
        Frame::Ping.encode(&mut body);
        Some(self.control(now, body, ACKNOWLEDGED))
    }

    fn poll_control(&mut self, now: Nanos) -> Option<Transmit> {
        let sack_due = self.path.acks().timeout().is_some_and(|at| at <= now);
        if !sack_due && !self.ping && !self.control_queue.is_due() {
            return None;
        }
        let mut body = Vec::new();
        // Feedback must get through whatever becomes of the path MTU.
        let room = usize::from(BASE_DATAGRAM) - OVERHEAD - CONTROL_RESERVE;
        self.path
            .write_feedback(now, room, &mut self.receiver, &mut body);
        let eliciting = std::mem::take(&mut self.ping);
        if eliciting {
            self.receiver.told_reliably();
            Frame::Ping.encode(&mut body);
        }
        let is_due = self.control_queue.is_due();
        let reliable = is_due && self.control_queue.write(self.path.next_pn(), &mut body);
        let carried = Carried::Frames { reliable };
        Some(self.control(now, body, (carried, eliciting || reliable)))
    }

    fn poll_symbol(&mut self, now: Nanos) -> Option<Transmit> {
        let allowed = self.path.is_open(now);
        if self.probes == 0 && !allowed {
            return None;
        }
        if let Some(transmit) = self.poll_part(now) {
            return Some(transmit);
        }
        let room = usize::from(self.path.mtu()) - OVERHEAD;
        if let Some(window) = self.sender.next_window(room) {
            return Some(self.window(now, window));
        }
        if !self.sender.has_symbol() {
            self.protect_tail(now);
        }
        let Some(mut choice) = self.sender.next_symbol(self.path.monitor()) else {
            self.path.rest();
            if self.probes > 0 {
                // Nothing to repair: ask for a sign of life. If it was a PING that got lost, the peer has not
                // heard what came with it either.
                self.probes = 0;
                self.ping = true;
                return self.poll_control(now);
            }
            let (n, symbol_len) = self.block_shape(1);
            let held_up = self.held_up.is_some();
            let starved = !self.backlog || held_up || !self.can_open(n, symbol_len);
            if starved && !self.app_limited_told {
                self.app_limited_told = true;
                self.path.on_app_limited(now);
            }
            return None;
        };
        if !self.sender.has_symbol() {
            self.protect_tail(now);
        }
        choice.last_of_flight = self.ends_flight();
        let count = fragments_for(choice.symbol_len, self.path.mtu());
        if count > 1 && !self.risks_whole(now, &choice) {
            let part = Fragment {
                symbol_len: choice.symbol_len,
                index: 0,
                count,
            };
            self.leaving = Some((choice, part, self.path.next_pn()));
            return self.poll_part(now);
        }
        Some(self.symbol(now, &choice))
    }

    /// Whether the symbol that leaves now is the last one for a while.
    fn ends_flight(&mut self) -> bool {
        let is_last_probe = self.probes == 1;
        self.probes = self.probes.saturating_sub(1);
        !self.sender.has_symbol() && !self.backlog || is_last_probe
    }

    fn window(&mut self, now: Nanos, window: WindowChoice) -> Transmit {
        let WindowChoice {
            mut choice,
            span,
            slots,
            row,
        } = window;
        if !self.sender.has_symbol() {
            self.protect_tail(now);
        }
        choice.last_of_flight = self.ends_flight();
        let body_len = span.body_len();
        let ip_bytes = self.account_sent(now, body_len);
        let mut transmit = self.symbol_transmit(&choice, None, body_len);
        transmit.content = Content::Window { span, slots, row };
        self.sent_symbol(now, ip_bytes, &choice);
        transmit
    }

    /// Whether a symbol that does not fit the path is to leave whole all the same.
    ///
    /// All parts of a symbol must arrive, which is rare where most packets are lost; and there it may be
    /// an error that the path is narrow: overload can look the same. So symbols in trouble leave whole
    /// every other while. The arrival of one proves the error.
    fn risks_whole(&self, now: Nanos, choice: &SymbolChoice) -> bool {
        choice.round >= RISK_FROM_ROUND && (now / RISK_TIME) % 2 == 1
    }

    /// The next part of a symbol that is too large for the path.
    fn poll_part(&mut self, now: Nanos) -> Option<Transmit> {
        let (mut choice, part, first) = self.leaving.take()?;
        // Else the peer has the block, and its memory may be gone.
        self.sender.blocks().get(choice.sequence)?;
        let is_last = part.index + 1 == part.count;
        let last_of_flight = std::mem::replace(&mut choice.last_of_flight, false);
        choice.last_of_flight = last_of_flight && is_last;
        let body_len = FRAGMENT_PREFIX_LEN + part.range().len();
        let ip_bytes = self.account_sent(now, body_len);
        let transmit = self.symbol_transmit(&choice, Some(part), body_len);
        let after = (transmit.packet_number - first) as u32;
        self.path.note_fragment(after, part.count);
        self.sender.note_sent(now, &choice, after == 0);
        let carried = Carried::Fragment {
            block: choice.sequence,
            round: choice.round,
            symbol: choice.symbol,
            after,
        };
        self.sent(now, ip_bytes, (carried, true));
        self.path.pace(ip_bytes);
        if !is_last {
            let index = part.index + 1;
            choice.last_of_flight = last_of_flight;
            self.leaving = Some((choice, Fragment { index, ..part }, first));
        }
        Some(transmit)
    }

    pub(super) fn has_symbol(&self) -> bool {
        self.leaving.is_some() || self.sender.has_symbol()
    }

    fn protect_tail(&mut self, now: Nanos) {
        let idle = if self.backlog {
            Idle::Window
        } else {
            Idle::Application
        };
        self.sender.protect_tail(now, idle, &self.path);
    }

    fn symbol(&mut self, now: Nanos, choice: &SymbolChoice) -> Transmit {
        let body_len = usize::from(choice.symbol_len);
        let ip_bytes = self.account_sent(now, body_len);
        let transmit = self.symbol_transmit(choice, None, body_len);
        self.sent_symbol(now, ip_bytes, choice);
        transmit
    }

    fn symbol_transmit(
        &self,
        choice: &SymbolChoice,
        fragment: Option<Fragment>,
        body_len: usize,
    ) -> Transmit {
        let packet_number = self.path.next_pn();
        let content = Content::Symbol {
            slot: choice.slot,
            symbol: choice.symbol,
        };
        let (code, row) = choice.symbol.to_wire();
        let header = Header {
            kind: fragment.map_or(PacketKind::Symbol, |_| PacketKind::Fragment),
            phase: false,
            last_of_flight: choice.last_of_flight,
            cid: self.peer_ids.current(),
            packet_number: packet_number as u32,
            block: choice.block as u32,
            stream: choice.stream,
            code,
            n: choice.n,
            row,
        };
        Transmit {
            packet_number,
            to: self.path.tuple(),
            header,
            content,
            fragment,
            body_len,
        }
    }

    /// A control packet leaves; what of it is to be acknowledged.
    pub(super) fn control(
        &mut self,
        now: Nanos,
        body: Vec<u8>,
        carried: (Carried, bool),
    ) -> Transmit {
        let ip_bytes = self.account_sent(now, body.len());
        let transmit = self.control_transmit(body);
        self.sent(now, ip_bytes, carried);
        transmit
    }

    /// A whole symbol leaves.
    fn sent_symbol(&mut self, now: Nanos, ip_bytes: u32, choice: &SymbolChoice) {
        self.sender.note_sent(now, choice, true);
        let carried = Carried::Symbol {
            block: choice.sequence,
            round: choice.round,
            symbol: choice.symbol,
        };
        self.sent(now, ip_bytes, (carried, true));
        self.path.pace(ip_bytes);
    }

    /// The packet with the next number leaves.
    fn sent(&mut self, now: Nanos, ip_bytes: u32, carried: (Carried, bool)) {
        let mut carriage = Carriage {
            sender: &mut self.sender,
            control: &mut self.control_queue,
        };
        self.path.record(now, ip_bytes, carried, &mut carriage);
    }

    fn control_transmit(&self, body: Vec<u8>) -> Transmit {
        let packet_number = self.path.next_pn();
        Transmit {
            packet_number,
            to: self.path.tuple(),
            header: Header::control(self.peer_ids.current(), packet_number as u32, false),
            fragment: None,
            body_len: body.len(),
            content: Content::Control(body),
        }
    }

    fn account_sent(&mut self, now: Nanos, body_len: usize) -> u32 {
        let ip_bytes = (body_len + OVERHEAD) as u32 + u32::from(self.config.ip_overhead);
        self.last_sent = now;
        self.counts.packets_sent += 1;
        self.counts.ip_bytes_sent += u64::from(ip_bytes);
        ip_bytes
    }
}
