//! What people name with `[user@]host:path`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::failure::{Outcome, usage};
use crate::text::printable;

/// A source or the destination of `cp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The host as ssh takes it; `None` for this machine.
    pub(crate) host: Option<Host>,
    pub(crate) path: Vec<u8>,
}

/// Where ssh goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// `[user@]host`, an IPv6 address without its brackets.
    pub(crate) destination: String,
}

impl Host {
    /// `[user@]host`, and brackets around an IPv6 address or not.
    ///
    /// # Errors
    /// The text is no destination that can be given to ssh.
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let bare = text.replace(['[', ']'], "");
        match is_destination(&bare) {
            true => Ok(Self { destination: bare }),
            false => Err(usage(format!(
                "'{}' names no host",
                printable(text.as_bytes())
            ))),
        }
    }

    /// Without the user.
    pub(crate) fn name(&self) -> &str {
        let at = self.destination.rfind('@');
        at.map_or(&self.destination, |at| &self.destination[at + 1..])
    }
}

impl Place {
    /// As scp: what has a colon before any slash is elsewhere, but for one in brackets.
    ///
    /// # Errors
    /// The host is none that ssh could be given.
    pub(crate) fn parse(text: &OsStr) -> Outcome<Self> {
        let bytes = text.as_bytes();
        let Some((host, path)) = split(bytes) else {
            return Ok(Self {
                host: None,
                path: bytes.to_vec(),
            });
        };
        let host = std::str::from_utf8(&host)
            .ok()
            .filter(|host| is_destination(host));
        let Some(destination) = host else {
            let shown = printable(bytes);
            return Err(usage(format!("'{shown}' names no host")).with_hint(format!(
                "a file of this name is written with its directory: ./{shown}"
            )));
        };
        Ok(Self {
            host: Some(Host {
                destination: destination.to_owned(),
            }),
            path: path.to_vec(),
        })
    }

    /// The last component, if it is a name; `.` and `~` have one, but not here.
    pub(crate) fn name(&self) -> Option<&[u8]> {
        let mut components = self.path.rsplit(|byte| *byte == b'/');
        let name = components.find(|component| !component.is_empty())?;
        let is_home = self.host.is_some() && self.path.starts_with(b"~") && name == self.path;
        let has_name = !is_home && name != b"." && name != b"..";
        has_name.then_some(name)
    }
}

/// Host and path, if there is a host.
fn split(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let start = match bytes.iter().position(|byte| *byte == b'[') {
        // user@[v6]:path
        Some(open) if open == 0 || bytes[open - 1] == b'@' => {
            let close = open + bytes[open..].iter().position(|byte| *byte == b']')?;
            let path = bytes[close + 1..].strip_prefix(b":")?;
            let before = &bytes[..open];
            if before.contains(&b'/') || before.contains(&b':') {
                return None;
            }
            return Some(([before, &bytes[open + 1..close]].concat(), path));
        }
        _ => bytes,
    };
    let colon = start.iter().position(|byte| *byte == b':')?;
    let (host, path) = (&bytes[..colon], &bytes[colon + 1..]);
    (!host.contains(&b'/')).then(|| (host.to_vec(), path))
}

/// What ssh takes for a destination and nothing else, whatever a shell on the way would make of other characters.
fn is_destination(host: &str) -> bool {
    let name = host.rsplit('@').next().unwrap_or_default();
    let strange =
        |c: char| c.is_whitespace() || c.is_control() || "'\"`$\\;&|<>()[]{}*?!#/".contains(c);
    !host.starts_with('-') && !name.is_empty() && !name.starts_with('-') && !host.contains(strange)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Outcome<(Option<String>, String)> {
        let place = Place::parse(OsStr::new(text))?;
        let host = place.host.map(|host| host.destination);
        Ok((host, String::from_utf8(place.path).expect("text")))
    }

    #[test]
    fn here_and_elsewhere() {
        for (text, host, path) in [
            ("a", None, "a"),
            ("./a:b", None, "./a:b"),
            ("/x/a:b", None, "/x/a:b"),
            ("h:", Some("h"), ""),
            ("h:a:b", Some("h"), "a:b"),
            ("me@h:/x/y", Some("me@h"), "/x/y"),
            ("[::1]:a", Some("::1"), "a"),
            ("me@[fe80::1%eth0]:a", Some("me@fe80::1%eth0"), "a"),
            ("me@dom@h:a", Some("me@dom@h"), "a"),
            ("[a", None, "[a"),
            ("[a]", None, "[a]"),
            ("a[1]", None, "a[1]"),
        ] {
            let expected = (host.map(str::to_owned), path.to_owned());
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn no_host_is_an_option_or_a_line_for_a_shell() {
        for text in [
            ":a",
            "-oProxyCommand=x:a",
            "me@:a",
            "me@-x:a",
            "h;x:a",
            "$(x):a",
            "[]:a",
            "a b:c",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names() {
        for (text, name) in [
            ("h:a/b//", Some("b")),
            ("h:", None),
            ("h:/", None),
            ("h:~", None),
            ("h:~me", None),
            ("h:~/x", Some("x")),
            ("~", Some("~")),
            (".", None),
            ("a/..", None),
        ] {
            let place = Place::parse(OsStr::new(text)).unwrap();
            assert_eq!(place.name(), name.map(str::as_bytes), "{text}");
        }
    }
}
