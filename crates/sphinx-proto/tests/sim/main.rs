//! Two sessions and a link in virtual time.
//!
//! [`pair::Pair`] joins two [`end::End`]s, each a `Session` with the smallest driver that moves real
//! bytes, by two `sphinx_link::Link`s and jumps from event to event. Time, bytes and faults come from
//! seeds, so every run repeats exactly. The other modules are tests, one per behaviour.

mod data;
mod end;
mod pair;
mod spans;

mod bulk;
mod codes;
mod ending;
mod faults;
mod hostile;
mod icm;
mod paths;
mod random;
mod rates;
mod table;
mod windows;
mod workloads;
