//! The UDP back end on the loopback interface.

mod arrival;
mod limits;
mod refusal;
mod several;
mod singles;
mod steering;
mod support;
