//! Messages of the packet filter's queue.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_fuzz::pep::queue(data));
