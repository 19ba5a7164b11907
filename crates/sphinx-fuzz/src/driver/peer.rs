//! What the peer sends: blocks of streams whose every byte is known, and blocks that are wrong.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_fec::span::{self, SpanBlock};
use sphinx_fec::{CodeId, Encoder, Row, RowMaker, fft_rs};
use sphinx_proto::wire::{MAX_RESET_BLOCKS, Reset, Segment, VARINT_MAX, WindowSpan, put_varint};
use sphinx_proto::{BlockId, Role, StreamId, StreamPart, block_cost, share_cost};

use crate::Input;
use crate::session::STREAMS;

/// A block may hold one segment, and another for each of so many bytes.
const SEGMENT_BYTES: usize = 256;

/// What a peer does that the protocol forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lies {
    /// Symbols that are not those of their block, or of no block that there can be.
    pub(super) symbols: bool,
    /// Blocks that hold what cannot be.
    pub(super) blocks: bool,
    /// Feedback on what never happened, and frames that are none.
    pub(super) frames: bool,
}

impl Lies {
    /// Half of all peers do nothing forbidden.
    pub(super) fn of(seed: u64) -> Self {
        Self {
            symbols: matches!(seed & 7, 6 | 7),
            blocks: matches!(seed & 7, 4 | 7),
            frames: matches!(seed & 7, 5 | 7),
        }
    }
}

/// The bytes of a stream.
pub(super) fn data(stream: StreamId, range: std::ops::Range<u64>) -> Vec<u8> {
    let seed = stream.to_wire().wrapping_mul(0x9e37_79b9);
    let byte = |at: u64| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
    range.map(byte).collect()
}

/// A block that the peer has made.
pub(super) struct Made {
    pub(super) n: u16,
    pub(super) symbol_len: u16,
    pub(super) bytes: Vec<u8>,
    pub(super) segments: Vec<Segment>,
    /// What its segments cost, in their order.
    costs: Vec<u64>,
    /// The block holds nothing wrong.
    is_right: bool,
}

impl Made {
    pub(super) fn cost(&self) -> u64 {
        block_cost(self.n, self.symbol_len)
    }
}

#[derive(Default)]
struct Stream {
    next: u64,
    has_ended: bool,
    /// The RESET with which it was given up.
    reset: Option<Reset>,
}

pub(super) struct Peer {
    role: Role,
    pub(super) lies: Lies,
    pub(super) blocks: BTreeMap<u32, Made>,
    streams: BTreeMap<StreamId, Stream>,
    /// Streams with two directions that the other end is known to have begun.
    pub(super) named: BTreeSet<StreamId>,
    /// Blocks that were given up.
    pub(super) given_up: BTreeSet<u32>,
    encoder: Encoder,
    /// Rows of transforms that have been made, by block and row.
    transformed: BTreeMap<(u32, Row), Vec<u8>>,
    rows: RowMaker,
    /// It has done something forbidden; and it has sent bytes that are not those of their stream.
    pub(super) has_lied: bool,
    pub(super) has_forged: bool,
}

impl Peer {
    pub(super) fn new(role: Role, lies: Lies) -> Self {
        Self {
            role,
            lies,
            blocks: BTreeMap::new(),
            streams: BTreeMap::new(),
            named: BTreeSet::new(),
            given_up: BTreeSet::new(),
            encoder: Encoder::new(),
            transformed: BTreeMap::new(),
            rows: RowMaker::new(),
            has_lied: false,
            has_forged: false,
        }
    }

    /// The block with this id, which is made when it is first wanted.
    pub(super) fn block(&mut self, id: u32, input: &mut Input<'_>) -> &Made {
        if !self.blocks.contains_key(&id) {
            let made = self.make(input);
            self.blocks.insert(id, made);
        }
        let made = &self.blocks[&id];
        self.has_lied |= !made.is_right;
        made
    }

    fn make(&mut self, input: &mut Input<'_>) -> Made {
        let (n, symbol_len) = match input.byte() {
            shape @ 0..0xc0 => ([1, 2, 3, 7, 20, 60][usize::from(shape & 7) % 6], 100),
            0xc0..0xe0 => (input.below(40) as u16 + 1, 20),
            // Whatever may be: n and symbol size in proportion.
            0xe0..0xf8 => (input.below(32) as u16 + 1, input.below(2000) as u16 + 1),
            _ => (input.below(1024) as u16 + 1, 512),
        };
        let len = usize::from(n) * usize::from(symbol_len);
        let mut bytes = Vec::with_capacity(len);
        let (mut segments, mut parts) = (Vec::new(), Vec::new());
        let kind = input.byte();
        let count = usize::from(kind & 7).min(1 + len / SEGMENT_BYTES);
        for i in 0..count {
            let flags = input.byte();
            let room = (len - bytes.len()) / (count - i);
            let index = u64::from(flags & 7);
            let stream = match flags >> 3 & 7 {
                // As far ahead as may be.
                7 if flags & 1 == 0 => StreamId::new(self.role, STREAMS - 1 - index),
                7 => StreamId::bi(self.role, STREAMS - 1 - index),
                kind => self.any_stream(8 * u64::from(kind % 3) + index),
            };
            let at = self.streams.entry(stream).or_default();
            let header_len = Segment::header_len(stream, at.next);
            let end_of_stream = flags >= 0xd0;
            if at.has_ended || at.reset.is_some() || room < header_len + usize::from(!end_of_stream)
            {
                continue;
            }
            let segment = Segment {
                stream,
                offset: at.next,
                len: (room - header_len) as u32,
                end_of_stream,
            };
            at.next = segment.end();
            at.has_ended = end_of_stream;
            let before = bytes.len();
            put(segment, flags & 0x40 != 0, &mut bytes);
            segments.push(segment);
            parts.push(StreamPart {
                stream,
                bytes: (bytes.len() - before) as u32,
                end_of_stream,
                cost: 0,
            });
        }
        let is_right = !(self.lies.blocks && kind >= 0xa0);
        if !is_right {
            self.spoil(input, len, &mut bytes);
        }
        // Behind the mark that the rest is padding there may be anything.
        let rest = if bytes.len() < len && input.rarely(4) {
            bytes.push(0);
            0xee
        } else {
            0
        };
        bytes.resize(len, rest);
        share_cost(block_cost(n, symbol_len), &mut parts);
        let costs = parts.iter().map(|part| part.cost).collect();
        Made {
            n,
            symbol_len,
            bytes,
            segments,
            costs,
            is_right,
        }
    }

    /// One of 24 streams that it may send on: with one direction, with two, and those of the other end.
    pub(super) fn any_stream(&self, number: u64) -> StreamId {
        let index = number % 8;
        let mut named = self.named.iter().copied();
        match number / 8 {
            0 => StreamId::new(self.role, index),
            1 => StreamId::bi(self.role, index),
            _ => {
                let answer = named.nth(index as usize % self.named.len().max(1));
                answer.unwrap_or(StreamId::bi(self.role, index))
            }
        }
    }

    /// Gives a stream up, or says again that it has: with all blocks of it alone that have `begun` to arrive, as far as one frame
    /// and the code allow.
    pub(super) fn reset(&mut self, stream: StreamId, code: u64, begun: &BTreeSet<u32>) -> Reset {
        let known = self.streams.get(&stream);
        if let Some(said) = known.and_then(|known| known.reset.as_ref()) {
            return said.clone();
        }
        let mut reset = Reset {
            stream,
            code,
            cost: 0,
            blocks: Vec::new(),
        };
        for (id, made) in &self.blocks {
            let costs = made.segments.iter().zip(&made.costs);
            let its = costs.filter(|(segment, _)| segment.stream == stream);
            let cost: u64 = its.map(|(_, cost)| *cost).sum();
            reset.cost += cost;
            let is_its_alone = made.is_right && cost > 0 && made.segments.len() == 1;
            if is_its_alone && begun.contains(id) && reset.blocks.len() < MAX_RESET_BLOCKS {
                reset.blocks.push((BlockId::new(u64::from(*id)), cost));
                self.given_up.insert(*id);
            }
        }
        let known = self.streams.entry(stream).or_default();
        known.reset = Some(reset.clone());
        reset
    }

    /// Why a stream was given up.
    pub(super) fn code_of(&self, stream: StreamId) -> Option<u64> {
        let reset = self.streams.get(&stream)?.reset.as_ref();
        reset.map(|reset| reset.code)
    }

    /// Streams that were given up.
    pub(super) fn resets(&self) -> BTreeSet<StreamId> {
        let given_up = |(_, stream): &(&StreamId, &Stream)| stream.reset.is_some();
        let resets = self.streams.iter().filter(given_up);
        resets.map(|(id, _)| *id).collect()
    }

    /// Adds something wrong, or puts it in the place of what is there.
    fn spoil(&mut self, input: &mut Input<'_>, len: usize, bytes: &mut Vec<u8>) {
        let number = input.below(24);
        let (own, index) = (self.any_stream(number), number % 8);
        let next = self.streams.get(&own).map_or(0, |stream| stream.next);
        let mut segment = Segment {
            stream: own,
            offset: next,
            len: 1 + input.below(100) as u32,
            end_of_stream: input.rarely(3),
        };
        match input.byte() % 10 {
            // What comes next, if it does not come twice; what has been before; a gap. All perhaps behind the end.
            0 => {}
            1 => segment.offset = next.saturating_sub(input.below(200)),
            2 => segment.offset = next + input.below(500),
            3 if own.is_bi() => segment.stream = StreamId::bi(self.role.other(), STREAMS + index),
            3 => segment.stream = StreamId::new(self.role.other(), index),
            4 if own.is_bi() => segment.stream = StreamId::bi(self.role, STREAMS + 8 * index),
            4 => segment.stream = StreamId::new(self.role, STREAMS + 8 * index),
            5 => segment.offset = VARINT_MAX - input.below(200),
            6 => {
                // As many segments as fit.
                bytes.clear();
                segment.len = 0;
                segment.end_of_stream = true;
                while bytes.len() + 24 < len {
                    put(segment, true, bytes);
                    let next = segment.stream.index() + 1;
                    segment.stream = match own.is_bi() {
                        true => StreamId::bi(own.opener(), next),
                        false => StreamId::new(self.role, next),
                    };
                }
            }
            7 => {
                // It is longer than the block.
                segment.len = len as u32;
                segment.encode(bytes);
                bytes.truncate(len);
                return;
            }
            8 => {
                self.has_forged = true;
                bytes.clear();
                bytes.extend_from_slice(input.take(40.min(len)));
                return;
            }
            _ => {
                bytes.resize((bytes.len() + 1).min(len), 3 + input.byte() % 0xfc);
                return;
            }
        }
        // Twice: what ends with the first begins again with the second.
        for _ in 0..1 + input.below(2) {
            let mut more = Vec::new();
            put(segment, true, &mut more);
            if bytes.len() + more.len() > len {
                bytes.clear();
            }
            if more.len() <= len {
                bytes.append(&mut more);
            }
        }
    }

    /// A repair of a block; `None` if it has no such row.
    pub(super) fn repair(&mut self, id: u32, code: CodeId, row: u32) -> Option<(Row, Vec<u8>)> {
        if code == CodeId::FftRs {
            return self.transformed(id, 2 + row % 3, row >> 2 & 3);
        }
        let made = &self.blocks[&id];
        let row = Row::new(row)?;
        let (n, len) = (usize::from(made.n), usize::from(made.symbol_len));
        let mut symbol = vec![0; len];
        let encoded = self
            .encoder
            .encode(code, n, len, &made.bytes, row, &mut symbol);
        encoded.ok().map(|()| (row, symbol))
    }

    /// A row of a transform with `1 << size` rows, of which the first four are made at once: one costs as much.
    fn transformed(&mut self, id: u32, size: u32, index: u32) -> Option<(Row, Vec<u8>)> {
        let row = fft_rs::row(size, index)?;
        if !self.transformed.contains_key(&(id, row)) {
            let made = &self.blocks[&id];
            let (n, len) = (usize::from(made.n), usize::from(made.symbol_len));
            let rows = (0..4).filter_map(|index| fft_rs::row(size, index));
            let rows: Vec<_> = rows.map(|row| (CodeId::FftRs, row)).collect();
            let mut symbols = vec![0; rows.len() * len];
            let encoded = self
                .encoder
                .encode_rows(n, len, &made.bytes, &rows, &mut symbols);
            encoded.ok()?;
            let symbols = symbols.chunks(len.max(1)).map(<[u8]>::to_vec);
            let rows = rows.into_iter().map(|(_, row)| (id, row));
            self.transformed.extend(rows.zip(symbols));
        }
        let symbol = self.transformed.get(&(id, row))?;
        Some((row, symbol.clone()))
    }

    /// The body of a repair of a window: of this block and those before it that have been made.
    pub(super) fn window(&mut self, id: u32, row: u32, input: &mut Input<'_>) -> Option<Vec<u8>> {
        let newest = &self.blocks[&id];
        let upto = 1 + input.below(u64::from(newest.n)) as u16;
        let mut span = WindowSpan::new(upto, newest.n, newest.symbol_len)?;
        let mut blocks = vec![SpanBlock {
            symbols: &newest.bytes,
            symbol_len: usize::from(newest.symbol_len),
            count: usize::from(upto),
        }];
        for before in (0..id).rev().take(input.below(6) as usize) {
            let Some(made) = self.blocks.get(&before) else {
                break;
            };
            if !span.extend(0, made.n, made.symbol_len, usize::MAX) {
                break;
            }
            self.has_lied |= !made.is_right;
            blocks.push(SpanBlock {
                symbols: &made.bytes,
                symbol_len: usize::from(made.symbol_len),
                count: usize::from(made.n),
            });
        }
        blocks.reverse();
        let mut symbol = vec![0; span.symbol_len()];
        span::encode(&mut self.rows, Row::new(row)?, &blocks, &mut symbol).ok()?;
        Some([span.encode(), symbol].concat())
    }

    /// Streams of which these blocks hold everything, to the end.
    pub(super) fn whole_streams(&self, complete: &BTreeSet<u64>) -> BTreeSet<StreamId> {
        let is_missing = |id: &u32| !complete.contains(&u64::from(*id));
        let missing = self.blocks.iter().filter(|(id, _)| is_missing(id));
        let missing: BTreeSet<StreamId> = missing
            .flat_map(|(_, made)| &made.segments)
            .map(|segment| segment.stream)
            .collect();
        let ended = self.streams.iter().filter(|(_, stream)| stream.has_ended);
        let ended = ended.map(|(id, _)| *id);
        ended.filter(|id| !missing.contains(id)).collect()
    }

    /// How far a stream can be read if these blocks are there.
    pub(super) fn readable(&self, stream: StreamId, complete: &BTreeSet<u64>) -> u64 {
        let complete = complete
            .iter()
            .filter_map(|id| self.blocks.get(&(*id as u32)));
        let segments = complete.flat_map(|made| &made.segments);
        let its = segments.filter(|segment| segment.stream == stream);
        let mut places: Vec<_> = its.map(|segment| (segment.offset, segment.end())).collect();
        places.sort_unstable();
        places
            .iter()
            .fold(0, |at, place| if place.0 == at { place.1 } else { at })
    }
}

/// Writes a segment with its data; `short`: with a length of as few bytes as may be.
fn put(segment: Segment, short: bool, out: &mut Vec<u8>) {
    if short {
        out.push(1 + u8::from(segment.end_of_stream));
        put_varint(out, segment.stream.to_wire());
        put_varint(out, segment.offset);
        put_varint(out, u64::from(segment.len));
    } else {
        segment.encode(out);
    }
    out.extend(data(segment.stream, segment.offset..segment.end()));
}
