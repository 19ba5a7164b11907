//! A journal of a file that is kept in part.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_cli::fuzzing::journal(data));
