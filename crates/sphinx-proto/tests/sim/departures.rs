//! What leaves of every block, as an observer of packets sees it who can read them: what of a stream that was given up leaves later, and what
//! ends allow each other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sphinx_fec::CodeId;
use sphinx_link::Datagram;
use sphinx_proto::wire::{
    Bundle, Fragment, Frame, FrameIter, HEADER_LEN, Header, PacketKind, Segment, SegmentIter,
    SymbolId, TAG_LEN, WindowSpan,
};
use sphinx_proto::{Nanos, StreamId, block_cost};
use sphinx_sim::{End, Pair, Plain};

/// A block, of which nothing need have left.
struct Block {
    cost: u64,
    /// The only stream that it has a piece of, where that has been seen.
    stream: Option<StreamId>,
    /// When the last packet of the block left.
    left: Nanos,
}

/// What one end has sent.
#[derive(Default)]
struct Sent {
    blocks: BTreeMap<u64, Block>,
    /// The most credit that this end has given the other one.
    credit: u64,
}

/// What both ends have sent, from the beginning on.
#[derive(Clone, Default)]
pub(crate) struct Departures(Rc<RefCell<[Sent; 2]>>);

impl Departures {
    /// A datagram leaves.
    pub(crate) fn see(&self, now: Nanos, side: usize, datagram: &Datagram) {
        self.0.borrow_mut()[side].see(now, &datagram.payload);
    }

    /// What all blocks of this end have cost.
    pub(crate) fn opened(&self, side: usize) -> u64 {
        let blocks = &self.0.borrow()[side].blocks;
        blocks.values().map(|block| block.cost).sum()
    }

    /// What all blocks of this end may cost, as the other end has said.
    pub(crate) fn allowed(&self, side: usize) -> u64 {
        self.0.borrow()[1 - side].credit
    }

    /// Nothing has left of a stream since it was given up, but what was being sealed, which takes so long.
    pub(crate) fn check(&self, pair: &Pair, sealing: [Nanos; 2]) {
        let sides = self.0.borrow();
        for ((sent, end), sealing) in sides.iter().zip(&pair.ends).zip(sealing) {
            sent.check(end, sealing);
        }
    }
}

impl Sent {
    fn check(&self, end: &End<Plain>, sealing: Nanos) {
        let given_up: BTreeMap<StreamId, Nanos> = end.given_up().collect();
        for (id, block) in &self.blocks {
            let at = block.stream.and_then(|stream| given_up.get(&stream));
            let is_late = at.is_some_and(|at| block.left > at + sealing);
            assert!(!is_late, "block {id} of {:?} leaves late", block.stream);
        }
    }

    fn see(&mut self, now: Nanos, datagram: &[u8]) {
        let header = Header::decode(datagram.first_chunk().expect("a header"));
        let header = header.expect("a header");
        let body = &datagram[HEADER_LEN..datagram.len() - TAG_LEN];
        match header.kind {
            // Padding ends the frames.
            PacketKind::Control => FrameIter::new(body)
                .map_while(Result::ok)
                .for_each(|frame| self.frame(frame)),
            PacketKind::Symbol => self.symbol(now, &header, body),
            PacketKind::Bundle => {
                for (header, at) in Bundle::split(&header, body).expect("a bundle") {
                    self.symbol(now, &header, &body[at]);
                }
            }
            PacketKind::Fragment => {
                let (part, bytes) = Fragment::split(body).expect("a part of a symbol");
                let is_first = header.symbol() == Ok(SymbolId::Source(0)) && part.index == 0;
                let block = self.block(now, &header, (header.n, part.symbol_len));
                // The only symbol of a block may hold pieces of several streams.
                if is_first && header.n > 1 {
                    block.stream = first_of(bytes);
                }
            }
        }
    }

    fn frame(&mut self, frame: Frame<'_>) {
        let (stream, blocks) = match frame {
            Frame::Sack(sack) => {
                self.credit = self.credit.max(sack.credit);
                return;
            }
            Frame::Reset(reset) => (Some(reset.stream), reset.blocks),
            Frame::Gone(blocks) => (None, blocks),
            _ => return,
        };
        for (id, cost) in blocks {
            let named = Block {
                cost,
                stream,
                left: 0,
            };
            let block = self.blocks.entry(id.get()).or_insert(named);
            assert_eq!(block.cost, cost, "of block {id}");
            block.stream = stream;
        }
    }

    fn symbol(&mut self, now: Nanos, header: &Header, symbol: &[u8]) {
        if header.code == CodeId::Window.to_wire() {
            let (span, _) = WindowSpan::split(symbol).expect("a window");
            for covered in span.blocks() {
                let newest = header.block - covered.back as u32;
                let header = Header {
                    block: newest,
                    ..*header
                };
                self.block(now, &header, (covered.n, covered.symbol_len));
            }
            return;
        }
        let is_first = header.symbol() == Ok(SymbolId::Source(0));
        let block = self.block(now, header, (header.n, symbol.len() as u16));
        if is_first {
            block.stream = match header.n {
                1 => only_one_of(symbol),
                _ => first_of(symbol),
            };
        }
    }

    /// Some of a block leaves. A run has fewer than 2^32.
    fn block(&mut self, now: Nanos, header: &Header, (n, symbol_len): (u16, u16)) -> &mut Block {
        let new = Block {
            cost: block_cost(n, symbol_len),
            stream: None,
            left: now,
        };
        let block = self.blocks.entry(header.block.into()).or_insert(new);
        block.left = now;
        block
    }
}

/// The stream of the first segment; a block of several symbols has no other.
fn first_of(bytes: &[u8]) -> Option<StreamId> {
    let (segment, _) = Segment::begin(bytes).ok()??;
    Some(segment.stream)
}

fn only_one_of(block: &[u8]) -> Option<StreamId> {
    let mut segments = SegmentIter::new(block).map_while(Result::ok);
    let (first, _) = segments.next()?;
    segments.next().is_none().then_some(first.stream)
}
