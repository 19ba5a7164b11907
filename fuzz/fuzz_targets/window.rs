//! The sliding-window decoder against hostile rows and symbols.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::fec::window(data));
