//! What a server does with the first datagrams of anybody, and with what a client says of itself.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_transport::fuzzing::greetings(data));
