//! The paper's mode.

mod figure7;
mod hostile;
mod reference;
mod second;
mod transfers;
