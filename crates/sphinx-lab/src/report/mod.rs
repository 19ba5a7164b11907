//! Results for people and for programs.

mod json;
mod png;
mod site;
mod table;

pub use json::{JsonLines, runs_on_file};
pub use png::png;
pub use site::site;
pub use table::table;
