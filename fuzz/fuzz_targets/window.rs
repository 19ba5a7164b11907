//! The sliding-window decoder against hostile rows and symbols.
#![no_main]

#[path = "../../crates/sphinx-fec/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|data: &[u8]| hostile::window(data));
