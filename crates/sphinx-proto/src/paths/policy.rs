//! What several paths are for, and what each of them is to be used for (`docs/protocol.md` §10.5).

use std::fmt;
use std::num::NonZeroU64;

/// What several paths are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bond {
    /// The sum of their rates.
    #[default]
    Aggregate,
    /// Every symbol leaves on so many paths; 0: on all of them.
    Redundant {
        /// Number of paths on which each symbol leaves; 0: all.
        copies: u8,
    },
    /// One path at a time: another one only where those before it do not answer.
    Backup,
    /// The cheapest paths, and dearer ones for what these cannot carry.
    Cheapest,
}

impl Bond {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aggregate => "aggregate",
            Self::Redundant { .. } => "redundant",
            Self::Backup => "backup",
            Self::Cheapest => "cheapest",
        }
    }

    /// How many of this many paths carry each symbol.
    pub(crate) fn copies(self, paths: usize) -> usize {
        match self {
            Self::Redundant { copies: 0 } => paths,
            Self::Redundant { copies } => usize::from(copies).min(paths),
            Self::Aggregate | Self::Backup | Self::Cheapest => 1,
        }
    }
}

impl fmt::Display for Bond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redundant { copies } if *copies > 0 => write!(f, "redundant:{copies}"),
            bond => f.write_str(bond.name()),
        }
    }
}

/// When a path carries data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum PathRole {
    /// While it works.
    #[default]
    Primary,
    /// While no primary path works.
    Backup,
}

/// What a path is to be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathPolicy {
    /// When the path is used.
    pub role: PathRole,
    /// What a byte costs, in any unit: [`Bond::Cheapest`] compares it.
    pub cost: u32,
    /// How much a path is preferred where several could carry a symbol sooner or later: its round trip counts as one that is so many
    /// times shorter. 1 by default; 0 counts as 1.
    pub weight: u32,
    /// Most that is sent on it, IP bytes per second. Not 0, which means no limit where the peer is told.
    pub limit: Option<NonZeroU64>,
    /// IP bytes, sent and received, after which this end gives the path up.
    pub budget: Option<u64>,
}

impl Default for PathPolicy {
    fn default() -> Self {
        Self {
            role: PathRole::Primary,
            cost: 0,
            weight: 1,
            limit: None,
            budget: None,
        }
    }
}

/// What a path is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// The peer has not answered there yet.
    Validating,
    /// It carries data.
    Working,
    /// It is slower than others, which would wait for what it carried: nothing leaves on it for now.
    Resting,
    /// Others carry everything, as the mode and the roles have it.
    Standby,
    /// It costs more than other paths, which carry everything.
    Dear,
    /// It leads into the same bottleneck as another one, which carries everything.
    Met,
    /// It does not answer although others do.
    Suspect,
}
