//! Measurements on the link emulator: Sphinx beside kernel TCP and QUIC, on the same link, in the
//! same run.
//!
//! A [`Cell`] is a link and a [`Workload`]. A [`Contestant`] is two commands, a receiver and a
//! sender, that speak one JSON object per line as the `sphx` command does. [`Experiment::run`] starts
//! a fresh [`Testbed`] (two network namespaces joined by the seeded emulator), runs one contestant on
//! it, and returns a [`Run`]: goodput, latency of blocks, bytes on the wire, CPU time, and how far
//! the machine itself can be trusted. [`Group`] joins the runs of several seeds, and [`report`]
//! prints them. In [virtual time](Clock::Virtual) a run is two sessions of `sphinx-proto` and the
//! elements of the link, without processes and without a machine's limits. The binary `bench-link` does all of that; `docs/benchmarks.md` says how to read it.
//!
//! [`emulator`] is the emulator as a tool for any program: `sphx lab link`. [`path`] puts a machine with a program between
//! two emulated hops, and kernel TCP across them: `sphx lab path`.
//!
//! The programs behind the contestants are in [`peers`], and may be used without the rest.

#![forbid(unsafe_code)]

pub mod contestants;
pub mod emulator;
pub mod figures;
pub mod machine;
pub mod path;
pub mod peers;
pub mod report;
pub mod runner;
pub mod scenario;
pub mod stats;
pub mod video;
pub mod web;

mod at_once;
mod cell;
mod children;
mod clock;
mod contestant;
mod experiment;
mod group;
mod latency;
mod link;
mod numbers;
mod run;
mod several;
mod testbed;
mod toml_error;
mod virtual_time;
mod watch;
mod workload;

use at_once::at_once;

pub use cell::{Cell, CellSet};
pub use clock::Clock;
pub use contestant::{Contestant, Side, Task};
pub use experiment::{Experiment, RunError};
pub use group::{Group, GroupNumbers};
pub use latency::{Latencies, PageTimes};
pub use link::LinkSpec;
pub use numbers::{BlockNumbers, BufferNumbers, Done, NotDone, VideoNumbers, WebNumbers};
pub use run::{Cpu, Lateness, Memory, Run, Validity, Wire};
pub use several::{Beginning, PathSpec};
pub use testbed::{Testbed, TestbedError};
pub use virtual_time::Simulated;
pub use watch::Carried;
pub use workload::Workload;
