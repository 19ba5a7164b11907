//! The other end, started by ssh: what travels through its pipe, and how the two ends meet over UDP.
//!
//! `docs/file-transfer.md` specifies it byte by byte.

pub(crate) mod address;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(crate) mod meeting;
pub(crate) mod messages;
pub(crate) mod pipe;
mod place;
pub(crate) mod push;
pub(crate) mod start;

pub(crate) use place::{Host, Place};
