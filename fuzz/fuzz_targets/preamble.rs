//! The first bytes of a block.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::wire::preamble(data));
