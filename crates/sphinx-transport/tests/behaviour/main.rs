//! What two ends of this crate do, as an application sees it, over loopback and a proxy that stands
//! for the link. Needs no privileges, but for the tests of path MTUs, which are skipped without.

mod budget;
mod controllers;
mod datagrams;
mod early;
mod ending;
mod hostile;
#[cfg(feature = "tokio")]
mod http;
mod marks;
mod meeting;
mod memory;
mod moving;
mod path;
mod proxy;
mod resets;
mod several;
mod shards;
mod short;
mod support;
mod tasks;
mod transfer;
mod unordered;
mod windows;
mod workers;
