//! Sealed datagrams, damaged or invented.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_transport::fuzzing::datagram(data));
