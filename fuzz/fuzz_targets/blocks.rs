//! Tracker, block decoder and block receiver against hostile rows and symbols.
#![no_main]

#[path = "../../crates/sphinx-fec/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|data: &[u8]| hostile::blocks(data));
