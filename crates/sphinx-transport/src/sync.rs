//! Locks, condition variables and atomics that threads meet at: the standard library's, and loom's in models of
//! threads (`make loom`), where loom runs every order in which the threads may come.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicU32};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32},
};

#[cfg(all(test, loom))]
pub(crate) use model::AtomicBool;

#[cfg(all(test, loom))]
mod model {
    use std::sync::atomic::Ordering;

    /// Loom's, but for stores. Of exchanges that follow one another, as those of threads that ring, nothing comes in
    /// between: a store that comes after the first one comes after all. Loom does not know that, and would let the
    /// next exchange find what was there before the store. Where the store is an exchange itself, it does.
    #[derive(Debug)]
    pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl AtomicBool {
        pub(crate) fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> bool {
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: bool, order: Ordering) {
            self.0.swap(value, order);
        }

        pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
            self.0.swap(value, order)
        }
    }
}
