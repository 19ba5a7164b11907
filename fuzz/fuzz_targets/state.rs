//! What receivers, servers and their users keep in files: tickets, invitations, clients, servers, configuration.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sphinx_cli::fuzzing::state(data));
