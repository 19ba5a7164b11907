//! What agents for TCP tell each other of flows.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::pep::handovers(data));
