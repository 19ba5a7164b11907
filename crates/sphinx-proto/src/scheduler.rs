//! What goes into the next packet.
//!
//! Everything that may be sent is owned by somebody else: challenges and MTU probes by the path, feedback by the
//! receiver, frames by the control queue, symbols by the blocks. Only here is decided which of them is next:
//!
//! 1. challenges and their answers: whoever moves waits for them, and they are few;
//! 2. path MTU probes;
//! 3. feedback and frames, which cost little and which the peer waits for;
//! 4. symbols, as the congestion window and the pacer allow: what is left of a symbol that leaves in parts, repairs of
//!    sliding windows, repairs that are owed, then new data;
//! 5. small PINGs behind the probes of a silent path.

use std::collections::VecDeque;

use crate::admission::{Admission, Capacity};
use crate::blocks::{Idle, SymbolChoice, WindowChoice};
use crate::control_queue::ControlQueue;
use crate::demand::Demand;
use crate::numbers::{PacketNumber, WindowNumber};
use crate::path::{Path, PathPacket, fragments_for};
use crate::sc::LaneView;
use crate::sender::{Reach, Sender};
use crate::session::BASE_DATAGRAM;
use crate::types::{Urgency, block_cost};
use crate::wire::{Fragment, OVERHEAD};
use crate::{Nanos, Time};

/// PINGs behind the probes of a silent path: one of them or its answer may be lost too.
const SMALL_PROBES: u8 = 2;
/// From this round of repair on symbols that do not fit the path leave whole every other time of this
/// length.
const RISK_FROM_ROUND: u8 = 4;
const RISK_TIME: Nanos = 2_000_000_000;

/// What a packet is to carry.
pub(crate) enum Next {
    /// An answer to the peer's challenge.
    PathResponse(PathPacket),
    /// A challenge to the peer.
    PathChallenge(PathPacket),
    /// A PING padded to this UDP payload.
    MtuProbe(u16),
    /// Feedback, frames that wait and perhaps a PING.
    Control { ping: bool, frames: bool },
    /// A symbol.
    Symbol(SymbolChoice),
    /// A symbol, and behind it repairs of older blocks.
    Bundle(SymbolChoice, Vec<SymbolChoice>),
    /// A part of a symbol, in the packet so many behind that of the first part.
    Part(SymbolChoice, Fragment, u32),
    /// A repair of a sliding window.
    Window(WindowChoice),
    /// Nothing but a PING.
    Ping,
    /// No symbol, but HELD: the peer's window with this number is too small for the path, and the peer has not been told.
    Held(WindowNumber),
}

/// What a path is for at present. Where there is one path, it is for all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Duty {
    /// The path sends everything that there is.
    All,
    /// New data only, from further back in the queue ([`Reach`]): the path is slow, and faster ones send what is needed first, repairs among it.
    Ahead(Reach),
    /// Only feedback for its own packets: what it carried now would arrive too late, or cheaper paths soon carry all that there is.
    Rest,
    /// Only feedback for its own packets: other paths are to carry the data.
    Standby,
    /// Probes and feedback: it does not answer, while others do.
    Probes,
    /// Nothing but challenges and answers to them.
    Validation,
}

impl Duty {
    fn sends_symbols(self) -> bool {
        matches!(self, Self::All | Self::Ahead(_))
    }
}

/// A symbol that is leaving in parts.
#[derive(Debug)]
struct Leaving {
    choice: SymbolChoice,
    next: Fragment,
    /// Packet number of the first part.
    first: PacketNumber,
}

/// What one path sends besides the blocks' symbols (probes, PINGs, copies), and the symbol that is leaving in parts.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// When the path began; [`RISK_TIME`] is counted from it, as the origin of [`Time`] means nothing.
    began: Time,
    /// Packets that may leave beyond the window, to find out about a silent path.
    probes: u32,
    /// PINGs that are to follow the probes.
    small_probes: u8,
    /// A PING is wanted.
    ping: bool,
    leaving: Option<Leaving>,
    /// Symbols that have left on other paths and are to leave on this one too ([`Bond::Redundant`](crate::Bond::Redundant)), oldest first.
    copies: VecDeque<SymbolChoice>,
    /// Rate control has been told that the application has nothing to send.
    app_limited_told: bool,
    /// The path has sent data ([`Duty::Ahead`]) since it last had none to send.
    has_carried: bool,
    /// Since when the peer's window is all that keeps symbols from leaving; `None` if it does not.
    held_since: Option<Time>,
    /// How long the window held symbols back in earlier spans, nanoseconds.
    held_for: Nanos,
}

/// What the scheduler of a path chooses from.
pub(crate) struct Sources<'a> {
    pub(crate) duty: Duty,
    /// No symbols may leave now: the session's rate limit is used up, or packets of this path still wait for its socket.
    pub(crate) is_held: bool,
    /// What all paths carry together; `None`: there is only this one.
    pub(crate) capacity: Option<Capacity>,
    pub(crate) path: &'a mut Path,
    pub(crate) sender: &'a mut Sender,
    pub(crate) control: &'a ControlQueue,
    pub(crate) demand: &'a Demand,
    pub(crate) admission: &'a Admission,
}

impl Sources<'_> {
    /// Whether data waits for window or credit.
    fn has_backlog(&self) -> bool {
        self.demand.backlog() || !self.sender.waiting().is_empty()
    }
}

impl Scheduler {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            began: now,
            probes: 0,
            small_probes: 0,
            ping: false,
            leaving: None,
            copies: VecDeque::new(),
            app_limited_told: false,
            has_carried: false,
            held_since: None,
            held_for: 0,
        }
    }

    /// How long the peer's window was all that kept symbols from leaving.
    pub(crate) fn held_for(&self, now: Time) -> Nanos {
        let still = self.held_since.map_or(0, |since| now.saturating_sub(since));
        self.held_for + still
    }

    fn goes_on(&mut self, now: Time) {
        self.held_for = self.held_for(now);
        self.held_since = None;
    }

    /// A PING is to leave with the next feedback.
    pub(crate) fn ping(&mut self) {
        self.ping = true;
    }

    /// Up to `probes` packets may leave although the congestion window is full.
    pub(crate) fn probe(&mut self, probes: u32, mtu: u16) {
        self.probes = self.probes.max(probes);
        // If only large packets vanish, the answer to a small one shows it.
        if probes > 0 && mtu > BASE_DATAGRAM {
            self.small_probes = SMALL_PROBES;
        }
    }

    /// A symbol that leaves on another path is to leave on this one too. If more than `most` wait, the oldest is given back.
    pub(crate) fn queue_copy(&mut self, copy: SymbolChoice, most: usize) -> Option<SymbolChoice> {
        self.copies.push_back(copy);
        (self.copies.len() > most)
            .then(|| self.copies.pop_front())
            .flatten()
    }

    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Takes the symbols that were still to leave on this path as copies.
    pub(crate) fn take_copies(&mut self) -> VecDeque<SymbolChoice> {
        std::mem::take(&mut self.copies)
    }

    /// The next copy that is of use.
    fn next_copy(&mut self, sender: &mut Sender) -> Option<SymbolChoice> {
        while let Some(copy) = self.copies.pop_front() {
            if sender.wants_copy(&copy) {
                sender.count_copy(&copy);
                return Some(copy);
            }
        }
        None
    }

    /// Whether nothing is wanted of it but what the blocks have.
    pub(crate) fn is_idle(&self) -> bool {
        self.probes == 0 && !self.ping && self.leaving.is_none() && self.copies.is_empty()
    }

    /// There is data again.
    pub(crate) fn on_submit(&mut self) {
        self.app_limited_told = false;
    }

    /// Whether there is a symbol to send on a path with this duty, or a part of one.
    pub(crate) fn has_symbol(&self, sender: &Sender, duty: Duty) -> bool {
        let is_waiting = match duty {
            Duty::All => sender.has_symbol() || !self.copies.is_empty(),
            Duty::Ahead(_) => true,
            Duty::Rest | Duty::Standby | Duty::Probes | Duty::Validation => false,
        };
        self.leaving.is_some() || is_waiting
    }

    /// The next symbol of a generation for this path, whose rate control allows one; `None`: only what has begun to leave.
    pub(crate) fn next_of(
        &mut self,
        now: Time,
        sources: &mut Sources<'_>,
        lane: Option<LaneView>,
    ) -> Option<Next> {
        if let Some(part) = self.next_part(sources) {
            return Some(part);
        }
        let lane = lane?;
        let Some(mut choice) = sources.sender.next_of_generation(lane) else {
            sources.path.rest();
            if !std::mem::replace(&mut self.app_limited_told, true) {
                sources.path.on_app_limited(now);
            }
            return None;
        };
        self.app_limited_told = false;
        let goes_on = sources.sender.sc().is_some_and(|sc| sc.has_symbol(lane));
        choice.last_of_flight = !goes_on;
        self.leave(now, choice, sources)
    }

    /// What the next packet carries; it leaves now, as [`Path::next_pn`].
    pub(crate) fn next(&mut self, now: Time, sources: &mut Sources<'_>) -> Option<Next> {
        if let Some(packet) = sources.path.poll_response() {
            return Some(Next::PathResponse(packet));
        }
        if let Some(packet) = sources.path.poll_challenge(now) {
            return Some(Next::PathChallenge(packet));
        }
        if sources.duty == Duty::Validation {
            return None;
        }
        let capacity = sources.capacity;
        let is_wide = sources.duty == Duty::Standby
            && capacity.is_none_or(|all| sources.path.mtu() >= all.mtu);
        if !is_wide && let Some(size) = sources.path.poll_mtu_probe(now) {
            return Some(Next::MtuProbe(size));
        }
        let sack_at = sources.path.acks().timeout();
        let frames = sources.duty.sends_symbols();
        if self.ping || frames && sources.control.is_due() || sack_at.is_some_and(|at| at <= now) {
            let ping = std::mem::take(&mut self.ping);
            // It leaves although there may be nothing else to send, and fills no rate then: that is told again behind it.
            self.app_limited_told = false;
            return Some(Next::Control { ping, frames });
        }
        if let Some(symbol) = self.next_symbol(now, sources) {
            return Some(symbol);
        }
        // Behind the probes, so that its acknowledgement tells of them too.
        self.small_probes = self.small_probes.checked_sub(1)?;
        Some(Next::Ping)
    }

    fn next_symbol(&mut self, now: Time, sources: &mut Sources<'_>) -> Option<Next> {
        let allowed = !sources.is_held && sources.path.is_open(now);
        if sources.sender.is_passive() {
            // Nothing but a PING asks whether the path is still there.
            let (probes, frames) = (
                std::mem::take(&mut self.probes),
                sources.duty.sends_symbols(),
            );
            return (probes > 0).then_some(Next::Control { ping: true, frames });
        }
        if self.probes == 0 && !allowed {
            return None;
        }
        if let Some(part) = self.next_part(sources) {
            return Some(part);
        }
        if sources.duty != Duty::All {
            return self.next_ahead(now, sources);
        }
        if let Some(mut copy) = self.next_copy(sources.sender) {
            self.goes_on(now);
            copy.last_of_flight = self.ends_flight(sources);
            return self.leave(now, copy, sources);
        }
        let room = usize::from(sources.path.mtu()) - OVERHEAD;
        if let Some(mut window) = sources.sender.next_window(now, room, sources.path) {
            protect_tail(now, sources);
            window.choice.last_of_flight = self.ends_flight(sources);
            return Some(Next::Window(window));
        }
        protect_tail(now, sources);
        let Some(mut choice) = sources.sender.next_symbol(now, sources.path) else {
            return self.nothing_left(now, sources);
        };
        self.goes_on(now);
        protect_tail(now, sources);
        choice.last_of_flight = self.ends_flight(sources);
        self.leave(now, choice, sources)
    }

    /// The next symbol of a path that does not carry repairs, if it carries any.
    fn next_ahead(&mut self, now: Time, sources: &mut Sources<'_>) -> Option<Next> {
        let next = match sources.duty {
            Duty::Ahead(reach) => sources.sender.next_ahead(now, sources.path, &reach),
            _ => None,
        };
        let Some(mut choice) = next else {
            return self.nothing_left(now, sources);
        };
        self.has_carried = true;
        self.goes_on(now);
        choice.last_of_flight = self.ends_flight(sources);
        self.leave(now, choice, sources)
    }

    /// A symbol leaves, in parts if it must.
    fn leave(
        &mut self,
        now: Time,
        choice: SymbolChoice,
        sources: &mut Sources<'_>,
    ) -> Option<Next> {
        let count = fragments_for(choice.symbol_len, sources.path.mtu());
        if count == 1 || risks_whole(now.saturating_sub(self.began), &choice) {
            let riders = sources.sender.next_riders(now, &choice, sources.path);
            return Some(match riders.is_empty() {
                true => Next::Symbol(choice),
                false => Next::Bundle(choice, riders),
            });
        }
        let next = Fragment {
            symbol_len: choice.symbol_len,
            index: 0,
            count,
        };
        let first = sources.path.next_pn();
        self.leaving = Some(Leaving {
            choice,
            next,
            first,
        });
        self.next_part(sources)
    }

    fn nothing_left(&mut self, now: Time, sources: &mut Sources<'_>) -> Option<Next> {
        sources.path.rest();
        if self.probes > 0 {
            // Nothing to repair: ask for a sign of life. If it was a PING that got lost, the peer has not
            // heard what came with it either.
            self.probes = 0;
            let frames = sources.duty.sends_symbols();
            return Some(Next::Control { ping: true, frames });
        }
        if sources.duty != Duty::All {
            // A path that rests shows nothing of its rate; and no later packet would show what became of the last ones.
            if std::mem::take(&mut self.has_carried) {
                sources.path.on_app_limited(now);
                self.ping = true;
            }
            return None;
        }
        let has_backlog = sources.has_backlog();
        let Sources {
            path,
            sender,
            demand,
            admission,
            capacity,
            ..
        } = sources;
        let capacity = capacity.unwrap_or_else(|| Capacity::of(path));
        let shape = admission.block_shape(sender, capacity, 1);
        let held_up = demand.held_up().is_some();
        let cost = block_cost(shape.0, shape.1);
        let is_held = has_backlog && (held_up || !sender.streams().has_credit(cost));
        if is_held {
            self.held_since.get_or_insert(now);
        } else {
            self.goes_on(now);
        }
        let starved =
            !has_backlog || held_up || !admission.can_open(sender, capacity, Urgency::LEAST, shape);
        if starved && !self.app_limited_told {
            self.app_limited_told = true;
            path.on_app_limited(now);
        }
        let untold = is_held.then(|| sender.note_held());
        untold.flatten().map(Next::Held)
    }

    /// Whether the symbol that leaves now is the last one for a while.
    fn ends_flight(&mut self, sources: &Sources<'_>) -> bool {
        let is_last_probe = self.probes == 1;
        self.probes = self.probes.saturating_sub(1);
        !sources.sender.has_symbol() && !sources.has_backlog() || is_last_probe
    }

    /// The next part of a symbol that is too large for the path.
    fn next_part(&mut self, sources: &Sources<'_>) -> Option<Next> {
        let Leaving {
            mut choice,
            next: part,
            first,
        } = self.leaving.take()?;
        // Else the peer has the block, and its memory may be gone.
        sources.sender.blocks().get(choice.sequence)?;
        let after = (sources.path.next_pn() - first) as u32;
        if part.index + 1 < part.count {
            let next = Fragment {
                index: part.index + 1,
                ..part
            };
            self.leaving = Some(Leaving {
                choice,
                next,
                first,
            });
            // Only the last part ends a flight.
            choice.last_of_flight = false;
        }
        Some(Next::Part(choice, part, after))
    }
}

/// If nothing more is to be sent: protects what is on its way.
fn protect_tail(now: Time, sources: &mut Sources<'_>) {
    if sources.sender.has_symbol() {
        return;
    }
    let idle = if sources.has_backlog() {
        Idle::Window
    } else {
        Idle::Application
    };
    sources
        .sender
        .protect_tail(now, idle, Urgency::LEAST, sources.path);
}

/// Whether a symbol that does not fit the path is to leave whole all the same.
///
/// All parts of a symbol must arrive, which is rare where most packets are lost; and there it may be
/// an error that the path is narrow: overload can look the same. So symbols in trouble leave whole
/// every other while, by the `age` of the session. The arrival of one proves the error.
fn risks_whole(age: Nanos, choice: &SymbolChoice) -> bool {
    choice.round >= RISK_FROM_ROUND && (age / RISK_TIME) % 2 == 1
}
