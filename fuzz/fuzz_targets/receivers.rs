//! A hostile receiver of files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_cli::fuzzing::receivers(data));
