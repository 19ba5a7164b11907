//! The receiving half: puts symbols in their places, decodes, compares every byte, and lets blocks go.

use std::collections::BTreeMap;

use sphinx_fec::{CodeId, Repair, Row, bits};
use sphinx_proto::wire::{
    FRAGMENT_PREFIX_LEN, Header, OVERHEAD, PREAMBLE_LEN, Preamble, SymbolId, expand_packet_number,
};
use sphinx_proto::{
    CoveredBlock, Job, Nanos, PacketMeta, Placement, Received, Slot, Tuple, block_cost,
};

use super::End;
use super::spans::View;
use crate::data::fill;
use crate::datagram::Datagram;
use crate::plan::Reader;

/// Numbers below the largest by more than this are late (`docs/protocol.md` §4).
const REPLAY_WINDOW: u64 = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct RxStream {
    /// Blocks complete and not in order yet: id to (offset, length, end, slot).
    early: BTreeMap<u64, (Preamble, Slot)>,
    next_block: u64,
    in_order: u64,
    received: u64,
    pub(super) ended: bool,
}

#[derive(Debug, Default)]
pub(super) struct RxSlot {
    n: usize,
    symbol_len: usize,
    source: Vec<u8>,
    have: Vec<u64>,
    repairs: Vec<(CodeId, Row, Vec<u8>)>,
    in_use: bool,
}

impl RxSlot {
    fn view(&self) -> View<'_> {
        View {
            source: &self.source,
            symbol_len: self.symbol_len,
            have: &self.have,
        }
    }
}

impl End {
    /// A datagram arrives.
    pub(crate) fn receive(&mut self, now: Nanos, datagram: &Datagram) {
        if datagram.corrupted {
            return;
        }
        let header = Header::decode(&datagram.header).expect("an honest header");
        if !self.cids.contains(&header.cid) {
            return;
        }
        let expected = self.largest.map_or(0, |pn| pn + 1);
        let packet_number = expand_packet_number(header.packet_number, expected);
        let late = packet_number + REPLAY_WINDOW <= expected;
        if late || !self.seen.insert(packet_number) {
            return;
        }
        self.largest = self.largest.max(Some(packet_number));
        while self
            .seen
            .first()
            .is_some_and(|pn| pn + REPLAY_WINDOW < expected)
        {
            self.seen.pop_first();
        }
        let meta = PacketMeta {
            now,
            received_at: now,
            packet_number,
            tuple: Tuple {
                remote: datagram.from,
                local_ip: Some(self.own_address.ip()),
            },
            ecn: datagram.ecn,
            datagram_len: OVERHEAD + datagram.body.len(),
        };
        match self.session.handle_packet(&meta, &header, &datagram.body) {
            Received::Nothing => {}
            Received::Part(place) => {
                let part = &datagram.body[FRAGMENT_PREFIX_LEN..];
                let symbol = &mut self.parts[usize::from(place.place)];
                symbol.resize(usize::from(place.symbol_len), 0);
                symbol[place.offset..][..part.len()].copy_from_slice(part);
                if let Some(whole) = place.whole {
                    let symbol = std::mem::take(symbol);
                    self.place(whole, &symbol);
                }
            }
            Received::Window { span, covered } => {
                let symbol = &datagram.body[span.body_len() - span.symbol_len()..];
                self.take_window(&header, &covered, symbol);
                self.restore(now);
            }
            Received::Symbol(placement) => {
                self.place(placement, &datagram.body);
                if let Placement::Block {
                    symbol: SymbolId::Source(index),
                    ..
                } = placement
                {
                    self.spans
                        .learn(header.stream, header.block, index, &datagram.body);
                    self.restore(now);
                }
            }
        }
    }

    fn place(&mut self, placement: Placement, symbol: &[u8]) {
        match placement {
            Placement::Discard => {}
            Placement::Block {
                slot,
                n,
                symbol_len,
                symbol: SymbolId::Source(index),
            } => {
                let rx = self.rx_slot(slot, n, symbol_len);
                let at = usize::from(index) * symbol.len();
                rx.source[at..at + symbol.len()].copy_from_slice(symbol);
                bits::insert(&mut rx.have, usize::from(index));
            }
            Placement::Block {
                slot,
                n,
                symbol_len,
                symbol: SymbolId::Repair(code, row),
            } => {
                let rx = self.rx_slot(slot, n, symbol_len);
                rx.repairs.push((code, row, symbol.to_vec()));
                assert!(
                    rx.repairs.len() <= rx.n,
                    "no more repairs than symbols are kept"
                );
            }
        }
    }

    fn take_window(&mut self, header: &Header, covered: &[CoveredBlock], symbol: &[u8]) {
        for block in covered {
            if let Some(slot) = block.slot {
                self.rx_slot(slot, block.n, block.symbol_len);
            }
        }
        let rx_slots = &self.rx_slots;
        let view = |slot: Slot| rx_slots[slot.0 as usize].view();
        let name = (header.stream, header.row);
        self.spans.add_repair(name, covered, symbol, view);
    }

    /// Stores what windows have restored.
    fn restore(&mut self, now: Nanos) {
        while let Some((stream, block, slot, index, value)) = self.spans.next_restored() {
            let rx = &mut self.rx_slots[slot.0 as usize];
            let at = usize::from(index) * rx.symbol_len;
            rx.source[at..at + rx.symbol_len].copy_from_slice(&value[..rx.symbol_len]);
            bits::insert(&mut rx.have, usize::from(index));
            self.session.symbol_restored(now, stream, block, index);
        }
    }

    fn rx_slot(&mut self, slot: Slot, n: u16, symbol_len: u16) -> &mut RxSlot {
        let index = slot.0 as usize;
        if self.rx_slots.len() <= index {
            self.rx_slots.resize_with(index + 1, RxSlot::default);
        }
        let (n_bytes, cost) = (usize::from(n), block_cost(n, symbol_len));
        let rx = &mut self.rx_slots[index];
        if !rx.in_use {
            *rx = RxSlot {
                n: n_bytes,
                symbol_len: usize::from(symbol_len),
                source: vec![0; n_bytes * usize::from(symbol_len)],
                have: vec![0; bits::words(n_bytes)],
                repairs: Vec::new(),
                in_use: true,
            };
            self.rx_held += cost;
            self.rx_held_max = self.rx_held_max.max(self.rx_held);
            assert!(
                self.rx_held <= self.recv_window,
                "more blocks than the window"
            );
        }
        rx
    }

    pub(super) fn start_job(&mut self, now: Nanos, job: Job) {
        if self.plan.job_delay_max == 0 {
            self.decode(job);
            self.session.job_done(job.id);
        } else {
            let at = now + self.rng.below(self.plan.job_delay_max);
            self.jobs.insert((at, job.id), job);
        }
    }

    pub(super) fn decode(&mut self, job: Job) {
        let rx = &mut self.rx_slots[job.decode.0 as usize];
        let decoder = if job.maximum_likelihood {
            &mut self.thorough_decoder
        } else {
            &mut self.decoder
        };
        let repairs: Vec<Repair<'_>> = rx
            .repairs
            .iter()
            .map(|(code, row, symbol)| Repair {
                code: *code,
                row: *row,
                symbol,
            })
            .collect();
        decoder
            .decode(rx.n, rx.symbol_len, &mut rx.source, &rx.have, &repairs)
            .expect("the core asks only when it can be done");
    }

    /// A whole block: its bytes must be those that were sent.
    pub(super) fn on_block(&mut self, now: Nanos, stream: u16, block: u64, slot: Slot) {
        let view = self.rx_slots[slot.0 as usize].view();
        self.spans.learn_block((stream, block), slot, view);
        self.restore(now);
        let source = &self.rx_slots[slot.0 as usize].source;
        let preamble = Preamble::decode(source).expect("an honest preamble");
        let (data, padding) = source[PREAMBLE_LEN..].split_at(preamble.len as usize);
        let mut expected = vec![0; data.len()];
        fill(
            self.peer_seed ^ u64::from(stream),
            preamble.offset,
            &mut expected,
        );
        assert!(data == expected, "bytes of stream {stream} block {block}");
        assert!(padding.iter().all(|b| *b == 0));
        self.blocks_received
            .push((now, stream, preamble.offset, preamble.len));

        let rx = self.rx.entry(stream).or_default();
        assert!(block >= rx.next_block, "block {block} came twice");
        rx.received += u64::from(preamble.len);
        assert!(
            rx.early.insert(block, (preamble, slot)).is_none(),
            "block {block} came twice"
        );
        if self.plan.reader == Reader::AnyOrder && self.plan.unread != Some(stream) {
            self.to_release.push_back((now, slot));
        }
        while let Some((preamble, slot)) = rx.early.remove(&rx.next_block) {
            assert!(!rx.ended, "data behind the end of the stream");
            assert_eq!(preamble.offset, rx.in_order, "a gap in stream {stream}");
            rx.next_block += 1;
            rx.in_order += u64::from(preamble.len);
            rx.ended = preamble.end_of_stream;
            self.bytes_received += u64::from(preamble.len);
            match self.plan.reader {
                _ if self.plan.unread == Some(stream) => {}
                Reader::AnyOrder => {}
                Reader::InOrder => self.to_release.push_back((now, slot)),
                Reader::Slow(rate) => {
                    let time = u64::from(preamble.len) * 1_000_000_000 / rate;
                    self.reader_free_at = self.reader_free_at.max(now) + time;
                    self.to_release.push_back((self.reader_free_at, slot));
                }
            }
        }
        while let Some((_, slot)) = self.to_release.pop_front_if(|r| r.0 <= now) {
            self.release(now, slot);
        }
    }

    pub(super) fn release(&mut self, now: Nanos, slot: Slot) {
        let rx = std::mem::take(&mut self.rx_slots[slot.0 as usize]);
        assert!(rx.in_use);
        self.spans.taken(slot, rx.source, rx.symbol_len);
        self.rx_held -= block_cost(rx.n as u16, rx.symbol_len as u16);
        self.session.release(now, slot);
    }
}
