//! The Sphinx core driven: sealing, slicing, coding and assembling, without clock, socket or thread.

#![forbid(unsafe_code)]

pub mod keys;
mod pool;

pub use pool::{BufferPool, PoolBuffer, PoolStats};
