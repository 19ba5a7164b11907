//! Rates, sizes, durations and shares as people write them, and text for terminals.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_cli::fuzzing::units(data));
