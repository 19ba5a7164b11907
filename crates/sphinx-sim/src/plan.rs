//! What is to happen at one end.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_proto::cc::CcKind;
use sphinx_proto::{EcnMode, Nanos, Urgency};

use crate::app::Say;

/// The application hands over `len` bytes, which end a message.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// When the bytes are written.
    pub at: Nanos,
    /// Index of the stream, among those of this end.
    pub stream: u64,
    /// Number of bytes.
    pub len: u64,
    /// Whether the stream ends with them.
    pub end_of_stream: bool,
}

/// What an application says when it resets the stream with an index of 0; with others, more by these.
pub(crate) const RESET_CODE: u64 = 1 << 20;
/// What an application says when it stops a stream of the peer.
pub(crate) const STOP_CODE: u64 = 1 << 21;

/// When the application takes received blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reader {
    /// As soon as they are complete, in any order (files).
    AnyOrder,
    /// In order (streams).
    InOrder,
    /// In order, this many bytes per second.
    Slow(u64),
}

/// Which of several streams the application reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadOrder {
    /// The first one of which something has arrived.
    #[default]
    AsItComes,
    /// Every stream once before any is read again; none before all have been accepted.
    AllAtOnce,
    /// A stream to its end; only then the next one is accepted.
    OneByOne,
    /// The same from the last stream on; all are accepted before.
    LastFirst,
    /// Any of which something has arrived.
    Random,
}

/// What the application makes of the bytes of its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Messages {
    /// No messages: streams are bytes.
    #[default]
    No,
    /// Each write is a message, with its length in front, and read as one.
    Framed,
    /// Each stream is a message, which is read once it is whole, in any order.
    Streams,
}

/// In how many directions the streams of an end go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ways {
    /// It opens streams with one direction, and so does the peer.
    #[default]
    One,
    /// It opens streams with two, and reads the answers.
    Asks,
    /// It reads what the peer sends on such streams, and answers on those with the same index.
    Answers,
}

/// What is to happen at one end.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the application sends.
    pub writes: Vec<Write>,
    /// The datagrams that it sends, in the order of time.
    pub says: Vec<Say>,
    /// Whether it takes live messages when their time has come, or as they come.
    pub on_time: bool,
    /// How it takes what arrives.
    pub reader: Reader,
    /// Which stream it reads first.
    pub order: ReadOrder,
    /// Decoding takes up to this long.
    pub job_delay_max: Nanos,
    /// Opening a packet, or encoding and sealing it, takes up to this long.
    pub packet_delay_max: Nanos,
    /// So many workers do these jobs, instead, in no time but in any order; 0: none.
    pub workers: u16,
    /// The job with this number of those that take time, or that workers do, panics.
    pub panics_at: Option<u64>,
    /// Packets that arrive gather while the session [allows it](sphinx_proto::Session::gather_until), as in an engine.
    pub gathers: bool,
    /// What its packets leave with of ECN; nothing by default.
    pub ecn: EcnMode,
    /// Messages end with a flush; otherwise the driver has to see that the application pauses.
    pub flushes: bool,
    /// Indices of streams that are accepted and never read.
    pub unread: BTreeSet<u64>,
    /// When streams are given up: their indices.
    pub resets: Vec<(Nanos, u64)>,
    /// When their writers are dropped, which gives up those that have not ended.
    pub drops: Vec<(Nanos, u64)>,
    /// Streams that are let go of before their end, once so many bytes have been read.
    pub stops: BTreeMap<u64, u64>,
    /// How urgent streams are that are not as urgent as others, by index.
    pub urgencies: BTreeMap<u64, Urgency>,
    /// What its streams are; both ends are told the same.
    pub ways: Ways,
    /// What it sends on them, which its peer knows.
    pub messages: Messages,
    /// From when on the end sends at most so much, IP bytes per second; in the order of time.
    pub limits: Vec<(Nanos, Option<u64>)>,
    /// When the controller of its rate changes, and to which; in the order of time.
    pub controllers: Vec<(Nanos, CcKind)>,
    /// Symbols and symbol size of full blocks, instead of what the session proposes.
    pub shape: Option<(u16, u16)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            writes: Vec::new(),
            says: Vec::new(),
            on_time: false,
            reader: Reader::AnyOrder,
            order: ReadOrder::default(),
            job_delay_max: 0,
            packet_delay_max: 0,
            workers: 0,
            panics_at: None,
            gathers: false,
            ecn: EcnMode::Off,
            flushes: true,
            unread: BTreeSet::new(),
            resets: Vec::new(),
            drops: Vec::new(),
            stops: BTreeMap::new(),
            urgencies: BTreeMap::new(),
            ways: Ways::One,
            messages: Messages::No,
            limits: Vec::new(),
            controllers: Vec::new(),
            shape: None,
        }
    }
}

impl Plan {
    /// Streams that it opens.
    pub fn streams(&self) -> usize {
        let indices = self.writes.iter().map(|write| write.stream + 1);
        indices.max().unwrap_or(0) as usize
    }
}
