//! The link emulator with any settings and packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::link::settings(data));
