//! Rings that are shared with the kernel: one side puts entries in, the other takes them out.
//!
//! Either side has an index that counts all entries, modulo 2^32, and that only it writes. Entries between the two are the consumer's. What was written to an
//! entry, and to the frames that it speaks of, is seen by whoever has seen the index behind it (release and acquire).

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::xdp::XdpRingOffset;

use crate::umem::Mapping;

/// `XDP_RING_NEED_WAKEUP`
const NEED_WAKEUP: u32 = 1;

/// Where the parts of a ring are.
#[derive(Debug)]
struct Parts<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: Option<NonNull<AtomicU32>>,
    entries: NonNull<T>,
    mask: u32,
    /// The mapping that all these pointers point into.
    _memory: Mapping,
}

// SAFETY: they point into the mapping that goes with them, and `T` is an integer or a structure of integers.
unsafe impl<T: Copy + Send> Send for Parts<T> {}

impl<T: Copy> Parts<T> {
    /// `entries` is a power of two, as the kernel wants it.
    fn new(memory: Mapping, offsets: &XdpRingOffset, entries: u32) -> io::Result<Self> {
        let out_of_range = || io::Error::from(io::ErrorKind::InvalidData);
        let index = |offset: u64| {
            let at = usize::try_from(offset)
                .ok()
                .filter(|at| at.is_multiple_of(align_of::<AtomicU32>()))?;
            memory.at(at, size_of::<AtomicU32>()).map(NonNull::cast)
        };
        let at = usize::try_from(offsets.desc).map_err(|_| out_of_range())?;
        let bytes = size_of::<T>() * entries as usize;
        let first = memory
            .at(at, bytes)
            .filter(|_| at.is_multiple_of(align_of::<T>()));
        Ok(Self {
            producer: index(offsets.producer).ok_or_else(out_of_range)?,
            consumer: index(offsets.consumer).ok_or_else(out_of_range)?,
            flags: offsets.flags.and_then(index),
            entries: first.ok_or_else(out_of_range)?.cast(),
            mask: entries - 1,
            _memory: memory,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: it points to an aligned word inside the mapping, which lives as long as this does; the kernel's accesses are atomic.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as above.
        let flags = self.flags.map(|flags| unsafe { flags.as_ref() });
        flags.is_none_or(|flags| flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index below the number of entries, which all lie inside the mapping.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }
}

/// Bytes that a ring takes at its place in the kernel's memory.
pub(crate) fn ring_bytes<T>(offsets: &XdpRingOffset, entries: u32) -> usize {
    offsets.desc as usize + size_of::<T>() * entries as usize
}

/// A ring that this process puts entries into.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    parts: Parts<T>,
    /// The next entry, and how far the kernel knows of them.
    next: u32,
    published: u32,
    /// How far the kernel was when it was looked at last.
    seen: u32,
}

impl<T: Copy> Producer<T> {
    pub(crate) fn new(memory: Mapping, offsets: &XdpRingOffset, entries: u32) -> io::Result<Self> {
        let parts = Parts::new(memory, offsets, entries)?;
        let next = parts.producer().load(Ordering::Relaxed);
        let seen = parts.consumer().load(Ordering::Acquire);
        Ok(Self {
            parts,
            next,
            published: next,
            seen,
        })
    }

    /// Whether there is room for so many entries.
    pub(crate) fn has_room(&mut self, entries: u32) -> bool {
        let size = self.parts.mask + 1;
        let room = |seen: u32| size - self.next.wrapping_sub(seen).min(size) >= entries;
        if !room(self.seen) {
            // What the kernel has read may be written again.
            self.seen = self.parts.consumer().load(Ordering::Acquire);
        }
        room(self.seen)
    }

    /// Puts an entry in, which the kernel does not see yet; `false` if the ring is full.
    pub(crate) fn push(&mut self, entry: T) -> bool {
        if !self.has_room(1) {
            return false;
        }
        // SAFETY: the entry is inside the ring and this side's: the kernel has read it, and has not been told of it again.
        unsafe { self.parts.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Lets the kernel see what has been put in.
    pub(crate) fn publish(&mut self) {
        if self.published != self.next {
            self.parts.producer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
    }

    /// Entries that the kernel knows of and has not read.
    pub(crate) fn waiting(&mut self) -> u32 {
        self.seen = self.parts.consumer().load(Ordering::Acquire);
        self.published.wrapping_sub(self.seen)
    }

    /// The kernel does not look at the ring before it is told to.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.parts.needs_wakeup()
    }
}

/// A ring that this process takes entries from.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    parts: Parts<T>,
    /// The next entry, and how far the kernel knows that they have been read.
    next: u32,
    released: u32,
    /// How far the kernel was when it was looked at last.
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    pub(crate) fn new(memory: Mapping, offsets: &XdpRingOffset, entries: u32) -> io::Result<Self> {
        let parts = Parts::new(memory, offsets, entries)?;
        let next = parts.consumer().load(Ordering::Relaxed);
        Ok(Self {
            parts,
            next,
            released: next,
            seen: next,
        })
    }

    /// Takes the next entry.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the entry is inside the ring and this side's: the kernel's index is behind it, and ours has not passed it. Every pattern of
        // bits is a value of the integers that it consists of.
        let entry = unsafe { self.parts.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Lets the kernel write again what has been taken.
    pub(crate) fn release(&mut self) {
        if self.released != self.next {
            self.parts.consumer().store(self.next, Ordering::Release);
            self.released = self.next;
        }
    }

    /// There is nothing to take.
    pub(crate) fn is_empty(&mut self) -> bool {
        if self.seen == self.next {
            self.seen = self.parts.producer().load(Ordering::Acquire);
        }
        self.seen == self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u32 = 8;
    const OFFSETS: XdpRingOffset = XdpRingOffset {
        producer: 0,
        consumer: 64,
        desc: 128,
        flags: Some(192 + 8 * ENTRIES as u64),
    };

    /// Both sides of a ring in memory that is mapped twice, as the kernel's is.
    fn ring() -> (Producer<u64>, Consumer<u64>) {
        let [one, two] = Mapping::twice(4096);
        let producer = Producer::new(one, &OFFSETS, ENTRIES).unwrap();
        (producer, Consumer::new(two, &OFFSETS, ENTRIES).unwrap())
    }

    #[test]
    fn entries_come_out_in_order_once_they_are_published() {
        let (mut producer, mut consumer) = ring();
        for entry in 0..8 {
            assert!(producer.push(entry));
        }
        assert!(!producer.push(8) && consumer.is_empty());
        producer.publish();
        assert_eq!(producer.waiting(), 8);
        let taken: Vec<u64> = std::iter::from_fn(|| consumer.pop()).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7]);
        // The ring is full until the entries are released.
        assert!(!producer.push(8));
        consumer.release();
        assert!(producer.push(8) && producer.waiting() == 0);
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        // Miri takes its time.
        const COUNT: u64 = if cfg!(miri) { 200 } else { 20_000 };
        let (mut producer, mut consumer) = ring();
        let writer = std::thread::spawn(move || {
            for entry in 0..COUNT {
                while !producer.push(entry) {
                    std::thread::yield_now();
                }
                producer.publish();
            }
        });
        for expected in 0..COUNT {
            let entry = loop {
                match consumer.pop() {
                    Some(entry) => break entry,
                    None => std::thread::yield_now(),
                }
            };
            consumer.release();
            assert_eq!(entry, expected);
        }
        writer.join().unwrap();
    }

    #[test]
    fn parts_outside_of_the_memory_are_refused() {
        for offset in [4092, 4096, u64::MAX] {
            let offsets = XdpRingOffset {
                desc: offset,
                ..OFFSETS
            };
            let memory = Mapping::anonymous(4096).unwrap();
            assert!(Producer::<u64>::new(memory, &offsets, ENTRIES).is_err());
        }
    }
}
