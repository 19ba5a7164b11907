//! Connections that a tunnel ends at its end: segments of programs and of their kernel, and what becomes of what was asked for.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_tunnel::fuzzing::split(data));
