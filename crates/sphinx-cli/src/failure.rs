//! How a command ends: error kinds, exit codes, and the names scripts see.

pub(crate) mod bypass;

use std::error::Error as _;
use std::fmt;
use std::io;

/// Codes of `Session::close`, and of verdicts inside the application protocols.
pub(crate) use sphinx_transport::close_code as code;
use sphinx_transport::{Error, ErrorKind, Family, ResolveError, TicketError};

use crate::units::show_io_error;

/// What happened, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The kind.
    pub(crate) kind: ErrorKind,
    /// What happened.
    pub(crate) message: String,
    /// What to do; may be empty.
    pub(crate) hint: String,
    /// More was asked for than is allowed: the same again is refused again.
    pub(crate) is_refusal: bool,
}

impl Failure {
    /// The same failure with a hint.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// The same as a refusal.
    #[must_use]
    pub(crate) fn refused(mut self) -> Self {
        self.is_refusal = true;
        self
    }

    /// What the other end is told: what can be done about it is done here, but it may be somebody there who wonders.
    pub(crate) fn for_the_other_end(&self) -> String {
        match self.hint.is_empty() {
            true => self.message.clone(),
            false => format!("{} ({})", self.message, self.hint),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let of_interface = error.source().and_then(bypass::hint);
        let hint = of_interface.unwrap_or_else(|| hint(&error).to_owned());
        Failure {
            is_refusal: is_out_of_budget(&error),
            ..fail_hint(error.kind(), error.to_string(), hint)
        }
    }
}

/// The paths of this end have carried what they may.
fn is_out_of_budget(error: &Error) -> bool {
    let cause = (error.kind(), error.io_kind());
    cause == (ErrorKind::Cancelled, Some(io::ErrorKind::QuotaExceeded))
}

impl From<TicketError> for Failure {
    fn from(error: TicketError) -> Self {
        Error::from(error).into()
    }
}

/// What the user can do about a name in a ticket that leads nowhere.
fn of_name(why: &ResolveError) -> &'static str {
    match why {
        ResolveError::FamilyMissing {
            family: Family::V4, ..
        } => "leave -4 out, or use a ticket with an IPv4 address",
        ResolveError::FamilyMissing {
            family: Family::V6, ..
        } => "leave -6 out, or use a ticket with an IPv6 address",
        _ => "check the name in the ticket and this machine's name service",
    }
}

/// What the user of a command can do about an error of the library.
fn hint(error: &Error) -> &'static str {
    if let Some(why) = error.source().and_then(|source| source.downcast_ref()) {
        return of_name(why);
    }
    match (error.kind(), error.io_kind()) {
        _ if is_out_of_budget(error) => {
            "give a path a larger budget=, or name another one: what has come is not sent again"
        }
        (ErrorKind::Authentication, _) => {
            "use the ticket that the other end printed when it was started last, or ask there for another"
        }
        (ErrorKind::Unreachable, Some(io::ErrorKind::ConnectionRefused)) => {
            "start the other end first, and use the ticket that it prints then"
        }
        (ErrorKind::Unreachable, _) => {
            "is the other end running, and does a firewall let UDP through?"
        }
        (ErrorKind::PeerLost, Some(io::ErrorKind::ConnectionRefused)) => {
            "start the other end again, then this one"
        }
        (ErrorKind::PeerLost, Some(io::ErrorKind::ConnectionReset)) => {
            "the other end is there: start this one again"
        }
        (ErrorKind::PeerLost, _) => "check the network and the other end, then start again",
        (ErrorKind::Stalled, Some(io::ErrorKind::TimedOut)) => {
            "check the network: it may carry packets in one direction only"
        }
        (ErrorKind::Stalled, _) => {
            "see what the program at the other end waits for, or give --idle-timeout more"
        }
        (ErrorKind::LocalIo, Some(io::ErrorKind::AddrInUse)) => {
            "another program listens there; --listen :0 takes any free port"
        }
        (ErrorKind::LocalIo, Some(io::ErrorKind::AddrNotAvailable)) => {
            "the address is not one of this machine's"
        }
        (ErrorKind::LocalIo, Some(io::ErrorKind::PermissionDenied)) => {
            "ports below 1024 need privileges"
        }
        (ErrorKind::Usage, _) if error.source().is_some() => {
            "copy the whole ticket, from sphx1 to its end"
        }
        _ => "",
    }
}

/// The result of everything here that can fail.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// The exit code of a transfer that left something out: the rest has arrived.
pub(crate) const PARTIAL: u8 = 7;

/// Builds a failure without a hint.
pub(crate) fn fail(kind: ErrorKind, message: impl Into<String>) -> Failure {
    Failure {
        kind,
        message: message.into(),
        hint: String::new(),
        is_refusal: false,
    }
}

/// Builds a failure with a hint.
pub(crate) fn fail_hint(
    kind: ErrorKind,
    message: impl Into<String>,
    hint: impl Into<String>,
) -> Failure {
    Failure {
        kind,
        message: message.into(),
        hint: hint.into(),
        is_refusal: false,
    }
}

/// What clap says of a command line, up to the usage and the hints: the sentence, and what it lists.
pub(crate) fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim);
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let sentence = lines.join(" ");
    match sentence.strip_prefix("error: ") {
        Some(sentence) => sentence.to_owned(),
        None => sentence,
    }
}

pub(crate) fn usage(message: impl Into<String>) -> Failure {
    fail_hint(
        ErrorKind::Usage,
        message,
        "sphx --help shows what can be written",
    )
}

pub(crate) fn protocol(message: impl Into<String>) -> Failure {
    fail(ErrorKind::Protocol, message)
}

/// A local I/O failure: what was attempted on what, and what the system said.
pub(crate) fn local_io(what: &str, subject: &str, error: impl Into<io::Error>) -> Failure {
    let error = error.into();
    let hint = match error.kind() {
        io::ErrorKind::StorageFull => "free some space and run the same command again",
        io::ErrorKind::PermissionDenied => "check the permissions",
        io::ErrorKind::ReadOnlyFilesystem => "choose a directory on a writable file system",
        _ => "",
    };
    fail_hint(
        ErrorKind::LocalIo,
        format!("cannot {what} {subject}: {}", show_io_error(&error)),
        hint,
    )
}

/// The code to give to `Session::close` when this end fails.
pub(crate) fn close_code(kind: ErrorKind) -> u64 {
    match kind {
        ErrorKind::LocalIo => code::REMOTE_IO,
        ErrorKind::Protocol => code::PROTOCOL,
        ErrorKind::Integrity => code::INTEGRITY,
        _ => code::CANCELLED,
    }
}

/// The kind that a code in a verdict means at this end.
pub(crate) fn kind_of_peer_code(code: u64) -> ErrorKind {
    match code {
        code::PROTOCOL => ErrorKind::Protocol,
        code::REMOTE_IO => ErrorKind::RemoteIo,
        code::INTEGRITY => ErrorKind::Integrity,
        _ => ErrorKind::Cancelled,
    }
}

/// The exit code of a failure; `signal` is the signal that asked this process to stop, if any.
pub(crate) fn exit_code(kind: ErrorKind, signal: Option<i32>) -> u8 {
    match kind {
        ErrorKind::Usage => 2,
        ErrorKind::Unreachable => 3,
        ErrorKind::Authentication => 4,
        ErrorKind::Protocol => 5,
        ErrorKind::PeerLost
        | ErrorKind::Stalled
        | ErrorKind::Cancelled
        | ErrorKind::StreamReset
        | ErrorKind::StreamStopped => 6,
        ErrorKind::LocalIo => 8,
        ErrorKind::RemoteIo => 9,
        ErrorKind::Integrity => 10,
        // Without a signal on record it can only have been asked for from inside.
        ErrorKind::Interrupted => 128 + u8::try_from(signal.unwrap_or(2)).unwrap_or(2),
        _ => 1,
    }
}

/// The name of a kind in JSON events.
pub(crate) fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Usage => "usage",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::Authentication => "authentication",
        ErrorKind::Protocol => "protocol",
        ErrorKind::PeerLost => "peer_lost",
        ErrorKind::Stalled => "stalled",
        // A peer that gives up a stream without ending the session has cancelled all the same.
        ErrorKind::Cancelled | ErrorKind::StreamReset | ErrorKind::StreamStopped => "cancelled",
        ErrorKind::LocalIo => "local_io",
        ErrorKind::RemoteIo => "remote_io",
        ErrorKind::Integrity => "integrity",
        ErrorKind::Interrupted => "interrupted",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_is_missing_is_not_asked_of_the_name_service() {
        let of = |family| {
            let host = "127.0.0.1".to_owned();
            of_name(&ResolveError::FamilyMissing { host, family })
        };
        assert!(of(Family::V6).contains("leave -6 out"));
        assert!(of(Family::V4).contains("leave -4 out"));
    }

    #[test]
    fn exit_codes_are_the_contract() {
        let table = [
            (ErrorKind::Other, 1),
            (ErrorKind::Usage, 2),
            (ErrorKind::Unreachable, 3),
            (ErrorKind::Authentication, 4),
            (ErrorKind::Protocol, 5),
            (ErrorKind::PeerLost, 6),
            (ErrorKind::Stalled, 6),
            (ErrorKind::Cancelled, 6),
            (ErrorKind::LocalIo, 8),
            (ErrorKind::RemoteIo, 9),
            (ErrorKind::Integrity, 10),
        ];
        for (kind, code) in table {
            assert_eq!(exit_code(kind, None), code, "{kind:?}");
        }
        assert_eq!(exit_code(ErrorKind::Interrupted, Some(2)), 130);
        assert_eq!(exit_code(ErrorKind::Interrupted, Some(15)), 143);
    }

    #[test]
    fn what_we_tell_the_peer_is_what_it_reports() {
        assert_eq!(
            kind_of_peer_code(close_code(ErrorKind::LocalIo)),
            ErrorKind::RemoteIo
        );
        assert_eq!(
            kind_of_peer_code(close_code(ErrorKind::Integrity)),
            ErrorKind::Integrity
        );
        assert_eq!(
            kind_of_peer_code(close_code(ErrorKind::Protocol)),
            ErrorKind::Protocol
        );
        assert_eq!(
            kind_of_peer_code(close_code(ErrorKind::Interrupted)),
            ErrorKind::Cancelled
        );
    }

    #[test]
    fn system_errors_read_like_sentences() {
        let error = local_io("open", "a/b", io::Error::from_raw_os_error(2));
        assert_eq!(error.message, "cannot open a/b: no such file or directory");
    }
}
