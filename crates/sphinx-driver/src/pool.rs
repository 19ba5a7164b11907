//! Memory for blocks, used again and again.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
#[cfg(not(all(test, loom)))]
use std::sync::{Mutex, MutexGuard};

#[cfg(all(test, loom))]
use loom::sync::{Mutex, MutexGuard};

/// Idle memory that the pool of an endpoint's engine keeps.
pub const POOL_BYTES: usize = 8 << 20;
/// Smallest class, in bytes; all are multiples of it.
const CLASS_BYTES_MIN: usize = 256;
/// Largest class, in bytes. Longer buffers are allocated and freed each time.
const CLASS_BYTES_MAX: usize = 4 << 20;
/// Classes from one power of two to the next: what is asked for is rarely a power of two, and with
/// one class for each, buffers took up to twice the memory that flow control counts.
const STEPS: usize = 8;
/// The first `STEPS` classes are as many multiples of the smallest.
const CLASSES: usize = STEPS * ((CLASS_BYTES_MAX / CLASS_BYTES_MIN / STEPS).ilog2() as usize + 1);

/// A pool of byte buffers that come back when they are dropped.
///
/// Buffers are sorted into classes by size, from 256 bytes to 4 MiB, eight for each doubling. The
/// pool keeps idle buffers up to a limit in bytes and frees what comes back beyond it; buffers in use are not
/// limited. Fresh memory is zero; memory used before holds what its last user left in it.
///
/// Clones are handles of the same pool, for any thread.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

struct Shared {
    idle_bytes_max: usize,
    used_bytes: AtomicUsize,
    idle: Mutex<Idle>,
}

struct Idle {
    /// Class i holds buffers of `class_bytes(i)` bytes. The last one in is the first one out, as the
    /// caches may still hold it.
    classes: [Vec<Box<[u8]>>; CLASSES],
    bytes: usize,
    reused: u64,
    allocated: u64,
}

/// What a pool has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of buffers in use, whole classes.
    pub used_bytes: usize,
    /// Bytes of idle buffers, never above the limit.
    pub idle_bytes: usize,
    /// Buffers handed out that had been used before.
    pub reused: u64,
    /// Buffers handed out that were allocated for it.
    pub allocated: u64,
}

impl BufferPool {
    /// An empty pool that keeps at most `idle_bytes_max` bytes of idle buffers; 0 turns pooling
    /// off.
    #[must_use]
    pub fn new(idle_bytes_max: usize) -> Self {
        let idle = Mutex::new(Idle {
            classes: std::array::from_fn(|_| Vec::new()),
            bytes: 0,
            reused: 0,
            allocated: 0,
        });
        Self {
            shared: Arc::new(Shared {
                idle_bytes_max,
                used_bytes: AtomicUsize::new(0),
                idle,
            }),
        }
    }

    /// A buffer of `len` bytes whose content is unspecified: zero, or what an earlier user left.
    ///
    /// Like `Vec`, it aborts or panics when the system has no memory, so `len` must be bounded
    /// before it is taken from a peer.
    #[must_use]
    pub fn take(&self, len: usize) -> PoolBuffer {
        let class = class_of(len);
        let reused = {
            let mut idle = self.shared.lock();
            let reused = class.and_then(|class| idle.classes[class].pop());
            match &reused {
                Some(memory) => {
                    idle.bytes -= memory.len();
                    idle.reused += 1;
                }
                None => idle.allocated += 1,
            }
            reused
        };
        // Not under the lock: large allocations are system calls.
        let memory = reused.unwrap_or_else(|| {
            let size = class.map_or(len, class_bytes);
            vec![0; size].into_boxed_slice()
        });
        let used = &self.shared.used_bytes;
        used.fetch_add(memory.len(), Ordering::Relaxed);
        PoolBuffer {
            memory,
            len,
            pool: Arc::clone(&self.shared),
        }
    }

    /// What the pool has done and holds now.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let idle = self.shared.lock();
        PoolStats {
            used_bytes: self.shared.used_bytes.load(Ordering::Relaxed),
            idle_bytes: idle.bytes,
            reused: idle.reused,
            allocated: idle.allocated,
        }
    }
}

impl Shared {
    /// A thread that panics cannot leave the lists half changed, so a poisoned lock is as good as
    /// any.
    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, memory: Box<[u8]>) {
        self.used_bytes.fetch_sub(memory.len(), Ordering::Relaxed);
        let Some(class) = class_of(memory.len()) else {
            return;
        };
        let mut idle = self.lock();
        if memory.len() <= self.idle_bytes_max.saturating_sub(idle.bytes) {
            idle.bytes += memory.len();
            idle.classes[class].push(memory);
        } else {
            // Free it without holding up the others.
            drop(idle);
            drop(memory);
        }
    }
}

/// The class whose buffers hold `len` bytes, or `None` if there is none as large.
fn class_of(len: usize) -> Option<usize> {
    // One unit less than needed, so that a full class is not the next one.
    let below = len.div_ceil(CLASS_BYTES_MIN).max(1) - 1;
    let doublings = (below / STEPS)
        .checked_ilog2()
        .map_or(0, |n| n as usize + 1);
    // Within a doubling the steps are this wide.
    let step = doublings.saturating_sub(1);
    let class = doublings * STEPS + (below >> step) % STEPS;
    (class < CLASSES).then_some(class)
}

/// The size of a class's buffers.
fn class_bytes(class: usize) -> usize {
    let (doublings, steps) = (class / STEPS, class % STEPS + 1);
    let units = match doublings.checked_sub(1) {
        None => steps,
        Some(step) => (STEPS + steps) << step,
    };
    units * CLASS_BYTES_MIN
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("idle_bytes_max", &self.shared.idle_bytes_max)
            .field("stats", &self.stats())
            .finish()
    }
}

/// An owned buffer that goes back to its [`BufferPool`] when it is dropped.
///
/// It is a slice of the length that was asked for; the memory behind it may be larger.
pub struct PoolBuffer {
    memory: Box<[u8]>,
    /// At most the length of `memory`.
    len: usize,
    pool: Arc<Shared>,
}

impl PoolBuffer {
    /// How long the buffer can become with [`resize`](Self::resize).
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Makes the buffer `len` bytes long, or as long as its [`capacity`](Self::capacity) if that
    /// is less. It is never reallocated, and the content of added bytes is unspecified.
    pub fn resize(&mut self, len: usize) {
        self.len = len.min(self.memory.len());
    }
}

impl Deref for PoolBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

impl AsRef<[u8]> for PoolBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for PoolBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.memory));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_little() {
        let cases = [
            (0, Some(0)),
            (1, Some(0)),
            (256, Some(0)),
            (257, Some(1)),
            (512, Some(1)),
            (513, Some(2)),
            (2048, Some(7)),
            (2049, Some(8)),
            (4096, Some(15)),
            (4097, Some(16)),
            (4609, Some(17)),
            (CLASS_BYTES_MAX, Some(CLASSES - 1)),
            (CLASS_BYTES_MAX + 1, None),
            (usize::MAX, None),
        ];
        for (len, class) in cases {
            assert_eq!(class_of(len), class, "{len}");
        }
        for class in 0..CLASSES {
            assert_eq!(class_of(class_bytes(class)), Some(class), "{class}");
        }
        for len in (1..CLASS_BYTES_MAX).step_by(97) {
            let bytes = class_bytes(class_of(len).unwrap());
            let waste = (len / STEPS).max(CLASS_BYTES_MIN);
            assert!((len..len + waste).contains(&bytes), "{len}: {bytes}");
        }
        assert_eq!(class_bytes(CLASSES - 1), CLASS_BYTES_MAX);
    }

    #[test]
    fn memory_comes_back_and_is_used_again() {
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take(1000);
        assert_eq!((buffer.len(), buffer.capacity()), (1000, 1024));
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer.fill(7);
        let place = buffer.as_ptr();
        drop(buffer);
        assert_eq!(
            pool.stats(),
            PoolStats {
                used_bytes: 0,
                idle_bytes: 1024,
                reused: 0,
                allocated: 1
            }
        );
        let buffer = pool.take(900);
        assert_eq!((buffer.as_ptr(), buffer.len()), (place, 900));
        assert_eq!(
            pool.stats(),
            PoolStats {
                used_bytes: 1024,
                idle_bytes: 0,
                reused: 1,
                allocated: 1
            }
        );
        assert_ne!(pool.take(900).as_ptr(), place);
    }

    #[test]
    fn resizing_stays_within_the_memory() {
        let pool = BufferPool::new(0);
        let mut buffer = pool.take(300);
        buffer.resize(512);
        assert_eq!(buffer.len(), 512);
        buffer.resize(513);
        assert_eq!(buffer.len(), 512);
        buffer.resize(0);
        assert!(buffer.is_empty());
    }

    #[test]
    fn the_limit_on_idle_bytes_holds() {
        let pool = BufferPool::new(2048);
        let buffers: Vec<PoolBuffer> = (0..10).map(|_| pool.take(1024)).collect();
        drop(buffers);
        assert_eq!(pool.stats().idle_bytes, 2048);
        let off = BufferPool::new(0);
        drop(off.take(1));
        assert_eq!(off.stats().idle_bytes, 0);
        let large = BufferPool::new(usize::MAX);
        drop(large.take(CLASS_BYTES_MAX + 1));
        assert_eq!(large.stats().idle_bytes, 0);
    }

    #[test]
    fn buffers_never_overlap_in_any_order_of_use() {
        for seed in 0..50u64 {
            let idle_bytes_max = (seed as usize) << 12;
            let pool = BufferPool::new(idle_bytes_max);
            let mut state = seed;
            let mut next = |bound: usize| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) as usize % bound
            };
            let mut held: Vec<(u8, PoolBuffer)> = Vec::new();
            for step in 0..300 {
                if held.len() > 20 || (next(2) == 0 && !held.is_empty()) {
                    let (mark, buffer) = held.swap_remove(next(held.len()));
                    assert!(buffer.iter().all(|byte| *byte == mark));
                } else {
                    let bound = 2 << next(14);
                    let len = next(bound);
                    let mut buffer = pool.take(len);
                    assert_eq!(buffer.len(), len);
                    buffer.fill(step as u8);
                    held.push((step as u8, buffer));
                }
                assert!(pool.stats().idle_bytes <= idle_bytes_max);
            }
        }
    }

    #[test]
    fn threads_share_a_pool() {
        let pool = BufferPool::new(1 << 16);
        std::thread::scope(|scope| {
            for mark in 0..4u8 {
                let pool = pool.clone();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let mut buffer = pool.take(900);
                        buffer.fill(mark);
                        assert!(buffer.iter().all(|byte| *byte == mark));
                    }
                });
            }
        });
        let stats = pool.stats();
        assert_eq!(stats.reused + stats.allocated, 4000);
        assert!(stats.idle_bytes <= 4 * 1024);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::thread;

    use super::*;

    /// One thread's buffers end in another one, as those of an application do in the engine.
    #[test]
    fn buffers_that_change_threads_are_one_threads_at_a_time_and_counted_once() {
        const LEN: usize = 256;
        loom::model(|| {
            let pool = BufferPool::new(2 * LEN);
            let given = pool.take(LEN);
            let threads = [Some(given), None].map(|given| {
                let pool = pool.clone();
                thread::spawn(move || {
                    let mut own = pool.take(LEN);
                    drop(given);
                    let mut other = pool.take(LEN);
                    own.fill(1);
                    other.fill(2);
                    assert!(own.iter().all(|byte| *byte == 1));
                })
            });
            for thread in threads {
                thread.join().unwrap();
            }
            let stats = pool.stats();
            assert_eq!(stats.reused + stats.allocated, 5);
            assert_eq!(stats.idle_bytes, 2 * LEN);
            assert_eq!(stats.used_bytes, 0);
        });
    }
}
