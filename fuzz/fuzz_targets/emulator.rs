//! Settings, configuration files, traces and control messages of an emulated link.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_cli::fuzzing::emulator(data));
