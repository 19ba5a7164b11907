//! Messages on a stream, in any pieces.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_transport::fuzzing::messages(data));
