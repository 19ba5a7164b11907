//! Threads and what is between them; in models those of loom, which tries every order that they may come in, or of shuttle, which tries orders at
//! random.

#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use std::sync::{atomic, mpsc};
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use std::thread;

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{atomic, mpsc};
#[cfg(all(test, loom))]
pub(crate) use loom::thread;

#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{atomic, mpsc};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::thread;

#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use rtrb as ring;

/// Neither can look into the rings of `rtrb`. These have the same calls, and what one of theirs says about order: what was put in is seen
/// by whoever takes it out.
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) mod ring {
    use std::collections::VecDeque;
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};

    use super::atomic::AtomicUsize;

    struct Ring<T> {
        /// Where the other side looks first; threads may switch there.
        len: AtomicUsize,
        /// Never waited for: threads do not switch while it is locked.
        entries: Mutex<VecDeque<T>>,
        capacity: usize,
    }

    pub(crate) struct RingBuffer;

    pub(crate) struct Producer<T>(Arc<Ring<T>>);

    pub(crate) struct Consumer<T>(Arc<Ring<T>>);

    #[derive(Debug)]
    pub(crate) enum PushError<T> {
        Full(T),
    }

    impl RingBuffer {
        #[expect(clippy::new_ret_no_self, reason = "as rtrb has it")]
        pub(crate) fn new<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
            let ring = Arc::new(Ring {
                len: AtomicUsize::new(0),
                entries: Mutex::default(),
                capacity,
            });
            (Producer(Arc::clone(&ring)), Consumer(ring))
        }
    }

    impl<T> Producer<T> {
        pub(crate) fn push(&mut self, entry: T) -> Result<(), PushError<T>> {
            if self.0.len.load(Ordering::Acquire) == self.0.capacity {
                return Err(PushError::Full(entry));
            }
            self.0.entries.lock().unwrap().push_back(entry);
            self.0.len.fetch_add(1, Ordering::Release);
            Ok(())
        }
    }

    impl<T> Consumer<T> {
        /// `Err` if there is nothing.
        pub(crate) fn pop(&mut self) -> Result<T, ()> {
            if self.0.len.load(Ordering::Acquire) == 0 {
                return Err(());
            }
            let entry = self.0.entries.lock().unwrap().pop_front();
            self.0.len.fetch_sub(1, Ordering::Release);
            entry.ok_or(())
        }

        /// Whether the other end is gone.
        pub(crate) fn is_abandoned(&self) -> bool {
            Arc::strong_count(&self.0) == 1
        }
    }
}
