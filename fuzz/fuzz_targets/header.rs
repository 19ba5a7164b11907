//! Packet headers and packet numbers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::wire::header(data));
