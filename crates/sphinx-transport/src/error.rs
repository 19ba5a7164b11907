//! Why something failed, in terms that an exit code and a person can use.

use std::fmt;

/// Kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The other end could not be authenticated, or did not accept this end's ticket.
    Authentication,
    /// The peer closed the session before the work was done.
    Cancelled,
    /// Data arrived damaged.
    Integrity,
    /// This end was asked to stop.
    Interrupted,
    /// A file, device or address on this machine.
    LocalIo,
    /// None of the others.
    Other,
    /// Nothing was heard from the peer for the idle timeout, or the network says that it is gone.
    PeerLost,
    /// The peer speaks another version, serves another purpose or broke the protocol.
    Protocol,
    /// A file, device or address on the peer's machine.
    RemoteIo,
    /// The peer answers, but nothing of what this end has to send has come further for the idle timeout.
    Stalled,
    /// The peer did not answer.
    Unreachable,
    /// A value given to this library or on its command line.
    Usage,
}

impl ErrorKind {
    /// The kind that a close code stands for at the end that *receives* it.
    pub(crate) fn of_close_code(code: u64) -> Self {
        match code {
            4 => Self::Authentication,
            5 => Self::Protocol,
            0 | 6 => Self::Cancelled,
            9 => Self::RemoteIo,
            10 => Self::Integrity,
            _ => Self::Other,
        }
    }
}

/// What happened, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The kind.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// What to do; may be empty.
    pub hint: String,
}

impl Error {
    /// An error without a hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: String::new(),
        }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

/// What the peer's CLOSE means at this end.
pub(crate) fn closed_by_peer(code: u64, reason: &str) -> Error {
    let kind = ErrorKind::of_close_code(code);
    let message = match (kind, reason) {
        (ErrorKind::Cancelled, "") => "the peer closed the session".to_owned(),
        (ErrorKind::Cancelled, reason) => format!("the peer cancelled: {reason}"),
        (_, reason) => format!("the peer gave up: {reason}"),
    };
    Error::new(kind, message)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<crate::ticket::TicketError> for Error {
    fn from(error: crate::ticket::TicketError) -> Self {
        Self::new(ErrorKind::Usage, error.to_string())
            .with_hint("copy the whole ticket, from sphx1 to its end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_codes_mean_at_the_other_end_what_the_command_line_says() {
        let table = [
            (0, ErrorKind::Cancelled),
            (1, ErrorKind::Other),
            (4, ErrorKind::Authentication),
            (5, ErrorKind::Protocol),
            (6, ErrorKind::Cancelled),
            (9, ErrorKind::RemoteIo),
            (10, ErrorKind::Integrity),
            (1 << 61, ErrorKind::Other),
        ];
        for (code, kind) in table {
            assert_eq!(closed_by_peer(code, "why").kind, kind, "{code}");
        }
        assert_eq!(closed_by_peer(10, "why").message, "the peer gave up: why");
    }
}
