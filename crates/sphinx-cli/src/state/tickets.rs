//! The tickets that a receiver or a server has given out: one a line, with a name, its secret and what it is good for.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use sphinx_transport::{AccessList, ErrorKind, TicketId, TicketSecret};
use zeroize::Zeroizing;

use super::date::Moment;
use super::line::{name, quoted, setting, unknown, words};
use super::{Lock, Secrecy, StateDir, wrong_line};
use crate::failure::{Outcome, fail_hint, usage};
use crate::units;

/// The file, readable by its owner only.
pub(crate) const FILE: &str = "tickets";
const HEAD: &str =
    "# Tickets, one a line. Whoever reads this can connect. Edits take effect within a second.\n";
const KEYS: [&str; 9] = [
    "secret",
    "expires",
    "uses",
    "used",
    "quota",
    "taken",
    "directory",
    "permit",
    "grant",
];
/// Most bytes that a line can name: 18 digits.
const QUOTA_MAX: u64 = 999_999_999_999_999_999;
/// Most tickets of a file; more are a mistake.
const TICKETS_MAX: usize = 100_000;

/// One ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) secret: TicketSecret,
    /// When it expires: from then on it begins no session.
    pub(crate) expires: Option<Moment>,
    /// How many transfers it is good for, if that is limited, and how many there were.
    pub(crate) uses: Option<u32>,
    pub(crate) used: u32,
    /// How many bytes may be sent with it, if that is limited, and how many were.
    pub(crate) quota: Option<u64>,
    pub(crate) taken: u64,
    /// The directory below the output directory into which files sent with it go.
    pub(crate) directory: Option<PathBuf>,
    /// The services that the ticket permits at a server.
    pub(crate) permit: Option<String>,
    /// It is an invitation: what the client that joins with it gets, as settings of its line.
    pub(crate) grant: Option<String>,
}

impl Entry {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            secret: TicketSecret::generate(),
            expires: None,
            uses: None,
            used: 0,
            quota: None,
            taken: 0,
            directory: None,
            permit: None,
            grant: None,
        }
    }

    /// Whether the ticket admits new sessions at this time.
    pub(crate) fn admits(&self, now: Moment) -> bool {
        self.expires.is_none_or(|end| now < end)
            && self.uses.is_none_or(|uses| self.used < uses)
            && self.quota.is_none_or(|quota| self.taken < quota)
    }

    /// What it may do at a server; of an invitation, what the client that joins with it may do.
    pub(crate) fn permits(&self) -> Option<String> {
        let Some(grant) = &self.grant else {
            return self.permit.clone();
        };
        let words = words(grant).ok()?;
        let mut settings = words.iter().filter_map(|word| setting(word).ok());
        let (_, rules) = settings.find(|(key, _)| *key == "permit")?;
        Some(rules.to_owned())
    }

    /// Bytes that may still be sent with it.
    pub(crate) fn left(&self) -> Option<u64> {
        Some(self.quota?.saturating_sub(self.taken))
    }

    fn parse(line: &str) -> Result<Option<Self>, String> {
        let words = words(line)?;
        let Some((first, settings)) = words.split_first() else {
            return Ok(None);
        };
        // The secret that it begins with is replaced.
        let mut entry = Self::new(name(first)?);
        let mut secret = None;
        let mut seen = Vec::new();
        for word in settings {
            let (key, value) = setting(word)?;
            if seen.contains(&key) {
                return Err(format!("{key} stands there twice"));
            }
            seen.push(key);
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|_| format!("{key}: '{value}' is no number"))
            };
            match key {
                "secret" => {
                    let parsed = value.parse::<TicketSecret>();
                    secret = Some(parsed.map_err(|_| "the secret is damaged".to_owned())?);
                }
                "expires" => entry.expires = Some(Moment::parse(value)?),
                "uses" => entry.uses = Some(number()?),
                "used" => entry.used = number()?,
                "quota" => entry.quota = Some(units::size(value)?.min(QUOTA_MAX)),
                "taken" => entry.taken = units::size(value)?.min(QUOTA_MAX),
                "directory" => entry.directory = Some(directory(value)?),
                "permit" => entry.permit = Some(value.to_owned()),
                "grant" => entry.grant = Some(value.to_owned()),
                _ => return Err(unknown("setting", key, &KEYS)),
            }
        }
        entry.secret = secret.ok_or("it has no secret")?;
        Ok(Some(entry))
    }

    fn put(&self, out: &mut String) {
        let _ = write!(
            out,
            "{} secret={}",
            self.name,
            Zeroizing::new(self.secret.to_string()).as_str()
        );
        let mut put = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = write!(out, " {key}={}", quoted(&value));
            }
        };
        put("expires", self.expires.map(|it| it.to_string()));
        put("uses", self.uses.map(|it| it.to_string()));
        put("used", (self.used > 0).then(|| self.used.to_string()));
        put(
            "quota",
            self.quota.map(|it| format!("{}B", it.min(QUOTA_MAX))),
        );
        put(
            "taken",
            (self.taken > 0).then(|| format!("{}B", self.taken.min(QUOTA_MAX))),
        );
        let directory = self.directory.as_ref();
        put(
            "directory",
            directory.map(|it| it.to_string_lossy().into_owned()),
        );
        put("permit", self.permit.clone());
        put("grant", self.grant.clone());
        out.push('\n');
    }
}

/// A place below the output directory: nothing that leads out of it.
pub(crate) fn directory(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let is_below = path
        .components()
        .all(|it| matches!(it, Component::Normal(_)));
    match is_below && !text.is_empty() && !text.contains(|c: char| c.is_control()) {
        true => Ok(path.to_owned()),
        false => Err(format!(
            "'{}' is no place below the output directory: write a relative path without ..",
            crate::text::printable(text.as_bytes())
        )),
    }
}

/// All tickets of a file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tickets(pub(crate) Vec<Entry>);

impl Tickets {
    /// Reads the text of a file. The error has the number of the line that cannot be understood, and why.
    pub(crate) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut all = Vec::new();
        let mut names = std::collections::HashSet::new();
        let mut ids = std::collections::HashSet::new();
        for (n, line) in text.lines().enumerate() {
            let wrong = |why: String| (n + 1, why);
            let Some(entry) = Entry::parse(line).map_err(wrong)? else {
                continue;
            };
            if !names.insert(entry.name.clone()) {
                return Err(wrong(format!("there is a ticket {} above", entry.name)));
            }
            if !ids.insert(entry.secret.id()) {
                return Err(wrong("another ticket has the same secret".to_owned()));
            }
            if all.len() >= TICKETS_MAX {
                return Err(wrong(format!("more than {TICKETS_MAX} tickets")));
            }
            all.push(entry);
        }
        Ok(Self(all))
    }

    /// The text of a file.
    pub(crate) fn to_text(&self) -> Zeroizing<String> {
        // Allocated once in full size: a string that grew would leave copies of secrets in freed memory.
        let mut out = Zeroizing::new(String::with_capacity(HEAD.len() + 1024 * self.0.len()));
        out.push_str(HEAD);
        self.0.iter().for_each(|entry| entry.put(&mut out));
        out
    }

    /// Reads the tickets of a state directory; `None` if there were none yet.
    pub(crate) fn read(state: &StateDir) -> Outcome<Option<Self>> {
        let Some(text) = state.read(FILE, Secrecy::Secret)? else {
            return Ok(None);
        };
        let parsed = Self::parse(&text);
        parsed
            .map(Some)
            .map_err(|(number, why)| wrong_line(&state.file(FILE), number, &why))
    }

    /// Changes those of a state directory, which nobody else does meanwhile.
    pub(crate) fn change<T>(
        state: &StateDir,
        change: impl FnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<T> {
        Self::change_held(state, &state.lock()?, change)
    }

    /// The same where the caller holds the lock of the directory already.
    pub(crate) fn change_held<T>(
        state: &StateDir,
        _held: &Lock,
        change: impl FnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<T> {
        let before = Self::read(state)?.unwrap_or_default();
        let mut tickets = before.clone();
        let changed = change(&mut tickets)?;
        if tickets != before || !state.file(FILE).exists() {
            state.write(FILE, &tickets.to_text())?;
        }
        Ok(changed)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.name == name)
    }

    pub(crate) fn of_id(&mut self, id: &TicketId) -> Option<&mut Entry> {
        self.0.iter_mut().find(|entry| entry.secret.id() == *id)
    }

    pub(crate) fn add(&mut self, entry: Entry) -> Outcome<()> {
        if self.find(&entry.name).is_some() {
            let failure = usage(format!("there is a ticket {} already", entry.name));
            return Err(failure.with_hint("choose another name, or revoke it first"));
        }
        self.0.push(entry);
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str) -> Outcome<Entry> {
        let at = self.0.iter().position(|entry| entry.name == name);
        at.map(|at| self.0.remove(at)).ok_or_else(|| {
            let known: Vec<&str> = self.0.iter().map(|entry| entry.name.as_str()).collect();
            let near = super::line::nearest(name, &known);
            let hint = near.map_or_else(String::new, |near| format!("did you mean {near}?"));
            fail_hint(ErrorKind::Usage, format!("there is no ticket {name}"), hint)
        })
    }

    /// Adds all tickets to the list of those that may connect.
    pub(crate) fn admit(&self, list: &mut AccessList, now: Moment) {
        for entry in &self.0 {
            list.add_ticket(entry.secret.clone(), entry.admits(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Entry {
        Entry {
            expires: Some(Moment::parse("2027-01-01").unwrap()),
            uses: Some(3),
            used: 1,
            quota: Some(10_000_000),
            taken: 77,
            directory: Some(PathBuf::from("in box/a")),
            permit: Some("tunnel".to_owned()),
            grant: Some("permit=tunnel rate=5mbit".to_owned()),
            ..Entry::new("laptop".to_owned())
        }
    }

    #[test]
    fn an_invitation_permits_what_its_client_gets() {
        let of = |permit: Option<&str>, grant: Option<&str>| Entry {
            permit: permit.map(str::to_owned),
            grant: grant.map(str::to_owned),
            ..Entry::new("a".to_owned())
        };
        let grant = Some("rate=5mbit permit=tunnel,listen:2222");
        assert_eq!(
            of(None, grant).permits().as_deref(),
            Some("tunnel,listen:2222")
        );
        assert_eq!(of(Some("perf"), None).permits().as_deref(), Some("perf"));
        assert_eq!(of(None, None).permits(), None);
    }

    #[test]
    fn what_is_written_is_read() {
        let tickets = Tickets(vec![full(), Entry::new("b".to_owned())]);
        assert_eq!(Tickets::parse(&tickets.to_text()), Ok(tickets));
    }

    #[test]
    fn what_cannot_be_understood_is_told_with_its_line() {
        let good = Tickets(vec![Entry::new("a".to_owned())]).to_text();
        let line = good.lines().nth(1).unwrap();
        let secret = TicketSecret::generate();
        for (wrong, number, why) in [
            ("b".to_owned(), 3, "no secret"),
            ("b secret=abc".to_owned(), 3, "damaged"),
            (line.to_owned(), 3, "there is a ticket a above"),
            (line.replacen('a', "b", 1), 3, "same secret"),
            (
                format!("b secret={secret} expire=2027-01-01"),
                3,
                "did you mean expires?",
            ),
            (format!("b secret={secret} uses=x"), 3, "no number"),
            (format!("b secret={secret} uses=1 uses=2"), 3, "twice"),
            (format!("b secret={secret} directory=../x"), 3, "without .."),
            (format!("b secret={secret} directory=/x"), 3, "without .."),
            (format!("b secret={secret} quota=5"), 3, "unit"),
            (format!("b secret={secret} x"), 3, "key=value"),
        ] {
            let text = format!("{}{wrong}\n", *good);
            let (at, told) = Tickets::parse(&text).expect_err(&wrong);
            assert_eq!(at, number);
            assert!(told.contains(why), "{wrong}: {told}");
        }
    }

    #[test]
    fn a_ticket_admits_until_something_is_used_up() {
        let now = Moment::parse("2026-12-31").unwrap();
        assert!(full().admits(now));
        assert!(!full().admits(Moment::parse("2027-01-01").unwrap()));
        assert!(!Entry { used: 3, ..full() }.admits(now));
        assert!(
            !Entry {
                taken: 10_000_000,
                ..full()
            }
            .admits(now)
        );
        assert_eq!(full().left(), Some(9_999_923));
        assert_eq!(Entry::new("a".to_owned()).left(), None);
    }

    #[test]
    fn a_torn_or_open_file_changes_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = tempfile::tempdir().unwrap();
        let state = StateDir::open(Some(&scratch.path().join("s")), "recv").unwrap();
        assert_eq!(Tickets::read(&state).unwrap(), None);
        let added = Tickets::change(&state, |tickets| tickets.add(full()));
        added.unwrap();
        let path = state.file(FILE);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        // Torn in the middle of a secret: refused, and nothing is written over it.
        let torn = &text[..text.find("secret=").unwrap() + 15];
        std::fs::write(&path, torn).unwrap();
        assert!(
            Tickets::change(&state, |tickets| tickets.add(Entry::new("b".to_owned()))).is_err()
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), torn);
        std::fs::write(&path, &text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let refused = Tickets::read(&state).unwrap_err();
        assert!(refused.message.contains("others can read"), "{refused}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Tickets::read(&state).is_ok());
    }

    #[test]
    fn one_receiver_has_a_state_directory_at_a_time() {
        let scratch = tempfile::tempdir().unwrap();
        let state = StateDir::open(Some(scratch.path()), "recv").unwrap();
        let first = state.run().unwrap();
        let refused = state.run().unwrap_err();
        assert!(refused.message.contains("another receiver"), "{refused}");
        // Tickets can be changed meanwhile.
        Tickets::change(&state, |tickets| tickets.add(full())).unwrap();
        drop(first);
        assert!(state.run().is_ok());
    }

    #[test]
    fn a_directory_that_others_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = tempfile::tempdir().unwrap();
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = StateDir::open(Some(scratch.path()), "recv").unwrap_err();
        assert!(refused.hint.contains("chmod go-w"), "{refused:?}");
    }
}
