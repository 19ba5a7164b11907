//! Symbols that share a packet.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::wire::bundle(data));
