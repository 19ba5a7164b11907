//! The sending half: cuts what was written into blocks, and makes datagrams of descriptors.

use std::collections::{BTreeSet, VecDeque};

use sphinx_fec::span::{self, SpanBlock};
use sphinx_link::Packet;
use sphinx_proto::wire::{PREAMBLE_LEN, PacketKind, Preamble, SymbolId};
use sphinx_proto::{Content, Room, Slot, Transmit};

use super::End;
use crate::data::fill;
use crate::datagram::Datagram;

/// ECN codepoint of a capable packet (RFC 3168).
const ECT0: u8 = 0b10;

#[derive(Debug, Default)]
pub(super) struct TxStream {
    /// Messages not wholly cut into blocks: bytes left, end of stream.
    pub(super) messages: VecDeque<(u64, bool)>,
    pub(super) offset: u64,
}

impl End {
    /// Cuts what the application has written into blocks, one stream after the other.
    pub(super) fn slice(&mut self) {
        let (mut waiting, mut held_up) = (BTreeSet::new(), None);
        let writing = self.tx.values().filter(|tx| !tx.messages.is_empty());
        let writing = writing.count() as u16;
        let mut smaller = None;
        while let Some(stream) = self.next_stream(&waiting) {
            let shape = self.session.block_shape(writing);
            let shape = smaller.take().unwrap_or(self.plan.shape.unwrap_or(shape));
            let (n_full, s_full) = shape;
            let Some(tx) = self.tx.get_mut(&stream) else {
                break;
            };
            let Some(&(left, ends)) = tx.messages.front() else {
                break;
            };
            let capacity = u64::from(n_full) * u64::from(s_full) - PREAMBLE_LEN as u64;
            let len = left.min(capacity);
            let total = len + PREAMBLE_LEN as u64;
            let n = total.div_ceil(u64::from(s_full));
            // Some codes need symbols of an even size.
            let symbol_len = total.div_ceil(n).next_multiple_of(2).min(u64::from(s_full));
            let (n, symbol_len) = (n as u16, symbol_len as u16);
            match self.session.room_for(stream, n, symbol_len) {
                Room::Whole => {}
                Room::Part(n, symbol_len) => {
                    smaller = Some((n, symbol_len));
                    continue;
                }
                Room::Later => {
                    waiting.insert(stream);
                    continue;
                }
                Room::HeldUp => {
                    waiting.insert(stream);
                    held_up.get_or_insert(stream);
                    continue;
                }
            }
            let tail = len == left;
            let mut block = vec![0; usize::from(n) * usize::from(symbol_len)];
            let preamble = Preamble {
                offset: tx.offset,
                len: len as u32,
                end_of_stream: tail && ends,
            };
            block[..PREAMBLE_LEN].copy_from_slice(&preamble.encode());
            let data = &mut block[PREAMBLE_LEN..PREAMBLE_LEN + len as usize];
            fill(self.seed ^ u64::from(stream), tx.offset, data);
            tx.offset += len;
            if tail {
                tx.messages.pop_front();
            } else {
                tx.messages[0].0 -= len;
            }
            let slot = self.tx_free.pop().unwrap_or_else(|| {
                self.tx_slots.push(Vec::new());
                Slot(self.tx_slots.len() as u32 - 1)
            });
            self.tx_slots[slot.0 as usize] = block;
            self.session.submit(stream, slot, n, symbol_len, tail);
            self.tx_turn = stream;
        }
        let backlog = self.tx.values().any(|tx| !tx.messages.is_empty());
        self.session.set_backlog(backlog, held_up);
    }

    /// The next stream with data, in turn, that does not have to wait.
    fn next_stream(&self, waiting: &BTreeSet<u16>) -> Option<u16> {
        let is_next =
            |(id, tx): &(&u16, &TxStream)| !tx.messages.is_empty() && !waiting.contains(id);
        let after = self.tx.range(self.tx_turn + 1..).find(is_next);
        after
            .or_else(|| self.tx.iter().find(is_next))
            .map(|(id, _)| *id)
    }

    pub(super) fn seal(&mut self, transmit: Transmit) -> Datagram {
        assert!(
            self.last_pn
                .is_none_or(|last| transmit.packet_number > last),
            "packet numbers rise"
        );
        assert_eq!(transmit.header.packet_number, transmit.packet_number as u32);
        self.last_pn = Some(transmit.packet_number);
        if self.cids_used.last() != Some(&transmit.header.cid) {
            self.cids_used.push(transmit.header.cid);
        }
        let n = usize::from(transmit.header.n);
        let len = match transmit.fragment {
            None => transmit.body_len,
            Some(fragment) => usize::from(fragment.symbol_len),
        };
        let body = match transmit.content {
            Content::Control(body) => body,
            Content::Window { span, slots, row } => {
                let mut sizes: Vec<_> = span.blocks().collect();
                sizes.reverse();
                let blocks = slots.iter().zip(sizes).enumerate();
                let blocks: Vec<SpanBlock<'_>> = blocks
                    .map(|(i, (slot, (n, symbol_len)))| SpanBlock {
                        symbols: &self.tx_slots[slot.0 as usize],
                        symbol_len: usize::from(symbol_len),
                        count: usize::from(if i + 1 == slots.len() { span.upto() } else { n }),
                    })
                    .collect();
                let mut symbol = vec![0; span.symbol_len()];
                span::encode(&mut self.rows, row, &blocks, &mut symbol).expect("a row that exists");
                [span.encode(), symbol].concat()
            }
            Content::Symbol {
                slot,
                symbol: SymbolId::Source(index),
            } => {
                let at = usize::from(index) * len;
                self.tx_slots[slot.0 as usize][at..at + len].to_vec()
            }
            Content::Symbol {
                slot,
                symbol: SymbolId::Repair(code, row),
            } => {
                let mut out = vec![0; len];
                let source = &self.tx_slots[slot.0 as usize];
                self.encoder
                    .encode(code, n, len, source, row, &mut out)
                    .expect("a row that exists");
                out
            }
        };
        let body = match transmit.fragment {
            None => body,
            Some(fragment) => {
                assert_eq!(transmit.header.kind, PacketKind::Fragment);
                [&fragment.encode()[..], &body[fragment.range()]].concat()
            }
        };
        assert_eq!(body.len(), transmit.body_len);
        let datagram = Datagram {
            from: self.address,
            to: transmit.to.remote,
            header: transmit.header.encode(),
            body,
            ecn: if self.plan.ecn { ECT0 } else { 0 },
            corrupted: false,
        };
        self.ip_bytes_sent += datagram.ip_len() as u64;
        datagram
    }
}
