//! The application protocol `files`: trees of files on one stream, a verdict on one stream back.
//!
//! `docs/file-transfer.md` specifies it byte by byte.

pub(crate) mod contents;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod paths;
pub(crate) mod recv;
pub(crate) mod send;
mod target;
pub(crate) mod tree;
mod wire;

#[cfg(test)]
mod tests;

pub(crate) use target::OutputDir;
