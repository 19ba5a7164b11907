//! Tickets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_transport::fuzzing::ticket(data));
