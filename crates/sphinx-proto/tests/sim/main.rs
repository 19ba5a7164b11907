//! Two sessions and a link in virtual time.
//!
//! `sphinx-sim` joins them; the modules are tests, one per behaviour. Time, bytes and faults come from
//! seeds, so every run repeats exactly.

mod bond;
mod bulk;
mod bursts;
mod codes;
mod departures;
mod ecn;
mod ending;
mod faults;
mod goals;
mod hostile;
mod icm;
mod jitter;
mod links;
mod meeting;
mod paths;
mod quiet;
mod random;
mod rates;
mod sc;
mod sc_table;
mod several;
mod short;
mod skips;
mod steps;
mod table;
mod uneven;
mod windows;
mod workloads;
