//! Opening packets elsewhere.

use std::ops::Range;
use std::sync::Arc;

use sphinx_proto::wire::Header;
use sphinx_proto::{PacketNumber, PathId};

use super::{RUN_BYTES_MAX, RUN_PACKETS_MAX};
use crate::driver::Origin;
use crate::protection::OpenPacket;

/// Packets of one path and epoch that have arrived one after another, without header protection.
pub(crate) struct OpenRun {
    pub(crate) path: PathId,
    pub(crate) epoch: u64,
    key: Arc<dyn OpenPacket>,
    pub(crate) packets: Vec<Opening>,
    /// Datagrams, one after another, and how far it is filled.
    memory: Vec<u8>,
    filled: usize,
}

/// A packet of a run.
pub(crate) struct Opening {
    pub(crate) origin: Origin,
    pub(crate) header: Header,
    pub(crate) packet_number: PacketNumber,
    /// Where the datagram lies.
    at: Range<usize>,
    /// Where its body lies in it, once it has been opened.
    pub(crate) body: Option<Range<usize>>,
}

impl OpenRun {
    pub(crate) fn new(path: PathId, epoch: u64, key: Arc<dyn OpenPacket>) -> Self {
        Self {
            path,
            epoch,
            key,
            packets: Vec::new(),
            memory: Vec::new(),
            filled: 0,
        }
    }

    /// Empties the run for another key, keeping its memory.
    pub(crate) fn begin_again(&mut self, path: PathId, epoch: u64, key: Arc<dyn OpenPacket>) {
        (self.path, self.epoch, self.key) = (path, epoch, key);
        self.packets.clear();
        self.filled = 0;
    }

    /// Whether it is full, for one more datagram of `len` bytes.
    pub(crate) fn is_full(&self, len: usize) -> bool {
        self.packets.len() >= RUN_PACKETS_MAX || self.filled + len > RUN_BYTES_MAX
    }

    /// Memory for copies of datagrams, or with those of all packets, of which so much is filled.
    pub(crate) fn set_memory(&mut self, memory: Vec<u8>, filled: usize) {
        (self.memory, self.filled) = (memory, filled);
    }

    /// Takes the run's memory, which is used again.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.memory)
    }

    /// A copy of a datagram.
    pub(crate) fn copy(
        &mut self,
        origin: Origin,
        header: Header,
        packet_number: PacketNumber,
        datagram: &[u8],
    ) {
        let at = self.filled..self.filled + datagram.len();
        if self.memory.len() < at.end {
            self.memory.resize(RUN_BYTES_MAX.max(at.end), 0);
        }
        self.memory[at.clone()].copy_from_slice(datagram);
        self.filled = at.end;
        self.push(origin, header, packet_number, at);
    }

    /// A packet whose datagram lies there in its memory.
    pub(crate) fn push(
        &mut self,
        origin: Origin,
        header: Header,
        packet_number: PacketNumber,
        at: Range<usize>,
    ) {
        self.packets.push(Opening {
            origin,
            header,
            packet_number,
            at,
            body: None,
        });
    }

    pub(crate) fn bytes(&self) -> usize {
        self.filled
    }

    /// A packet's datagram.
    pub(crate) fn datagram(&self, packet: &Opening) -> &[u8] {
        &self.memory[packet.at.clone()]
    }

    pub(super) fn run(&mut self) {
        for packet in &mut self.packets {
            let datagram = &mut self.memory[packet.at.clone()];
            packet.body = self.key.open(packet.packet_number, datagram);
        }
    }
}
