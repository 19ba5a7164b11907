//! A session in the paper's mode against an authenticated hostile peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::paper::hostile_peer(data));
