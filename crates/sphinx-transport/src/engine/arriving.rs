//! What arrives at the engine: from its socket, and from the sockets of other shards.

use std::io;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sphinx_driver::{Holding, Origin, Workshop};
use sphinx_net::{PacketIo, PacketRx, Received};
use sphinx_proto::wire::{ConnectionId, ResetToken, is_data_plane};
use sphinx_proto::{Time, Tuple};

use super::early::Overtaken;
use super::{Engine, Member, time_since};
use crate::control::Control;
use crate::routes::Routes;
use crate::sessions::Sessions;
use crate::shards::{Handover, Shard};

/// Bytes that arrived as one which may be worth giving away with their memory.
const JOINED_MIN: usize = 16 << 10;
/// Runs that are taken from other shards in one turn.
const TURN_HANDOVERS: usize = 64;

/// Whom datagrams are for.
struct Inside<'a> {
    control: &'a mut Control,
    routes: &'a Routes,
    sessions: &'a mut Sessions<Member>,
    holding: &'a mut Holding,
    overtaken: &'a mut Overtaken,
    workshop: &'a mut Workshop,
    strays: &'a mut u64,
}

impl Inside<'_> {
    /// The session that all of these datagrams are of, if it takes them together.
    fn takes_joined(&self, received: &Received<'_>) -> Option<ConnectionId> {
        let (datagrams, stride) = (&*received.payload, received.stride.max(1));
        let of = |datagram: &[u8]| {
            let cid = ConnectionId::of_datagram(datagram).filter(|_| is_data_plane(datagram))?;
            Some(self.routes.session_of(cid))
        };
        let session = of(datagrams.chunks(stride).next()?)?;
        let association = &self.sessions.get(session)?.association;
        if !association.takes_joined(datagrams.len()) {
            return None;
        }
        // Nearly always all have the same id, which has been looked for.
        let same = ConnectionId::leading(datagrams, stride);
        let mut others = datagrams[same..].chunks(stride);
        let are_theirs = others.all(|datagram| of(datagram) == Some(session));
        are_theirs.then_some(session)
    }

    /// Takes in all of these datagrams, or hands them over; `is_handed_over`: another shard has. Each has `stride` bytes, but for the last one.
    fn take_all(
        &mut self,
        times: (Instant, Time),
        origin: Origin,
        (mut rest, stride): (&mut [u8], usize),
        shard: Option<&Shard>,
        is_handed_over: bool,
    ) {
        // By shard, datagrams one after another.
        let mut away: Vec<(usize, Vec<u8>)> = Vec::new();
        let knows = shard.filter(|_| !is_handed_over);
        while !rest.is_empty() {
            let (len, to) = self.take(times, origin, (rest, stride), knows);
            let (datagram, behind) = rest.split_at_mut(len);
            rest = behind;
            let Some(to) = to else {
                continue;
            };
            match away.last_mut() {
                Some((last, payload)) if *last == to => payload.extend_from_slice(datagram),
                _ => away.push((to, datagram.to_vec())),
            }
        }
        for (to, payload) in away {
            let datagrams = payload.len().div_ceil(stride);
            let handover = Handover::Datagrams {
                origin,
                stride,
                payload,
            };
            if !shard.is_some_and(|shard| shard.hand_over(to, handover)) {
                *self.strays += datagrams as u64;
            }
        }
    }

    /// Takes in the first one of these datagrams, and those behind it that are of the same session: how many bytes they have, and which other shard it is for, if
    /// it is. With a `shard`, which has received them itself, that is asked too of what names another one.
    fn take(
        &mut self,
        (clock, now): (Instant, Time),
        origin: Origin,
        (datagrams, stride): (&mut [u8], usize),
        shard: Option<&Shard>,
    ) -> (usize, Option<usize>) {
        let len = stride.min(datagrams.len());
        let datagram = &datagrams[..len];
        let elsewhere = || shard.and_then(|shard| shard.elsewhere(datagram));
        if !is_data_plane(datagram) {
            let Tuple { remote, local_ip } = origin.tuple;
            let other = elsewhere().or_else(|| {
                self.control
                    .handle_datagram(clock, remote, local_ip, datagram)
            });
            return (len, other);
        }
        let Some(cid) = ConnectionId::of_datagram(datagram) else {
            *self.strays += 1;
            return (len, None);
        };
        let cid = self.routes.session_of(cid);
        if let Some(member) = self.sessions.wake(cid) {
            let len = ConnectionId::leading(datagrams, stride);
            let segments = (&mut datagrams[..len], stride);
            member
                .association
                .handle_segments(now, origin, segments, self.workshop);
            return (len, None);
        }
        if self.control.expects(clock, cid) && self.holding.since(cid).is_none() {
            // It has overtaken the datagram that says what opens it.
            self.overtaken.begin(now, cid, self.holding);
        }
        if self.holding.hold(cid, origin, datagram) {
            return (len, None);
        }
        let other = elsewhere();
        if other.is_none() {
            self.on_stray(clock, origin.tuple, cid, datagram);
        }
        (len, other)
    }

    /// A data packet with this id is of no session that is known here, nor at another shard. It may say that one of this end's sessions is forgotten at its
    /// other end; or it is of one that this end has forgotten.
    fn on_stray(&mut self, clock: Instant, from: Tuple, cid: ConnectionId, datagram: &[u8]) {
        *self.strays += 1;
        if !self.control.is_server() {
            if let Some(shown) = ResetToken::shown_by(datagram) {
                self.sessions
                    .wake_where(|member| member.association.on_reset(from.remote, shown));
            }
        } else if !self.routes.has_left(cid) {
            self.control.answer_stray(clock, from, cid, datagram.len());
        }
    }
}

impl<Io: PacketIo> Engine<Io> {
    /// The back end, which lends the datagrams, and who is to have them.
    fn split(&mut self) -> (&mut Io, Option<&Shard>, Inside<'_>) {
        let inside = Inside {
            control: &mut self.control,
            routes: &self.routes,
            sessions: &mut self.sessions,
            holding: &mut self.holding,
            overtaken: &mut self.overtaken,
            workshop: &mut self.workshop,
            strays: &mut self.strays,
        };
        (&mut self.io, self.shard.as_ref(), inside)
    }

    /// One batch; how many buffers it had, and whether there may be more.
    pub(super) fn receive(&mut self) -> io::Result<(usize, bool)> {
        let base = self.base;
        let (io, shard, mut inside) = self.split();
        let count = io.rx().recv()?;
        if count == 0 {
            return Ok((0, false));
        }
        let clock = Instant::now();
        let now = time_since(base, clock);
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let wall = wall.as_nanos().min(u128::from(u64::MAX)) as u64;
        for index in 0..count {
            let Some(received) = io.rx().received(index) else {
                break;
            };
            // The kernel's wall clock, carried over to ours; a step of the wall clock between the
            // two readings must not throw times far off.
            let age = received
                .timestamp_ns
                .map_or(0, |at| wall.saturating_sub(at))
                .min(100_000_000);
            let (remote, local_ip) = (received.remote, received.local_ip);
            let origin = Origin {
                received_at: now.earlier_by(age),
                tuple: Tuple { remote, local_ip },
                ecn: received.ecn.bits(),
            };
            let (stride, len) = (received.stride, received.payload.len());
            if len >= JOINED_MIN
                && let Some(session) = inside.takes_joined(&received)
            {
                let mut memory = inside.workshop.take_memory();
                if io.rx().exchange(index, &mut memory) {
                    if let Some(member) = inside.sessions.wake(session) {
                        let joined = (memory, len, stride);
                        let association = &mut member.association;
                        association.handle_joined(now, origin, joined, inside.workshop);
                    }
                    continue;
                }
                inside.workshop.keep_memory(memory);
            }
            let Some(received) = io.rx().received(index) else {
                break;
            };
            let segments = (received.payload, received.stride);
            inside.take_all((clock, now), origin, segments, shard, false);
        }
        Ok((count, count == io.capabilities().recv_batch_max))
    }

    /// What has arrived at other shards and is for this one, for a turn; how many runs there were, and whether there may be more.
    pub(super) fn take_handed_over(&mut self) -> (usize, bool) {
        let clock = Instant::now();
        let now = time_since(self.base, clock);
        for taken in 0..TURN_HANDOVERS {
            let (_, shard, mut inside) = self.split();
            match shard.and_then(Shard::next_handover) {
                None => return (taken, false),
                Some(Handover::Refused(remote)) => self.note_refused(clock, now, remote),
                Some(Handover::Datagrams {
                    origin,
                    stride,
                    mut payload,
                }) => {
                    let handovers = payload.len().div_ceil(stride) as u64;
                    let segments = (&mut payload[..], stride);
                    inside.take_all((clock, now), origin, segments, shard, true);
                    self.handovers += handovers;
                }
            }
        }
        (TURN_HANDOVERS, true)
    }
}
