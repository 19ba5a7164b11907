//! Marks that agents for TCP tell each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::pep::marks(data));
