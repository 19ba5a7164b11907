//! The parameters that the two ends tell each other (`docs/protocol.md` §2.1).

use sphinx_proto::wire::{
    ConnectionId, Reader, ResetToken, VARINT_MAX, WireError, put_varint, varint_len,
};
use sphinx_proto::{Bond, Paper, Sc};

use crate::access::{PUBLIC_KEY_LEN, PublicKey, SIGNATURE_LEN, TICKET_ID_LEN, TicketId};

/// Longest parameters message in bytes.
pub(crate) const MAX_PARAMS_LEN: usize = 1024;

const ID_CONNECTION_ID: u64 = 1;
const ID_SERVICE: u64 = 2;
const ID_RECEIVE_WINDOW: u64 = 3;
const ID_IDLE_TIMEOUT: u64 = 4;
const ID_MAX_UDP_PAYLOAD: u64 = 5;
const ID_RECEIVE_CREDIT: u64 = 6;
const ID_STREAMS: u64 = 7;
const ID_DATAGRAM: u64 = 8;
const ID_PATHS_MAX: u64 = 9;
const ID_PAPER: u64 = 10;
const ID_BOND: u64 = 11;
const ID_SC: u64 = 12;
const ID_RESUMPTION: u64 = 13;
const ID_CREDENTIAL: u64 = 14;
const ID_RESET_TOKEN: u64 = 15;
const ID_SERVICES: u64 = 30;

const BY_TICKET: u8 = 1;
const BY_KEY: u8 = 2;
const BY_BOTH: u8 = 3;

const MIN_UDP_PAYLOAD: u16 = 1200;
const MAX_UDP_PAYLOAD: u16 = 65_527;
/// Streams of a peer that does not say how many it allows.
const STREAMS_UNTOLD: u64 = 256;

/// What a session is for: the client names it, and the server has to have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Service(pub(crate) u8);

impl Service {
    /// An application of its own.
    pub(crate) const APPLICATION: Self = Self(0);
    /// `sphx send` to `sphx recv`.
    pub(crate) const FILES: Self = Self(1);
    /// `sphx perf client` to `sphx perf server`.
    pub(crate) const PERF: Self = Self(2);
    /// `sphx tunnel` to `sphx server`.
    pub(crate) const TUNNEL: Self = Self(3);

    /// What the end of this service is called that connects, or else the one that listens.
    pub(crate) fn role(self, connects: bool) -> &'static str {
        match (self, connects) {
            (Self::APPLICATION, _) => "another application",
            (Self::FILES, true) => "`sphx send`",
            (Self::FILES, false) => "`sphx recv`",
            (Self::PERF, true) => "`sphx perf client`",
            (Self::PERF, false) => "`sphx perf server`",
            (Self::TUNNEL, true) => "`sphx tunnel`",
            (Self::TUNNEL, false) => "`sphx server`",
            _ => "a program that this version does not know",
        }
    }
}

/// Services by their numbers: those that a server has besides the one that it names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Services(u64);

impl Services {
    /// Whether it is one of them.
    pub(super) fn has(self, Service(number): Service) -> bool {
        let bit = 1_u64.checked_shl(u32::from(number)).unwrap_or(0);
        self.0 & bit != 0
    }
}

impl FromIterator<Service> for Services {
    fn from_iter<T: IntoIterator<Item = Service>>(services: T) -> Self {
        let bits = services.into_iter().map(|Service(number)| 1_u64 << number);
        Self(bits.fold(0, |all, bit| all | bit))
    }
}

/// Who a client says it is. That it has the ticket's secret is shown by the proof, that it has the key by the signature over that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Credential {
    Ticket(TicketId),
    Key(PublicKey, [u8; SIGNATURE_LEN]),
    Both(TicketId, PublicKey, [u8; SIGNATURE_LEN]),
}

impl Credential {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, ticket, key) = match self {
            Self::Ticket(id) => (BY_TICKET, Some(id), None),
            Self::Key(key, signature) => (BY_KEY, None, Some((key, signature))),
            Self::Both(id, key, signature) => (BY_BOTH, Some(id), Some((key, signature))),
        };
        let len = 1
            + ticket.map_or(0, |_| TICKET_ID_LEN)
            + key.map_or(0, |_| PUBLIC_KEY_LEN + SIGNATURE_LEN);
        put_varint(out, ID_CREDENTIAL);
        put_varint(out, len as u64);
        out.push(kind);
        out.extend(ticket.into_iter().flat_map(|id| id.0));
        if let Some((key, signature)) = key {
            out.extend_from_slice(&key.0);
            out.extend_from_slice(signature);
        }
    }

    pub(crate) fn take(value: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match value.u8()? {
            BY_TICKET => Self::Ticket(TicketId(value.array()?)),
            BY_KEY => Self::Key(PublicKey(value.array()?), value.array()?),
            BY_BOTH => Self::Both(
                TicketId(value.array()?),
                PublicKey(value.array()?),
                value.array()?,
            ),
            _ => return Err(WireError::Invalid("kind of credential")),
        })
    }
}

/// One end's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Params {
    /// What the other end puts into data packets to this end.
    pub(crate) cid: ConnectionId,
    /// What the session is for.
    pub(crate) service: Service,
    /// Of a server: what else its sessions may be for.
    pub(crate) services: Services,
    /// Initial receive window in bytes (§7).
    pub(crate) receive_window: u64,
    /// How much of it the other end may fill before it is granted more, bytes; at most the window.
    pub(crate) receive_credit: u64,
    /// Streams of each kind that the other end may have open at a time.
    pub(crate) streams: u64,
    /// Longest datagram that this end takes, bytes; 0: none.
    pub(crate) datagram_max: u16,
    /// Paths that this end may have open at a time, at least 1.
    pub(crate) paths_max: u8,
    /// After how many milliseconds of silence this end gives the session up; `None`: not said.
    pub(crate) idle_timeout_ms: Option<u64>,
    /// Largest UDP payload in bytes that this end accepts, 1200–65 527.
    pub(crate) max_udp_payload: u16,
    /// Of a client: it knows modes of several paths, and wants this one.
    pub(crate) bond: Option<Bond>,
    /// Whether this end knows generations in a bounded buffer; and which scheme it wants, if it does.
    pub(crate) sc: Option<Option<Sc>>,
    /// Whether this end knows the paper's mode; and with which settings it wants it, if it does.
    pub(crate) paper: Option<Option<Paper>>,
    /// Of a server: what names the resumption that it keeps of this session.
    pub(crate) resumption: Option<ConnectionId>,
    /// Who this end is; the client's only.
    pub(crate) credential: Option<Credential>,
    /// Of a server: what it shows if it knows nothing any more of the session of its connection id.
    pub(crate) reset_token: Option<ResetToken>,
}

impl Params {
    /// Whether sessions with this end may be for this.
    pub(crate) fn serves(&self, service: Service) -> bool {
        self.service == service || self.services.has(service)
    }

    /// Whether this end works in the paper's mode where the other end of a session for `service` wants that: it wants it too, or the session is for measurements.
    /// The mode takes several times the memory that the window counts, and its sender's rate is what the settings make of it.
    pub(crate) fn follows_paper(&self, service: Service) -> bool {
        self.paper
            .is_some_and(|wanted| wanted.is_some() || service == Service::PERF)
    }

    /// After what silence this end gives the session up, if it says so, nanoseconds.
    pub(crate) fn idle_timeout(&self) -> Option<u64> {
        Some(self.idle_timeout_ms?.saturating_mul(1_000_000))
    }

    /// The message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        fn put(out: &mut Vec<u8>, id: u64, value: u64) {
            put_varint(out, id);
            put_varint(out, varint_len(value.min(VARINT_MAX)) as u64);
            put_varint(out, value);
        }
        let mut out = Vec::with_capacity(48);
        put_varint(&mut out, ID_CONNECTION_ID);
        put_varint(&mut out, 8);
        out.extend_from_slice(&self.cid.bytes());
        out.extend_from_slice(&[ID_SERVICE as u8, 1, self.service.0]);
        if self.services != Services::default() {
            put(&mut out, ID_SERVICES, self.services.0);
        }
        put(&mut out, ID_RECEIVE_WINDOW, self.receive_window);
        if let Some(ms) = self.idle_timeout_ms {
            put(&mut out, ID_IDLE_TIMEOUT, ms);
        }
        put(
            &mut out,
            ID_MAX_UDP_PAYLOAD,
            u64::from(self.max_udp_payload),
        );
        if self.receive_credit < self.receive_window {
            put(&mut out, ID_RECEIVE_CREDIT, self.receive_credit);
        }
        put(&mut out, ID_STREAMS, self.streams);
        if self.datagram_max > 0 {
            put(&mut out, ID_DATAGRAM, u64::from(self.datagram_max));
        }
        if self.paths_max > 1 {
            put(&mut out, ID_PATHS_MAX, u64::from(self.paths_max));
        }
        if let Some(wanted) = self.paper {
            let value = wanted.map_or_else(Paper::known, |paper| paper.encode());
            put_varint(&mut out, ID_PAPER);
            put_varint(&mut out, value.len() as u64);
            out.extend(value);
        }
        if let Some(bond) = self.bond {
            let mut value = Vec::new();
            bond.encode(&mut value);
            put_varint(&mut out, ID_BOND);
            put_varint(&mut out, value.len() as u64);
            out.extend(value);
        }
        if let Some(wanted) = self.sc {
            let value = wanted.map_or_else(Sc::known, Sc::encode);
            put_varint(&mut out, ID_SC);
            put_varint(&mut out, value.len() as u64);
            out.extend(value);
        }
        if let Some(cid) = self.resumption {
            put_varint(&mut out, ID_RESUMPTION);
            put_varint(&mut out, 8);
            out.extend_from_slice(&cid.bytes());
        }
        if let Some(credential) = &self.credential {
            credential.put(&mut out);
        }
        if let Some(token) = &self.reset_token {
            put_varint(&mut out, ID_RESET_TOKEN);
            put_varint(&mut out, ResetToken::LEN as u64);
            out.extend_from_slice(token.bytes());
        }
        out
    }

    /// From a whole message. Parameters that this version does not know are passed over.
    pub(crate) fn decode(message: &[u8]) -> Result<Self, WireError> {
        if message.len() > MAX_PARAMS_LEN {
            return Err(WireError::Invalid("length of the parameters"));
        }
        let mut reader = Reader::new(message);
        let mut seen = Vec::new();
        let mut cid = None;
        let mut receive_window = None;
        let mut receive_credit = u64::MAX;
        let mut streams = STREAMS_UNTOLD;
        let mut datagram_max = 0;
        let mut paths_max = 1;
        let mut service = Service::APPLICATION;
        let mut services = Services::default();
        let mut idle_timeout_ms = None;
        let mut max_udp_payload = MAX_UDP_PAYLOAD;
        let mut paper = None;
        let mut sc = None;
        let mut resumption = None;
        let mut credential = None;
        let mut reset_token = None;
        let mut bond = None;
        while !reader.is_empty() {
            let id = reader.varint()?;
            let len = usize::try_from(reader.varint()?).map_err(|_| WireError::Truncated)?;
            let bytes = reader.take(len)?;
            let mut value = Reader::new(bytes);
            // At most 512 parameters fit, so the search is short.
            if seen.contains(&id) {
                return Err(WireError::Invalid("repeated parameter"));
            }
            seen.push(id);
            match id {
                ID_CONNECTION_ID => {
                    let id = ConnectionId::new(value.array()?);
                    cid = Some(id.ok_or(WireError::Invalid("connection id"))?);
                }
                ID_SERVICE => service = Service(value.u8()?),
                ID_SERVICES => services = Services(value.varint()?),
                ID_RECEIVE_WINDOW => receive_window = Some(value.varint()?),
                ID_IDLE_TIMEOUT => idle_timeout_ms = Some(value.varint()?),
                ID_MAX_UDP_PAYLOAD => {
                    max_udp_payload = u16::try_from(value.varint()?)
                        .ok()
                        .filter(|size| (MIN_UDP_PAYLOAD..=MAX_UDP_PAYLOAD).contains(size))
                        .ok_or(WireError::Invalid("largest UDP payload"))?;
                }
                ID_RECEIVE_CREDIT => receive_credit = value.varint()?,
                ID_STREAMS => streams = value.varint()?,
                ID_DATAGRAM => {
                    let most = value.varint()?.min(u64::from(u16::MAX));
                    datagram_max = most as u16;
                }
                ID_PATHS_MAX => {
                    let most = value.varint()?.clamp(1, u64::from(u8::MAX));
                    paths_max = most as u8;
                }
                ID_BOND => bond = Some(Bond::decode(&mut value)?),
                ID_PAPER => {
                    paper = Some(Paper::decode(bytes)?);
                    continue;
                }
                ID_SC => {
                    sc = Some(Sc::decode(bytes)?);
                    continue;
                }
                ID_RESUMPTION => {
                    let id = ConnectionId::new(value.array()?);
                    resumption = Some(id.ok_or(WireError::Invalid("resumption"))?);
                }
                ID_CREDENTIAL => credential = Some(Credential::take(&mut value)?),
                ID_RESET_TOKEN => reset_token = Some(ResetToken::new(value.array()?)),
                _ => continue,
            }
            if !value.is_empty() {
                return Err(WireError::Invalid("length of a parameter"));
            }
        }
        let receive_window =
            receive_window.ok_or(WireError::Invalid("parameters: no receive window"))?;
        Ok(Self {
            cid: cid.ok_or(WireError::Invalid("parameters: no connection id"))?,
            service,
            services,
            receive_window,
            receive_credit: receive_credit.min(receive_window),
            streams,
            datagram_max,
            paths_max,
            idle_timeout_ms,
            max_udp_payload,
            bond,
            paper,
            sc,
            resumption,
            credential,
            reset_token,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn params() -> Params {
        Params {
            cid: ConnectionId::new([1, 2, 3, 4, 5, 6, 7, 8]).expect("not zero"),
            service: Service::PERF,
            services: Services::default(),
            receive_window: 1 << 24,
            receive_credit: 1 << 20,
            streams: 10_240,
            datagram_max: 65_507,
            paths_max: 8,
            idle_timeout_ms: Some(15_000),
            max_udp_payload: 8952,
            bond: None,
            paper: None,
            sc: None,
            resumption: None,
            credential: None,
            reset_token: None,
        }
    }

    #[test]
    fn vector_of_a_resumption() {
        let told = Params {
            resumption: ConnectionId::new([8, 7, 6, 5, 4, 3, 2, 1]),
            ..params()
        };
        let bytes = [&params().encode()[..], &[13, 8, 8, 7, 6, 5, 4, 3, 2, 1]].concat();
        assert_eq!(told.encode(), bytes);
        assert_eq!(Params::decode(&bytes), Ok(told));
        let none = [&params().encode()[..], &[13, 8, 0, 0, 0, 0, 4, 3, 2, 1]].concat();
        assert!(Params::decode(&none).is_err());
    }

    #[test]
    fn vector_of_a_reset_token() {
        let told = Params {
            reset_token: Some(ResetToken::new([9; ResetToken::LEN])),
            ..params()
        };
        let bytes = [&params().encode()[..], &[15, 16], &[9; 16]].concat();
        assert_eq!(told.encode(), bytes);
        assert_eq!(Params::decode(&bytes), Ok(told));
        for wrong in [15_u8, 17] {
            let value = vec![9; usize::from(wrong)];
            let bytes = [&params().encode()[..], &[15, wrong], &value].concat();
            assert!(Params::decode(&bytes).is_err());
        }
    }

    #[test]
    fn vector() {
        let bytes = [
            1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 2, 1, 2, 3, 4, 0x81, 0, 0, 0, 4, 2, 0x7a, 0x98, 5, 2,
            0x62, 0xf8, 6, 4, 0x80, 0x10, 0, 0, 7, 2, 0x68, 0, 8, 4, 0x80, 0, 0xff, 0xe3, 9, 1, 8,
        ];
        assert_eq!(params().encode(), bytes);
        assert_eq!(Params::decode(&bytes), Ok(params()));
    }

    #[test]
    fn vectors_of_credentials() {
        let (id, key, signature) = (TicketId([1; 16]), PublicKey([2; 32]), [3; 64]);
        let parts = (vec![1; 16], [vec![2; 32], vec![3; 64]].concat());
        let front = params().encode();
        for (credential, head, value) in [
            (Credential::Ticket(id), vec![14, 17, 1], parts.0.clone()),
            (
                Credential::Key(key, signature),
                vec![14, 0x40, 97, 2],
                parts.1.clone(),
            ),
            (
                Credential::Both(id, key, signature),
                vec![14, 0x40, 113, 3],
                [parts.0, parts.1].concat(),
            ),
        ] {
            let told = Params {
                credential: Some(credential),
                ..params()
            };
            let bytes = [&front[..], &head, &value].concat();
            assert_eq!(told.encode(), bytes);
            assert_eq!(Params::decode(&bytes), Ok(told));
            assert!(Params::decode(&bytes[..bytes.len() - 1]).is_err());
        }
        for wrong in [&[14, 0][..], &[14, 1, 1], &[14, 1, 4], &[14, 2, 0, 0]] {
            assert!(Params::decode(&[&front[..], wrong].concat()).is_err());
        }
    }

    #[test]
    fn vector_of_services() {
        let several = Params {
            service: Service::TUNNEL,
            services: [Service::FILES, Service::PERF].into_iter().collect(),
            ..params()
        };
        let bytes = several.encode();
        assert_eq!(bytes[10..16], [2, 1, 3, 30, 1, 6]);
        assert_eq!(Params::decode(&bytes), Ok(several));
        for served in [Service::TUNNEL, Service::FILES, Service::PERF] {
            assert!(several.serves(served));
        }
        for other in [Service::APPLICATION, Service(61), Service(64), Service(255)] {
            assert!(!several.serves(other));
        }
    }

    #[test]
    fn into_the_papers_mode_only_measurements_follow() {
        let end = |paper| Params { paper, ..params() };
        let (knows, wants) = (end(Some(None)), end(Some(Some(Paper::default()))));
        assert!(knows.follows_paper(Service::PERF));
        // It has both services at one port.
        assert!(!knows.follows_paper(Service::TUNNEL));
        assert!(wants.follows_paper(Service::PERF) && wants.follows_paper(Service::TUNNEL));
        assert!(!end(None).follows_paper(Service::PERF));
    }

    #[test]
    fn defaults_and_unknown_parameters() {
        let bytes = [60, 2, 0, 0, 3, 1, 7, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        let expected = Params {
            service: Service::APPLICATION,
            receive_window: 7,
            receive_credit: 7,
            streams: 256,
            datagram_max: 0,
            paths_max: 1,
            idle_timeout_ms: None,
            max_udp_payload: 65_527,
            ..params()
        };
        assert_eq!(Params::decode(&bytes), Ok(expected));
    }

    #[test]
    fn malformed_messages() {
        let cid = [1, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        let with = |rest: &[u8]| Params::decode(&[&cid[..], rest].concat());
        assert!(with(&[3, 1, 7]).is_ok());
        for rest in [
            &[][..],                         // no window
            &[3, 1, 7, 3, 1, 7],             // twice
            &[3, 1, 7, 9, 0, 9, 0],          // twice, unknown
            &[3, 2, 7, 7],                   // too long
            &[3, 1, 0x40],                   // too short
            &[3, 4, 7],                      // cut
            &[3],                            // cut
            &[3, 1, 7, 2, 0],                // no service
            &[3, 1, 7, 5, 1, 7],             // payload too small
            &[3, 1, 7, 5, 4, 0x80, 1, 0, 0], // payload too large
        ] {
            assert!(with(rest).is_err(), "{rest:?}");
        }
        assert!(Params::decode(&[3, 1, 7]).is_err());
        assert!(Params::decode(&[1, 8, 0, 0, 0, 0, 5, 6, 7, 8, 3, 1, 7]).is_err());
        let long = [&[3, 1, 7, 9, 0x44, 0][..], &[0; 1024]].concat();
        assert!(with(&long).is_err());
    }

    proptest! {
        #[test]
        fn parsing_is_total(message in prop::collection::vec(any::<u8>(), 0..1100)) {
            if let Ok(params) = Params::decode(&message) {
                prop_assert_eq!(Params::decode(&params.encode()), Ok(params));
            }
        }

        #[test]
        fn round_trip(
            cid in any::<[u8; 8]>(),
            service in any::<u8>(),
            services in 0..=VARINT_MAX,
            receive_window in 0..=VARINT_MAX,
            receive_credit in 0..=VARINT_MAX,
            streams in 0..=VARINT_MAX,
            datagram_max in any::<u16>(),
            paths_max in 1..=u8::MAX,
            idle_timeout_ms in prop::option::of(0..=VARINT_MAX),
            max_udp_payload in MIN_UDP_PAYLOAD..=MAX_UDP_PAYLOAD,
            bond in prop::option::of((0..=8_u8).prop_map(|copies| Bond::Redundant { copies })),
            paper in prop::option::of(prop::option::of(Just(Paper::default()))),
            sc in prop::option::of(prop::option::of(Just(Sc::Ecf))),
            token in prop::option::of(any::<[u8; ResetToken::LEN]>()),
        ) {
            if let Some(cid) = ConnectionId::new(cid) {
                let (service, services) = (Service(service), Services(services));
                let receive_credit = receive_credit.min(receive_window);
                let params =
                    Params { cid, service, services, receive_window, receive_credit, streams, datagram_max, paths_max, idle_timeout_ms, max_udp_payload, bond, paper, sc, resumption: None, credential: None, reset_token: token.map(ResetToken::new) };
                prop_assert_eq!(Params::decode(&params.encode()), Ok(params));
            }
        }
    }
}
