//! What goes into a session and comes out of it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use sphinx_fec::Row;

use crate::config::Role;
use crate::path::{EcnUse, Losses};
use crate::paths::{PathPolicy, PathState};
use crate::wire::{
    ConnectionId, FlowNews, Fragment, Header, Rider, SymbolId, VARINT_MAX, WindowSpan, WireError,
};
use crate::{BlockId, JobId, Nanos, PacketNumber, PathId, Time};

/// Charged to the window for every block besides its symbols.
pub(crate) const BLOCK_OVERHEAD: u64 = 512;

/// Most streams of each kind that one end may have open at a time: ten thousand, and some for what an application says
/// about them.
pub const STREAMS_MAX: u64 = 10_240;

/// A stream of a session: bytes in one direction, or in both.
///
/// Ids are made as in RFC 9000 §2.1: the lowest bit tells who opened the stream (0: the client), the next one is 1 for
/// streams with one direction; the rest counts those of one kind. None is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

impl StreamId {
    const ONE_WAY: u64 = 2;
    /// Kinds of streams: of either opener, with one direction or two.
    pub(crate) const KINDS: u8 = 4;
    /// Largest index of a stream.
    pub const INDEX_MAX: u64 = VARINT_MAX >> 2;

    /// The stream with one direction that `opener` opens after `index` others; indices above [`INDEX_MAX`](Self::INDEX_MAX) are
    /// cut to it.
    pub fn new(opener: Role, index: u64) -> Self {
        Self(Self::bi(opener, index).0 | Self::ONE_WAY)
    }

    /// The stream with two directions that `opener` opens after `index` others; indices are cut as by [`new`](Self::new).
    pub fn bi(opener: Role, index: u64) -> Self {
        Self(index.min(Self::INDEX_MAX) << 2 | u64::from(opener == Role::Server))
    }

    /// From a varint.
    ///
    /// # Errors
    /// For a number that is not one.
    pub fn from_wire(id: u64) -> Result<Self, WireError> {
        let is_varint = id <= VARINT_MAX;
        is_varint
            .then_some(Self(id))
            .ok_or(WireError::Invalid("stream"))
    }

    /// The id as it is written on the wire, as a varint.
    pub fn to_wire(self) -> u64 {
        self.0
    }

    /// Who opened it. On a stream with one direction only this end sends.
    pub fn opener(self) -> Role {
        if self.0 & 1 == 0 {
            Role::Client
        } else {
            Role::Server
        }
    }

    /// Streams of its kind that were opened before it.
    pub fn index(self) -> u64 {
        self.0 >> 2
    }

    /// Whether both ends send on it.
    pub fn is_bi(self) -> bool {
        self.0 & Self::ONE_WAY == 0
    }

    /// Whether this end sends on it.
    pub fn has_sender(self, end: Role) -> bool {
        self.is_bi() || self.opener() == end
    }

    /// The lowest two bits: what the indices of a STREAMS frame belong to.
    pub(crate) fn kind(self) -> u8 {
        self.0 as u8 & 3
    }
}

/// How urgent a stream is beside the others of a session, as in RFC 9218 §4.1: what is more urgent goes first, repair included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Urgency(u8);

impl Urgency {
    /// Number of urgencies.
    pub const LEVELS: usize = 8;
    /// The highest urgency: nothing goes before it.
    pub const MOST: Self = Self(0);
    /// The lowest urgency: for data that nobody waits for.
    pub const LEAST: Self = Self(Self::LEVELS as u8 - 1);

    /// From 0, the most urgent, to 7; what is above counts as 7.
    pub fn new(level: u8) -> Self {
        Self(level).min(Self::LEAST)
    }

    /// As a number, 0–7.
    pub fn level(self) -> u8 {
        self.0
    }

    /// Index of the urgency in a table of all of them.
    pub fn at(self) -> usize {
        usize::from(self.0)
    }
}

impl Default for Urgency {
    fn default() -> Self {
        Self(3)
    }
}

/// How long a block of datagrams is worth sending ([`Session::submit_datagrams`](crate::Session::submit_datagrams)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// What arrives later is of no use.
    pub until: Time,
    /// What becomes of its losses.
    pub repair: RepairMode,
}

/// What becomes of losses of a block of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RepairMode {
    /// The block is given up with the first symbol that is lost.
    #[default]
    None,
    /// They are answered as long as that is in time. Where no answer can be, repair is sent ahead.
    InTime,
    /// Repair is sent ahead over as many such blocks as leave within half a round trip, if these are many: what is given out in order then
    /// hardly ever waits for an answer. What is lost all the same, or where they are few, is answered in time.
    Together,
}

/// What a block holds of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPart {
    /// The stream.
    pub stream: StreamId,
    /// Bytes of the segment, its header included.
    pub bytes: u32,
    /// The stream ends with it.
    pub end_of_stream: bool,
    /// Its share of what the block costs in the window; [`share_cost`] fills it in.
    pub cost: u64,
}

/// Divides what a block costs among its parts, by their bytes (`docs/protocol.md` §7).
pub fn share_cost(cost: u64, parts: &mut [StreamPart]) {
    let total: u64 = parts.iter().map(|part| u64::from(part.bytes)).sum();
    let (mut bytes, mut shared) = (0, 0);
    for part in parts {
        bytes += u64::from(part.bytes);
        let upto = u128::from(cost) * u128::from(bytes) / u128::from(total.max(1));
        part.cost = upto as u64 - shared;
        shared += part.cost;
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a block costs in the flow-control window, bytes (`docs/protocol.md` §7).
pub fn block_cost(n: u16, symbol_len: u16) -> u64 {
    u64::from(n) * u64::from(symbol_len) + BLOCK_OVERHEAD
}

/// Whether a block may be handed over ([`Session::room_for`](crate::Session::room_for)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// The whole block may be handed over.
    Whole,
    /// Not whole, but one of at most this shape (source symbols, bytes of each) with its first data.
    Part(u16, u16),
    /// Not before this end has sent more, or has heard that more has arrived.
    Later,
    /// Not before the peer's application has read more, of this stream too.
    HeldUp,
}

/// The addresses that a datagram travels between, as this end sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// Address of the peer.
    pub remote: SocketAddr,
    /// IP address of this end, where known.
    pub local_ip: Option<IpAddr>,
}

impl Tuple {
    fn same_local(&self, other: &Self) -> bool {
        match (self.local_ip, other.local_ip) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        }
    }

    /// Whether both are the same as far as is known.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.remote == other.remote && self.same_local(other)
    }

    /// Whether at most the peer's port differs, as far as is known.
    pub(crate) fn same_hosts(&self, other: &Self) -> bool {
        self.remote.ip() == other.remote.ip() && self.same_local(other)
    }
}

/// A place for one block's memory, kept by whoever drives the session. Sending and receiving
/// slots are numbered separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// A received packet that has opened.
#[derive(Debug, Clone, Copy)]
pub struct PacketMeta {
    /// Present time.
    pub now: Time,
    /// When the packet arrived, on the same clock.
    pub received_at: Time,
    /// Full packet number.
    pub packet_number: PacketNumber,
    /// Addresses that it travelled between.
    pub tuple: Tuple,
    /// ECN codepoint, 0–3.
    pub ecn: u8,
    /// Whole datagram, bytes.
    pub datagram_len: usize,
}

/// What a packet that has opened has for the driver ([`Session::handle_packet`](crate::Session::handle_packet)).
/// To be stored before the driver polls for jobs and events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// Nothing is left for the driver to store.
    Nothing,
    /// The body is a symbol.
    Symbol(Placement),
    /// The body is a prefix of [`FRAGMENT_PREFIX_LEN`](crate::wire::FRAGMENT_PREFIX_LEN) bytes and a part of a
    /// symbol.
    Part(PartPlacement),
    /// The body holds these symbols: each is to be given to [`handle_bundled`](crate::Session::handle_bundled), and stored where that
    /// says before the next one is.
    Bundle(Vec<BundledSymbol>),
    /// The body is [`WindowSpan::encode`] of `span` and a repair of a sliding window that is of use. It is to be given to a
    /// [`SpanDecoder`](sphinx_fec::span::SpanDecoder) with [the session's limits](crate::Session::window_limits), which
    /// then restores what the core's tracker says.
    Window {
        /// The span that the packet's prefix names: which symbols the repair covers.
        span: WindowSpan,
        /// Row of the repair.
        row: Row,
        /// The blocks that it covers, oldest first; never empty.
        covered: Vec<CoveredBlock>,
    },
    /// These blocks will never be complete: their streams were given up, or the time of their datagrams is over. What repairs of sliding
    /// windows wait for of them is [given up](sphinx_fec::span::SpanDecoder::give_up), behind all that came before; then their memory may
    /// go, and [`block_forgotten`](crate::Session::block_forgotten) is to be told.
    Abandoned(Vec<AbandonedBlock>),
}

/// A block that the peer sends and that will never be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbandonedBlock {
    /// Block id.
    pub block: BlockId,
    /// Memory of the block.
    pub slot: Slot,
}

/// A symbol of a packet that carries several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundledSymbol {
    /// What the header would be if the symbol had come alone.
    pub header: Header,
    /// Where in the body it is.
    pub at: Range<usize>,
}

/// The place of a source symbol in a block under way, whose memory is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Block memory.
    pub slot: Slot,
    /// Which symbol of it.
    pub index: u16,
    /// How many symbols, this one and those behind it, can be [handled](crate::Session::handle_placed) as one.
    pub run: u16,
    pub(crate) block: BlockId,
    pub(crate) n: u16,
    pub(crate) symbol_len: u16,
}

/// Where a received symbol goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Nowhere: the symbol is of no use.
    Discard,
    /// To the block in `slot`, whose memory is n × symbol_len bytes and new if the slot was free: a source
    /// symbol into its place there, a repair beside it until the block decodes.
    Block {
        /// Block memory.
        slot: Slot,
        /// Source symbols in the block.
        n: u16,
        /// Bytes per symbol.
        symbol_len: u16,
        /// Which symbol of the block it is.
        symbol: SymbolId,
    },
    /// To this generation, which is new if the driver has none; then what is [in order](crate::Session::next_in_order) may be given out.
    Generation {
        /// Block id.
        block: BlockId,
        /// Source symbols in it.
        n: u16,
        /// Bytes per symbol.
        symbol_len: u16,
        /// Which symbol of it, or which row of [`generation`](sphinx_fec::generation).
        symbol: SymbolId,
    },
}

/// A block that a received repair of a sliding window covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoveredBlock {
    /// Block id.
    pub block: BlockId,
    /// What is there of it; `None` if the block was complete before. Then it is one of [those kept](PastBlock).
    pub incomplete: Option<Incomplete>,
    /// Source symbols in the block.
    pub n: u16,
    /// Bytes per symbol.
    pub symbol_len: u16,
    /// Symbols covered, from the first.
    pub count: u16,
}

/// What is there of a block that a repair of a sliding window covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incomplete {
    /// Block memory, new if the slot was free.
    pub slot: Slot,
    /// The source symbols that had arrived or been restored when the repair came, as a bit map
    /// ([`bits`](sphinx_fec::bits)). By the time that the repair is worked on there may be more.
    pub known: Vec<u64>,
}

/// Where a received part of a symbol goes: to byte `offset` of the `symbol_len` bytes at `place`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartPlacement {
    /// Memory for one symbol, 0–63; what was there is of no use any more when the first part of another
    /// symbol comes.
    pub place: u8,
    /// Bytes of the whole symbol.
    pub symbol_len: u16,
    /// Offset of the part in the symbol, bytes.
    pub offset: usize,
    /// With this part the symbol is whole and goes there.
    pub whole: Option<Placement>,
}

/// Work on the payload of a block that has all it needs.
///
/// Jobs without a `window` are independent of each other. Those with one have to end in the order in which the core asked for
/// them, and in their order with the repairs of windows and the source symbols that have arrived: this order decides
/// what rows can restore. When is of no matter: nothing that the core tells the peer of its blocks waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// For [`Session::job_done`](crate::Session::job_done).
    pub id: JobId,
    /// Block memory.
    pub slot: Slot,
    /// How the missing source symbols are to be restored; `None` if by now none is missing.
    pub decoding: Option<Decoding>,
    /// What is then to be done for sliding windows, if the peer uses them.
    pub window: Option<PastBlock>,
}

/// How a block is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoding {
    /// With all repairs together ([`BlockDecoder::maximum_likelihood`](sphinx_fec::BlockDecoder::maximum_likelihood)):
    /// rank was counted so.
    pub maximum_likelihood: bool,
}

/// A block is complete that later repairs of sliding windows may cover: the decoder of windows is to
/// [learn](sphinx_fec::span::SpanDecoder::learn) those of its symbols that it does not know, in their order, and a copy of
/// the block is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastBlock {
    /// Block id.
    pub block: BlockId,
    /// So many of the oldest copies, this one included, may go.
    pub forget: usize,
}

/// Something the application must hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// All of a received block is in its slot. Call [`Session::block_unpacked`](crate::Session::block_unpacked) with what it holds.
    BlockComplete {
        /// Block id.
        block: BlockId,
        /// Block memory.
        slot: Slot,
    },
    /// The peer has a whole block: its memory may go.
    BlockDelivered {
        /// Block memory.
        slot: Slot,
    },
    /// A block that this end sends will never be complete: its stream was given up, or the time of its datagrams is over. Its memory may go.
    BlockAbandoned {
        /// Block memory.
        slot: Slot,
    },
    /// The peer says something about a flow of datagrams.
    Flow(FlowNews),
    /// All of a stream has been taken at the other end, or dropped after [`Session::reset_stream`](crate::Session::reset_stream):
    /// it is open no more.
    StreamEnded(StreamId),
    /// The peer gives a stream up that it sends on. What still comes of it is to be dropped and counts as taken.
    StreamReset {
        /// The stream.
        stream: StreamId,
        /// The application's reason.
        code: u64,
    },
    /// Nothing more comes of a stream that was given up.
    StreamOver(StreamId),
    /// The peer's application wants no more of a stream that this end sends on: it is to be
    /// [reset](crate::Session::reset_stream) unless everything of it is delivered.
    StreamStopped {
        /// The stream, which may be one that has not been opened.
        stream: StreamId,
        /// The application's reason.
        code: u64,
    },
    /// The peer has closed.
    Closed {
        /// An exit code, or the application's.
        code: u64,
        /// The reason as text for people; programs go by the code.
        reason: String,
    },
    /// Something has become of a path.
    Path(PathId, PathNews),
    /// The peer was found at other addresses.
    PathChanged(Tuple),
    /// Packets with this spare connection id are not this session's any more.
    ConnectionIdRetired(ConnectionId),
    /// The budget of the last path is spent; CLOSE has been queued.
    OutOfBudget,
    /// Nothing has been heard for the idle timeout.
    PeerLost,
    /// The peer answers, but for the idle timeout it has confirmed nothing of what this end has to send,
    /// and its application has read nothing; or it leaves more frames unacknowledged than can be kept. CLOSE has been queued.
    Stalled {
        /// A stream whose data waits for the peer's application, if that is why.
        held_up: Option<StreamId>,
    },
    /// Nothing has been heard for some seconds, and the network keeps saying that nobody listens at the
    /// peer's address.
    PeerGone,
    /// The peer broke the protocol; CLOSE has been queued.
    Violation(&'static str),
}

/// What a packet to send carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A symbol of the block in `slot`; a repair is to be computed from it.
    Symbol {
        /// Block memory.
        slot: Slot,
        /// Symbol of the block.
        symbol: SymbolId,
        /// Repairs of the block that are to follow this one soon, most likely those of the next rows.
        more: u32,
    },
    /// A repair of a sliding window: [`WindowSpan::encode`], then the symbol, to be computed by
    /// [`span::encode`](sphinx_fec::span::encode).
    Window {
        /// The symbols that the repair covers.
        span: WindowSpan,
        /// Memory of the blocks, oldest first.
        slots: Vec<Slot>,
        /// Row of the repair.
        row: Row,
    },
    /// The size of a symbol as a varint, the symbol, and behind it others of older blocks, each after [`Rider::encode_prefix`].
    Bundle {
        /// Block memory.
        slot: Slot,
        /// Symbol of the block.
        symbol: SymbolId,
        /// The symbols of older blocks that follow it.
        riders: Vec<RidingSymbol>,
    },
    /// Frames, ready to be sealed.
    Control(Vec<u8>),
}

/// A symbol that rides in a packet of another block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RidingSymbol {
    /// Block memory.
    pub slot: Slot,
    /// Symbol of the block.
    pub symbol: SymbolId,
    /// The fields in front of the symbol.
    pub rider: Rider,
}

/// A packet descriptor: everything but the payload. The packet number is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The path that it is of.
    pub path: PathId,
    /// Full packet number.
    pub packet_number: PacketNumber,
    /// Where it goes.
    pub to: Tuple,
    /// ECN codepoint that it is to leave with, 0–2.
    pub ecn: u8,
    /// Header; the key phase is the sealer's business.
    pub header: Header,
    /// Body.
    pub content: Content,
    /// Of a symbol, only this part; the body begins with [`Fragment::encode`].
    pub fragment: Option<Fragment>,
    /// Bytes of the body: the symbol size, the fragment with its prefix, the bundle's or the frames' length.
    pub body_len: usize,
}

impl Transmit {
    /// Becomes the one that is so many behind it among [those that follow](crate::Session::poll_following): with each the number is the next one, and the symbol is.
    #[inline]
    pub fn advance(&mut self, count: u16) {
        self.packet_number += u64::from(count);
        self.header.packet_number = self.packet_number.truncated();
        self.header.row += u32::from(count);
        if let Content::Symbol {
            symbol: SymbolId::Source(index),
            ..
        } = &mut self.content
        {
            *index += count;
        }
    }
}

/// What has become of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathNews {
    /// The path has been abandoned.
    Abandoned,
    /// The path answers again.
    Back,
    /// It has been opened, and the peer has answered there.
    Opened,
    /// The byte budget of the path is spent, so that it has been abandoned.
    Spent,
    /// It does not answer although others do: these take over, and it is asked until it answers.
    Suspect,
}

/// Counters and estimates of one path.
#[derive(Debug, Clone, Copy)]
pub struct PathStats {
    /// The path.
    pub id: u32,
    /// Its addresses.
    pub tuple: Tuple,
    /// What it is doing.
    pub state: PathState,
    /// What it is to be used for.
    pub policy: PathPolicy,
    /// IP bytes sent on it.
    pub ip_bytes_sent: u64,
    /// Packets sent on it.
    pub packets_sent: u64,
    /// IP bytes received on it and opened.
    pub ip_bytes_received: u64,
    /// Packets received on it and opened.
    pub packets_received: u64,
    /// Smoothed round-trip time.
    pub rtt: Nanos,
    /// Smallest round-trip time.
    pub min_rtt: Nanos,
    /// Present loss rate.
    pub plr: f64,
    /// Packets that rate control would send now, IP bytes per second.
    pub pacing_rate: u64,
    /// Largest UDP payload that got through, bytes.
    pub datagram_len: u16,
}

/// Counters and estimates of one session.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionStats {
    /// Data-plane IP bytes sent.
    pub ip_bytes_sent: u64,
    /// Data-plane packets sent.
    pub packets_sent: u64,
    /// Data-plane IP bytes received and opened.
    pub ip_bytes_received: u64,
    /// Data-plane packets received and opened.
    pub packets_received: u64,
    /// Source symbols sent for the first time.
    pub source_sent: u64,
    /// Repair symbols sent before loss was seen.
    pub repair_proactive: u64,
    /// Repair symbols sent after loss was seen; the lost symbols themselves where these are sent again.
    pub repair_reactive: u64,
    /// Bytes of the former.
    pub repair_proactive_bytes: u64,
    /// Bytes of the latter.
    pub repair_reactive_bytes: u64,
    /// Packets in which repairs rode beside a symbol of another block (`docs/protocol.md` §5.5).
    pub bundles: u64,
    /// Bytes of these repairs, which are among those sent before loss was seen.
    pub bundled_bytes: u64,
    /// Blocks opened by this end.
    pub blocks: u64,
    /// Of these, complete only after loss had been answered.
    pub blocks_second_round: u64,
    /// Bytes of blocks that the peer has completed.
    pub block_bytes_delivered: u64,
    /// Times that the path MTU fell.
    pub mtu_falls: u64,
    /// Times that the path changed.
    pub path_changes: u64,
    /// Losses that turned out to be late packets.
    pub losses_spurious: u64,
    /// Of the packets that this end sent; `None` before the fate of one is known.
    pub losses_sent: Option<Losses>,
    /// Of the packets that the peer sent; `None` before the first one.
    pub losses_received: Option<Losses>,
    /// Loss rate, 0–1, that redundancy is chosen for: assumed or remembered while few packets are known.
    pub plr: f64,
    /// Smoothed round-trip time.
    pub rtt: Nanos,
    /// Smallest round-trip time.
    pub min_rtt: Nanos,
    /// Pacing rate, IP bytes per second.
    pub pacing_rate: u64,
    /// Congestion window, IP bytes.
    pub cwnd: u64,
    /// This end's window for received blocks, bytes.
    pub recv_window: u64,
    /// The peer's, bytes.
    pub peer_window: u64,
    /// How long the peer's window was all that kept symbols from leaving.
    pub window_limited: Nanos,
    /// Most streams that were open at a time in one direction.
    pub streams_peak: u64,
    /// Largest symbol on the present path MTU.
    pub symbol_len: u16,
    /// Symbols received that were not needed.
    pub symbols_redundant: u64,
    /// Received packets that broke a limit.
    pub packets_refused: u64,
    /// Bytes of symbols received that were of use.
    pub symbol_bytes_received: u64,
    /// What is in use of ECN, on the first path.
    pub ecn: EcnUse,
    /// Packets that the peer has received there with ECN-CE.
    pub packets_marked: u64,
    /// WARNINGs sent (`docs/protocol.md` §14).
    pub warnings_sent: u64,
    /// WARNINGs received and answered.
    pub warnings_received: u64,
}
