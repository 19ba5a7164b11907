//! The bytes of `docs/protocol.md`: header, frames, segments, variable-length integers.
//!
//! Every parser here is total: any input gives a value or an error, in time linear in its length.

mod bond;
mod bundle;
mod datagram;
mod fragment;
mod frame;
mod header;
mod paper;
mod reset;
mod segment;
mod symbol;
mod varint;
mod window;

pub use bond::PathStatus;
pub use bundle::{BUNDLE_MAX, Bundle, Rider};
pub use datagram::{
    DATAGRAMS_MAX, Datagram, DatagramIter, Delivery, FLOWS_MAX, FlowKind, MAX_DATAGRAM, Stamp,
};
pub use fragment::{FRAGMENT_PREFIX_LEN, FRAGMENTS_MAX, Fragment};
pub use frame::{
    Blocks, FlowNews, Frame, FrameIter, MAX_BLOCK_RANGES, MAX_DEFICITS, MAX_REASON_LEN,
    MAX_RESET_BLOCKS, MAX_SACK_RANGES, MAX_TAKEN, Reset, Sack, Streams, Warning,
};
pub use header::{
    BLOCKS_AHEAD_MAX, ConnectionId, HEADER_LEN, Header, MAX_BLOCK_SYMBOLS, MAX_SYMBOL_LEN,
    OVERHEAD, PacketKind, TAG_LEN, block_symbols_max, is_data_plane,
};
pub use paper::{BlockSack, LossReport, MAX_NAMED, NamedBlock, PaperCounts, SymbolSack};
pub use reset::{RESET_LEN, ResetToken};
pub use segment::{Segment, SegmentIter};
pub use symbol::SymbolId;
pub use varint::{Reader, VARINT_MAX, put_varint, varint_len};
pub use window::{SpanBlock, WINDOW_PREFIX_LEN, WindowSpan};

/// A malformed packet body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end in the middle of a field.
    #[error("truncated")]
    Truncated,
    /// A field has a value that the specification does not allow.
    #[error("invalid {0}")]
    Invalid(&'static str),
}
