//! What can go wrong, and what to do about it.

use std::io;

use sphinx_link::{front::FrontError, settings::SettingError};
use sphinx_units::show_io_error;
use thiserror::Error;

use crate::TestbedError;

/// Why a link could not be started, changed or kept running.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct LinkError {
    /// What caused the failure.
    pub kind: LinkErrorKind,
    /// What happened.
    pub message: String,
    /// What to do; may be empty.
    pub hint: String,
}

/// What caused a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkErrorKind {
    /// What was asked for: arguments, settings.
    Usage,
    /// This machine: rights, files, names.
    Local,
    /// Anything else.
    Other,
}

impl LinkError {
    pub(crate) fn new(
        kind: LinkErrorKind,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> LinkError {
        LinkError {
            kind,
            message: message.into(),
            hint: hint.into(),
        }
    }

    pub(super) fn usage(message: impl Into<String>) -> LinkError {
        let hint = "sphx lab link --help shows what can be written";
        LinkError::new(LinkErrorKind::Usage, message, hint)
    }

    /// Something that this machine refuses: what was attempted on what.
    pub(crate) fn io(what: &str, subject: impl AsRef<str>, error: &io::Error) -> LinkError {
        let hint = match error.kind() {
            io::ErrorKind::StorageFull => "free some space, or write to another disk",
            io::ErrorKind::PermissionDenied => "check the permissions",
            io::ErrorKind::NotFound => "check the name",
            _ => "",
        };
        let said = show_io_error(error);
        let message = format!("cannot {what} {}: {said}", subject.as_ref());
        LinkError::new(LinkErrorKind::Local, message, hint)
    }
}

impl From<SettingError> for LinkError {
    fn from(error: SettingError) -> LinkError {
        match &error {
            SettingError::File { key, path, error } => {
                LinkError::io(&format!("read the trace of {key},"), path, error)
            }
            _ => LinkError::usage(error.to_string()),
        }
    }
}

impl From<TestbedError> for LinkError {
    fn from(error: TestbedError) -> LinkError {
        let hint = match error {
            TestbedError::NoAccess(_) | TestbedError::UserNamespace(_) => {
                "run it as root, or allow unprivileged user namespaces (sysctl \
                 kernel.apparmor_restrict_unprivileged_userns=0 or \
                 kernel.unprivileged_userns_clone=1); in a container, add --device /dev/net/tun \
                 --cap-add SYS_ADMIN --cap-add NET_ADMIN"
            }
            TestbedError::Front(_) | TestbedError::Setting { .. } => "",
        };
        LinkError::new(LinkErrorKind::Local, error.to_string(), hint)
    }
}

impl From<FrontError> for LinkError {
    fn from(error: FrontError) -> LinkError {
        match error {
            FrontError::Config(_) | FrontError::Mtu(_) => LinkError::usage(error.to_string()),
            FrontError::System(ref cause)
                if matches!(
                    cause.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) =>
            {
                let hint = "it needs root, or unprivileged user namespaces, and /dev/net/tun";
                LinkError::new(LinkErrorKind::Local, error.to_string(), hint)
            }
            _ => LinkError::new(LinkErrorKind::Local, error.to_string(), ""),
        }
    }
}
