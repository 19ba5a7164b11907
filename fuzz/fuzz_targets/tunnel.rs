//! What the ends of a tunnel tell each other, what programs tell a proxy, and what people write about both.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_tunnel::fuzzing::tunnel(data));
