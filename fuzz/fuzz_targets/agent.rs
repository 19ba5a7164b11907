//! An agent for TCP with any packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::pep::agent(data));
