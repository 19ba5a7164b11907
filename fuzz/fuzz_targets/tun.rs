//! IP packets of a network interface or of the other end, and what a server says of addresses.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_tunnel::fuzzing::tun(data));
