//! Results for people and for programs.

mod json;
mod png;
mod table;

pub use json::{JsonLines, runs_on_file};
pub use png::png;
pub use table::table;
