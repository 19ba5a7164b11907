//! The Sphinx protocol as a deterministic state machine: no clock, no socket, no thread.

#![forbid(unsafe_code)]

pub mod cc;
