//! The paper's mode.

mod reference;
mod second;
mod transfers;
