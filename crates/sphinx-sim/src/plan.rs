//! What is to happen at one end.

use sphinx_proto::Nanos;

/// The application hands over `len` bytes, which end a message.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// When.
    pub at: Nanos,
    /// On which stream.
    pub stream: u16,
    /// How many bytes.
    pub len: u64,
    /// Whether the stream ends with them.
    pub end_of_stream: bool,
}

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

/// What is to happen at one end.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the application sends.
    pub writes: Vec<Write>,
    /// How it takes what arrives.
    pub reader: Reader,
    /// Decoding takes up to this long.
    pub job_delay_max: Nanos,
    /// Whether its packets are ECN-capable.
    pub ecn: bool,
    /// A stream that is never read.
    pub unread: Option<u16>,
    /// Symbols and symbol size of full blocks, instead of what the session proposes.
    pub shape: Option<(u16, u16)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            writes: Vec::new(),
            reader: Reader::AnyOrder,
            job_delay_max: 0,
            ecn: false,
            unread: None,
            shape: None,
        }
    }
}
