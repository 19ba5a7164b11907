//! A session against an authenticated hostile peer and an unpunctual driver.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::session::hostile_peer(data));
