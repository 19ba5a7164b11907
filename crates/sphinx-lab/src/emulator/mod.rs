//! `sphx lab link`: an emulated link between two network namespaces, for any program.
//!
//! [`LinkArgs`] is the command line. A [`Plan`] is what it and a configuration file ask for, a
//! [`Session`] the running link with the commands at its ends. Other processes change and watch it over
//! a Unix socket ([`ask`]); [`Request`] and [`Answer`] are what they say. `docs/emulator.md` is the
//! manual.

mod answer;
mod args;
mod control;
mod error;
mod log;
mod pcap;
mod place;
mod plan;
mod ready;
mod session;
mod shared;

pub use answer::{Answer, DirectionState, Request, State};
pub use args::{LinkArgs, LinkCommand, RunArgs, SetArgs, SettingFlags, ShowArgs};
pub use control::ask;
pub use error::{LinkError, LinkErrorKind};
pub use place::{NAME, SOCKET, directory};
pub use plan::Plan;
pub use session::{Ended, Session, Stopper};
pub use sphinx_link::front::{Side, Stage};
pub(crate) use {log::Log, plan::Files, session::describe, shared::RECORDS_MAX};
