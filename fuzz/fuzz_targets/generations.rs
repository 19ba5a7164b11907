//! A session of generations in a bounded buffer against an authenticated hostile peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::generations::hostile_peer(data));
