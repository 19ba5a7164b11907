//! Mobile hosts that go from one hop to another: their flows are handed to the agent there (rules §3).

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
};

use crate::{
    Agent, FlowKey, Place, Side, Stage, Time,
    flow::Flow,
    handoff::{Handover, Move},
    segment::Segment,
    snoop::Snoop,
};

/// Most pairs of a mobile host and an agent that is told of it.
const MIRRORS_MAX: usize = 64;
/// How long an agent is told of a mobile host, in nanoseconds, unless that is asked for again.
const MIRROR_NS: Time = 60_000_000_000;
/// Most messages that wait for [`Agent::poll_handover`].
const MESSAGES_MAX: usize = 16_384;
/// Memory of them, with their packets, of which caches may have let go since.
const MESSAGES_BYTES_MAX: usize = 32 << 20;

/// Another agent is told what passes for a mobile host.
#[derive(Clone, Copy, Debug)]
struct Mirror {
    mobile: IpAddr,
    peer: SocketAddr,
    kind: Move,
    until: Time,
}

/// What other agents are told of flows whose mobile hosts move.
#[derive(Debug, Default)]
pub(super) struct Moving {
    mirrors: Vec<Mirror>,
    messages: VecDeque<(SocketAddr, Handover)>,
    /// Memory of `messages`, with their packets, in bytes.
    bytes: usize,
    pub(super) handed_over: u64,
    pub(super) taken_over: u64,
}

impl Moving {
    /// Whether any agent is told, or was.
    pub(super) fn tells_others(&self) -> bool {
        !self.mirrors.is_empty()
    }

    /// Memory of messages that were not taken yet, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// No agent is told of what passes any more.
    pub(super) fn tell_nobody(&mut self) {
        self.mirrors.clear();
    }

    fn tell(&mut self, peer: SocketAddr, message: Handover) {
        let bytes = bytes_of(&message);
        // What is told too fast is told in vain: it is help, and nobody relies on it.
        if self.messages.len() < MESSAGES_MAX && self.bytes + bytes <= MESSAGES_BYTES_MAX {
            self.bytes += bytes;
            self.messages.push_back((peer, message));
        }
    }

    fn take(&mut self) -> Option<(SocketAddr, Handover)> {
        let (peer, message) = self.messages.pop_front()?;
        self.bytes -= bytes_of(&message);
        Some((peer, message))
    }
}

/// Memory of a message that was not taken yet, in bytes.
fn bytes_of(message: &Handover) -> usize {
    size_of::<(SocketAddr, Handover)>() + message.packet().map_or(0, bytes::Bytes::len)
}

/// A message on a flow, if there is something to help.
fn message(
    key: FlowKey,
    flow: &Flow,
    kind: Move,
    packet: Option<(bytes::Bytes, bool)>,
) -> Option<Handover> {
    Some(Handover {
        flow: key,
        kind,
        opened: flow.opening()?,
        state: flow.snoop.as_ref()?.state(),
        packet,
    })
}

impl Agent {
    /// The flows of a mobile host are to be known to the agent `to`: what is known and cached of them at present
    /// ([`poll_handover`](Agent::poll_handover)), and for a minute what passes. With [`Move::Leave`] the mobile host has gone there: no
    /// other agent is told any more, and the flows are not helped here until it is heard again. Tells how many flows it has.
    ///
    /// Does nothing on a mobile host itself and in a dry run. `None`, and nothing is done, for more than 64 pairs of a mobile host and an agent; one of
    /// [`Move::Leave`] takes the place of the oldest of [`Move::Prefill`].
    pub fn hand_over(
        &mut self,
        now: Time,
        mobile: IpAddr,
        to: SocketAddr,
        kind: Move,
    ) -> Option<usize> {
        self.now = self.now.max(now);
        if self.config.dry_run || self.config.place == Place::Mobile {
            return Some(0);
        }
        let (now, others) = (self.now, kind == Move::Prefill);
        self.moving
            .mirrors
            .retain(|it| it.until > now && (it.mobile != mobile || (others && it.peer != to)));
        if self.moving.mirrors.len() == MIRRORS_MAX {
            let mut mirrors = self.moving.mirrors.iter();
            // A host that has gone needs it more than one that may go.
            let oldest = mirrors.position(|it| kind == Move::Leave && it.kind == Move::Prefill);
            self.moving.mirrors.remove(oldest?);
        }
        self.moving.mirrors.push(Mirror {
            mobile,
            peer: to,
            kind,
            until: now.saturating_add(MIRROR_NS),
        });
        let mut flows = 0;
        for key in self.table.of_mobile(mobile) {
            let Some(mut flow) = self.table.take(&key) else {
                continue;
            };
            let cached = flow.snoop.iter().flat_map(Snoop::cached);
            let state = std::iter::once(None).chain(cached.map(Some));
            let told: Vec<Handover> = state
                .filter_map(|packet| message(key, &flow, kind, packet))
                .collect();
            flows += usize::from(!told.is_empty());
            for message in told {
                self.moving.tell(to, message);
            }
            if kind == Move::Leave {
                flow.asleep = flow.snoop.is_some();
                flow.snoop.iter_mut().for_each(Snoop::leave);
            }
            self.table.put(self.now, key, flow);
        }
        self.moving.handed_over += flows as u64;
        Some(flows)
    }

    /// The next message for another agent.
    pub fn poll_handover(&mut self) -> Option<(SocketAddr, Handover)> {
        self.moving.take()
    }

    /// Another agent tells of a flow. It is kept until the mobile host is heard here, or said to be here
    /// ([`Move::Leave`], [`arrived`](Agent::arrived)); then what the other hop may have lost is sent again. Whoever calls this has made sure
    /// that it is an agent.
    pub fn handle_handover(&mut self, now: Time, message: &Handover) {
        self.now = self.now.max(now);
        self.see_calm();
        if self.overloaded.is_some() || self.config.place == Place::Mobile {
            return;
        }
        let key = message.flow;
        let known = self.table.take(&key);
        if known.is_none() {
            if !self.config.wants(&key) {
                return;
            }
            self.flows_seen += 1;
        }
        let mut flow = known.unwrap_or_else(|| Box::new(Flow::missed()));
        if flow.is_wanted && flow.may_be(message.opened) {
            self.take_over(message, &mut flow);
        }
        self.table.put(self.now, key, flow);
        self.evict();
        self.drain_queue();
    }

    fn take_over(&mut self, message: &Handover, flow: &mut Flow) {
        let Stage::Snoop(profile) = self.config.flow_stage() else {
            return;
        };
        let new = || Snoop::taken_over(profile, &message.state);
        self.moving.taken_over += u64::from(flow.take_over(message.opened, new));
        let arrives = flow.asleep && message.kind == Move::Leave;
        let is_live = !flow.asleep;
        flow.asleep &= !arrives;
        self.with_snoop(flow, |snoop, context| {
            snoop.merge(&message.state, is_live);
            if let Some((packet, sender_repaired)) = &message.packet
                && let Ok(segment) = Segment::parse(packet.clone())
                && FlowKey::of(Side::Fixed, &segment) == message.flow
                && !(segment.syn || segment.rst)
            {
                snoop.put(&segment, *sender_repaired);
            }
            match arrives {
                true => snoop.arrive(context, false),
                false if is_live => snoop.resume(context),
                false => {}
            }
        });
    }

    /// A mobile host is behind this hop now: of its flows that other agents have told of, everything that is not acknowledged is
    /// sent again. Tells how many there are.
    pub fn arrived(&mut self, now: Time, mobile: IpAddr) -> usize {
        self.now = self.now.max(now);
        let mut flows = 0;
        for key in self.table.of_mobile(mobile) {
            let Some(mut flow) = self.table.take(&key) else {
                continue;
            };
            if std::mem::take(&mut flow.asleep) {
                flows += 1;
                self.with_snoop(&mut flow, |snoop, context| snoop.arrive(context, true));
            }
            self.table.put(self.now, key, flow);
        }
        self.stay(mobile);
        self.drain_queue();
        flows
    }

    /// A mobile host is here: it is not somewhere else.
    fn stay(&mut self, mobile: IpAddr) {
        let stays = |it: &Mirror| it.mobile != mobile || it.kind == Move::Prefill;
        self.moving.mirrors.retain(stays);
    }

    /// Tells other agents of a segment that has just passed; `before` is the progress that the flow had made until then.
    pub(super) fn mirror(
        &mut self,
        key: FlowKey,
        from: Side,
        segment: &Segment,
        flow: &Flow,
        before: Option<(u64, bool)>,
    ) {
        let mobile = key.mobile.ip();
        let asked = |it: &&Mirror| it.mobile == mobile && it.until > self.now;
        if !self.moving.mirrors.iter().any(|it| asked(&it)) {
            return;
        }
        let Some(snoop) = flow.snoop.as_ref() else {
            return;
        };
        let packet = match from {
            Side::Mobile => {
                self.stay(mobile);
                // Between two segments of the sender, only the end of what is missing is news.
                let after = Some(snoop.progress());
                if after == before || after.is_none_or(|(_, whole)| !whole) {
                    return;
                }
                None
            }
            Side::Fixed => match snoop.caches(segment) {
                Some(cached) => Some(cached),
                None => return,
            },
        };
        let asked = |it: &&Mirror| it.mobile == mobile && it.until > self.now;
        let mirrors: Vec<Mirror> = self.moving.mirrors.iter().filter(asked).copied().collect();
        for mirror in mirrors {
            if let Some(message) = message(key, flow, mirror.kind, packet.clone()) {
                self.moving.tell(mirror.peer, message);
            }
        }
    }
}
