//! What a session sends: the packets that the scheduler has decided on.

use super::ending::{CLOSE_TIMES, Life};
use super::frames::FRAMES_BEFORE_SKIPPED;
use super::{BASE_DATAGRAM, Session};
use crate::blocks::{SymbolChoice, WindowChoice};
use crate::path::{Carried, PathPacket, Riding};
use crate::scheduler::{Next, Sources};
use crate::sender::Carriage;
use crate::types::{Content, RidingSymbol, Transmit};
use crate::wire::{
    Bundle, FRAGMENT_PREFIX_LEN, Fragment, Frame, Header, OVERHEAD, PacketKind, Rider, SymbolId,
};
use crate::{BlockId, Time};

/// Bytes of a control packet that feedback leaves free for a PING, new connection ids and skipped
/// packet numbers …
const CONTROL_RESERVE: usize = 16 + 8 * (1 + 1 + 8 + 8) + FRAMES_BEFORE_SKIPPED * (1 + 1 + 8);
/// … or, for as many waiting frames as need it, up to this.
const FRAMES_MAX: usize = 600;
/// A control packet has SACKs of at most so many other paths, each of at most so many bytes.
const OTHERS_MAX: usize = 2;
const OTHER_LEN_MAX: usize = 160;
/// Longest encoding of a CLOSE frame.
const CLOSE_LEN_MAX: usize = 300;
/// What control packets without reliable frames carry, and whether they are to be acknowledged:
/// here they are not, in `ACKNOWLEDGED` they are.
pub(super) const UNACKNOWLEDGED: (Carried, bool) = (Carried::Frames { reliable: false }, false);
/// The place of the only path of a session that has one, as always in the paper's mode.
pub(super) const ONLY: usize = 0;
const ACKNOWLEDGED: (Carried, bool) = (Carried::Frames { reliable: false }, true);

/// Source symbols of the same block that are to leave right behind the last one, on the only path.
/// Unless a packet arrives or time passes, nothing else can come between them, and only rate
/// control can stop them.
#[derive(Debug)]
pub(super) struct Following {
    block: BlockId,
    symbol_len: u16,
    /// Number of symbols that follow.
    left: u32,
}

impl Session {
    /// The next packet to send now.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        self.following = None;
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
                    .is_some_and(|after| *since + *after <= now);
                if !due {
                    return None;
                }
                *copies += 1;
                if !self.paths.is_any_validated() {
                    return None;
                }
                // The last feedback goes with it: the peer learns what has arrived.
                let mut body = Vec::new();
                self.receiver.report_all();
                let room = usize::from(BASE_DATAGRAM) - OVERHEAD - CLOSE_LEN_MAX;
                // Every path has its share of the copies: one of them may be dead.
                let at = self.paths.for_close(*copies);
                self.paths
                    .at_mut(at)
                    .path
                    .write_feedback(now, room, &mut self.receiver, &mut body);
                Frame::Close {
                    code: *code,
                    reason,
                }
                .encode(&mut body);
                return Some(self.control(now, at, body, UNACKNOWLEDGED));
            }
            Life::Draining { answers, .. } => {
                *answers = answers.checked_sub(1)?;
                if !self.paths.is_any_validated() {
                    return None;
                }
                let mut body = Vec::new();
                Frame::Close {
                    code: 0,
                    reason: "",
                }
                .encode(&mut body);
                let at = self.paths.for_close(0);
                return Some(self.control(now, at, body, UNACKNOWLEDGED));
            }
            Life::Finished => return None,
        }
        let pto = self.paths.main().path.probe_timeout();
        self.demand.note(now, pto);
        if let Some(body) = self.next_paper_feedback() {
            return Some(self.control(now, ONLY, body, UNACKNOWLEDGED));
        }
        if let Some(warning) = self.sc_warning(now) {
            return Some(warning);
        }
        self.look_at_budgets(now);
        let (order, count) = self.paths.order();
        let capacity = (count > 1).then(|| self.paths.capacity());
        let is_held = !self.paths.within_limit(now);
        let room = self.open_waiting(capacity);
        for at in order.into_iter().take(count) {
            let duty = self.paths.duty(at, &self.sender, &self.demand, room);
            let lane = self.paths.at_mut(at);
            let mut sources = Sources {
                duty,
                is_held: is_held || lane.is_held_up,
                capacity,
                path: &mut lane.path,
                sender: &mut self.sender,
                control: &self.control_queue,
                demand: &self.demand,
                admission: &self.admission,
            };
            if let Some(next) = lane.scheduler.next(now, &mut sources) {
                self.copy(now, at, &next);
                let symbol = match &next {
                    Next::Symbol(choice) if count == 1 => Some(*choice),
                    _ => None,
                };
                let transmit = self.make(now, at, next);
                self.following = symbol.and_then(|choice| self.following(now, choice));
                return Some(transmit);
            }
        }
        let is_waiting = self.sender.blocks().has_unsent() || !self.sender.waiting().is_empty();
        self.paths.weigh_costs(now, is_waiting);
        self.paper_symbol(now).or_else(|| self.sc_symbol(now))
    }

    /// The source symbols that may follow this one, which has left.
    fn following(&self, now: Time, choice: SymbolChoice) -> Option<Following> {
        let lane = self.paths.at(ONLY);
        let is_alone = lane.scheduler.is_idle() && !lane.path.may_probe_mtu(now);
        let left = is_alone.then(|| self.sender.follow(&choice))?;
        (left > 0).then_some(Following {
            block: choice.sequence,
            symbol_len: choice.symbol_len,
            left,
        })
    }

    /// The packets behind `transmit`, which [`poll_transmit`](Self::poll_transmit) or this has given at the same time, with nothing in
    /// between: how many there are, at most so many, and `transmit` becomes the first of them. The others [come behind it](Transmit::advance). They are those that
    /// `poll_transmit` would give, for a fraction of the work; 0: ask that.
    pub fn poll_following(&mut self, now: Time, transmit: &mut Transmit, most: usize) -> usize {
        let Some(following) = &mut self.following else {
            return 0;
        };
        let (block, body_len) = (following.block, usize::from(following.symbol_len));
        // Where paths have budgets of bytes, every packet has to be checked against them.
        let most = match self.paths.have_budget() {
            true => usize::from(self.paths.spent().is_none()),
            false => most,
        };
        let most = most.min(following.left as usize) as u16;
        let ip_bytes = (body_len + OVERHEAD) as u32 + u32::from(self.config.ip_overhead);
        let lane = self.paths.at_mut(ONLY);
        let packet_number = lane.path.next_pn();
        // When something of its block left last is known already.
        let index = self.sender.following(block);
        let run = index.map(|index| lane.path.record_run(now, ip_bytes, (block, index), most));
        let (Some(index), Some(count)) = (index, run.filter(|count| *count > 0)) else {
            self.following = None;
            return 0;
        };
        following.left -= u32::from(count);
        if following.left == 0 {
            self.following = None;
        }
        lane.last_sent = now;
        lane.path.note_use(now);
        self.asked_at.get_or_insert(now);
        self.sender.take_following(block, count);
        self.count_sent(now, ONLY, (u64::from(count), ip_bytes));
        self.paths.spend(u64::from(count) * u64::from(ip_bytes));
        transmit.packet_number = packet_number;
        transmit.header.packet_number = packet_number.truncated();
        transmit.header.row = u32::from(index);
        if let Content::Symbol { symbol, .. } = &mut transmit.content {
            *symbol = SymbolId::Source(index);
        }
        usize::from(count)
    }

    /// Makes a packet of the path with index `at`.
    pub(super) fn make(&mut self, now: Time, at: usize, next: Next) -> Transmit {
        match next {
            Next::PathResponse(packet) => {
                self.path_packet(now, at, packet, Frame::PathResponse(packet.data))
            }
            Next::PathChallenge(packet) => {
                self.path_packet(now, at, packet, Frame::PathChallenge(packet.data))
            }
            Next::MtuProbe(size) => {
                let mut body = ping();
                body.resize(usize::from(size) - OVERHEAD, 0);
                self.control(now, at, body, (Carried::MtuProbe(size), true))
            }
            Next::Control { ping, frames } => self.feedback(now, at, (ping, frames)),
            Next::Ping => self.control(now, at, ping(), ACKNOWLEDGED),
            Next::Symbol(choice) => self.symbol(now, at, &choice),
            Next::Bundle(choice, riders) => self.bundle(now, at, &choice, &riders),
            Next::Part(choice, part, after) => self.part(now, at, &choice, part, after),
            Next::Window(window) => self.window(now, at, window),
            Next::Held(number) => {
                self.control_queue.push_newest(&Frame::Held { number });
                self.feedback(now, at, (false, true))
            }
        }
    }

    fn path_packet(
        &mut self,
        now: Time,
        at: usize,
        packet: PathPacket,
        frame: Frame<'_>,
    ) -> Transmit {
        let mut body = Vec::with_capacity(packet.len);
        frame.encode(&mut body);
        body.resize(packet.len - OVERHEAD, 0);
        // This end expects no acknowledgement of it: the fate of a packet to other addresses says
        // nothing about those in use.
        let transmit = self.control(now, at, body, UNACKNOWLEDGED);
        Transmit {
            to: packet.to,
            ..transmit
        }
    }

    /// Feedback, and frames that wait.
    fn feedback(&mut self, now: Time, at: usize, (ping, frames): (bool, bool)) -> Transmit {
        let mut body = Vec::new();
        // Feedback must get through whatever becomes of the path MTU.
        let most = usize::from(BASE_DATAGRAM) - OVERHEAD;
        let waiting = self.control_queue.due_bytes() + 1;
        let room = most - waiting.clamp(CONTROL_RESERVE, FRAMES_MAX);
        let others = self.paths.untold(at).take(OTHERS_MAX).count();
        let for_others = others * OTHER_LEN_MAX;
        let path = &mut self.paths.at_mut(at).path;
        path.write_feedback(now, room - for_others, &mut self.receiver, &mut body);
        for _ in 0..others {
            let Some(other) = self.paths.untold(at).next() else {
                break;
            };
            let path = &mut self.paths.at_mut(other).path;
            path.write_sack_again(now, OTHER_LEN_MAX, &self.receiver, &mut body);
            self.paths.told(other);
        }
        if self.told_on(at).is_some() {
            self.paths.note_feedback(now, at);
        }
        let path = &self.paths.at(at).path;
        if ping {
            self.receiver.told_reliably();
            Frame::Ping.encode(&mut body);
        }
        let packet = (path.id(), path.next_pn());
        let reliable = frames && self.control_queue.write(packet, most, &mut body);
        let carried = Carried::Frames { reliable };
        self.control(now, at, body, (carried, ping || reliable))
    }

    fn symbol(&mut self, now: Time, at: usize, choice: &SymbolChoice) -> Transmit {
        let body_len = usize::from(choice.symbol_len);
        let ip_bytes = self.account_sent(now, at, body_len);
        let transmit = self.symbol_transmit(at, choice, None, body_len);
        self.sent_symbol(now, at, ip_bytes, choice);
        transmit
    }

    /// A symbol, and repairs of older blocks behind it.
    fn bundle(
        &mut self,
        now: Time,
        at: usize,
        choice: &SymbolChoice,
        riders: &[SymbolChoice],
    ) -> Transmit {
        let symbols: Vec<_> = riders.iter().map(|rider| riding(choice, rider)).collect();
        let prefixes = symbols.iter().map(|symbol| &symbol.rider);
        let body_len = Bundle::body_len(choice.symbol_len, prefixes);
        let ip_bytes = self.account_sent(now, at, body_len);
        let mut transmit = self.symbol_transmit(at, choice, None, body_len);
        transmit.header.kind = PacketKind::Bundle;
        transmit.content = Content::Bundle {
            slot: choice.slot,
            symbol: choice.symbol,
            riders: symbols,
        };
        let carried = riders.iter().map(|rider| Riding {
            block: rider.sequence,
            round: rider.round,
            symbol: rider.symbol,
        });
        self.paths.at_mut(at).path.note_riders(carried.collect());
        for rider in riders {
            self.sender.note_sent(now, rider);
        }
        self.sent_symbol(now, at, ip_bytes, choice);
        transmit
    }

    /// A part of a symbol, `after` packets behind the first.
    fn part(
        &mut self,
        now: Time,
        at: usize,
        choice: &SymbolChoice,
        part: Fragment,
        after: u32,
    ) -> Transmit {
        let body_len = FRAGMENT_PREFIX_LEN + part.range().len();
        let ip_bytes = self.account_sent(now, at, body_len);
        let transmit = self.symbol_transmit(at, choice, Some(part), body_len);
        self.paths.at_mut(at).path.note_fragment(after, part.count);
        self.sender.note_sent(now, choice);
        let carried = Carried::Fragment {
            block: choice.sequence,
            round: choice.round,
            symbol: choice.symbol,
            after,
        };
        self.sent(now, at, ip_bytes, (carried, true));
        self.pace(now, at, ip_bytes);
        transmit
    }

    /// A packet with symbols has left: the path's pacer and the session's limit of the rate are
    /// charged for it.
    fn pace(&mut self, now: Time, at: usize, ip_bytes: u32) {
        let path = &mut self.paths.at_mut(at).path;
        path.note_use(now);
        path.pace(ip_bytes);
        self.paths.spend(u64::from(ip_bytes));
    }

    fn window(&mut self, now: Time, at: usize, window: WindowChoice) -> Transmit {
        let WindowChoice {
            choice,
            span,
            slots,
            row,
        } = window;
        let body_len = span.body_len();
        let ip_bytes = self.account_sent(now, at, body_len);
        let mut transmit = self.symbol_transmit(at, &choice, None, body_len);
        transmit.content = Content::Window { span, slots, row };
        self.sent_symbol(now, at, ip_bytes, &choice);
        transmit
    }

    pub(super) fn symbol_transmit(
        &self,
        at: usize,
        choice: &SymbolChoice,
        fragment: Option<Fragment>,
        body_len: usize,
    ) -> Transmit {
        let lane = self.paths.at(at);
        let packet_number = lane.path.next_pn();
        let content = Content::Symbol {
            slot: choice.slot,
            symbol: choice.symbol,
            more: choice.more,
        };
        let (code, row) = choice.symbol.to_wire();
        let header = Header {
            kind: fragment.map_or(PacketKind::Symbol, |_| PacketKind::Fragment),
            phase: false,
            last_of_flight: choice.last_of_flight,
            cid: lane.peer_ids.current(),
            packet_number: packet_number.truncated(),
            block: choice.sequence.truncated(),
            code,
            n: choice.n,
            row,
        };
        Transmit {
            path: lane.id(),
            packet_number,
            to: lane.path.tuple(),
            ecn: lane.path.codepoint(),
            header,
            content,
            fragment,
            body_len,
        }
    }

    /// A control packet leaves; `carried` says what it carries, and whether it is to be
    /// acknowledged.
    pub(super) fn control(
        &mut self,
        now: Time,
        at: usize,
        body: Vec<u8>,
        carried: (Carried, bool),
    ) -> Transmit {
        let ip_bytes = self.account_sent(now, at, body.len());
        let transmit = self.control_transmit(at, body);
        self.sent(now, at, ip_bytes, carried);
        transmit
    }

    /// A whole symbol leaves.
    fn sent_symbol(&mut self, now: Time, at: usize, ip_bytes: u32, choice: &SymbolChoice) {
        self.sender.note_sent(now, choice);
        let carried = (choice.sequence, choice.round, choice.symbol);
        self.sent_whole(now, at, ip_bytes, carried);
    }

    fn sent_whole(
        &mut self,
        now: Time,
        at: usize,
        ip_bytes: u32,
        (block, round, symbol): (BlockId, u8, SymbolId),
    ) {
        let carried = Carried::Symbol {
            block,
            round,
            symbol,
        };
        self.sent(now, at, ip_bytes, (carried, true));
        self.pace(now, at, ip_bytes);
    }

    /// The packet with the next number leaves.
    pub(super) fn sent(
        &mut self,
        now: Time,
        at: usize,
        ip_bytes: u32,
        (carried, eliciting): (Carried, bool),
    ) {
        let lane = self.paths.at_mut(at);
        lane.last_sent = now;
        if eliciting {
            self.asked_at.get_or_insert(now);
            lane.path.record(now, ip_bytes, carried);
            return;
        }
        let mut carriage = Carriage {
            path: lane.id(),
            horizon: lane.path.horizon(now),
            sender: &mut self.sender,
            control: &mut self.control_queue,
        };
        lane.path
            .record_unacknowledged(now, ip_bytes, carried, &mut carriage);
    }

    fn control_transmit(&self, at: usize, body: Vec<u8>) -> Transmit {
        let lane = self.paths.at(at);
        let packet_number = lane.path.next_pn();
        Transmit {
            path: lane.id(),
            packet_number,
            to: lane.path.tuple(),
            ecn: lane.path.codepoint(),
            header: Header::control(lane.peer_ids.current(), packet_number, false),
            fragment: None,
            body_len: body.len(),
            content: Content::Control(body),
        }
    }

    pub(super) fn account_sent(&mut self, now: Time, at: usize, body_len: usize) -> u32 {
        let ip_bytes = (body_len + OVERHEAD) as u32 + u32::from(self.config.ip_overhead);
        self.count_sent(now, at, (1, ip_bytes));
        ip_bytes
    }

    /// So many packets leave, of so many IP bytes each.
    fn count_sent(&mut self, now: Time, at: usize, (packets, ip_bytes): (u64, u32)) {
        let ip_bytes = packets * u64::from(ip_bytes);
        self.last_sent = now;
        self.counts.packets_sent += packets;
        self.counts.ip_bytes_sent += ip_bytes;
        let counts = &mut self.paths.at_mut(at).counts;
        counts.packets_sent += packets;
        counts.ip_bytes_sent += ip_bytes;
    }
}

/// A symbol that rides in the packet of another one.
fn riding(main: &SymbolChoice, rider: &SymbolChoice) -> RidingSymbol {
    let (code, row) = rider.symbol.to_wire();
    RidingSymbol {
        slot: rider.slot,
        symbol: rider.symbol,
        rider: Rider {
            distance: (main.sequence - rider.sequence) as u32,
            code,
            n: rider.n,
            row,
            symbol_len: rider.symbol_len,
        },
    }
}

fn ping() -> Vec<u8> {
    let mut body = Vec::new();
    Frame::Ping.encode(&mut body);
    body
}
