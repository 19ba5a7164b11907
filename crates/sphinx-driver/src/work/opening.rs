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
    datagrams: Vec<u8>,
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
            datagrams: Vec::new(),
        }
    }

    /// Begins again with the memory of this one.
    pub(crate) fn begin_again(&mut self, path: PathId, epoch: u64, key: Arc<dyn OpenPacket>) {
        (self.path, self.epoch, self.key) = (path, epoch, key);
        self.packets.clear();
        self.datagrams.clear();
    }

    /// Whether it is full, for one more datagram of `len` bytes.
    pub(crate) fn is_full(&self, len: usize) -> bool {
        self.packets.len() >= RUN_PACKETS_MAX || self.datagrams.len() + len > RUN_BYTES_MAX
    }

    pub(crate) fn push(
        &mut self,
        origin: Origin,
        header: Header,
        packet_number: PacketNumber,
        datagram: &[u8],
    ) {
        let from = self.datagrams.len();
        self.datagrams.extend_from_slice(datagram);
        self.packets.push(Opening {
            origin,
            header,
            packet_number,
            at: from..self.datagrams.len(),
            body: None,
        });
    }

    pub(crate) fn bytes(&self) -> usize {
        self.datagrams.len()
    }

    /// A packet's datagram.
    pub(crate) fn datagram(&self, packet: &Opening) -> &[u8] {
        &self.datagrams[packet.at.clone()]
    }

    pub(super) fn run(&mut self) {
        for packet in &mut self.packets {
            let datagram = &mut self.datagrams[packet.at.clone()];
            packet.body = self.key.open(packet.packet_number, datagram);
        }
    }
}
