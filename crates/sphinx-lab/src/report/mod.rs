//! Results for people and for programs.

mod examine;
mod json;
mod png;
mod site;
mod table;

pub use examine::{Examined, examine};
pub use json::{Failure, JsonLines, Recorded, recorded};
pub(crate) use json::{recorded_with, something_else};
pub use png::png;
pub use site::site;
pub use table::table;
