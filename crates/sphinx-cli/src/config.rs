//! Configuration: options of commands that come from a file or the environment. A flag goes before the environment, that before the file,
//! and the file before what is there by default.
//!
//! Whatever comes from elsewhere is put in front of the command line as the options that it stands for: so there is one grammar, and
//! every value is checked as if somebody had typed it.

mod keys;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(feature = "tunnel")]
use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use keys::{FORWARDS, Key, SERVER, USER};

#[cfg(feature = "tunnel")]
use crate::args::tunnel::ServerArgs;
use crate::failure::{Failure, Outcome, local_io, sentence, usage};
use crate::state::line::unknown;
use crate::text::printable;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Where the user's file is, if not in `$SPHX_CONFIG`.
const USER_FILE: &str = "sphinx/config.toml";

/// Commands that read the user's file.
const USER_COMMANDS: [&str; 6] = ["cp", "join", "recv", "send", "sync", "tunnel"];

/// Whose configuration file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Server,
    User,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(usize),
    Environment(String),
}

/// What is said of one option elsewhere than on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// The setting with its table, as in the file: `limits.memory`.
    pub(crate) name: String,
    flag: &'static str,
    id: &'static str,
    pub(crate) values: Vec<String>,
    pub(crate) origin: Origin,
}

impl Said {
    fn words(&self) -> impl Iterator<Item = OsString> + '_ {
        self.values.iter().map(|value| {
            match self.flag.starts_with("--") {
                true => format!("{}={value}", self.flag),
                false => format!("{}{value}", self.flag),
            }
            .into()
        })
    }
}

/// A file, and what it says.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) said: Vec<Said>,
}

/// The command line with what is said elsewhere, parsed; `parsed` is the command line alone.
///
/// # Errors
/// A file that cannot be read, or says something that cannot be followed.
pub(crate) fn complete(
    grammar: &Command,
    arguments: &[OsString],
    parsed: ArgMatches,
) -> Outcome<ArgMatches> {
    let Some((command, matches)) = parsed.subcommand() else {
        return Ok(parsed);
    };
    let (file, environment) = match command {
        "server" if matches.subcommand_name().is_none() => {
            let path = path_of(matches, "config", "SPHX_SERVER_CONFIG");
            let file = path
                .map(|path| read_file(Kind::Server, &path))
                .transpose()?;
            (file, environment(&SERVER, "SPHX_SERVER_"))
        }
        _ if USER_COMMANDS.contains(&command) => {
            let mut file = user_file()?;
            if let Some(file) = &mut file {
                let name = (command == "tunnel")
                    .then(|| server_name(matches))
                    .flatten();
                of_server(&mut file.said, name.as_deref());
                let forwards = FORWARDS.iter().any(|key| is_given(matches, key.id));
                let has_forwards = forwards || is_given(matches, "stdio");
                file.said
                    .retain(|said| !(has_forwards && FORWARDS.iter().any(|it| it.id == said.id)));
            }
            (file, environment(&USER, "SPHX_"))
        }
        _ => return Ok(parsed),
    };
    let of_file = file.as_ref().map_or(&[][..], |file| &file.said);
    let chosen = choose(matches, of_file, &environment);
    if chosen.is_empty() {
        return Ok(parsed);
    }
    let at = 1 + arguments
        .iter()
        .skip(1)
        .position(|word| word == command)
        .unwrap_or(0);
    let (front, rest) = arguments.split_at((at + 1).min(arguments.len()));
    let words = front.iter().cloned();
    let words = words.chain(chosen.iter().flat_map(|said| said.words()));
    let words: Vec<OsString> = words.chain(rest.iter().cloned()).collect();
    let completed = grammar.clone().try_get_matches_from(words);
    let path = file.as_ref().map(|file| &*file.path);
    let completed = completed.map_err(|error| refused(&error, &chosen, path))?;
    fits(&completed, &chosen, path)?;
    Ok(completed)
}

/// What is added to a command line: what it does not say itself, and of a file what the environment does not say.
fn choose<'s>(matches: &ArgMatches, of_file: &'s [Said], environment: &'s [Said]) -> Vec<&'s Said> {
    let is_new = |said: &&Said| {
        // `limit` and `bwlimit` are two options for the same limit.
        let otherwise = said.id == "limit" && is_given(matches, "bwlimit");
        !otherwise && !is_given(matches, said.id)
    };
    let of_file = of_file.iter().filter(is_new);
    let of_file = of_file.filter(|said| !environment.iter().any(|other| other.id == said.id));
    of_file.chain(environment.iter().filter(is_new)).collect()
}

/// An error of the grammar, with the place where the value stands.
fn refused(error: &clap::Error, chosen: &[&Said], path: Option<&Path>) -> Failure {
    let about = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(about)) => about.as_str(),
        _ => "",
    };
    let flag = about.split([' ', '=']).next().unwrap_or_default();
    usage(format!("{}{}", place(flag, chosen, path), sentence(error)))
}

/// Where the values of an option stand; nothing if that is the command line.
fn place(flag: &str, chosen: &[&Said], path: Option<&Path>) -> String {
    let said = chosen.iter().find(|said| said.flag == flag);
    match said.map(|said| &said.origin) {
        Some(Origin::File(line)) => format!("{}:{line}: ", show(path)),
        Some(Origin::Environment(name)) => format!("${name}: "),
        _ => String::new(),
    }
}

/// Whether the values of one setting of a server fit together.
fn fits(matches: &ArgMatches, chosen: &[&Said], path: Option<&Path>) -> Outcome<()> {
    #[cfg(feature = "tunnel")]
    if let Some(matches) = matches.subcommand_matches("server") {
        let args = ServerArgs::from_arg_matches(matches);
        let args = args.map_err(|error| refused(&error, chosen, path))?;
        return args.check_pools().map_err(|failure| Failure {
            message: place("--tun-pool", chosen, path) + &failure.message,
            ..failure
        });
    }
    let _ = (matches, chosen, path);
    Ok(())
}

fn show(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| {
        printable(path.as_os_str().as_encoded_bytes())
    })
}

fn is_given(matches: &ArgMatches, id: &str) -> bool {
    let known = matches.try_contains_id(id).is_ok();
    known && matches.value_source(id) == Some(ValueSource::CommandLine)
}

fn path_of(matches: &ArgMatches, id: &str, variable: &str) -> Option<PathBuf> {
    let given = matches.try_get_one::<PathBuf>(id).ok().flatten().cloned();
    given.or_else(|| variable_of(variable).map(PathBuf::from))
}

fn variable_of(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// What the environment says.
fn environment(keys: &'static [Key], prefix: &str) -> Vec<Said> {
    let said = keys.iter().filter_map(|key| {
        let name = format!(
            "{prefix}{}",
            key.name.to_ascii_uppercase().replace('-', "_")
        );
        let value = variable_of(&name)?.to_string_lossy().into_owned();
        let values = match key.id {
            "advertise" => value.split(',').map(str::to_owned).collect(),
            _ => vec![value],
        };
        Some(Said {
            name: dotted(key.table, key.name),
            flag: key.flag,
            id: key.id,
            values,
            origin: Origin::Environment(name),
        })
    });
    said.collect()
}

/// The user's file, if there is one.
pub(crate) fn user_file() -> Outcome<Option<File>> {
    let named = variable_of("SPHX_CONFIG").map(PathBuf::from);
    let is_named = named.is_some();
    let Some(path) = named.or_else(default_user_file) else {
        return Ok(None);
    };
    match is_named || path.exists() {
        true => read_file(Kind::User, &path).map(Some),
        false => Ok(None),
    }
}

/// The user's file where `$SPHX_CONFIG` names none; it may not exist.
pub(crate) fn default_user_file() -> Option<PathBuf> {
    let absolute = |variable| {
        let path = PathBuf::from(std::env::var_os(variable)?);
        path.is_absolute().then_some(path)
    };
    let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(base.join(USER_FILE))
}

/// Reads a file.
pub(crate) fn read_file(kind: Kind, path: &Path) -> Outcome<File> {
    let shown = show(Some(path));
    let read = || {
        if fs::metadata(path)?.len() > FILE_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        fs::read_to_string(path)
    };
    let text = read().map_err(|error| local_io("read", &shown, error))?;
    let said = read_text(kind, &text);
    let mut said = said.map_err(|(line, why)| usage(format!("{shown}:{line}: {why}")))?;
    // Relative paths in the file are relative to its directory.
    let directory = path.parent().unwrap_or(Path::new("."));
    for said in &mut said {
        if SERVER.iter().any(|key| key.is_path && key.id == said.id) {
            for value in &mut said.values {
                *value = directory.join(&*value).to_string_lossy().into_owned();
            }
        }
    }
    Ok(File {
        path: path.to_owned(),
        said,
    })
}

/// What a text says, or the line that cannot be followed, and why.
pub(crate) fn read_text(kind: Kind, text: &str) -> Result<Vec<Said>, (usize, String)> {
    let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        (line(at), error.message().to_owned())
    })?;
    let mut said = Vec::new();
    for (name, value) in table.get_ref() {
        let at = line(name.span().start);
        let name = name.get_ref().as_ref();
        match (kind, value.get_ref()) {
            (Kind::User, DeValue::Table(servers)) if name == "tunnel" => {
                for (server, value) in servers {
                    let at = line(server.span().start);
                    let server = server.get_ref().as_ref();
                    crate::state::line::name(server).map_err(|why| (at, why))?;
                    let DeValue::Table(settings) = value.get_ref() else {
                        return Err((at, format!("write [tunnel.{server}], and forwards below")));
                    };
                    let prefix = format!("tunnel.{server}");
                    take(settings, &FORWARDS, "", &prefix, &line, &mut said)?;
                }
            }
            (Kind::Server, DeValue::Table(settings)) if is_table(name) => {
                take(settings, &SERVER, name, name, &line, &mut said)?;
            }
            (_, value) => {
                let keys: &'static [Key] = match kind {
                    Kind::Server => &SERVER,
                    Kind::User => &USER,
                };
                one((name, at), value, keys, "", "", &mut said)?;
            }
        }
    }
    Ok(said)
}

fn is_table(name: &str) -> bool {
    SERVER
        .iter()
        .any(|key| !key.table.is_empty() && key.table == name)
}

fn take(
    settings: &DeTable<'_>,
    keys: &'static [Key],
    table: &str,
    prefix: &str,
    line: &dyn Fn(usize) -> usize,
    said: &mut Vec<Said>,
) -> Result<(), (usize, String)> {
    for (name, value) in settings {
        let at = line(name.span().start);
        one(
            (name.get_ref(), at),
            value.get_ref(),
            keys,
            table,
            prefix,
            said,
        )?;
    }
    Ok(())
}

/// Reads one setting of a file.
fn one(
    (name, at): (&str, usize),
    value: &DeValue<'_>,
    keys: &'static [Key],
    table: &str,
    prefix: &str,
    said: &mut Vec<Said>,
) -> Result<(), (usize, String)> {
    let here = || keys.iter().filter(|key| key.table == table);
    let Some(key) = here().find(|key| key.name == name) else {
        let mut known: Vec<&str> = here().map(|key| key.name).collect();
        if table.is_empty() && prefix.is_empty() {
            known.extend(tables_of(keys));
        }
        let shown = printable(name.as_bytes());
        return Err((at, unknown("setting", &shown, &known)));
    };
    let text = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        _ => Err((at, format!("{name}: write \"…\""))),
    };
    let values = match value {
        DeValue::Array(values) => {
            let values = values
                .iter()
                .map(|value: &Spanned<DeValue<'_>>| text(value.get_ref()));
            values.collect::<Result<Vec<_>, _>>()?
        }
        value => vec![text(value)?],
    };
    if let Some(wrong) = values
        .iter()
        .find(|value| value.is_empty() || value.contains('\0'))
    {
        return Err((
            at,
            format!("{name}: '{}' says nothing", printable(wrong.as_bytes())),
        ));
    }
    if key.id == "listen" && values.len() != 1 {
        return Err((
            at,
            "listen: write one address, such as \"[::]:7749\"".to_owned(),
        ));
    }
    said.push(Said {
        name: dotted(prefix, name),
        flag: key.flag,
        id: key.id,
        values,
        origin: Origin::File(at),
    });
    Ok(())
}

fn dotted(table: &str, name: &str) -> String {
    match table {
        "" => name.to_owned(),
        table => format!("{table}.{name}"),
    }
}

fn tables_of(keys: &[Key]) -> Vec<&'static str> {
    if keys.iter().any(|key| key.id == "connect_timeout") {
        return vec!["tunnel"];
    }
    let mut tables: Vec<&str> = keys.iter().map(|key| key.table).collect();
    tables.retain(|table| !table.is_empty());
    tables.dedup();
    tables
}

/// The server that a tunnel is to, if it is one that was joined.
fn server_name(matches: &ArgMatches) -> Option<String> {
    let ticket = matches.try_get_one::<OsString>("ticket").ok().flatten()?;
    crate::state::line::name(ticket.to_str()?).ok()
}

/// Leaves of the tables of servers only that of this one.
fn of_server(said: &mut Vec<Said>, name: Option<&str>) {
    let own = name.map(|name| format!("tunnel.{name}."));
    said.retain(|said| {
        let is_of_server = said.name.starts_with("tunnel.");
        !is_of_server
            || own
                .as_ref()
                .is_some_and(|own| said.name.starts_with(own.as_str()))
    });
}

/// All that may be said in a file of this kind, with what holds by default: for people who look.
pub(crate) fn defaults(kind: Kind, grammar: &Command) -> Vec<(String, Vec<String>)> {
    let (command, keys): (_, &[Key]) = match kind {
        Kind::Server => ("server", &SERVER),
        Kind::User => ("send", &USER),
    };
    let command = grammar.find_subcommand(command);
    let of = |key: &Key| {
        let argument = command?.get_arguments().find(|it| it.get_id() == key.id)?;
        let values = argument.get_default_values().iter();
        Some(values.map(|it| it.to_string_lossy().into_owned()).collect())
    };
    let named = keys
        .iter()
        .map(|key| (dotted(key.table, key.name), of(key).unwrap_or_default()));
    named.collect()
}

/// What the environment says to a command of this kind.
pub(crate) fn environment_of(kind: Kind) -> Vec<Said> {
    match kind {
        Kind::Server => environment(&SERVER, "SPHX_SERVER_"),
        Kind::User => environment(&USER, "SPHX_"),
    }
}

/// Whether a server that is told nothing but by the environment would begin with what its file says.
#[cfg(feature = "tunnel")]
pub(crate) fn suffices(grammar: &Command, file: &File) -> Outcome<()> {
    let environment = environment_of(Kind::Server);
    let of_environment = |it: &&Said| environment.iter().any(|other| other.id == it.id);
    let of_file = file.said.iter().filter(|it| !of_environment(it));
    let chosen: Vec<&Said> = of_file.chain(&environment).collect();
    let words = ["sphx", "server"].map(OsString::from).into_iter();
    let words = words.chain(chosen.iter().flat_map(|said| said.words()));
    let parsed = grammar.clone().try_get_matches_from(words);
    let wrong = |error: clap::Error| refused(&error, &chosen, Some(&file.path));
    let parsed = parsed.map_err(wrong)?;
    let Some(matches) = parsed.subcommand_matches("server") else {
        return Ok(());
    };
    let args = ServerArgs::from_arg_matches(matches).map_err(wrong)?;
    args.check_permit().map_err(|failure| Failure {
        message: format!("{}: {}", show(Some(&file.path)), failure.message),
        ..failure
    })
}

/// Checks the values of a file as a command would that uses it.
pub(crate) fn check(kind: Kind, grammar: &Command, file: &File) -> Outcome<()> {
    let parse = |command: &str, said: &[&Said]| {
        let words = ["sphx", command].map(OsString::from);
        let line: Vec<OsString> = words
            .into_iter()
            .chain(said.iter().flat_map(|said| said.words()))
            .collect();
        let more: &[&str] = if command == "send" { &["t", "x"] } else { &[] };
        let line = line
            .iter()
            .map(|word| word.as_os_str())
            .chain(more.iter().map(OsStr::new));
        let parsed = grammar.clone().try_get_matches_from(line);
        let parsed = parsed.map_err(|error| refused(&error, said, Some(&file.path)))?;
        fits(&parsed, said, Some(&file.path))
    };
    let (forwards, others): (Vec<&Said>, Vec<&Said>) = file
        .said
        .iter()
        .partition(|said| said.name.starts_with("tunnel."));
    match kind {
        Kind::Server => parse("server", &others)?,
        Kind::User => parse("send", &others)?,
    }
    match forwards.is_empty() {
        true => Ok(()),
        false => parse("tunnel", &forwards),
    }
}
