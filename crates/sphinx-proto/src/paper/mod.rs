//! The mode of the paper: its own Parameter Selector, feedback and ICM, beside those of the rest of the core
//! (`docs/protocol.md` §13, `docs/paper.md`).
//!
//! | part | what it does |
//! | --- | --- |
//! | `settings` | the keys of `--paper`, and the parameter of the handshake |
//! | `selector` | degree and number of packets from the receiver's reports |
//! | `sender` | which symbol goes next; what Symbol-SACKs and Block-SACKs bring about |
//! | `window` | how many blocks may be on their way |
//! | `feedback` | what the receiver says, and when |
//!
//! Nothing here looks at the packet log, rate control or the estimates of the path, but for its round-trip time.

mod feedback;
mod selector;
mod sender;
mod settings;
mod window;

pub(crate) use feedback::Feedback;
pub use selector::{Redundant, redundant};
pub(crate) use sender::{Choice, PaperSender};
pub use settings::{Delta, Paper, Resend, Triggers};
