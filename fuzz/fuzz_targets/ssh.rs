//! What ends tell each other through ssh's pipe, and what people write for another machine.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_cli::fuzzing::ssh(data));
