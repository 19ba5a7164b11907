//! The paper's mode.

mod transfers;
