//! One TCP connection: its handshake, and why it may have to be left alone.

use std::{
    hash::{Hash, Hasher},
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;

use crate::{
    Config, MS, Place, Profile, Side, Stage, Time,
    acks::{Acks, Stream},
    eln::watch::Watch,
    numbers::Numbers,
    pace::Pacer,
    rdb::{self, Bundler},
    returning::{Arriving, Returning},
    rsfc::{self, Unclamped, Upload},
    segment::Segment,
    sequence,
    snoop::{Setup, Snoop},
    stats::{Counts, FlowReport},
    table,
};

/// Memory of a flow without cached packets: its own, that of the table, and two maps of its counts that have something.
const FLOW_BYTES: usize = size_of::<Flow>() + table::PLACE_BYTES + 2 * MAP_BYTES;
/// Memory of a map with a few counts, in bytes.
const MAP_BYTES: usize = 128;
/// Assumed for the wired part of a path that the handshake did not tell.
const WIRED_RTT_NS: Time = 50 * MS;
/// Longest payload, in bytes, for a host that does not say in its SYN what it takes (RFC 9293).
const MSS_DEFAULT: u16 = 536;
/// The longest time between a SYN and its answer that counts as a round trip.
const HANDSHAKE_RTT_NS_MAX: Time = 2000 * MS;

/// The ends of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FlowKey {
    /// The fixed host.
    pub fixed: SocketAddr,
    /// The mobile host, behind the lossy hop.
    pub mobile: SocketAddr,
}

impl Hash for FlowKey {
    /// Addresses and ports as few numbers: field by field it takes several times as long, for each packet.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u64::from(self.fixed.port()) << 16 | u64::from(self.mobile.port());
        match (self.fixed.ip(), self.mobile.ip()) {
            (IpAddr::V4(fixed), IpAddr::V4(mobile)) => {
                let addresses = u64::from(fixed.to_bits()) << 32 | u64::from(mobile.to_bits());
                state.write_u128(u128::from(addresses) << 64 | u128::from(ports));
            }
            (fixed, mobile) => {
                fixed.hash(state);
                mobile.hash(state);
                state.write_u64(ports);
            }
        }
    }
}

impl FlowKey {
    pub(crate) fn of(from: Side, segment: &Segment) -> FlowKey {
        FlowKey::between(from, segment.source, segment.destination)
    }

    /// The flow of a packet that comes from one side.
    pub(crate) fn between(from: Side, source: SocketAddr, destination: SocketAddr) -> FlowKey {
        let (fixed, mobile) = match from {
            Side::Fixed => (source, destination),
            Side::Mobile => (destination, source),
        };
        FlowKey { fixed, mobile }
    }
}

/// Why a packet passed untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bypass {
    /// TCP-MD5 or TCP-AO.
    Authenticated,
    /// A wrong TCP checksum; in captures, perhaps one that an interface had still to compute.
    Checksum,
    /// A part of an IP packet.
    Fragment,
    /// Several segments joined (GSO, GRO).
    Joined,
    /// Not a TCP segment that can be read.
    Malformed,
    /// The beginning of the connection was not seen.
    MidStream,
    /// Not TCP, or behind IPv6 extension headers.
    NotTcp,
    /// None of those that are to be helped ([`Config::matches`](crate::Config::matches)).
    NotWanted,
    /// The agent was too late ([`Agent::handle_lag`](crate::Agent::handle_lag)).
    Overload,
}

/// How far the opening of a connection has come.
#[derive(Debug)]
enum Opening {
    /// A SYN came from this side.
    Asked {
        by: Side,
        sequence: u32,
        payload: u32,
        window: u16,
        at: Option<Time>,
        options: Offer,
    },
    /// It was answered.
    Answered {
        by: Side,
        sequence: u32,
        /// Sequence number of the answering SYN.
        answer: u32,
        /// When the answer was seen; `None` if it was seen more than once, as nobody knows which one arrived.
        at: Option<Time>,
        /// From the SYN to its answer.
        rtt: Option<Time>,
        /// Whether the side that asked has acknowledged the answer.
        acknowledged: bool,
    },
    Missed,
}

impl Opening {
    fn asked(by: Side, segment: &Segment, at: Option<Time>) -> Opening {
        Opening::Asked {
            by,
            sequence: segment.sequence,
            payload: segment.payload as u32,
            window: segment.window,
            at,
            options: Offer::of(segment),
        }
    }

    /// Whether a segment acknowledges the SYN that came from the other side. With TCP Fast Open, that may be with data of the SYN.
    fn is_answered(&self, from: Side, segment: &Segment) -> bool {
        match *self {
            Opening::Asked {
                by,
                sequence,
                payload,
                ..
            } if by != from && segment.ack => {
                let acknowledged = segment.acknowledgment.wrapping_sub(sequence);
                acknowledged.wrapping_sub(1) <= payload
            }
            _ => false,
        }
    }
}

/// The sequence numbers of the SYNs of a connection, by which another agent knows it from others with the same ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The side that sent the first SYN.
    pub(crate) by: Side,
    pub(crate) sequence: u32,
    pub(crate) answer: u32,
}

/// What a SYN offers.
#[derive(Clone, Copy, Debug)]
struct Offer {
    sack: bool,
    authenticated: bool,
    mss: Option<u16>,
    window_scale: Option<u8>,
    timestamps: bool,
    mptcp: bool,
    /// The bits AE, CWR and ECE of the SYN.
    ecn: u8,
}

impl Offer {
    fn of(segment: &Segment) -> Offer {
        Offer {
            sack: segment.options.sack_permitted,
            authenticated: segment.options.authenticated,
            mss: segment.options.mss,
            window_scale: segment.options.window_scale,
            timestamps: segment.options.timestamps.is_some(),
            mptcp: segment.options.mptcp,
            ecn: segment.ecn,
        }
    }
}

/// What the SYNs of both hosts say. Where a method takes the `sender`, that is the host whose data goes towards the hop.
struct Handshake<'a> {
    /// The side that sent the first SYN.
    by: Side,
    /// What the first SYN offers.
    offered: Offer,
    /// The SYN that answers it.
    answer: &'a Segment,
    /// What the answer offers.
    answered: Offer,
    /// From the first SYN to its answer, in nanoseconds, if that can be told.
    rtt: Option<Time>,
}

impl Handshake<'_> {
    /// Position of the first byte of data that a host sends.
    fn first(&self, host: Side) -> u64 {
        match self.by == host {
            true => sequence::first(self.answer.acknowledgment),
            false => sequence::first(self.answer.sequence.wrapping_add(1)),
        }
    }

    fn offer(&self, host: Side) -> Offer {
        match self.by == host {
            true => self.offered,
            false => self.answered,
        }
    }

    /// Of the windows that a host tells: 0 unless both offer to scale them (RFC 7323 §2.2).
    fn scale(&self, host: Side) -> u8 {
        let peer = self.offer(host.other());
        let scale = self.offer(host).window_scale;
        scale.filter(|_| peer.window_scale.is_some()).unwrap_or(0)
    }

    /// Longest payload that both hosts take, in bytes.
    fn mss(&self) -> u16 {
        let mss = self.offered.mss.min(self.answered.mss);
        mss.unwrap_or(MSS_DEFAULT)
    }

    /// Reads the acknowledgements that the sender sends.
    fn acks(&self, sender: Side) -> Acks {
        // RFC 9768: all three bits in the SYN, and any answer but those of other kinds.
        let accecn =
            self.offered.ecn == 0b111 && !matches!(self.answered.ecn, 0b000 | 0b001 | 0b111);
        Acks::new(Stream::new(
            self.first(sender),
            self.first(sender.other()),
            self.scale(sender),
            accecn.then_some(self.mss()),
        ))
    }

    /// Reads the acknowledgements that come from the hop.
    fn arriving(&self, sender: Side) -> Arriving {
        let (first, receiver) = (self.first(sender), sender.other());
        let stream = Stream::new(self.first(receiver), first, self.scale(receiver), None);
        Arriving::new(stream, first, self.mss())
    }

    /// Follows what comes over the hop.
    fn upload(&self, now: Time, sender: Side) -> Upload {
        let unclamped = if self.offered.mptcp && self.answered.mptcp {
            Some(Unclamped::Mptcp)
        } else {
            let both = self.offered.timestamps && self.answered.timestamps;
            (!both).then_some(Unclamped::NoTimestamps)
        };
        Upload::new(rsfc::Setup {
            now,
            first: self.first(sender.other()),
            scale: self.scale(sender),
            mss: self.mss(),
            unclamped,
        })
    }

    /// The time over the hop and back, in nanoseconds: the answer to a SYN of the sender came over it. That to one of the receiver came from the
    /// other side.
    fn hop_rtt(&self, sender: Side) -> Option<Time> {
        self.rtt.filter(|_| self.by == sender)
    }

    fn snoop(&self, profile: Profile, place: Place) -> Snoop {
        let sender = place.sender();
        let mut snoop = Snoop::new(Setup {
            profile,
            by_report: place == Place::Mobile,
            first: self.first(sender),
            sack: self.offered.sack && self.answered.sack,
            path_rtt: self.rtt.unwrap_or(0) + WIRED_RTT_NS,
            // If the receiver has asked, its window is heard again before data comes.
            window: match self.by == sender {
                true => self.answer.window,
                false => 0,
            },
        });
        if let Some(rtt) = self.hop_rtt(sender) {
            snoop.guess_hop_rtt(rtt);
        }
        snoop
    }

    fn bundler(&self, sender: Side) -> Bundler {
        Bundler::new(rdb::Setup {
            first: self.first(sender),
            mss: self.offer(sender.other()).mss,
            scale: self.scale(sender.other()),
            ecn: self.offered.ecn & 0b011 == 0b011 && self.answered.ecn == 0b001,
            rtt: self.hop_rtt(sender),
        })
    }

    /// Watches for losses of what the mobile host sends.
    fn watch(&self, now: Time) -> Watch {
        let mut watch = Watch::new(self.first(Side::Mobile));
        // The answer to a SYN of the fixed host came over the hop.
        if let (Some(rtt), Side::Fixed) = (self.rtt, self.by) {
            watch.see_hop_rtt(now, rtt);
        }
        watch
    }
}

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct Flow {
    opening: Opening,
    /// The last SYN that is not of this connection: perhaps of the next one.
    asked_again: Option<Opening>,
    numbers: Numbers,
    authenticated: bool,
    /// It is one of the connections that are to be helped.
    pub(crate) is_wanted: bool,
    /// Repairs losses of the hop ([`Stage::Snoop`]); present once both SYNs have been seen.
    pub(crate) snoop: Option<Snoop>,
    /// Copies for thin streams ([`Stage::Rdb`]), in the place of `snoop`.
    pub(crate) bundler: Option<Box<Bundler>>,
    /// What acknowledgements towards the hop have said, if they are filtered.
    pub(crate) acks: Option<Box<Acks>>,
    /// What acknowledgements from the hop have said, if something is done about them.
    pub(crate) arriving: Option<Box<Arriving>>,
    /// Paces segments towards the hop, if that is asked for.
    pub(crate) pacer: Option<Box<Pacer>>,
    /// What comes over the hop, if windows may be lowered for it.
    pub(crate) upload: Option<Box<Upload>>,
    /// What the mobile host sends, if its losses are to be reported.
    pub(crate) watch: Option<Watch>,
    /// It is known from another agent, or was handed to one, and the mobile host has not been heard here since.
    pub(crate) asleep: bool,
    /// Another agent has told of it: `numbers` were not seen from the beginning.
    was_told: bool,
    pub(crate) counts: Counts,
    /// Number of its slot in the table.
    pub(crate) place: Option<usize>,
    /// Bytes of memory that the table counted for it last.
    pub(crate) charged: usize,
}

/// What a SYN means for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syn {
    /// It belongs to the connection that is known: the first SYN, or one that was sent again.
    Same,
    /// It does not, and nobody has answered that it begins another one: the one that is known may go on (RFC 5961 §4).
    Doubtful,
    /// The ports are used again: nothing known holds any longer.
    New,
}

impl Flow {
    /// A flow that begins with this segment.
    pub(crate) fn new(now: Time, from: Side, segment: &Segment) -> Flow {
        let mut flow = Flow::missed();
        flow.authenticated = segment.options.authenticated;
        if segment.syn && !segment.ack {
            flow.opening = Opening::asked(from, segment, Some(now));
        }
        flow
    }

    /// The connection that a doubtful SYN has begun, which this segment answers.
    pub(crate) fn next(
        &mut self,
        now: Time,
        from: Side,
        answer: &Segment,
        config: &Config,
    ) -> Option<Box<Flow>> {
        let opening = self.asked_again.take()?;
        let mut flow = Box::new(Flow::missed());
        flow.opening = opening;
        flow.syn(now, from, answer, config);
        Some(flow)
    }

    /// A flow whose beginning was not seen.
    pub(crate) fn missed() -> Flow {
        Flow {
            opening: Opening::Missed,
            asked_again: None,
            numbers: Numbers::missed(),
            authenticated: false,
            is_wanted: true,
            snoop: None,
            bundler: None,
            acks: None,
            arriving: None,
            pacer: None,
            upload: None,
            watch: None,
            asleep: false,
            was_told: false,
            counts: Counts::default(),
            place: None,
            charged: 0,
        }
    }

    pub(crate) fn report(&self, key: FlowKey) -> FlowReport {
        FlowReport {
            key,
            bypass: self.bypass(),
            upload: self.upload.as_ref().and_then(|it| it.report()),
            counts: self.counts.clone(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let snoop = self.snoop.as_ref().map_or(0, Snoop::bytes);
        let bundler = self.bundler.as_ref().map_or(0, |it| it.bytes());
        let acks = self.acks.as_ref().map_or(0, |it| it.bytes());
        let upload = self.upload.as_ref().map_or(0, |_| size_of::<Upload>());
        let arriving = self.arriving.as_ref().map_or(0, |it| it.bytes());
        let pacer = self.pacer.as_ref().map_or(0, |it| it.bytes());
        let acks = acks + arriving + pacer;
        FLOW_BYTES + snoop + bundler + acks + upload + self.watch.as_ref().map_or(0, Watch::bytes)
    }

    /// Why the whole flow is left alone.
    pub(crate) fn bypass(&self) -> Option<Bypass> {
        match self.opening {
            _ if self.authenticated => Some(Bypass::Authenticated),
            _ if !self.is_wanted => Some(Bypass::NotWanted),
            Opening::Missed => Some(Bypass::MidStream),
            _ => None,
        }
    }

    /// Whether it is open, and anything may be done for it. It is not before its answer is acknowledged: hosts answer any SYN, also those of nobody.
    pub(crate) fn is_helped(&self) -> bool {
        let is_open = matches!(
            self.opening,
            Opening::Answered {
                acknowledged: true,
                ..
            }
        );
        is_open && self.bypass().is_none() && !self.numbers.are_over()
    }

    /// Takes note of an authenticated segment: such a flow is left alone from then on.
    pub(crate) fn see_options(&mut self, segment: &Segment) {
        self.authenticated |= segment.options.authenticated;
    }

    /// A SYN, with or without ACK.
    pub(crate) fn syn(&mut self, now: Time, from: Side, segment: &Segment, config: &Config) -> Syn {
        match &mut self.opening {
            Opening::Asked {
                by, sequence, at, ..
            } if *by == from && !segment.ack => {
                if *sequence != segment.sequence {
                    return self.asks_again(now, from, segment);
                }
                // Sent again: nobody knows which one is answered.
                *at = None;
                Syn::Same
            }
            &mut Opening::Asked {
                by,
                sequence,
                payload,
                window,
                at,
                options,
            } if by != from && segment.ack => {
                if !self.opening.is_answered(from, segment) {
                    return self.answers_again(from, segment);
                }
                let rtt = at.map(|at| now.saturating_sub(at));
                let rtt = rtt.filter(|rtt| *rtt <= HANDSHAKE_RTT_NS_MAX);
                self.opening = Opening::Answered {
                    by,
                    sequence,
                    answer: segment.sequence,
                    at: Some(now),
                    rtt,
                    acknowledged: false,
                };
                let handshake = Handshake {
                    by,
                    offered: options,
                    answer: segment,
                    answered: Offer::of(segment),
                    rtt,
                };
                let end = sequence.wrapping_add(1).wrapping_add(payload);
                let scales = [handshake.scale(by), handshake.scale(by.other())];
                self.numbers = Numbers::opened(by, (end, window), segment, scales);
                self.begin(now, &handshake, config);
                Syn::Same
            }
            Opening::Answered {
                by,
                sequence,
                answer,
                at,
                ..
            } => {
                let same = match (segment.ack, *by == from) {
                    (false, true) => segment.sequence == *sequence,
                    (true, false) => segment.sequence == *answer,
                    _ => false,
                };
                if same {
                    *at = None;
                    return Syn::Same;
                }
                // Only a SYN alone begins a connection.
                match segment.ack {
                    true => self.answers_again(from, segment),
                    false => self.asks_again(now, from, segment),
                }
            }
            // Both ends opening at once is too rare to be followed.
            Opening::Asked { .. } => {
                if !segment.ack {
                    self.opening = Opening::Missed;
                }
                Syn::Same
            }
            Opening::Missed => match segment.ack {
                true => Syn::Same,
                false => Syn::New,
            },
        }
    }

    /// Both SYNs have been seen: sets up whatever `config` has done for the flow.
    fn begin(&mut self, now: Time, handshake: &Handshake<'_>, config: &Config) {
        let sender = config.place.sender();
        self.authenticated |= handshake.offered.authenticated || handshake.answered.authenticated;
        if config.ack_filter.is_some() || config.ack_cc.is_some() {
            self.acks = Some(Box::new(handshake.acks(sender)));
        }
        if config.returning != Returning::Pass {
            self.arriving = Some(Box::new(handshake.arriving(sender)));
        }
        let first_sent = handshake.first(sender);
        self.pacer = config.pace.then(|| Box::new(Pacer::new(first_sent)));
        if config.rsfc.is_some() {
            self.upload = Some(Box::new(handshake.upload(now, sender)));
        }
        match config.flow_stage() {
            Stage::Pass => {}
            Stage::Snoop(profile) => self.snoop = Some(handshake.snoop(profile, config.place)),
            Stage::Rdb(_) => self.bundler = Some(Box::new(handshake.bundler(sender))),
        }
        let reports = config.reports && config.place == Place::Base;
        self.watch = reports.then(|| handshake.watch(now));
    }

    /// A SYN that is not of the connection that is known.
    fn asks_again(&mut self, now: Time, from: Side, segment: &Segment) -> Syn {
        let is_known = matches!(
            self.asked_again,
            Some(Opening::Asked { by, sequence, .. })
                if (by, sequence) == (from, segment.sequence)
        );
        // Sent again: nobody knows which one is answered.
        let at = (!is_known).then_some(now);
        self.asked_again = Some(Opening::asked(from, segment, at));
        Syn::Doubtful
    }

    /// An answer to a SYN, and not to that of the connection that is known.
    fn answers_again(&self, from: Side, segment: &Segment) -> Syn {
        match self.is_asked_again(from, segment) {
            true => Syn::New,
            false => Syn::Doubtful,
        }
    }

    /// Whether a segment answers a doubtful SYN: who got it knows no other connection any more.
    fn is_asked_again(&self, from: Side, segment: &Segment) -> bool {
        let asked = self.asked_again.as_ref();
        asked.is_some_and(|asked| asked.is_answered(from, segment))
    }

    /// Whether a reset ends the connection: it has the number that its receiver expects, as far as that is known, or refuses a SYN. Others are
    /// not obeyed (RFC 5961 §3).
    pub(crate) fn is_reset_by(&self, from: Side, segment: &Segment) -> bool {
        let is_expected = match self.opening {
            Opening::Asked {
                by,
                sequence,
                payload,
                ..
            } if by == from => {
                let behind = segment.sequence.wrapping_sub(sequence).wrapping_sub(1);
                behind <= payload
            }
            Opening::Asked { .. } => self.opening.is_answered(from, segment),
            Opening::Answered { .. } => self.numbers.expects(from, segment.sequence),
            Opening::Missed => true,
        };
        is_expected || self.bypass().is_some() || self.is_asked_again(from, segment)
    }

    /// Takes note of the numbers of a segment that is neither SYN nor reset.
    pub(crate) fn see_numbers(&mut self, from: Side, segment: &Segment) {
        self.numbers.see(from, segment);
    }

    /// Whether its receiver may have room for a segment, as far as is known: what a host has acknowledged behind another hop is not.
    pub(crate) fn may_be_taken(&self, from: Side, segment: &Segment) -> bool {
        self.asleep || self.numbers.may_be_taken(from, segment)
    }

    /// Whether its beginning was seen, here or by another agent.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.opening, Opening::Missed)
    }

    /// Whether a segment has numbers that fit, which nobody knows who has not seen the connection. Of one whose beginning was missed, what is known may be anybody's.
    pub(crate) fn fits(&self, from: Side, segment: &Segment) -> bool {
        match self.opening {
            Opening::Asked { .. } => segment.syn && self.opening.is_answered(from, segment),
            Opening::Answered { .. } if segment.syn || segment.rst || !segment.ack => false,
            Opening::Answered { .. } if !self.was_told => self.numbers.fit(from, segment),
            // Other agents tell of what fixed hosts send.
            Opening::Answered { .. } => {
                let number = match from {
                    Side::Fixed => segment.sequence,
                    Side::Mobile => segment.acknowledgment,
                };
                let snoop = self.snoop.as_ref();
                snoop.is_some_and(|snoop| snoop.is_in_flight(number))
            }
            Opening::Missed => false,
        }
    }

    /// The first segment behind the SYNs completes the picture of the path.
    pub(crate) fn opened(&mut self, now: Time, from: Side, segment: &Segment, config: &Config) {
        let Opening::Answered {
            by,
            answer,
            at,
            rtt,
            acknowledged,
            ..
        } = &mut self.opening
        else {
            return;
        };
        if *by != from {
            return;
        }
        // Whoever asks in the name of another host does not see the answer, and has to guess.
        let number = segment.acknowledgment;
        let is_of_answer = number.wrapping_sub(*answer) as i32 > 0;
        *acknowledged |= segment.ack && is_of_answer && self.numbers.has_sent(by.other(), number);
        let Some(answered) = at.take() else { return };
        // It answers data: the one that answered the SYN did not come by here.
        if segment.acknowledgment != answer.wrapping_add(1) {
            return;
        }
        let second = now.saturating_sub(answered);
        if let Some(watch) = &mut self.watch
            && from == Side::Mobile
            && second <= HANDSHAKE_RTT_NS_MAX
        {
            watch.see_hop_rtt(now, second);
        }
        if let Some(snoop) = &mut self.snoop
            && from != config.place.sender()
            && second <= HANDSHAKE_RTT_NS_MAX
        {
            snoop.guess_hop_rtt(second);
        }
        if let Some(first) = *rtt
            && second <= HANDSHAKE_RTT_NS_MAX
        {
            if let Some(snoop) = &mut self.snoop {
                snoop.set_path_rtt(first + second);
            }
            if let Some(bundler) = &mut self.bundler {
                bundler.set_rtt(first + second);
            }
            if let Some(upload) = &mut self.upload {
                upload.set_rtt(now, first + second);
            }
            if let Some(pacer) = &mut self.pacer {
                pacer.set_rtt(first + second);
            }
        }
    }

    /// Who has opened it and how, if that was seen and the flow is helped.
    pub(crate) fn opening(&self) -> Option<Opened> {
        match self.opening {
            Opening::Answered {
                by,
                sequence,
                answer,
                ..
            } if self.bypass().is_none() => Some(Opened {
                by,
                sequence,
                answer,
            }),
            _ => None,
        }
    }

    /// Whether another agent may tell of the connection that this is said to be.
    pub(crate) fn may_be(&self, opened: Opened) -> bool {
        let known = self.opening() == Some(opened);
        let missed = matches!(self.opening, Opening::Missed) || self.asleep;
        !self.authenticated && (known || missed)
    }

    /// Another agent knows what was missed here; true if that is news.
    pub(crate) fn take_over(&mut self, opened: Opened, snoop: impl FnOnce() -> Snoop) -> bool {
        if self.opening() == Some(opened) && self.snoop.is_some() {
            return false;
        }
        let Opened {
            by,
            sequence,
            answer,
        } = opened;
        let (at, rtt) = (None, None);
        self.opening = Opening::Answered {
            by,
            sequence,
            answer,
            at,
            rtt,
            acknowledged: true,
        };
        self.numbers = Numbers::missed();
        self.was_told = true;
        self.snoop = Some(snoop());
        self.watch = None;
        self.asleep = true;
        true
    }

    /// The upload of a flow that another agent has told of is followed from here on.
    pub(crate) fn watch_from(&mut self, segment: &Segment, config: &Config) {
        let reports = config.reports && config.place == Place::Base;
        if reports && self.snoop.is_some() && self.watch.is_none() {
            self.watch = Some(Watch::new(sequence::first(segment.sequence)));
        }
    }

    /// When one of its timers is due. `called` is when the flow will be called anyhow: a later deadline of `snoop` need not be computed.
    pub(crate) fn next_timeout(&self, called: Option<Time>) -> Option<Time> {
        let snoop = self.snoop.as_ref().filter(|_| !self.asleep);
        let is_early = |it: &&Snoop| called.is_none_or(|at| it.deadline_at_least() < at);
        let mut next = snoop.filter(is_early).and_then(Snoop::deadline);
        // Most flows have none of these, and this is asked for every packet.
        let mut also = |at: Option<Time>| {
            let Some(at) = at else { return };
            next = Some(next.map_or(at, |next| next.min(at)));
        };
        if let Some(watch) = &self.watch {
            also(watch.deadline());
        }
        if let Some(acks) = &self.acks {
            also(acks.deadline());
        }
        if let Some(arriving) = &self.arriving {
            also(arriving.deadline());
        }
        if let Some(pacer) = &self.pacer {
            also(pacer.deadline());
        }
        next
    }
}
