//! The servers that a user has joined, by the names that the user has for them.

use sphinx_transport::{ErrorKind, Ticket};
use zeroize::Zeroizing;

use super::line::{name, nearest, setting, unknown, words};
use super::{Secrecy, StateDir, key, wrong_line};
use crate::failure::{Outcome, fail_hint, usage};

/// The file: name and where the server is. The key that it knows this user by is in a file of its own.
const FILE: &str = "servers";
const HEAD: &str = "# Servers that this user has joined, one a line.\n";

/// Servers of a user, without what they know the user by.
#[derive(Debug, Default)]
pub(crate) struct Servers(Vec<(String, Ticket)>);

impl Servers {
    /// The place where they are kept.
    pub(crate) fn place() -> Outcome<StateDir> {
        StateDir::open(None, "client")
    }

    pub(crate) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut all: Vec<(String, Ticket)> = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let parse = || {
                let words = words(line)?;
                let Some((first, settings)) = words.split_first() else {
                    return Ok(None);
                };
                let mut ticket = None;
                for word in settings {
                    match setting(word)? {
                        ("server", text) => {
                            let parsed = text.parse::<Ticket>();
                            ticket = Some(parsed.map_err(|error| error.to_string())?);
                        }
                        (key, _) => return Err(unknown("setting", key, &["server"])),
                    }
                }
                let ticket = ticket.ok_or_else(|| "server= is missing".to_owned())?;
                Ok(Some((name(first)?, ticket)))
            };
            if let Some(entry) = parse().map_err(|why: String| (n + 1, why))? {
                if all.iter().any(|(name, _)| *name == entry.0) {
                    return Err((n + 1, format!("there is a server {} above", entry.0)));
                }
                all.push(entry);
            }
        }
        Ok(Self(all))
    }

    fn read(state: &StateDir) -> Outcome<Self> {
        let text = state.read(FILE, Secrecy::Secret)?;
        let text = text.as_ref().map_or("", |text| text.as_str());
        Self::parse(text).map_err(|(number, why)| wrong_line(&state.file(FILE), number, &why))
    }

    fn find(&self, name: &str) -> Option<&Ticket> {
        self.0
            .iter()
            .find(|(it, _)| it == name)
            .map(|(_, ticket)| ticket)
    }

    /// Remembers a server; the key that this user has there is made.
    pub(crate) fn add(state: &StateDir, name: &str, server: &Ticket) -> Outcome<()> {
        let _lock = state.lock()?;
        let mut servers = Self::read(state)?;
        match servers.find(name) {
            Some(known) if !known.is_of_same_server(server) => {
                let failure = usage(format!("another server is called {name} already"));
                return Err(failure.with_hint("give this one another name with --as NAME"));
            }
            // The same server, perhaps at another address: its line is replaced.
            Some(_) => servers.0.retain(|(it, _)| it != name),
            None => {}
        }
        servers.0.push((name.to_owned(), server.without_secret()));
        let mut text = Zeroizing::new(String::with_capacity(HEAD.len() + 4096 * servers.0.len()));
        text.push_str(HEAD);
        for (name, ticket) in &servers.0 {
            let ticket = Zeroizing::new(ticket.to_string());
            for part in [name, " server=", &ticket, "\n"] {
                text.push_str(part);
            }
        }
        state.write(FILE, &text)
    }

    /// The ticket by which to connect to a server that was joined.
    pub(crate) fn ticket(state: &StateDir, name: &str) -> Outcome<Ticket> {
        let servers = Self::read(state)?;
        let Some(server) = servers.find(name) else {
            let known: Vec<&str> = servers.0.iter().map(|(name, _)| name.as_str()).collect();
            let hint = match (nearest(name, &known), known.is_empty()) {
                (Some(near), _) => format!("did you mean {near}?"),
                (None, false) => format!("there are {}", known.join(", ")),
                (None, true) => {
                    "sphx join --ticket-file F --as NAME keeps one; a ticket works too".to_owned()
                }
            };
            let message = format!("there is no server called {name}");
            return Err(fail_hint(ErrorKind::Usage, message, hint));
        };
        Ok(server.with_key(key::client(&state.file(&key_file(name)))?))
    }
}

/// The file of the key by which a server knows this user. Each server gets another key, so that two servers cannot compare their users.
pub(crate) fn key_file(name: &str) -> String {
    format!("{name}.key")
}
