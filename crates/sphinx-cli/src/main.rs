//! The sphx command.

#![forbid(unsafe_code)]

fn main() {}
