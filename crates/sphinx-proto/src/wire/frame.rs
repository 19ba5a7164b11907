//! Frames of control packets (`docs/protocol.md` §6).

use super::{
    BlockSack, ConnectionId, FlowKind, PathStatus, Reader, ResetToken, SymbolSack, VARINT_MAX,
    WireError, put_varint, varint_len,
};
use crate::numbers::{BlockId, CidSequence, Ordinal, PacketNumber, PathId, WindowNumber};
use crate::paths::Bond;
use crate::types::StreamId;

/// Most packet-number ranges in one SACK.
pub const MAX_SACK_RANGES: usize = 256;
/// Most ranges in one BLOCKS or STREAMS frame.
pub const MAX_BLOCK_RANGES: usize = 255;
/// Most deficits in one BLOCKS frame.
pub const MAX_DEFICITS: usize = 64;
/// Most streams in one STREAMS frame of which something has been taken.
pub const MAX_TAKEN: usize = 64;

/// Most blocks in one RESET or GONE frame.
pub const MAX_RESET_BLOCKS: usize = 32;

/// Most bytes of the reason for closing a session.
pub const MAX_REASON_LEN: usize = 256;
const BAD_RANGE: WireError = WireError::Invalid("range");
/// Frames of types with this bit name their length, so that an end that does not know them can pass over them.
const IGNORABLE: u64 = 0x20;
const ECT1: u64 = IGNORABLE;
const RESET_TOKEN: u64 = IGNORABLE | 1;

/// Symbol-SACK: which packets arrived, when, and what may still be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sack {
    /// Rises by one with every SACK.
    pub sequence: u64,
    /// Microseconds between the arrival of the largest packet and this frame.
    pub delay_us: u64,
    /// The receiver's clock in microseconds when the largest packet arrived; any origin.
    pub time_us: u64,
    /// Packets seen with ECT(0) or ECT(1).
    pub ect: u64,
    /// Packets seen with CE.
    pub ce: u64,
    /// Sum of block costs that the sender may reach (§7).
    pub credit: u64,
    /// Received packet numbers, inclusive, largest first, disjoint and not adjacent; never empty.
    pub ranges: Vec<(PacketNumber, PacketNumber)>,
}

/// Block-SACK: which blocks are complete, and how much others lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Every block below is complete.
    pub base: BlockId,
    /// Complete blocks above `base`, inclusive, rising, disjoint and not adjacent; the first begins
    /// above `base`.
    pub complete: Vec<(BlockId, BlockId)>,
    /// (block, symbols still missing), oldest first.
    pub deficits: Vec<(BlockId, u32)>,
}

/// A stream is given up by its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// The stream.
    pub stream: StreamId,
    /// The application's reason.
    pub code: u64,
    /// What all segments of the stream that were ever handed over have cost.
    pub cost: u64,
    /// Blocks of this stream alone of which no more comes, rising, and what each costs.
    pub blocks: Vec<(BlockId, u64)>,
}

/// What the application has taken of the streams of one kind that the other end opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Streams {
    /// The lowest two bits of the stream ids.
    pub kind: u8,
    /// All of every stream with an index below has been taken.
    pub base: u64,
    /// So it has of these: indices above `base`, inclusive, rising, disjoint and not adjacent.
    pub ended: Vec<(u64, u64)>,
    /// Others, rising: index, from `base` on, and what the data taken of it has cost.
    pub taken: Vec<(u64, u64)>,
}

/// What one end tells the other of a flow of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowNews {
    /// These datagrams will not arrive.
    Expired {
        /// What the flow carries.
        kind: FlowKind,
        /// The flow.
        flow: u64,
        /// Number of the first datagram.
        first: u64,
        /// How many datagrams.
        count: u64,
    },
    /// The receiver of live messages wants them to be of use for so long.
    Latency {
        /// The flow.
        flow: u64,
        /// Microseconds from being handed over to being given out; 0: it wants no more of them.
        micros: u64,
    },
    /// The sender of live messages has no more of them.
    Ended {
        /// The flow.
        flow: u64,
        /// How many messages the flow has had.
        total: u64,
    },
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Fills a packet to a size.
    Padding,
    /// Asks for an acknowledgement.
    Ping,
    /// Symbol-SACK of path 0.
    Sack(Sack),
    /// Symbol-SACK of another path.
    PathSack {
        /// The path, not 0.
        path: PathId,
        /// What has arrived on the path.
        sack: Sack,
    },
    /// How many packets of a path have arrived with ECT(1); ignorable.
    Ect1 {
        /// The path.
        path: PathId,
        /// Packets since the start.
        count: u64,
    },
    /// Block-SACK.
    Blocks(Blocks),
    /// What has been taken of streams.
    Streams(Streams),
    /// The session is over.
    Close {
        /// An exit code of the command line, or the application's.
        code: u64,
        /// For people.
        reason: &'a str,
    },
    /// The peer must answer with the same bytes on the same path.
    PathChallenge([u8; 8]),
    /// The answer to a challenge, with the same bytes.
    PathResponse([u8; 8]),
    /// A spare connection id for this end.
    NewConnectionId {
        /// The path whose packets may carry it.
        path: PathId,
        /// Rises by one with every id of the path.
        sequence: CidSequence,
        /// The id.
        cid: ConnectionId,
    },
    /// What shows that its sender has forgotten the session, in packets that it sends because of this connection id; ignorable.
    ResetToken {
        /// The path whose packets may carry the id.
        path: PathId,
        /// The number of the id.
        sequence: CidSequence,
        /// The reset token of the id.
        token: ResetToken,
    },
    /// A path is no more.
    PathAbandon {
        /// The path.
        path: PathId,
    },
    /// No packet has this number.
    Skipped {
        /// The path that leaves the number out.
        path: PathId,
        /// The number.
        packet_number: PacketNumber,
    },
    /// A stream is given up by its sender.
    Reset(Reset),
    /// A stream is not wanted any more at its receiving end.
    Stop {
        /// The stream.
        stream: StreamId,
        /// The application's reason.
        code: u64,
    },
    /// The window with this number keeps its sender from using the path.
    Held {
        /// How often the window had changed.
        number: WindowNumber,
    },
    /// The receiver of data has another window from now on.
    Window {
        /// Rises by one with every change.
        number: WindowNumber,
        /// Size of the window, bytes (§7).
        size: u64,
    },
    /// The answer to a window that has shrunk.
    Shrunk {
        /// Number of the window.
        number: WindowNumber,
        /// The credit that its sender keeps within until it is told more.
        credit: u64,
    },
    /// Blocks of datagrams of which no more comes, rising, and what each costs.
    Gone(Vec<(BlockId, u64)>),
    /// Something about a flow of datagrams.
    Flow(FlowNews),
    /// Symbol-SACK of the paper's mode.
    PaperSymbols(SymbolSack),
    /// Block-SACK of the paper's mode.
    PaperBlocks(BlockSack),
    /// What a path is to be used for.
    PathStatus(PathStatus),
    /// Paths that this end may have open at a time, at least 1; what is above 255 counts as 255.
    MaxPaths(u8),
    /// What several paths are for.
    Bond {
        /// Rises with every such frame: the highest counts.
        number: u64,
        /// What several paths are for.
        bond: Bond,
    },
    /// A generation is about to hold everything up (`docs/protocol.md` §14).
    Warning(Warning),
}

/// What a receiver of generations lacks before its memory is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warning {
    /// The oldest generation that is not complete.
    pub block: BlockId,
    /// How many symbols of the generation have been given out.
    pub first: u64,
    /// How many independent symbols it lacks; 64 if nothing of it is known.
    pub deficit: u64,
    /// Bytes of the buffer that are free.
    pub free: u64,
}

impl Frame<'_> {
    /// Whether the frame asks for an acknowledgement.
    pub fn is_ack_eliciting(&self) -> bool {
        matches!(
            self,
            Frame::Ping
                | Frame::PathChallenge(_)
                | Frame::NewConnectionId { .. }
                | Frame::Skipped { .. }
                | Frame::PathAbandon { .. }
                | Frame::Reset(_)
                | Frame::Stop { .. }
                | Frame::Held { .. }
                | Frame::Window { .. }
                | Frame::Shrunk { .. }
                | Frame::Gone(_)
                | Frame::Flow(_)
                | Frame::PathStatus(_)
                | Frame::MaxPaths(_)
                | Frame::Bond { .. }
        )
    }

    /// Whether the frame tells what has become of packets, blocks and streams.
    pub fn is_feedback(&self) -> bool {
        matches!(
            self,
            Frame::Sack(_)
                | Frame::PathSack { .. }
                | Frame::Blocks(_)
                | Frame::Streams(_)
                | Frame::PaperSymbols(_)
                | Frame::PaperBlocks(_)
        )
    }

    /// Append the frame. Lists longer than their limits are cut (oldest information last).
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Padding => out.push(0),
            Frame::Ping => out.push(1),
            Frame::Sack(sack) => encode_sack(None, sack, out),
            Frame::PathSack { path, sack } => encode_sack(Some(*path), sack, out),
            Frame::Ect1 { path, count } => {
                put_varint(out, ECT1);
                let path = u64::from(path.get());
                put_varint(out, (varint_len(path) + varint_len(*count)) as u64);
                put_varint(out, path);
                put_varint(out, *count);
            }
            Frame::Blocks(blocks) => encode_blocks(blocks, out),
            Frame::Streams(streams) => encode_streams(streams, out),
            Frame::Close { code, reason } => {
                let mut end = reason.len().min(MAX_REASON_LEN);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                out.push(4);
                put_varint(out, *code);
                put_varint(out, end as u64);
                out.extend_from_slice(&reason.as_bytes()[..end]);
            }
            Frame::PathChallenge(data) => {
                out.push(5);
                out.extend_from_slice(data);
            }
            Frame::PathResponse(data) => {
                out.push(6);
                out.extend_from_slice(data);
            }
            Frame::NewConnectionId {
                path,
                sequence,
                cid,
            } => {
                out.push(7);
                put_varint(out, u64::from(path.get()));
                put_varint(out, sequence.get());
                out.extend_from_slice(&cid.bytes());
            }
            Frame::ResetToken {
                path,
                sequence,
                token,
            } => {
                put_varint(out, RESET_TOKEN);
                let (path, sequence) = (u64::from(path.get()), sequence.get());
                let len = varint_len(path) + varint_len(sequence) + ResetToken::LEN;
                put_varint(out, len as u64);
                put_varint(out, path);
                put_varint(out, sequence);
                out.extend_from_slice(token.bytes());
            }
            Frame::PathAbandon { path } => {
                out.push(20);
                put_varint(out, u64::from(path.get()));
            }
            Frame::Skipped {
                path,
                packet_number,
            } => {
                out.push(10);
                put_varint(out, u64::from(path.get()));
                put_varint(out, packet_number.get());
            }
            Frame::Reset(reset) => encode_reset(reset, out),
            Frame::Stop { stream, code } => {
                out.push(12);
                put_varint(out, stream.to_wire());
                put_varint(out, *code);
            }
            Frame::Held { number } => {
                out.push(13);
                put_varint(out, number.get());
            }
            Frame::Window { number, size } => {
                out.push(14);
                put_varint(out, number.get());
                put_varint(out, *size);
            }
            Frame::Shrunk { number, credit } => {
                out.push(15);
                put_varint(out, number.get());
                put_varint(out, *credit);
            }
            Frame::Gone(blocks) => {
                out.push(16);
                encode_costs(blocks, out);
            }
            Frame::Flow(news) => encode_flow(news, out),
            Frame::PaperSymbols(sack) => sack.encode(out),
            Frame::PaperBlocks(sack) => sack.encode(out),
            Frame::PathStatus(status) => {
                out.push(23);
                status.encode(out);
            }
            Frame::MaxPaths(paths) => {
                out.push(24);
                put_varint(out, u64::from(*paths));
            }
            Frame::Bond { number, bond } => {
                out.push(25);
                put_varint(out, *number);
                bond.encode(out);
            }
            Frame::Warning(warning) => {
                out.push(26);
                let block = warning.block.get();
                for value in [block, warning.first, warning.deficit, warning.free] {
                    put_varint(out, value);
                }
            }
        }
    }
}

/// A SACK; with a path, that of the path.
fn encode_sack(path: Option<PathId>, sack: &Sack, out: &mut Vec<u8>) {
    let Some(&(low, high)) = sack.ranges.first() else {
        return;
    };
    match path {
        None => out.push(2),
        Some(path) => {
            out.push(8);
            put_varint(out, u64::from(path.get()));
        }
    }
    for value in [
        sack.sequence,
        high.get(),
        sack.delay_us,
        sack.time_us,
        sack.ect,
        sack.ce,
        sack.credit,
    ] {
        put_varint(out, value);
    }
    let further = &sack.ranges[1..sack.ranges.len().min(MAX_SACK_RANGES)];
    put_varint(out, further.len() as u64);
    put_varint(out, high - low);
    let mut below = low;
    for &(low, high) in further {
        put_varint(out, below - high - 2);
        put_varint(out, high - low);
        below = low;
    }
}

fn encode_blocks(blocks: &Blocks, out: &mut Vec<u8>) {
    out.push(3);
    encode_ranges(blocks.base, &blocks.complete, out);
    let deficits = &blocks.deficits[..blocks.deficits.len().min(MAX_DEFICITS)];
    put_varint(out, deficits.len() as u64);
    for &(block, deficit) in deficits {
        put_varint(out, block - blocks.base);
        put_varint(out, u64::from(deficit));
    }
}

fn encode_streams(streams: &Streams, out: &mut Vec<u8>) {
    out.push(9);
    out.push(streams.kind);
    encode_ranges(streams.base, &streams.ended, out);
    let taken = &streams.taken[..streams.taken.len().min(MAX_TAKEN)];
    put_varint(out, taken.len() as u64);
    let mut next = streams.base;
    for &(index, cost) in taken {
        put_varint(out, index - next);
        put_varint(out, cost);
        next = index + 1;
    }
}

fn encode_reset(reset: &Reset, out: &mut Vec<u8>) {
    out.push(11);
    for value in [reset.stream.to_wire(), reset.code, reset.cost] {
        put_varint(out, value);
    }
    encode_costs(&reset.blocks, out);
}

/// Blocks, rising, and what each costs.
fn encode_costs(blocks: &[(BlockId, u64)], out: &mut Vec<u8>) {
    let blocks = &blocks[..blocks.len().min(MAX_RESET_BLOCKS)];
    put_varint(out, blocks.len() as u64);
    let mut next = BlockId::ZERO;
    for &(block, cost) in blocks {
        put_varint(out, block - next);
        put_varint(out, cost);
        next = block + 1;
    }
}

fn encode_flow(news: &FlowNews, out: &mut Vec<u8>) {
    match *news {
        FlowNews::Expired {
            kind,
            flow,
            first,
            count,
        } => {
            out.extend([17, u8::from(kind == FlowKind::Live)]);
            for value in [flow, first, count] {
                put_varint(out, value);
            }
        }
        FlowNews::Latency { flow, micros } => {
            out.push(18);
            put_varint(out, flow);
            put_varint(out, micros);
        }
        FlowNews::Ended { flow, total } => {
            out.push(19);
            put_varint(out, flow);
            put_varint(out, total);
        }
    }
}

/// A base, and inclusive ranges above it.
pub(super) fn encode_ranges<T: Ordinal>(base: T, ranges: &[(T, T)], out: &mut Vec<u8>) {
    put_varint(out, base.to_u64());
    let ranges = &ranges[..ranges.len().min(MAX_BLOCK_RANGES)];
    put_varint(out, ranges.len() as u64);
    let mut next = base.to_u64();
    for (low, high) in ranges
        .iter()
        .map(|(low, high)| (low.to_u64(), high.to_u64()))
    {
        put_varint(out, low - next);
        put_varint(out, high - low);
        next = high + 1;
    }
}

/// The frames of a control packet's body; ends after the first error. Ignorable frames of unknown types are passed over.
#[derive(Debug, Clone)]
pub struct FrameIter<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> FrameIter<'a> {
    /// Over a whole body.
    pub fn new(body: &'a [u8]) -> Self {
        Self {
            reader: Reader::new(body),
            failed: false,
        }
    }

    /// The next frame; `None` if it was one to be ignored.
    fn frame(&mut self) -> Result<Option<Frame<'a>>, WireError> {
        let r = &mut self.reader;
        Ok(Some(match r.varint()? {
            0 => Frame::Padding,
            1 => Frame::Ping,
            2 => Frame::Sack(decode_sack(r)?),
            3 => Frame::Blocks(decode_blocks(r)?),
            4 => {
                let code = r.varint()?;
                let len = r.varint()?;
                if len > MAX_REASON_LEN as u64 {
                    return Err(WireError::Invalid("close reason"));
                }
                let reason = std::str::from_utf8(r.take(len as usize)?)
                    .map_err(|_| WireError::Invalid("close reason"))?;
                Frame::Close { code, reason }
            }
            5 => Frame::PathChallenge(r.array()?),
            6 => Frame::PathResponse(r.array()?),
            7 => Frame::NewConnectionId {
                path: decode_path(r)?,
                sequence: CidSequence::new(r.varint()?),
                cid: ConnectionId::new(r.array()?).ok_or(WireError::Invalid("connection id"))?,
            },
            8 => {
                // Path 0 has a SACK of its own: each thing is said in one way only.
                let path = decode_path(r)?;
                if path == PathId::FIRST {
                    return Err(WireError::Invalid("path"));
                }
                let sack = decode_sack(r)?;
                Frame::PathSack { path, sack }
            }
            9 => Frame::Streams(decode_streams(r)?),
            10 => Frame::Skipped {
                path: decode_path(r)?,
                packet_number: PacketNumber::new(r.varint()?),
            },
            11 => Frame::Reset(decode_reset(r)?),
            12 => Frame::Stop {
                stream: StreamId::from_wire(r.varint()?)?,
                code: r.varint()?,
            },
            13 => Frame::Held {
                number: WindowNumber::new(r.varint()?),
            },
            14 => Frame::Window {
                number: WindowNumber::new(r.varint()?),
                size: r.varint()?,
            },
            15 => Frame::Shrunk {
                number: WindowNumber::new(r.varint()?),
                credit: r.varint()?,
            },
            16 => Frame::Gone(decode_costs(r)?),
            17 => Frame::Flow(decode_expired(r)?),
            18 => Frame::Flow(FlowNews::Latency {
                flow: r.varint()?,
                micros: r.varint()?,
            }),
            20 => Frame::PathAbandon {
                path: decode_path(r)?,
            },
            19 => Frame::Flow(FlowNews::Ended {
                flow: r.varint()?,
                total: r.varint()?,
            }),
            21 => Frame::PaperSymbols(SymbolSack::decode(r)?),
            22 => Frame::PaperBlocks(BlockSack::decode(r)?),
            23 => Frame::PathStatus(PathStatus::decode(decode_path(r)?, r)?),
            24 => match r.varint()? {
                0 => return Err(WireError::Invalid("number of paths")),
                paths => Frame::MaxPaths(paths.min(u64::from(u8::MAX)) as u8),
            },
            25 => Frame::Bond {
                number: r.varint()?,
                bond: Bond::decode(r)?,
            },
            26 => Frame::Warning(Warning {
                block: BlockId::new(r.varint()?),
                first: r.varint()?,
                deficit: r.varint()?,
                free: r.varint()?,
            }),
            ECT1 => {
                let mut fields = decode_ignorable(r)?;
                let (path, count) = (decode_path(&mut fields)?, fields.varint()?);
                if !fields.is_empty() {
                    return Err(WireError::Invalid("count of ECT(1)"));
                }
                Frame::Ect1 { path, count }
            }
            RESET_TOKEN => {
                let mut fields = decode_ignorable(r)?;
                let frame = Frame::ResetToken {
                    path: decode_path(&mut fields)?,
                    sequence: CidSequence::new(fields.varint()?),
                    token: ResetToken::new(fields.array()?),
                };
                if !fields.is_empty() {
                    return Err(WireError::Invalid("reset token"));
                }
                frame
            }
            unknown if unknown & IGNORABLE != 0 => {
                decode_ignorable(r)?;
                return Ok(None);
            }
            _ => return Err(WireError::Invalid("frame type")),
        }))
    }
}

impl<'a> Iterator for FrameIter<'a> {
    type Item = Result<Frame<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed && !self.reader.is_empty() {
            let frame = self.frame().transpose();
            self.failed = matches!(frame, Some(Err(_)));
            if frame.is_some() {
                return frame;
            }
        }
        None
    }
}

/// The fields of a frame that names its length.
fn decode_ignorable<'a>(r: &mut Reader<'a>) -> Result<Reader<'a>, WireError> {
    let len = usize::try_from(r.varint()?).map_err(|_| WireError::Truncated)?;
    Ok(Reader::new(r.take(len)?))
}

fn decode_path(r: &mut Reader<'_>) -> Result<PathId, WireError> {
    let number = u32::try_from(r.varint()?).map_err(|_| WireError::Invalid("path"))?;
    Ok(PathId::new(number))
}

fn decode_sack(r: &mut Reader<'_>) -> Result<Sack, WireError> {
    const BAD: WireError = WireError::Invalid("sack range");
    let sequence = r.varint()?;
    let largest = r.varint()?;
    let (delay_us, time_us) = (r.varint()?, r.varint()?);
    let (ect, ce, credit) = (r.varint()?, r.varint()?, r.varint()?);
    let further = r.varint()?;
    if further >= MAX_SACK_RANGES as u64 {
        return Err(BAD);
    }
    let mut low = largest.checked_sub(r.varint()?).ok_or(BAD)?;
    let mut ranges = Vec::with_capacity(further as usize + 1);
    ranges.push((PacketNumber::new(low), PacketNumber::new(largest)));
    for _ in 0..further {
        let high = low
            .checked_sub(r.varint()?)
            .and_then(|v| v.checked_sub(2))
            .ok_or(BAD)?;
        low = high.checked_sub(r.varint()?).ok_or(BAD)?;
        ranges.push((PacketNumber::new(low), PacketNumber::new(high)));
    }
    Ok(Sack {
        sequence,
        delay_us,
        time_us,
        ect,
        ce,
        credit,
        ranges,
    })
}

fn decode_blocks(r: &mut Reader<'_>) -> Result<Blocks, WireError> {
    let (base, complete) = decode_ranges::<BlockId>(r)?;
    let count = r.varint()?;
    if count > MAX_DEFICITS as u64 {
        return Err(BAD_RANGE);
    }
    let mut deficits = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let block = base.get().checked_add(r.varint()?).ok_or(BAD_RANGE)?;
        let block = BlockId::new(block);
        deficits.push((block, r.varint()?.min(u64::from(u32::MAX)) as u32));
    }
    Ok(Blocks {
        base,
        complete,
        deficits,
    })
}

fn decode_streams(r: &mut Reader<'_>) -> Result<Streams, WireError> {
    let kind = r.u8()?;
    if kind > 3 {
        return Err(WireError::Invalid("kind of stream"));
    }
    let (base, ended) = decode_ranges::<u64>(r)?;
    let count = r.varint()?;
    if count > MAX_TAKEN as u64 {
        return Err(BAD_RANGE);
    }
    let mut taken = Vec::with_capacity(count as usize);
    let mut next = base;
    for _ in 0..count {
        let index = next.checked_add(r.varint()?).ok_or(BAD_RANGE)?;
        taken.push((index, r.varint()?));
        next = index.checked_add(1).ok_or(BAD_RANGE)?;
    }
    Ok(Streams {
        kind,
        base,
        ended,
        taken,
    })
}

fn decode_reset(r: &mut Reader<'_>) -> Result<Reset, WireError> {
    let stream = StreamId::from_wire(r.varint()?)?;
    let (code, cost) = (r.varint()?, r.varint()?);
    Ok(Reset {
        stream,
        code,
        cost,
        blocks: decode_costs(r)?,
    })
}

fn decode_costs(r: &mut Reader<'_>) -> Result<Vec<(BlockId, u64)>, WireError> {
    let count = r.varint()?;
    if count > MAX_RESET_BLOCKS as u64 {
        return Err(BAD_RANGE);
    }
    let mut blocks = Vec::with_capacity(count as usize);
    let mut next = 0_u64;
    for _ in 0..count {
        let block = next.checked_add(r.varint()?).filter(|b| *b <= VARINT_MAX);
        let block = block.ok_or(BAD_RANGE)?;
        blocks.push((BlockId::new(block), r.varint()?));
        next = block + 1;
    }
    Ok(blocks)
}

fn decode_expired(r: &mut Reader<'_>) -> Result<FlowNews, WireError> {
    let kind = match r.u8()? {
        0 => FlowKind::Ordered,
        1 => FlowKind::Live,
        _ => return Err(WireError::Invalid("kind of flow")),
    };
    let (flow, first, count) = (r.varint()?, r.varint()?, r.varint()?);
    let end = first.checked_add(count).filter(|end| *end <= VARINT_MAX);
    if count == 0 || end.is_none() {
        return Err(BAD_RANGE);
    }
    Ok(FlowNews::Expired {
        kind,
        flow,
        first,
        count,
    })
}

pub(super) fn decode_ranges<T: Ordinal>(r: &mut Reader<'_>) -> Result<(T, Vec<(T, T)>), WireError> {
    let base = r.varint()?;
    let count = r.varint()?;
    if count > MAX_BLOCK_RANGES as u64 {
        return Err(BAD_RANGE);
    }
    let mut ranges = Vec::with_capacity(count as usize);
    let mut next = base;
    for _ in 0..count {
        let gap = r.varint()?;
        if gap == 0 {
            return Err(BAD_RANGE);
        }
        let low = next.checked_add(gap).ok_or(BAD_RANGE)?;
        let high = low.checked_add(r.varint()?).ok_or(BAD_RANGE)?;
        ranges.push((T::from_u64(low), T::from_u64(high)));
        next = high.checked_add(1).ok_or(BAD_RANGE)?;
    }
    Ok((T::from_u64(base), ranges))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::pn;
    use proptest::prelude::*;

    fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        frame.encode(&mut out);
        out
    }

    #[test]
    fn sack_vector() {
        let sack = Sack {
            sequence: 7,
            delay_us: 100,
            time_us: 5,
            ect: 3,
            ce: 1,
            credit: 70_000,
            ranges: vec![(pn(90), pn(100)), (pn(80), pn(85)), (pn(10), pn(10))],
        };
        let bytes = bytes_of(&Frame::Sack(sack.clone()));
        assert_eq!(
            bytes,
            [
                2, 7, 0x40, 100, 0x40, 100, 5, 3, 1, 0x80, 1, 0x11, 0x70, 2, 10, 3, 5, 0x40, 68, 0
            ]
        );
        assert_eq!(
            FrameIter::new(&bytes).next(),
            Some(Ok(Frame::Sack(sack.clone())))
        );
        let frame = Frame::PathSack {
            path: PathId::new(300),
            sack,
        };
        let of_path = [&[8, 0x41, 0x2c], &bytes[1..]].concat();
        assert_eq!(bytes_of(&frame), of_path);
        assert_eq!(FrameIter::new(&of_path).next(), Some(Ok(frame)));
    }

    #[test]
    fn connection_id_vector() {
        let cid = ConnectionId::new([1, 2, 3, 4, 5, 6, 7, 8]).expect("not zero");
        let frame = Frame::NewConnectionId {
            path: PathId::FIRST,
            sequence: CidSequence::new(70),
            cid,
        };
        let bytes = [7, 0, 0x40, 70, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(bytes_of(&frame), bytes);
        assert_eq!(FrameIter::new(&bytes).next(), Some(Ok(frame)));
    }

    #[test]
    fn reset_token_vector() {
        let frame = Frame::ResetToken {
            path: PathId::new(300),
            sequence: CidSequence::new(70),
            token: ResetToken::new(std::array::from_fn(|n| 0xf0 + n as u8)),
        };
        let token: Vec<u8> = (0xf0..=0xff).collect();
        let bytes = [&[0x21, 20, 0x41, 0x2c, 0x40, 70][..], &token].concat();
        assert_eq!(bytes_of(&frame), bytes);
        assert!(!frame.is_ack_eliciting());
        assert_eq!(FrameIter::new(&bytes).next(), Some(Ok(frame)));
        for wrong in [&bytes[..21], &[0x21, 17, 0, 0], &[0x21, 0]] {
            assert!(matches!(FrameIter::new(wrong).next(), Some(Err(_))));
        }
        // Tokens that are too short and too long.
        for len in [17_u8, 19] {
            let body = [&[0x21, len, 0, 0][..], &[7; 17]].concat();
            let found = FrameIter::new(&body).next();
            assert!(matches!(found, Some(Err(_))), "{found:?}");
        }
    }

    #[test]
    fn warning_vector() {
        let frame = Frame::Warning(Warning {
            block: BlockId::new(300),
            first: 3,
            deficit: 2,
            free: 5000,
        });
        let bytes = [26, 0x41, 0x2c, 3, 2, 0x53, 0x88];
        assert_eq!(bytes_of(&frame), bytes);
        assert_eq!(FrameIter::new(&bytes).next(), Some(Ok(frame)));
        assert_eq!(
            FrameIter::new(&bytes[..6]).next(),
            Some(Err(WireError::Truncated))
        );
    }

    #[test]
    fn skipped_vector() {
        let frame = Frame::Skipped {
            path: PathId::FIRST,
            packet_number: pn(300),
        };
        let bytes = [10, 0, 0x41, 0x2c];
        assert_eq!(bytes_of(&frame), bytes);
        assert_eq!(FrameIter::new(&bytes).next(), Some(Ok(frame)));
    }

    #[test]
    fn paths_have_32_bits_and_path_0_has_its_own_sack() {
        let sack = [0, 5, 0, 0, 0, 0, 0, 0, 0];
        let wrong = Some(Err(WireError::Invalid("path")));
        for path in [&[0][..], &[0xc0, 0, 0, 1, 0, 0, 0, 0]] {
            let body = [&[8], path, &sack].concat();
            assert_eq!(FrameIter::new(&body).next(), wrong);
        }
        let body = [&[8, 0xc0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..], &sack].concat();
        let found = FrameIter::new(&body).next();
        assert!(
            matches!(found, Some(Ok(Frame::PathSack { path, .. })) if path == PathId::new(u32::MAX))
        );
    }

    #[test]
    fn path_abandon_vector() {
        let frame = Frame::PathAbandon {
            path: PathId::new(300),
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        assert_eq!(bytes, [20, 0x41, 0x2c]);
        let mut frames = FrameIter::new(&bytes);
        assert_eq!(frames.next(), Some(Ok(frame)));
        assert_eq!(
            FrameIter::new(&bytes[..2]).next(),
            Some(Err(WireError::Truncated))
        );
    }

    #[test]
    fn blocks_vector() {
        let blocks = Blocks {
            base: BlockId::new(10),
            complete: vec![
                (BlockId::new(11), BlockId::new(12)),
                (BlockId::new(15), BlockId::new(15)),
            ],
            deficits: vec![(BlockId::new(10), 3), (BlockId::new(13), 1)],
        };
        let bytes = bytes_of(&Frame::Blocks(blocks.clone()));
        assert_eq!(bytes, [3, 10, 2, 1, 1, 2, 0, 2, 0, 3, 3, 1]);
        assert_eq!(
            FrameIter::new(&bytes).next(),
            Some(Ok(Frame::Blocks(blocks)))
        );
    }

    #[test]
    fn streams_vector() {
        let streams = Streams {
            kind: 3,
            base: 4,
            ended: vec![(6, 9)],
            taken: vec![(4, 100), (12, 0)],
        };
        let bytes = bytes_of(&Frame::Streams(streams.clone()));
        assert_eq!(bytes, [9, 3, 4, 1, 2, 3, 2, 0, 64, 100, 7, 0]);
        let decoded = FrameIter::new(&bytes).next();
        assert_eq!(decoded, Some(Ok(Frame::Streams(streams))));
    }

    #[test]
    fn long_reasons_are_cut_at_a_character() {
        let reason = "ä".repeat(200);
        let bytes = bytes_of(&Frame::Close {
            code: 6,
            reason: &reason,
        });
        assert_eq!(
            FrameIter::new(&bytes).next(),
            Some(Ok(Frame::Close {
                code: 6,
                reason: &reason[..256]
            }))
        );
    }

    #[test]
    fn a_lone_error_ends_the_packet() {
        // The second type is 0x1002, in two bytes.
        for unknown in [&[0x1f][..], &[0x50, 0x02]] {
            let body = [&[1], unknown, &[1]].concat();
            let mut frames = FrameIter::new(&body);
            assert_eq!(frames.next(), Some(Ok(Frame::Ping)));
            assert_eq!(frames.next(), Some(Err(WireError::Invalid("frame type"))));
            assert_eq!(frames.next(), None);
        }
    }

    #[test]
    fn ect1_vector() {
        let frame = Frame::Ect1 {
            path: PathId::new(2),
            count: 300,
        };
        let body = bytes_of(&frame);
        assert_eq!(body, [0x20, 3, 2, 0x41, 0x2c]);
        assert!(!frame.is_ack_eliciting());
        assert_eq!(FrameIter::new(&body).next(), Some(Ok(frame)));
        // Too short for its fields, and longer than they are.
        for body in [&[0x20, 1, 2][..], &[0x20, 3, 2, 1, 0]] {
            assert!(
                FrameIter::new(body)
                    .next()
                    .is_some_and(|frame| frame.is_err())
            );
        }
    }

    #[test]
    fn ignorable_frames_are_passed_over() {
        // Types 0x22, 0x3f and 0x1022; the last one is as long as the packet lets it be.
        let ignored = [
            &[0x22, 0][..],
            &[0x3f, 3, 9, 9, 9],
            &[0x50, 0x22, 0x40, 2, 9, 9],
        ]
        .concat();
        let body = [&[1][..], &ignored, &[1], &ignored].concat();
        let frames: Vec<_> = FrameIter::new(&body).collect();
        assert_eq!(frames, [Ok(Frame::Ping), Ok(Frame::Ping)]);
        for cut in [&[0x22][..], &[0x3f, 3, 9, 9], &[0x50], &[0x22, 0xff, 9]] {
            let mut frames = FrameIter::new(cut);
            assert_eq!(frames.next(), Some(Err(WireError::Truncated)));
            assert_eq!(frames.next(), None);
        }
    }

    #[test]
    fn window_vectors() {
        let (number, size, credit) = (WindowNumber::new(300), 48 << 20, 100_000);
        for (frame, bytes) in [
            (
                Frame::Held {
                    number: WindowNumber::new(3),
                },
                &[13, 3][..],
            ),
            (
                Frame::Window { number, size },
                &[14, 0x41, 0x2c, 0x83, 0, 0, 0],
            ),
            (
                Frame::Shrunk { number, credit },
                &[15, 0x41, 0x2c, 0x80, 1, 0x86, 0xa0],
            ),
        ] {
            assert_eq!(bytes_of(&frame), bytes);
            assert!(frame.is_ack_eliciting());
            assert_eq!(FrameIter::new(bytes).next(), Some(Ok(frame)));
        }
    }

    #[test]
    fn datagram_vectors() {
        let expired = FlowNews::Expired {
            kind: FlowKind::Live,
            flow: 2,
            first: 300,
            count: 1,
        };
        let latency = FlowNews::Latency {
            flow: 2,
            micros: 120_000,
        };
        let ended = FlowNews::Ended {
            flow: 2,
            total: 301,
        };
        for (frame, bytes) in [
            (
                Frame::Gone(vec![(BlockId::new(9), 1512), (BlockId::new(11), 700)]),
                &[16, 2, 9, 0x45, 0xe8, 1, 0x42, 0xbc][..],
            ),
            (Frame::Flow(expired), &[17, 1, 2, 0x41, 0x2c, 1]),
            (Frame::Flow(latency), &[18, 2, 0x80, 1, 0xd4, 0xc0]),
            (Frame::Flow(ended), &[19, 2, 0x41, 0x2d]),
        ] {
            assert_eq!(bytes_of(&frame), bytes);
            assert!(frame.is_ack_eliciting());
            assert_eq!(FrameIter::new(bytes).next(), Some(Ok(frame)));
        }
        for body in [&[16, 33][..], &[17, 2, 0, 0, 1], &[17, 1, 0, 0, 0]] {
            assert!(matches!(FrameIter::new(body).next(), Some(Err(_))));
        }
    }

    #[test]
    fn reset_and_stop_vectors() {
        let stream = StreamId::from_wire(70).expect("a stream");
        let reset = Reset {
            stream,
            code: 300,
            cost: 5000,
            blocks: vec![
                (BlockId::new(9), 1512),
                (BlockId::new(10), 700),
                (BlockId::new(14), 63),
            ],
        };
        for (frame, bytes) in [
            (
                Frame::Reset(reset),
                &[
                    11, 0x40, 70, 0x41, 0x2c, 0x53, 0x88, 3, 9, 0x45, 0xe8, 0, 0x42, 0xbc, 3, 63,
                ][..],
            ),
            (Frame::Stop { stream, code: 0 }, &[12, 0x40, 70, 0]),
        ] {
            assert_eq!(bytes_of(&frame), bytes);
            assert_eq!(FrameIter::new(bytes).next(), Some(Ok(frame)));
        }
        // Blocks beyond what there can be.
        for body in [
            &[11, 2, 0, 0, 33][..],
            &[
                11, 2, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0,
            ],
        ] {
            assert!(matches!(FrameIter::new(body).next(), Some(Err(_))));
        }
    }

    proptest! {
        #[test]
        fn frames_of_paths_survive(
            path in (1..=u32::MAX).prop_map(PathId::new),
            number in 0..=VARINT_MAX,
            cid in any::<[u8; 8]>(),
            token in any::<[u8; ResetToken::LEN]>(),
            low in 0..1u64 << 40,
            len in 0..1u64 << 40,
            skipped in any::<Vec<u8>>(),
        ) {
            let sack = Sack { sequence: number, ranges: vec![(pn(low), pn(low + len))], ..Sack::default() };
            let mut frames = vec![
                Frame::Sack(sack.clone()),
                Frame::PathSack { path, sack },
                Frame::Skipped { path, packet_number: pn(number) },
            ];
            let cid = ConnectionId::new(cid);
            let sequence = CidSequence::new(number);
            frames.extend(cid.map(|cid| Frame::NewConnectionId { path, sequence, cid }));
            frames.push(Frame::ResetToken { path, sequence, token: ResetToken::new(token) });
            let mut body = Vec::new();
            for frame in &frames {
                // A frame of a later version comes before each.
                put_varint(&mut body, IGNORABLE | 31 | number << 6 & VARINT_MAX);
                put_varint(&mut body, skipped.len() as u64);
                body.extend_from_slice(&skipped);
                frame.encode(&mut body);
            }
            let read: Result<Vec<_>, _> = FrameIter::new(&body).collect();
            prop_assert_eq!(read, Ok(frames));
        }

        #[test]
        fn parsing_is_total(body in prop::collection::vec(any::<u8>(), 0..300)) {
            for frame in FrameIter::new(&body).flatten() {
                let again = bytes_of(&frame);
                prop_assert_eq!(FrameIter::new(&again).next(), Some(Ok(frame)));
            }
        }
    }
}
