//! A seeded link emulator: sans-I/O elements in virtual time, and a front end on TUN devices.

#![forbid(unsafe_code)]
