//! Addresses that ssh knows of the two ends.

use std::net::IpAddr;

/// The ends of the ssh connection, as the end that was started sees them: `$SSH_CONNECTION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) client: IpAddr,
    pub(crate) server: IpAddr,
}

impl Ends {
    pub(crate) fn of_this_process() -> Option<Self> {
        Self::parse(&std::env::var("SSH_CONNECTION").ok()?)
    }

    /// Client's address and port, server's address and port.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let (client, _, server, port) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        port.parse::<u16>().ok()?;
        Some(Self {
            client: client.parse().ok()?,
            server: server.parse().ok()?,
        })
    }
}

/// `first`, then what of `others` is not among them; an address of this very machine only where ssh uses one.
pub(crate) fn candidates(first: Option<IpAddr>, others: Vec<String>) -> Vec<String> {
    let mut all: Vec<String> = first.map(shown).into_iter().collect();
    for other in others {
        if !all.contains(&other) {
            all.push(other);
        }
    }
    all
}

/// As it stands before a port.
fn shown(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sshd_says() {
        let ends = Ends::parse("203.0.113.9 51000 10.0.0.2 22").expect("addresses");
        assert_eq!(ends.client.to_string(), "203.0.113.9");
        assert_eq!(ends.server.to_string(), "10.0.0.2");
        assert!(Ends::parse("::1 5 ::1 22").is_some());
        for wrong in ["", "a b c d", "1.2.3.4 5 6.7.8.9", "1.2.3.4 5 6.7.8.9 x"] {
            assert_eq!(Ends::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn no_address_is_tried_twice() {
        let others = vec!["10.0.0.2".to_owned(), "[2001:db8::1]".to_owned()];
        let all = candidates(Some("::ffff:10.0.0.2".parse().unwrap()), others);
        assert_eq!(all, ["10.0.0.2", "[2001:db8::1]"]);
    }
}
