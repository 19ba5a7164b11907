//! The clients of a server: a text file, one a line, that people edit and a running server watches.
//!
//! `ed25519:KEY laptop permit=tunnel rate=50mbit expires=2027-01-01`

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use sphinx_transport::{ErrorKind, PublicKey};
use sphinx_tunnel::{Grant, Limits, Permit};

use super::date::Moment;
use super::line::{name, nearest, quoted, setting, unknown, words};
use super::{Lock, Secrecy, StateDir, read, wrong_line};
use crate::failure::{Outcome, fail_hint, local_io, usage};
use crate::units;

/// The file, unless the configuration names another.
pub(crate) const FILE: &str = "authorized";
const HEAD: &str =
    "# Clients, one a line: key, name, and what it may do. Edits take effect within a second.\n";
const KEYS: [&str; 8] = [
    "permit", "rate", "streams", "flows", "pending", "memory", "address", "expires",
];
/// Most clients of a file.
const CLIENTS_MAX: usize = 100_000;

/// One client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Client {
    pub(crate) key: PublicKey,
    pub(crate) name: String,
    pub(crate) rights: Rights,
}

/// What a client may do.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rights {
    pub(crate) permit: Permit,
    /// Its address in the server's network of tunnels, if it has one of its own there.
    pub(crate) address: Option<IpAddr>,
    /// When it is cut off.
    pub(crate) expires: Option<Moment>,
    limits: Overrides,
    /// The settings, as they were written.
    text: String,
}

/// Limits of one client, where they are not those of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Overrides {
    rate: Option<u64>,
    streams: Option<usize>,
    flows: Option<usize>,
    pending: Option<usize>,
    memory: Option<u64>,
}

impl Rights {
    /// Reads the settings of a line.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let mut rights = Self::default();
        let mut seen = Vec::new();
        for word in words {
            let (key, value) = setting(word)?;
            if seen.contains(&key) {
                return Err(format!("{key} stands there twice"));
            }
            seen.push(key);
            let count = || match value.parse::<usize>() {
                Ok(count) if count > 0 => Ok(Some(count)),
                _ => Err(format!("{key}: '{value}' is no number above 0")),
            };
            let limits = &mut rights.limits;
            match key {
                "permit" => {
                    let permit = value.parse::<Permit>();
                    rights.permit = permit.map_err(|error| error.to_string())?;
                }
                "rate" => limits.rate = Some(units::rate(value)? / 8),
                "streams" => limits.streams = count()?,
                "flows" => limits.flows = count()?,
                "pending" => limits.pending = count()?,
                "memory" => limits.memory = Some(units::size_positive(value)?),
                "address" => {
                    let address = value.parse();
                    rights.address = Some(address.map_err(|_| format!("'{value}' is no address"))?);
                }
                "expires" => rights.expires = Some(Moment::parse(value)?),
                _ => return Err(unknown("setting", key, &KEYS)),
            }
        }
        rights.text = words
            .iter()
            .map(|word| quoted_setting(word))
            .collect::<Vec<_>>()
            .join(" ");
        Ok(rights)
    }

    /// The settings, as they are written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What the server's tunnels need to know; `defaults` are the limits of all clients.
    pub(crate) fn grant(&self, name: &str, defaults: Limits) -> Grant {
        let own = self.limits;
        let limits = Limits {
            rate: own.rate.or(defaults.rate),
            streams: own.streams.unwrap_or(defaults.streams),
            flows: own.flows.unwrap_or(defaults.flows),
            pending: own.pending.unwrap_or(defaults.pending),
            memory: own.memory.or(defaults.memory),
        };
        Grant::new(name, self.permit.clone(), limits).with_address(self.address)
    }
}

/// `key=value`, with quotes around a value that needs them.
fn quoted_setting(word: &str) -> String {
    match word.split_once('=') {
        Some((key, value)) => format!("{key}={}", quoted(value)),
        None => quoted(word),
    }
}

impl Client {
    fn parse(line: &str) -> Result<Option<Self>, String> {
        let words = words(line)?;
        let (key, rest) = match words.split_first() {
            None => return Ok(None),
            Some(split) => split,
        };
        let key = key.parse::<PublicKey>();
        let key = key.map_err(|error| format!("it does not begin with a key: {error}"))?;
        let Some((first, settings)) = rest.split_first() else {
            return Err("behind the key stands the client's name".to_owned());
        };
        Ok(Some(Self {
            key,
            name: name(first)?,
            rights: Rights::parse(settings)?,
        }))
    }
}

/// All clients of a file, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Clients(pub(crate) HashMap<PublicKey, Client>);

impl Clients {
    /// Reads the text of a file. The error has the number of the line that cannot be understood, and why.
    pub(crate) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut all = HashMap::new();
        let (mut names, mut addresses) = (HashSet::new(), HashSet::new());
        for (n, line) in text.lines().enumerate() {
            let wrong = |why: String| (n + 1, why);
            let Some(client) = Client::parse(line).map_err(wrong)? else {
                continue;
            };
            if !names.insert(client.name.clone()) {
                return Err(wrong(format!("there is a client {} above", client.name)));
            }
            if all.len() >= CLIENTS_MAX {
                return Err(wrong(format!("more than {CLIENTS_MAX} clients")));
            }
            let address = client.rights.address;
            if address.is_some_and(|address| !addresses.insert(address)) {
                return Err(wrong("a client above has this address".to_owned()));
            }
            if let Some(other) = all.insert(client.key, client) {
                return Err(wrong(format!("{} has the same key", other.name)));
            }
        }
        Ok(Self(all))
    }

    /// Reads a file; empty if there is none.
    pub(crate) fn read(path: &Path) -> Outcome<Self> {
        let text = read(path, Secrecy::Public)?;
        let text = text.as_ref().map_or("", |text| text.as_str());
        Self::parse(text).map_err(|(number, why)| wrong_line(path, number, &why))
    }

    /// Addresses that belong to clients.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.values().filter_map(|client| client.rights.address)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Client> {
        self.0.values().find(|client| client.name == name)
    }

    /// The clients in the order of their names.
    pub(crate) fn sorted(&self) -> Vec<&Client> {
        let mut all: Vec<&Client> = self.0.values().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// The file that people edit: what is changed by commands is one line, the others stay as they are.
pub(crate) struct File {
    state: StateDir,
    path: PathBuf,
}

impl File {
    pub(crate) fn new(state: &StateDir, path: &Path) -> Self {
        Self {
            state: state.clone(),
            path: path.to_owned(),
        }
    }

    /// Adds a client; nothing if it is there already under this name. Nobody else changes anything meanwhile.
    pub(crate) fn add(
        &self,
        held: &Lock,
        key: PublicKey,
        (name, settings): (&str, &str),
    ) -> Outcome<()> {
        self.change(held, |clients, text| {
            if let Some(known) = clients.0.get(&key) {
                return match known.name == name {
                    true => Ok(()),
                    false => Err(fail_hint(
                        ErrorKind::Usage,
                        format!("the client {} has this key already", known.name),
                        "",
                    )),
                };
            }
            if clients.named(name).is_some() {
                let message = format!("there is another client {name}");
                return Err(fail_hint(ErrorKind::Usage, message, "revoke it first"));
            }
            // A line that cannot be understood would have the whole file refused from then on.
            let rights = words(settings).and_then(|words| Rights::parse(&words));
            let rights = rights.map_err(|why| usage(format!("what {name} was granted: {why}")))?;
            let is_taken = |it: &IpAddr| clients.addresses().any(|own| own == *it);
            if let Some(address) = rights.address.filter(is_taken) {
                let message = format!("another client has the address {address}");
                return Err(fail_hint(ErrorKind::Usage, message, "revoke it first"));
            }
            if text.is_empty() {
                text.push_str(HEAD);
            }
            if !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(format!("{key} {name} {settings}").trim_end());
            text.push('\n');
            Ok(())
        })
    }

    /// Removes a client; whether there was one of this name.
    pub(crate) fn remove(&self, name: &str) -> Outcome<bool> {
        self.change(&self.state.lock()?, |clients, text| {
            if clients.named(name).is_none() {
                return Ok(false);
            }
            let is_other = |line: &&str| {
                !matches!(Client::parse(line), Ok(Some(client)) if client.name == name)
            };
            let kept: Vec<&str> = text.lines().filter(is_other).collect();
            *text = kept.join("\n") + "\n";
            Ok(true)
        })
    }

    fn change<T>(
        &self,
        _held: &Lock,
        change: impl FnOnce(&Clients, &mut String) -> Outcome<T>,
    ) -> Outcome<T> {
        let clients = Clients::read(&self.path)?;
        let before = read(&self.path, Secrecy::Public)?;
        let before = before.map_or_else(String::new, |text| text.to_string());
        let mut text = before.clone();
        let changed = change(&clients, &mut text)?;
        if text != before {
            let written = super::replace_public(&self.path, text.as_bytes());
            written.map_err(|error| local_io("write", &super::show(&self.path), error))?;
        }
        Ok(changed)
    }
}

/// The failure where nobody has this name.
pub(crate) fn nobody(name: &str, known: &[&str]) -> crate::failure::Failure {
    let near = nearest(name, known);
    let hint = near.map_or_else(String::new, |near| format!("did you mean {near}?"));
    fail_hint(
        ErrorKind::Usage,
        format!("there is no client, invitation or ticket {name}"),
        hint,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use sphinx_transport::ClientKey;

    fn add(file: &File, key: PublicKey, name: &str, settings: &str) -> Outcome<()> {
        file.add(&file.state.lock()?, key, (name, settings))
    }

    #[test]
    fn lines_are_read() {
        let key = ClientKey::generate().public_key();
        let text = format!(
            "# comment\n\n{key} laptop permit=tunnel:tcp:*.corp:443,listen:2222 rate=50mbit address=10.9.0.2 expires=2027-01-01 # Anna's\n"
        );
        let clients = Clients::parse(&text).unwrap();
        let client = clients.named("laptop").unwrap();
        assert_eq!(client.key, key);
        let grant = client.rights.grant("laptop", Limits::default());
        assert_eq!(grant.limits().rate, Some(50_000_000 / 8));
        assert_eq!(client.rights.address, Some("10.9.0.2".parse().unwrap()));
        assert_eq!(
            client.rights.expires,
            Some(Moment::parse("2027-01-01").unwrap())
        );
        let again = format!("{key} laptop {}", client.rights.text());
        assert_eq!(Clients::parse(&again).unwrap(), clients);
        // Nothing is permitted that is not written.
        let bare = Clients::parse(&format!("{key} laptop")).unwrap();
        assert_eq!(bare.0[&key].rights.permit, Permit::default());
    }

    #[test]
    fn an_address_belongs_to_one_client() {
        let [a, b] = [0; 2].map(|_| ClientKey::generate().public_key());
        let line = |key, name| format!("{key} {name} address=10.9.0.2\n");
        let both = [line(a, "one"), line(b, "other")].concat();
        let (number, why) = Clients::parse(&both).unwrap_err();
        assert_eq!(number, 2);
        assert!(why.contains("has this address"), "{why}");
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(Some(directory.path()), "server").unwrap();
        let file = File::new(&state, &state.file(FILE));
        add(&file, a, "one", "address=10.9.0.2").unwrap();
        let refused = add(&file, b, "other", "permit=tun address=10.9.0.2");
        assert!(refused.unwrap_err().message.contains("10.9.0.2"));
        add(&file, b, "other", "permit=tun address=10.9.0.3").unwrap();
        let own = Clients::read(&state.file(FILE)).unwrap();
        assert_eq!(own.addresses().count(), 2);
    }

    #[test]
    fn what_cannot_be_understood_is_told_with_its_line() {
        let [a, b] = [0; 2].map(|_| ClientKey::generate().public_key());
        for (line, why) in [
            (
                "laptop permit=tunnel".to_owned(),
                "does not begin with a key",
            ),
            (format!("{b}"), "name"),
            (format!("{b} permit=tunnel"), "is no name"),
            (format!("{b} x permits=tunnel"), "did you mean permit?"),
            (format!("{b} x permit=tunel"), "is no rule"),
            (format!("{b} x rate=50"), "unit"),
            (format!("{b} x streams=0"), "no number above 0"),
            (format!("{b} x address=10.9"), "no address"),
            (format!("{b} x expires=soon"), "no date"),
            (format!("{b} x 'permit=tunnel"), "does not end"),
            (format!("{b} a"), "there is a client a above"),
            (format!("{a} x"), "a has the same key"),
        ] {
            let text = format!("{a} a\n\n{line}\n");
            let (number, told) = Clients::parse(&text).expect_err(&line);
            assert_eq!(number, 3);
            assert!(told.contains(why), "{line}: {told}");
        }
    }

    #[test]
    fn commands_change_their_own_line() {
        let scratch = tempfile::tempdir().unwrap();
        let state = StateDir::open(Some(scratch.path()), "server").unwrap();
        let path = state.file(FILE);
        let file = File::new(&state, &path);
        let [a, b] = [0; 2].map(|_| ClientKey::generate().public_key());
        std::fs::write(&path, format!("# mine\n{a}   a  permit=tunnel  # note")).unwrap();
        add(&file, b, "b", "permit=tunnel rate=5mbit").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected =
            format!("# mine\n{a}   a  permit=tunnel  # note\n{b} b permit=tunnel rate=5mbit\n");
        assert_eq!(text, expected);
        // Again the same is the same; another of that name, or the same key under another, is none.
        add(&file, b, "b", "").unwrap();
        assert!(add(&file, b, "c", "").is_err());
        let c = ClientKey::generate().public_key();
        assert!(add(&file, c, "b", "").is_err());
        // Nor is one that could not be read again.
        for settings in ["permit=tunel", "permit='tunnel", "nonsense"] {
            assert!(add(&file, c, "c", settings).is_err(), "{settings}");
        }
        assert!(!file.remove("c").unwrap() && file.remove("b").unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("# mine\n{a}   a  permit=tunnel  # note\n"));
        // What cannot be understood is not written over.
        std::fs::write(&path, "nonsense").unwrap();
        assert!(add(&file, b, "b", "").is_err() && file.remove("a").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "nonsense");
    }

    /// A server that is another user than whoever changes the file, and than its owner, goes on reading it.
    #[test]
    fn who_may_read_the_file_still_may_when_it_has_changed() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
        let scratch = tempfile::tempdir().unwrap();
        let state = StateDir::open(Some(&scratch.path().join("state")), "server").unwrap();
        let [a, b] = [0; 2].map(|_| ClientKey::generate().public_key());
        let rights = |path: &Path| {
            let metadata = std::fs::metadata(path).unwrap();
            let mode = metadata.permissions().mode() & 0o7777;
            (metadata.uid(), metadata.gid(), mode)
        };
        let (clients, link) = (
            scratch.path().join("clients"),
            scratch.path().join("authorized"),
        );
        symlink("clients", &link).unwrap();
        let file = File::new(&state, &link);
        // What a link leads to nowhere is not replaced either.
        assert!(add(&file, a, "a", "").is_err() && link.is_symlink());
        let new = File::new(&state, &clients);
        add(&new, a, "a", "permit=tunnel").unwrap();
        assert_eq!(rights(&clients).2, 0o644);
        let own = rights(scratch.path());
        let (owner, group) = match rustix::process::geteuid().is_root() {
            true => (4711, 4712),
            false => {
                sphinx_testing::skipped!("in part: only root gives files to others");
                (own.0, own.1)
            }
        };
        chown(&clients, Some(owner), Some(group)).unwrap();
        for mode in [0o644, 0o640] {
            std::fs::set_permissions(&clients, PermissionsExt::from_mode(mode)).unwrap();
            add(&file, b, "b", "permit=tunnel").unwrap();
            assert_eq!(rights(&clients), (owner, group, mode));
            assert!(file.remove("b").unwrap());
            assert_eq!(rights(&clients), (owner, group, mode));
            assert!(link.is_symlink());
        }
        assert!(Clients::read(&clients).unwrap().named("a").is_some());
    }
}
