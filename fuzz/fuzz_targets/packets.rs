//! ECN marks and bit errors on bytes that need not be IP.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::link::packet(data));
