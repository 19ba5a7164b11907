//! Results for people and for programs.

mod json;
mod table;

pub use json::JsonLines;
pub use table::table;
