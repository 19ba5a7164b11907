//! Which time runs are made in.

use serde::{Deserialize, Serialize};

/// The time in which packets travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The machine's: processes, sockets and the emulator, as far as the processors carry them.
    #[default]
    Real,
    /// The simulator's: the core of Sphinx and the elements of the link, which take no time of their own.
    Virtual,
}

impl Clock {
    /// As it is written in scenarios and results.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Real => "real",
            Clock::Virtual => "virtual",
        }
    }

    /// What readers must know about numbers of this kind.
    pub fn label(self) -> &'static str {
        match self {
            Clock::Real => "real traffic",
            Clock::Virtual => "virtual time: no CPU limit; the protocol only",
        }
    }
}
