//! The transports that are compared by default.

mod quinn;
mod sphinx;
mod tcp;

use std::path::Path;

use crate::Contestant;

pub use quinn::Quinn;
pub use sphinx::Sphinx;
pub use tcp::Tcp;

/// All transports, in the order of the tables. `program` is the binary that runs the
/// [peers](crate::peers), `sphx` the `sphx` command; it need not exist.
pub fn all(program: &Path, sphx: &Path) -> Vec<Box<dyn Contestant>> {
    vec![
        Box::new(Tcp::new(program, "cubic")),
        Box::new(Tcp::new(program, "bbr")),
        Box::new(Quinn::new(program, "cubic")),
        Box::new(Quinn::new(program, "bbr")),
        Box::new(Sphinx::new(sphx, "sphinx", Vec::new())),
    ]
}
