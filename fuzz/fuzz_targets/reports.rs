//! Reports of losses between agents.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::pep::reports(data));
