//! Why something failed, in terms that a program can act on and a person understands.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Any other error.
    Other,
    /// Nothing was heard from the peer for the idle timeout, or the network says that it is gone; or so it was the other way round, where a
    /// peer that this end took nothing from has given up as well; or the server says that it does not know the session any more.
    PeerLost,
    /// The peer speaks another version, serves another purpose or broke the protocol.
    Protocol,
    /// A file, device or address on the peer's machine.
    RemoteIo,
    /// The peer answers, but nothing of what this end has to send has come further for the idle timeout.
    Stalled,
    /// The peer gave a stream up before its end; [`Error::stream_code`] tells why.
    StreamReset,
    /// The peer's application wants no more of a stream; [`Error::stream_code`] tells why.
    StreamStopped,
    /// The peer did not answer.
    Unreachable,
    /// A value given to this library or on its command line.
    Usage,
}

impl ErrorKind {
    /// The kind that a close code stands for at the end that *receives* it.
    pub(crate) fn of_close_code(code: u64) -> Self {
        match code {
            close_code::AUTHENTICATION | close_code::NOT_PERMITTED => Self::Authentication,
            close_code::PROTOCOL => Self::Protocol,
            close_code::DONE | close_code::CANCELLED => Self::Cancelled,
            close_code::REMOTE_IO => Self::RemoteIo,
            close_code::INTEGRITY => Self::Integrity,
            close_code::LOST => Self::PeerLost,
            _ => Self::Other,
        }
    }
}

/// What a session is closed with (`docs/protocol.md` §2): the names are those of what the end that *receives* the code
/// sees. Any other is the application's own, and [`ErrorKind::Other`] to it;
/// [`Session::peer_code`](crate::Session::peer_code) tells which.
pub mod close_code {
    /// Everything has been done.
    pub const DONE: u64 = 0;
    /// Any other reason.
    pub const OTHER: u64 = 1;
    /// The peer has shown no, or the wrong, secret.
    pub const AUTHENTICATION: u64 = 4;
    /// The peer broke the protocol, or serves another purpose.
    pub const PROTOCOL: u64 = 5;
    /// The work is given up.
    pub const CANCELLED: u64 = 6;
    /// A file, device or address of the end that closes has failed.
    pub const REMOTE_IO: u64 = 9;
    /// Data arrived damaged.
    pub const INTEGRITY: u64 = 10;
    /// The end that closes has lost the peer, which may live all the same: its machine slept, its network was gone, or it has
    /// taken nothing for too long.
    pub const LOST: u64 = sphinx_proto::CLOSE_LOST;
    /// The peer is known, and may do nothing of what it came for.
    pub const NOT_PERMITTED: u64 = 13;
}

/// What happened, in words for people ([`Display`](fmt::Display)), its kind, and what caused it
/// ([`source`](std::error::Error::source)), if that is something of its own:
///
/// | kind | source | means |
/// | --- | --- | --- |
/// | [`Unreachable`](ErrorKind::Unreachable), [`PeerLost`](ErrorKind::PeerLost) | [`io::ErrorKind::ConnectionRefused`] | the network says that nobody listens there |
/// | [`PeerLost`](ErrorKind::PeerLost) | [`io::ErrorKind::ConnectionReset`] | the server is there, and does not know the session any more |
/// | [`Unreachable`](ErrorKind::Unreachable) | [`ResolveError`](crate::ResolveError) | the name has no address |
/// | [`Stalled`](ErrorKind::Stalled) | [`io::ErrorKind::TimedOut`] | nothing is confirmed; without a source a stream is not read |
/// | [`LocalIo`](ErrorKind::LocalIo) | [`io::Error`] | why the address cannot be used, or why the socket has failed |
/// | [`Cancelled`](ErrorKind::Cancelled) | [`io::ErrorKind::QuotaExceeded`] | the budget of the last path is spent, at this end |
/// | [`Usage`](ErrorKind::Usage) | [`TicketError`](crate::TicketError) | what is wrong with the ticket |
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    stream_code: Option<u64>,
    close_code: Option<u64>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            stream_code: None,
            close_code: None,
            source: None,
        }
    }

    pub(crate) fn with_code(mut self, stream_code: u64) -> Self {
        self.stream_code = Some(stream_code);
        self
    }

    pub(crate) fn caused_by(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The reason that the peer's application gave for resetting or stopping a stream.
    pub fn stream_code(&self) -> Option<u64> {
        self.stream_code
    }

    /// What the peer has closed the session with ([`close_code`]), if that was it.
    pub fn close_code(&self) -> Option<u64> {
        self.close_code
    }

    /// What kind of failure the operating system, or the network through it, has reported; `None` where it was neither.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        let source = self.source.as_deref()?;
        source.downcast_ref::<io::Error>().map(io::Error::kind)
    }
}

/// What the peer's CLOSE means at this end.
pub(crate) fn closed_by_peer(code: u64, reason: &str) -> Error {
    let kind = ErrorKind::of_close_code(code);
    let message = match (kind, code, reason) {
        (ErrorKind::Cancelled, _, "") => "the peer closed the session".to_owned(),
        // The peer was done, so that nothing was cancelled.
        (ErrorKind::Cancelled, close_code::DONE, reason) => {
            format!("the peer closed the session: {reason}")
        }
        (ErrorKind::Cancelled, _, reason) => format!("the peer cancelled: {reason}"),
        (_, _, "") => format!("the peer gave up (code {code})"),
        (ErrorKind::PeerLost, _, reason) => format!("the other end gave up: {reason}"),
        (_, _, reason) => format!("the peer gave up: {reason}"),
    };
    Error {
        close_code: Some(code),
        ..Error::new(kind, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.source.as_deref()?;
        Some(source)
    }
}

impl From<Error> for io::Error {
    /// Whole, as what the `io::Error` [holds](io::Error::get_ref). Its kind is what the operating system said, or the nearest to it that
    /// programs know of other connections; never `Interrupted`, which would have them try again.
    fn from(error: Error) -> Self {
        let nearest = || match error.kind() {
            ErrorKind::StreamReset => io::ErrorKind::ConnectionReset,
            ErrorKind::StreamStopped => io::ErrorKind::BrokenPipe,
            ErrorKind::Cancelled | ErrorKind::Interrupted => io::ErrorKind::ConnectionAborted,
            ErrorKind::PeerLost | ErrorKind::Stalled => io::ErrorKind::TimedOut,
            ErrorKind::Authentication => io::ErrorKind::PermissionDenied,
            ErrorKind::Protocol | ErrorKind::Integrity => io::ErrorKind::InvalidData,
            ErrorKind::Unreachable => io::ErrorKind::HostUnreachable,
            ErrorKind::Usage => io::ErrorKind::InvalidInput,
            ErrorKind::LocalIo | ErrorKind::RemoteIo | ErrorKind::Other => io::ErrorKind::Other,
        };
        let reported = error.io_kind();
        let reported = reported.filter(|kind| *kind != io::ErrorKind::Interrupted);
        let kind = reported.unwrap_or_else(nearest);
        Self::new(kind, error)
    }
}

impl From<crate::ticket::TicketError> for Error {
    fn from(error: crate::ticket::TicketError) -> Self {
        Self::new(ErrorKind::Usage, error.to_string()).caused_by(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_error_holds_all_and_is_never_tried_again() {
        let stopped = Error::new(ErrorKind::StreamStopped, "no more").with_code(7);
        let error = io::Error::from(stopped);
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let inner = error.get_ref().and_then(|error| error.downcast_ref());
        assert_eq!(inner.and_then(Error::stream_code), Some(7));

        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let lost = Error::new(ErrorKind::PeerLost, "gone").caused_by(refused);
        let kind = io::Error::from(lost).kind();
        assert_eq!(kind, io::ErrorKind::ConnectionRefused);

        let interrupted = Error::new(ErrorKind::Interrupted, "closed here");
        let kind = io::Error::from(interrupted).kind();
        assert_eq!(kind, io::ErrorKind::ConnectionAborted);
    }

    #[test]
    fn close_codes_mean_at_the_other_end_what_the_command_line_says() {
        let table = [
            (close_code::DONE, ErrorKind::Cancelled),
            (1, ErrorKind::Other),
            (4, ErrorKind::Authentication),
            (5, ErrorKind::Protocol),
            (6, ErrorKind::Cancelled),
            (9, ErrorKind::RemoteIo),
            (10, ErrorKind::Integrity),
            (12, ErrorKind::PeerLost),
            (1 << 61, ErrorKind::Other),
        ];
        for (code, kind) in table {
            assert_eq!(closed_by_peer(code, "why").kind(), kind, "{code}");
        }
        for (code, reason, expected) in [
            (10, "why", "the peer gave up: why"),
            (77, "", "the peer gave up (code 77)"),
            (
                close_code::DONE,
                "done",
                "the peer closed the session: done",
            ),
            (close_code::DONE, "", "the peer closed the session"),
            (close_code::CANCELLED, "why", "the peer cancelled: why"),
        ] {
            assert_eq!(closed_by_peer(code, reason).to_string(), expected);
        }
    }
}
