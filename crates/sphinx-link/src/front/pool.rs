//! Packet buffers that are used again.

use std::{cell::RefCell, rc::Rc};

use crate::{FlowKey, Packet, ip};

/// Buffers of one size. It grows to what is in use at once and allocates nothing from then on.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    free: Rc<RefCell<Vec<Box<[u8]>>>>,
    /// Bytes in front of the IP header.
    header: usize,
    size: usize,
}

impl Pool {
    /// A pool for packets of up to `mtu` bytes, with `header` bytes in front of each.
    pub(super) fn new(header: usize, mtu: usize) -> Pool {
        Pool {
            free: Rc::default(),
            header,
            size: header + mtu,
        }
    }

    /// A packet with this content, if it is not too long.
    pub(super) fn copy(&self, frame: &[u8]) -> Option<PooledPacket> {
        let mut packet = self.take();
        packet.buffer.get_mut(..frame.len())?.copy_from_slice(frame);
        packet.length = frame.len();
        Some(packet)
    }

    /// A packet of full size with any content.
    pub(super) fn take(&self) -> PooledPacket {
        let free = self.free.borrow_mut().pop();
        let buffer = free.unwrap_or_else(|| vec![0; self.size].into_boxed_slice());
        PooledPacket {
            buffer,
            length: self.size,
            pool: self.clone(),
        }
    }
}

/// An IP packet whose buffer returns to its pool, wherever it is dropped.
#[derive(Debug)]
pub(super) struct PooledPacket {
    buffer: Box<[u8]>,
    length: usize,
    pool: Pool,
}

impl PooledPacket {
    /// From the IP header on.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start()..self.length]
    }

    /// The packet with the bytes in front of its IP header.
    pub(super) fn frame(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Where the IP header is; at the end of what is too short to have one.
    fn start(&self) -> usize {
        self.pool.header.min(self.length)
    }

    /// The whole buffer, whatever the packet's length.
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Takes away what an interface has added behind the packet, since its frames have a smallest size.
    pub(super) fn cut_padding(&mut self) {
        if let Some(length) = ip::length(self.bytes()) {
            self.length = self.start() + length;
        }
    }

    pub(super) fn set_length(&mut self, length: usize) {
        self.length = length.min(self.buffer.len());
    }
}

impl Drop for PooledPacket {
    fn drop(&mut self) {
        self.pool
            .free
            .borrow_mut()
            .push(std::mem::take(&mut self.buffer));
    }
}

impl Packet for PooledPacket {
    fn ip_len(&self) -> usize {
        self.bytes().len()
    }

    fn ecn(&self) -> u8 {
        ip::ecn(self.bytes())
    }

    fn set_ecn(&mut self, ecn: u8) {
        let start = self.start();
        ip::set_ecn(&mut self.buffer[start..self.length], ecn);
    }

    fn corruptible_bits(&self) -> u64 {
        ip::body(self.bytes()).len() as u64 * 8
    }

    fn flip_bit(&mut self, bit: u64) {
        let start = self.length - ip::body(self.bytes()).len();
        ip::flip(&mut self.buffer[start..self.length], bit);
    }

    fn duplicate(&self) -> PooledPacket {
        let mut copy = self.pool.take();
        copy.buffer[..self.length].copy_from_slice(self.frame());
        copy.length = self.length;
        copy
    }

    fn flow(&self) -> FlowKey {
        ip::flow(self.bytes())
    }

    fn dscp(&self) -> u8 {
        ip::dscp(self.bytes())
    }

    fn is_pure_ack(&self) -> bool {
        ip::is_pure_ack(self.bytes())
    }

    fn sequence(&self) -> Option<u32> {
        ip::sequence(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let pool = Pool::new(0, 100);
        let mut packet = pool.take();
        packet.buffer()[..3].copy_from_slice(b"abc");
        packet.set_length(3);
        let copy = packet.duplicate();
        assert_eq!((copy.bytes(), copy.ip_len()), (&b"abc"[..], 3));
        drop((packet, copy));
        assert_eq!(pool.free.borrow().len(), 2);
        let again = pool.take();
        assert_eq!((again.ip_len(), pool.free.borrow().len()), (100, 1));
    }

    #[test]
    fn a_link_header_is_carried_and_not_counted() {
        let pool = Pool::new(14, 50);
        let mut frame = vec![1; 14];
        frame.extend([0x6b, 0xa0]);
        frame.resize(14 + 40, 0);
        let mut packet = pool.copy(&frame).unwrap();
        assert_eq!((packet.ip_len(), packet.corruptible_bits()), (40, 0));
        assert!(packet.mark_ce());
        assert_eq!(packet.dscp(), 46);
        let copy = packet.duplicate();
        assert_eq!(
            (copy.frame()[13], copy.frame()[15], copy.bytes()[1]),
            (1, 0xb0, 0xb0)
        );
        assert!(pool.copy(&[0; 65]).is_none());
        assert_eq!(pool.copy(&[0; 3]).unwrap().ip_len(), 0);
    }
    #[test]
    fn what_fills_up_a_short_frame_is_not_of_the_packet() {
        // An acknowledgement of TCP, 40 bytes, in the shortest frame that there is.
        let mut frame = vec![0; 60];
        frame[14..18].copy_from_slice(&[0x45, 0, 0, 40]);
        frame[23] = 6;
        (frame[46], frame[47]) = (0x50, 0x10);
        let mut packet = Pool::new(14, 100).copy(&frame).unwrap();
        assert_eq!((packet.ip_len(), packet.is_pure_ack()), (46, false));
        packet.cut_padding();
        assert_eq!((packet.ip_len(), packet.is_pure_ack()), (40, true));
        assert_eq!(packet.frame(), &frame[..54]);
        packet.cut_padding();
        assert_eq!(packet.ip_len(), 40);
    }
}
