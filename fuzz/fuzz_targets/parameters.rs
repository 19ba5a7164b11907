//! The parameters that the two ends tell each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_transport::fuzzing::parameters(data));
