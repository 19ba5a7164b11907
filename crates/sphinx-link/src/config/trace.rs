//! Traces: text files that say what a link did.

use thiserror::Error;

/// Why a trace cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceError {
    /// A time is before the one above it.
    #[error("line {line}: this time is before the one above it")]
    Backwards {
        /// Line of the trace, counted from 1.
        line: usize,
    },
    /// The trace has no entries.
    #[error("it is empty")]
    Empty,
    /// The trace has no duration.
    #[error("all its times are 0")]
    NoDuration,
    /// Something is no time.
    #[error("line {line}: '{found}' is no time in whole milliseconds")]
    NotATime {
        /// Line of the trace, counted from 1.
        line: usize,
        /// The beginning of what is there.
        found: String,
    },
    /// Something is neither 0 nor 1.
    #[error("line {line}: '{found}' is neither 0 (arrives) nor 1 (is lost)")]
    NotAVerdict {
        /// Line of the trace, counted from 1.
        line: usize,
        /// What is there.
        found: char,
    },
}

/// Lines with something on them, with their numbers from 1, without comments.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..)
        .zip(text.lines())
        .map(|(line, content)| {
            let content = content.split('#').next().unwrap_or_default();
            (line, content.trim())
        })
        .filter(|(_, content)| !content.is_empty())
}

/// The beginning of a text, short enough for a message and without control characters.
pub(super) fn excerpt(text: &str) -> String {
    let shown = |letter: char| if letter.is_control() { '?' } else { letter };
    text.chars().take(24).map(shown).collect()
}
