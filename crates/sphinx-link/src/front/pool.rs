//! Packet buffers that are used again.

use std::{cell::RefCell, rc::Rc};

use crate::{FlowKey, Packet, ip};

/// Buffers of one size. It grows to what is in use at once and allocates nothing from then on.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    free: Rc<RefCell<Vec<Box<[u8]>>>>,
    size: usize,
}

impl Pool {
    pub(super) fn new(size: usize) -> Pool {
        Pool {
            free: Rc::default(),
            size,
        }
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
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// The whole buffer, whatever the packet's length.
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
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
        self.length
    }

    fn mark_ce(&mut self) -> bool {
        ip::mark_ce(&mut self.buffer[..self.length])
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
        copy.buffer[..self.length].copy_from_slice(self.bytes());
        copy.length = self.length;
        copy
    }

    fn flow(&self) -> FlowKey {
        ip::flow(self.bytes())
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
        let pool = Pool::new(100);
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
}
