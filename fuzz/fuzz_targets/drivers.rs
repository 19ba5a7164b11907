//! The driver that ships against an authenticated hostile peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::driver::hostile_peer(data));
