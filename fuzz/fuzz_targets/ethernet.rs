//! Ethernet frames, with datagrams in them or questions for neighbours.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::card::frames(data));
