//! How a command ends: error kinds, exit codes, and the names scripts see.

use std::io;

use sphinx_transport::ErrorKind;

/// Every fallible function of this crate fails with the engine's error: a kind, a message, a hint.
pub(crate) use sphinx_transport::Error as Failure;

/// The result of everything here that can fail.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Codes of `Session::close`, and of verdicts inside the application protocols.
pub(crate) mod code {
    pub(crate) const DONE: u64 = 0;
    pub(crate) const PROTOCOL: u64 = 5;
    pub(crate) const CANCELLED: u64 = 6;
    pub(crate) const REMOTE_IO: u64 = 9;
    pub(crate) const INTEGRITY: u64 = 10;
}

/// The exit code of a transfer that left something out: the rest has arrived.
pub(crate) const PARTIAL: u8 = 7;

/// Builds a failure without a hint.
pub(crate) fn fail(kind: ErrorKind, message: impl Into<String>) -> Failure {
    Failure {
        kind,
        message: message.into(),
        hint: String::new(),
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
        format!("cannot {what} {subject}: {}", plain(&error)),
        hint,
    )
}

/// The system's words without Rust's "(os error 2)".
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
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
        ErrorKind::Other => 1,
        ErrorKind::Usage => 2,
        ErrorKind::Unreachable => 3,
        ErrorKind::Authentication => 4,
        ErrorKind::Protocol => 5,
        ErrorKind::PeerLost | ErrorKind::Stalled | ErrorKind::Cancelled => 6,
        ErrorKind::LocalIo => 8,
        ErrorKind::RemoteIo => 9,
        ErrorKind::Integrity => 10,
        // Without a signal on record it can only have been asked for from inside.
        ErrorKind::Interrupted => 128 + u8::try_from(signal.unwrap_or(2)).unwrap_or(2),
    }
}

/// The name of a kind in JSON events.
pub(crate) fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Other => "other",
        ErrorKind::Usage => "usage",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::Authentication => "authentication",
        ErrorKind::Protocol => "protocol",
        ErrorKind::PeerLost => "peer_lost",
        ErrorKind::Stalled => "stalled",
        ErrorKind::Cancelled => "cancelled",
        ErrorKind::LocalIo => "local_io",
        ErrorKind::RemoteIo => "remote_io",
        ErrorKind::Integrity => "integrity",
        ErrorKind::Interrupted => "interrupted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
