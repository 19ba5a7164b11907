//! The driving contract.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::numbers::pn;
use crate::time::time;
use crate::{BlockId, PacketNumber, WindowNumber};

use super::*;
use crate::cc::{AckSummary, OwnController, RateControl};
use crate::config::{ConnectionIds, Role};
use crate::types::{Content, PacketMeta, Placement, Received, Transmit, Tuple};
use crate::wire::{
    Blocks, ConnectionId, FrameIter, Header, PacketKind, Reset, ResetToken, Streams,
};

const DELAY: Nanos = 5 * MS;
const END: Nanos = 4_000 * MS;

/// The part of a stream that every block holds.
fn part() -> StreamPart {
    StreamPart {
        stream: StreamId::new(Role::Client, 0),
        bytes: 20_000,
        end_of_stream: false,
        cost: 0,
    }
}

/// Where and when a packet of the other end arrives.
fn meta(now: Time, from: u8, transmit: &Transmit) -> PacketMeta {
    PacketMeta {
        now,
        received_at: now,
        packet_number: transmit.packet_number,
        tuple: Tuple {
            remote: SocketAddr::from(([10, 0, 0, from], 1)),
            local_ip: None,
        },
        ecn: transmit.ecn,
        datagram_len: transmit.body_len + OVERHEAD,
    }
}

/// The reset token of a connection id.
fn token_of(cid: ConnectionId) -> ResetToken {
    ResetToken::new([cid.bytes()[0]; ResetToken::LEN])
}

/// An end whose driver does all that the contract says, and nothing else. Payload is of no interest here.
struct End {
    session: Session,
    seen: u64,
    random: u8,
    /// Takes packets that follow others, and how many it has taken.
    follows: bool,
    followed: u64,
    /// Handles packets that arrive one behind the other as one, and how many it has.
    joins: bool,
    joined: u64,
}

impl End {
    fn new(role: Role, own: u8, peer: u8, now: Time) -> Self {
        let cid = |n| ConnectionId::new([n; 8]).expect("not zero");
        let tuple = Tuple {
            remote: SocketAddr::from(([10, 0, 0, peer], 1)),
            local_ip: None,
        };
        let ids = ConnectionIds {
            local: cid(own),
            peer: cid(peer),
        };
        let mut config = Config::new(role, tuple, ids);
        config.initial_rtt = 2 * DELAY;
        config.peer_datagram_max = 1472;
        Self {
            session: Session::new(config, now),
            seen: 0,
            random: 0,
            follows: false,
            followed: 0,
            joins: false,
            joined: 0,
        }
    }

    /// What has arrived at the same time.
    fn receive_all(&mut self, now: Time, from: u8, transmits: &[Transmit]) {
        let mut rest = transmits;
        while let [first, ..] = rest {
            let place = (self.session).place_of(&first.header, first.body_len);
            let place = place.filter(|place| self.joins && place.run > 1);
            let largest = self.session.paths.main().path.acks().largest();
            let is_newest = largest.is_none_or(|largest| first.packet_number > largest);
            let Some(place) = place.filter(|_| is_newest && !first.header.last_of_flight) else {
                self.receive(now, from, first);
                rest = &rest[1..];
                continue;
            };
            let mut next = first.clone();
            let follows = |transmit: &&Transmit| {
                let follows =
                    (transmit.packet_number, transmit.header) == (next.packet_number, next.header);
                next.advance(1);
                follows
            };
            let count = rest.iter().take_while(follows).count();
            let count = count.min(usize::from(place.run));
            let meta = meta(now, from, first);
            let placement =
                (self.session).handle_placed(&meta, &first.header, &place, count as u16);
            assert!(placement.is_some_and(|placement| placement != Placement::Discard));
            self.seen += count as u64;
            self.joined += count as u64 - 1;
            rest = &rest[count..];
        }
    }

    fn receive(&mut self, now: Time, from: u8, transmit: &Transmit) {
        let body = match &transmit.content {
            Content::Control(body) => body.clone(),
            _ => vec![0; transmit.body_len],
        };
        let meta = meta(now, from, transmit);
        self.seen += 1;
        let received = self.session.handle_packet(&meta, &transmit.header, &body);
        let is_control = matches!(transmit.content, Content::Control(_));
        assert!(!is_control || received == Received::Nothing);
    }

    fn drive(&mut self, now: Time) -> Vec<Transmit> {
        if self.session.poll_timeout().is_some_and(|at| at <= now) {
            self.session.handle_timeout(now);
        }
        for _ in 0..self.session.random_wanted() {
            // Any bytes will do, but for the same ones again and again.
            self.random = self.random.wrapping_add(0x9d);
            self.session.add_random([self.random; 8]);
        }
        for _ in 0..self.session.connection_ids_wanted() {
            self.random = self.random.wrapping_add(0x9d);
            let cid = ConnectionId::new([self.random | 0x80; 8]);
            let cid = cid.expect("not zero");
            self.session.add_connection_id(cid, Some(token_of(cid)));
        }
        let mut out = Vec::new();
        loop {
            while let Some(job) = self.session.poll_job() {
                self.session.job_done(job.id);
            }
            while let Some(event) = self.session.poll_event() {
                if let Event::BlockComplete { slot, .. } = event {
                    let mut parts = [part()];
                    assert!(self.session.block_unpacked(now, slot, &mut parts));
                    self.session.taken(now, parts[0].stream, parts[0].cost);
                }
            }
            let before = out.len();
            while let Some(mut transmit) = self.session.poll_transmit(now) {
                out.push(transmit.clone());
                while self.follows {
                    let count = self.session.poll_following(now, &mut transmit, 5);
                    if count == 0 {
                        break;
                    }
                    out.push(transmit.clone());
                    for _ in 1..count {
                        transmit.advance(1);
                        out.push(transmit.clone());
                    }
                    self.followed += count as u64;
                }
            }
            if out.len() == before {
                break;
            }
        }
        let next = self.session.poll_timeout();
        assert!(next.is_none_or(|at| at > now), "it would spin");
        out
    }
}

/// What left in a transfer over a path that loses every 13th packet, with times from the beginning at `origin`;
/// without the times in SACKs; how many of these packets followed others; and how many arrived behind others and were handled with them.
fn run(origin: Time, follows: bool, joins: bool) -> (Vec<(Nanos, u64, String)>, u64, u64) {
    let mut ends = [
        End::new(Role::Client, 1, 2, origin),
        End::new(Role::Server, 2, 1, origin),
    ];
    for end in &mut ends {
        (end.follows, end.joins) = (follows, joins);
    }
    let mut under_way: [VecDeque<(Time, Transmit)>; 2] = [VecDeque::new(), VecDeque::new()];
    let mut sent = Vec::new();
    let (mut now, mut slot) = (origin, 0);
    while now < origin + END {
        let parts = &mut [part()];
        while ends[0]
            .session
            .can_submit((20, 1000), Urgency::default(), parts)
            && slot < 60
        {
            let tail = slot % 7 == 6;
            let session = &mut ends[0].session;
            session.submit(Slot(slot), (20, 1000), (tail, Urgency::default()), parts);
            slot += 1;
        }
        for (side, end) in ends.iter_mut().enumerate() {
            for transmit in end.drive(now) {
                let content = match &transmit.content {
                    Content::Control(body) => {
                        let frames = FrameIter::new(body).flatten();
                        let kept = frames.map(|frame| match frame {
                            Frame::Sack(mut sack) => {
                                sack.time_us = 0;
                                format!("{sack:?}")
                            }
                            frame => format!("{frame:?}"),
                        });
                        kept.take(100).collect()
                    }
                    content => format!("{:?} {content:?}", transmit.header),
                };
                sent.push((now - origin, transmit.packet_number.get(), content));
                if transmit.packet_number.get() % 13 != 12 {
                    under_way[side].push_back((now + DELAY, transmit));
                }
            }
        }
        let timers = ends.iter_mut().filter_map(|end| end.session.poll_timeout());
        let arrivals = under_way.iter().filter_map(|queue| Some(queue.front()?.0));
        let next = timers.chain(arrivals).min().expect("sessions are open");
        now = now.max(next);
        for (side, queue) in under_way.iter_mut().enumerate() {
            let count = queue.iter().take_while(|(at, _)| *at <= now).count();
            let arrived: Vec<_> = queue.drain(..count).map(|(_, it)| it).collect();
            ends[1 - side].receive_all(now, side as u8 + 1, &arrived);
        }
    }
    assert!(ends[0].session.stream_delivered(part().stream) && slot == 60);
    (sent, ends[0].followed, ends[1].joined)
}

#[test]
fn what_follows_is_what_would_be_chosen() {
    let (chosen, ..) = run(Time::ZERO, false, false);
    let (sent, followed, _) = run(Time::ZERO, true, false);
    assert!(followed > 300, "{followed} of {}", sent.len());
    assert_eq!(sent, chosen);
}

#[test]
fn packets_that_are_handled_as_one_say_what_they_say_alone() {
    let (alone, ..) = run(Time::ZERO, true, false);
    let (sent, _, joined) = run(Time::ZERO, true, true);
    assert!(joined > 300, "{joined} of {}", sent.len());
    assert_eq!(sent, alone);
}

/// What left before the peer was met leaves again, to where it is found, within what it grants, and counts as lost nowhere.
#[test]
fn what_left_before_the_peer_was_met_leaves_again() {
    let mut ends = [
        End::new(Role::Client, 1, 9, time(0)),
        End::new(Role::Server, 2, 1, time(0)),
    ];
    for slot in 0..3 {
        let (session, parts) = (&mut ends[0].session, &mut [part()]);
        assert!(session.can_submit((20, 1000), Urgency::default(), parts));
        session.submit(
            Slot(slot),
            (20, 1000),
            (slot == 2, Urgency::default()),
            parts,
        );
    }
    let at = (0..DELAY).step_by((MS / 4) as usize);
    let early: Vec<_> = at.flat_map(|at| ends[0].drive(time(at))).collect();
    assert!(early.len() > 20, "{}", early.len());
    let mut now = time(2 * DELAY);
    let introduction = Introduction {
        peer_cid: ConnectionId::new([2; 8]).expect("not zero"),
        window: 1 << 20,
        credit: 1 << 19,
        idle_timeout: None,
        datagram_max: 1472,
    };
    let tuple = Tuple {
        remote: SocketAddr::from(([10, 0, 0, 2], 1)),
        local_ip: None,
    };
    let place = (tuple, 2 * DELAY);
    ends[0].session.begin_again(now, place, &introduction);
    assert_eq!(ends[0].session.stats().peer_window, 1 << 20);
    let mut under_way: [VecDeque<(Time, Transmit)>; 2] = [VecDeque::new(), VecDeque::new()];
    while now < time(END) {
        for (side, end) in ends.iter_mut().enumerate() {
            for transmit in end.drive(now) {
                if side == 0 {
                    assert!(transmit.packet_number > early[early.len() - 1].packet_number);
                    assert_eq!(
                        (transmit.header.cid, transmit.to),
                        (introduction.peer_cid, tuple)
                    );
                }
                under_way[side].push_back((now + DELAY, transmit));
            }
        }
        let timers = ends.iter_mut().filter_map(|end| end.session.poll_timeout());
        let arrivals = under_way.iter().filter_map(|queue| Some(queue.front()?.0));
        now = now.max(timers.chain(arrivals).min().expect("sessions are open"));
        for (side, queue) in under_way.iter_mut().enumerate() {
            while let Some((_, transmit)) = queue.pop_front_if(|(at, _)| *at <= now) {
                ends[1 - side].receive(now, side as u8 + 1, &transmit);
            }
        }
    }
    assert!(ends[0].session.stream_delivered(part().stream));
    let losses = ends[0].session.stats().losses_sent.expect("acknowledged");
    assert_eq!(losses.mean, 0.0);
}

/// What it has said of the id of the handshake, and what it has said with others: of the one that packets carry, and while they do.
#[test]
fn a_client_knows_what_its_server_shows_if_it_has_forgotten_the_session() {
    let mut ends = [
        End::new(Role::Client, 1, 2, time(0)),
        End::new(Role::Server, 2, 1, time(0)),
    ];
    let known = |end: &End| {
        let tokens = end.session.reset_tokens();
        tokens.map(|(from, token)| (from, *token)).collect()
    };
    let current = |end: &End| end.session.paths.main().peer_ids.current();
    let server = ends[0].session.tuple().remote;
    let first = current(&ends[0]);
    let none: Vec<(SocketAddr, ResetToken)> = known(&ends[0]);
    assert_eq!(none, [], "an earlier build says nothing");
    ends[0].session.expect_reset(token_of(first));
    assert_eq!(known(&ends[0]), [(server, token_of(first))]);
    let mut now = time(0);
    for _ in 0..20 {
        let sent = ends.each_mut().map(|end| end.drive(now));
        now += DELAY;
        for (side, transmits) in sent.iter().enumerate() {
            ends[1 - side].receive_all(now, side as u8 + 1, transmits);
        }
    }
    for _ in 0..2 {
        let before = current(&ends[0]);
        ends[0].session.local_address_lost(now);
        now += 1_000 * MS;
        let spare = current(&ends[0]);
        assert_ne!(spare, before);
        assert_eq!(known(&ends[0]), [(server, token_of(spare))]);
    }
    // What a client says of its ids is worth nothing.
    assert_eq!(known(&ends[1]), []);
}

/// What a session has for its application after a packet with this number and these frames.
fn hear(session: &mut Session, packet_number: PacketNumber, frames: &[Frame<'_>]) -> Vec<Event> {
    let mut body = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut body));
    let meta = PacketMeta {
        now: Time::ZERO,
        received_at: Time::ZERO,
        packet_number,
        tuple: session.tuple(),
        ecn: 0,
        datagram_len: body.len() + OVERHEAD,
    };
    let header = Header::control(session.config.local_cid, packet_number, false);
    session.handle_packet(&meta, &header, &body);
    std::iter::from_fn(|| session.poll_event()).collect()
}

/// A STOP is sent again until it is acknowledged, so it may come after all is over. Who kept something for the stream then
/// would never forget it.
#[test]
fn a_late_stop_says_nothing() {
    let mut session = End::new(Role::Server, 2, 1, Time::ZERO).session;
    let (stream, code) = (StreamId::bi(Role::Client, 0), 7);
    let stop = || Frame::Stop { stream, code };
    let stopped = Event::StreamStopped { stream, code };
    assert_eq!(hear(&mut session, pn(0), &[stop()]), [stopped]);
    session.reset_stream(stream, code);
    let taken = Streams {
        kind: stream.kind(),
        base: 1,
        ended: Vec::new(),
        taken: Vec::new(),
    };
    let events = hear(&mut session, pn(1), &[Frame::Streams(taken)]);
    assert_eq!(events, [Event::StreamEnded(stream)]);
    assert_eq!(hear(&mut session, pn(2), &[stop()]), []);
}

/// Each frame with feedback may be about everything that was sent: a peer is not to have that looked at thousands of times for one packet.
#[test]
fn feedback_beyond_what_a_packet_may_have_says_nothing() {
    let mut session = End::new(Role::Server, 2, 1, Time::ZERO).session;
    let (stream, code) = (StreamId::bi(Role::Client, 0), 7);
    hear(&mut session, pn(0), &[Frame::Stop { stream, code }]);
    session.reset_stream(stream, code);
    let taken = |base| {
        Frame::Streams(Streams {
            kind: stream.kind(),
            base,
            ended: Vec::new(),
            taken: Vec::new(),
        })
    };
    let mut frames = vec![taken(0); 16];
    frames.extend([taken(1), Frame::Ping]);
    assert_eq!(hear(&mut session, pn(1), &frames), []);
    let events = hear(&mut session, pn(2), &frames[1..]);
    assert_eq!(events, [Event::StreamEnded(stream)]);
}

/// Blocks beyond what a RESET says that its stream has cost are wrong, also where the ones before have ended it.
#[test]
fn a_reset_names_no_more_blocks_than_there_are() {
    let mut session = End::new(Role::Server, 2, 1, Time::ZERO).session;
    let stream = StreamId::new(Role::Client, 0);
    session.stop_stream(stream, 0);
    let cost = block_cost(1, 100);
    let reset = Frame::Reset(Reset {
        stream,
        code: 0,
        cost,
        blocks: vec![(BlockId::ZERO, cost), (BlockId::new(1), cost)],
    });
    let events = hear(&mut session, pn(0), &[reset]);
    assert!(matches!(events[..], [Event::Violation(_)]), "{events:?}");
}

/// A larger window is known before a SACK tells the credit for it. A stream that fills its share of it must not use up what belongs to
/// another one.
#[test]
fn credit_comes_with_a_larger_window() {
    let [reads, waits] = [0, 1].map(|index| StreamId::new(Role::Client, index));
    let urgency = Urgency::default();
    let mut config = End::new(Role::Client, 1, 2, Time::ZERO).session.config;
    config.peer_window = 1 << 20;
    let mut session = Session::new(config, Time::ZERO);
    let submit = |session: &mut Session, shape| {
        assert_eq!(session.room_for(reads, urgency, shape), Room::Whole);
        session.submit(Slot(0), shape, (false, urgency), &mut [part()]);
    };
    submit(&mut session, (10, 1000));
    let blocks = Frame::Blocks(Blocks {
        base: BlockId::new(1),
        complete: Vec::new(),
        deficits: Vec::new(),
    });
    let taken = Frame::Streams(Streams {
        kind: reads.kind(),
        base: 0,
        ended: Vec::new(),
        taken: vec![(0, block_cost(10, 1000))],
    });
    let window = Frame::Window {
        number: WindowNumber::new(1),
        size: 4 << 20,
    };
    let events = hear(&mut session, pn(0), &[blocks, taken, window]);
    assert_eq!(events, [Event::BlockDelivered { slot: Slot(0) }]);
    // All of the smaller window, but for too little for a block.
    submit(&mut session, (738, 1420));
    assert_ne!(session.room_for(waits, urgency, (1, 1420)), Room::HeldUp);
}

/// A WINDOW has the window divided among all streams, of which there may be thousands.
#[test]
fn of_several_windows_in_a_packet_the_newest_counts() {
    let mut session = End::new(Role::Client, 1, 2, Time::ZERO).session;
    let window = |number| Frame::Window {
        number: WindowNumber::new(number),
        size: number << 20,
    };
    let frames: Vec<_> = (1..50).chain([100]).chain(51..90).map(window).collect();
    let before = session.window_news();
    assert_eq!(hear(&mut session, pn(0), &frames), []);
    assert_eq!(session.stats().peer_window, 100 << 20);
    assert_eq!(session.window_news(), before + 1);
}

/// More frames wait for being acknowledged than an honest peer leaves so: that is seen although the peer keeps this end from having to wait for anything.
#[test]
fn frames_that_are_never_acknowledged_end_the_session_at_once() {
    let mut session = End::new(Role::Server, 2, 1, Time::ZERO).session;
    let abandoned = Frame::PathAbandon {
        path: PathId::new(1),
    };
    (0..1 << 17).for_each(|_| session.control_queue.push(&abandoned));
    assert_eq!(hear(&mut session, pn(0), &[Frame::Ping]), []);
    session.control_queue.push(&abandoned);
    let events = hear(&mut session, pn(1), &[Frame::Ping]);
    assert_eq!(events, [Event::Stalled { held_up: None }]);
    assert_eq!(hear(&mut session, pn(2), &[Frame::Ping]), []);
}

/// Hundreds of frames fit a packet, and each may be an event.
#[test]
fn memory_of_many_events_is_not_kept() {
    let mut session = End::new(Role::Server, 2, 1, Time::ZERO).session;
    let (stream, code) = (StreamId::bi(Role::Client, 0), 7);
    let stops: Vec<_> = (0..400).map(|_| Frame::Stop { stream, code }).collect();
    let mut body = Vec::new();
    stops.iter().for_each(|stop| stop.encode(&mut body));
    for number in 0..50 {
        let meta = PacketMeta {
            now: Time::ZERO,
            received_at: Time::ZERO,
            packet_number: pn(number),
            tuple: session.tuple(),
            ecn: 0,
            datagram_len: body.len() + OVERHEAD,
        };
        let header = Header::control(session.config.local_cid, pn(number), false);
        session.handle_packet(&meta, &header, &body);
    }
    assert_eq!(session.events.len(), 20_000);
    while session.poll_event().is_some() {}
    assert!(session.events.capacity() <= EVENTS_KEPT);
}

/// However urgent blocks are, what is on its way keeps to the memory for it, but for one block of each urgency.
#[test]
fn urgent_blocks_have_no_memory_of_their_own() {
    let mut config = End::new(Role::Client, 1, 2, Time::ZERO).session.config;
    config.send_window = 60_000;
    let mut session = Session::new(config, Time::ZERO);
    let parts = &mut [part()];
    let mut blocks = 0;
    for level in (0..Urgency::LEVELS as u8).rev() {
        let urgency = Urgency::new(level);
        while session.can_submit((20, 1000), urgency, parts) {
            session.submit(Slot(blocks), (20, 1000), (false, urgency), parts);
            blocks += 1;
        }
    }
    assert_eq!(blocks, 2 + 7);
}

#[test]
fn time_has_any_origin() {
    let origins = [0, 3_000 * MS, 1_000_000_000 * MS];
    let [first, later, much_later] = origins.map(|origin| run(time(origin), false, false).0);
    assert!(first.len() > 1000);
    assert_eq!(first, later);
    assert_eq!(first, much_later);
}

#[test]
fn a_finished_session_asks_for_nothing() {
    let mut end = End::new(Role::Client, 1, 2, Time::ZERO);
    end.session.close(Time::ZERO, 0, "done");
    let mut now = Time::ZERO;
    while let Some(at) = end.session.poll_timeout() {
        now = at;
        end.drive(now);
        assert!(now < time(10_000 * MS), "closes in time");
    }
    assert!(end.session.is_finished() && end.drive(now).is_empty());
    assert_eq!(end.session.connection_ids_wanted(), 0);
    end.session.handle_timeout(now + END);
    assert_eq!(end.session.poll_timeout(), None);
}

/// Its window shows how often it was told that nothing was left to send.
struct Told(u64);

impl Told {
    const WINDOW: u64 = 1_000_000;
}

impl RateControl for Told {
    fn on_sent(&mut self, _now: Time, _pn: PacketNumber, _ip_bytes: u32, _bytes_in_flight: u64) {}

    fn on_ack(&mut self, _ack: &AckSummary<'_>) {}

    fn on_app_limited(&mut self, _now: Time) {
        self.0 += 1;
    }

    fn on_persistent_loss(&mut self, _now: Time) {}

    fn pacing_rate(&self) -> u64 {
        1_000_000_000
    }

    fn cwnd(&self) -> u64 {
        Self::WINDOW + self.0
    }

    fn bandwidth_estimate(&self) -> u64 {
        self.pacing_rate()
    }

    fn min_rtt(&self) -> Option<Nanos> {
        None
    }

    fn phase_name(&self) -> &'static str {
        "told"
    }
}

/// A controller that grows with what fills its rate would grow by what keeps an idle session alive.
#[test]
fn behind_a_ping_rate_control_is_told_that_nothing_is_left() {
    let new = || End::new(Role::Client, 1, 2, Time::ZERO);
    let mut config = new().session.config;
    config.cc = CcKind::Own(OwnController {
        name: "told",
        build: |_| Box::new(Told(0)),
    });
    let mut end = End {
        session: Session::new(config, Time::ZERO),
        ..new()
    };
    end.drive(Time::ZERO);
    let before = end.session.stats().cwnd;
    assert!(before > Told::WINDOW);
    // A PING asks the peer for a packet.
    end.session.confirm(None);
    assert!(!end.drive(time(MS)).is_empty());
    assert_eq!(end.session.stats().cwnd, before + 1);
}

/// The symbols of a bundle with this body, in a packet of block 5, are handed over; how many are placed, and whether the session is accused.
fn bundle(body: &[u8]) -> (usize, bool) {
    let mut end = End::new(Role::Server, 2, 1, Time::ZERO);
    let cid = ConnectionId::new([2; 8]).expect("not zero");
    let header = Header {
        kind: PacketKind::Bundle,
        block: 5,
        ..Header::control(cid, pn(0), false)
    };
    let meta = PacketMeta {
        now: Time::ZERO,
        received_at: Time::ZERO,
        packet_number: pn(0),
        tuple: end.session.tuple(),
        ecn: 0,
        datagram_len: body.len() + OVERHEAD,
    };
    let symbols = match end.session.handle_packet(&meta, &header, body) {
        Received::Bundle(symbols) => symbols,
        received => {
            assert_eq!(received, Received::Nothing);
            Vec::new()
        }
    };
    let mut placed = 0;
    for symbol in &symbols {
        let placement = end.session.handle_bundled(Time::ZERO, symbol);
        placed += usize::from(placement != Placement::Discard);
    }
    let mut events = std::iter::from_fn(|| end.session.poll_event());
    let is_accused = events.any(|event| matches!(event, Event::Violation(_)));
    assert_eq!(end.session.stats().packets_received, 1);
    (placed, is_accused)
}

#[test]
fn symbols_of_a_bundle_count_as_if_they_had_come_alone() {
    let of = |riders: &[[u8; 6]]| [&[1, 7][..], &riders.concat()].concat();
    let older = |distance, code, n| [distance, code, n, 0, 1, 7];
    assert_eq!(bundle(&of(&[older(1, 0, 1)])), (2, false));
    assert_eq!(bundle(&of(&[older(1, 0, 1), older(2, 1, 2)])), (3, false));
    assert_eq!(bundle(&of(&[older(1, 0, 1), older(1, 0, 1)])), (2, false));
    assert_eq!(bundle(&of(&[older(1, 0, 2), older(1, 0, 1)])), (2, false));
    // No block before the first; repairs of windows have another body.
    assert_eq!(bundle(&of(&[older(6, 0, 1)])), (1, false));
    assert_eq!(bundle(&of(&[older(1, 6, 1)])), (1, false));
    // A code that does not exist, and what is no bundle.
    assert_eq!(bundle(&of(&[older(1, 63, 1), older(2, 0, 1)])), (1, true));
    assert_eq!(bundle(&of(&[older(0, 0, 1)])), (0, true));
    assert_eq!(bundle(&[1, 7]), (0, true));
    assert_eq!(bundle(&[]), (0, true));
}
