//! Options of `sphx pep run` that come from a file.

use std::ffi::{OsStr, OsString};
use std::fs;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Args, Command, FromArgMatches};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::args::RunArgs;
use crate::failure::{Outcome, local_io, sentence, usage};

/// Options that only the command line has: how it speaks, and what it is.
const NOT_IN_FILES: [&str; 5] = ["config", "json", "quiet", "worker", "ends-with"];

/// The arguments, with what the file says that they name and the command line does not. `words` are the
/// command line's options.
///
/// # Errors
///
/// A file that cannot be read; one that says something that cannot be followed, with its line.
pub(super) fn complete(args: &RunArgs, words: Vec<OsString>) -> Outcome<RunArgs> {
    let Some(path) = &args.config else {
        return Ok(args.clone());
    };
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| local_io("read", &name, error))?;
    let refuse = |line: Option<usize>, why: &str| {
        let line = line.map_or(String::new(), |line| format!(":{line}"));
        usage(format!("{name}{line}: {why}"))
    };
    let given = without_config(words);
    let is_given = |option: &str| given.iter().any(|word| is_option(word, option));
    let said = read(&text).map_err(|(line, why)| refuse(Some(line), &why))?;
    let of_file = said.iter().filter(|said| !is_given(&said.option));
    let of_file = of_file.flat_map(|said| said.words.iter().map(OsString::from));
    let line: Vec<OsString> = of_file.chain(given.iter().cloned()).collect();
    let matches = command().try_get_matches_from(line);
    let completed = matches.and_then(|matches| RunArgs::from_arg_matches(&matches));
    completed.map_err(|error| {
        let about = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(about)) => about.as_str(),
            _ => "",
        };
        let said = said
            .iter()
            .find(|said| is_option(OsStr::new(about), &said.option));
        refuse(said.map(|said| said.line), &sentence(&error))
    })
}

fn command() -> Command {
    RunArgs::augment_args(Command::new("sphx pep run").no_binary_name(true))
}

/// What a file says of one option.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    option: String,
    line: usize,
    /// What the file says, as words of a command line.
    words: Vec<String>,
}

/// Reads a file; or the line that cannot be followed, and why.
fn read(text: &str) -> Result<Vec<Said>, (usize, String)> {
    let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        (line(at), error.message().to_owned())
    })?;
    let command = command();
    let mut said = Vec::new();
    for (key, value) in table.get_ref() {
        let at = line(key.span().start);
        let option = key.get_ref().to_string();
        let known = command.get_arguments().find(|it| is_for_files(it, &option));
        let words = match known {
            Some(known) => words(known, value),
            None => Err(unknown(&command, &option)),
        };
        said.push(Said {
            option,
            line: at,
            words: words.map_err(|why| (at, why))?,
        });
    }
    Ok(said)
}

fn is_for_files(option: &Arg, name: &str) -> bool {
    option.get_long() == Some(name) && !NOT_IN_FILES.contains(&name)
}

fn unknown(command: &Command, name: &str) -> String {
    let names = command.get_arguments().filter_map(Arg::get_long);
    let mut names: Vec<&str> = names.filter(|name| !NOT_IN_FILES.contains(name)).collect();
    names.sort_unstable();
    format!(
        "there is no setting '{name}'; there are {}",
        names.join(", ")
    )
}

/// A setting as words of a command line.
fn words(option: &Arg, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    let name = option.get_long().unwrap_or_default();
    let word = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(format!("--{name}={text}")),
        DeValue::Integer(number) => Ok(format!("--{name}={}", number.as_str())),
        _ => Err(format!("{name}: write \"…\"")),
    };
    match (option.get_action(), value.get_ref()) {
        (ArgAction::SetTrue, DeValue::Boolean(true)) => Ok(vec![format!("--{name}")]),
        (ArgAction::SetTrue, DeValue::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err(format!("{name}: write true or false")),
        (ArgAction::Append, DeValue::Array(values)) => {
            values.iter().map(|value| word(value.get_ref())).collect()
        }
        (_, value) => word(value).map(|word| vec![word]),
    }
}

/// Whether a word of a command line is this option, with or without its value.
fn is_option(word: &OsStr, option: &str) -> bool {
    let word = word.to_string_lossy();
    let rest = word
        .strip_prefix("--")
        .and_then(|word| word.strip_prefix(option));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['=', ' ']))
}

fn without_config(words: Vec<OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "--config" {
            words.next();
        } else if !is_option(&word, "config") {
            kept.push(word);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<Vec<String>, String> {
        let said = read(text).map_err(|(line, why)| format!("{line}: {why}"))?;
        Ok(said.into_iter().flat_map(|said| said.words).collect())
    }

    #[test]
    fn settings_are_options() {
        let text = "wireless = \"wlan0\" # the hop\nwired = [\"a\", \"b\"]\nradio-rate = \"19mbit\"\n\
                    repair-dscp = 46\nmatch = \"tcp port 443\"\ndry-run = true\n";
        let mut said = words(text).expect("settings");
        said.sort();
        assert_eq!(
            said,
            [
                "--dry-run",
                "--match=tcp port 443",
                "--radio-rate=19mbit",
                "--repair-dscp=46",
                "--wired=a",
                "--wired=b",
                "--wireless=wlan0",
            ]
        );
        assert_eq!(words("dry-run = false"), Ok(Vec::new()));
    }

    #[test]
    fn what_cannot_be_followed_is_told_with_its_line() {
        for (text, reason) in [
            (
                "wireless = \"w\"\n\ncolor = 1",
                "3: there is no setting 'color'; there are agent,",
            ),
            ("json = true", "1: there is no setting 'json'"),
            ("wireless = 1.5", "1: wireless: write \"…\""),
            ("dry-run = \"yes\"", "1: dry-run: write true or false"),
            ("wireless = \"a\"\nwireless = \"b\"", "2: duplicate key"),
            ("[agent]", "1: agent: write \"…\""),
            ("wireless", "1: "),
        ] {
            let error = words(text).expect_err(text);
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("pep.toml");
        let parse = |text: &str, line: &str| {
            fs::write(&path, text).expect("a file");
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let path = path.clone().into_os_string();
            let words = [vec!["--config".into(), path], words].concat();
            let matches = command().get_matches_from(words.clone());
            let args = RunArgs::from_arg_matches(&matches).expect("arguments");
            complete(&args, words)
        };
        let text = "wireless = \"w\"\nwired = [\"a\", \"b\"]\nradio-rate = \"5mbit\"";
        let args = parse(text, "--wired c --radio-rate=6mbit").expect("both");
        assert_eq!(args.wireless(), "w");
        assert_eq!(args.wired, ["c"]);
        assert_eq!(args.agent.radio_rate, Some(6_000_000));
        for (text, reason) in [
            (
                "radio-rate = \"5mbit\"",
                "pep.toml: the following required arguments",
            ),
            (
                "wireless = \"w\"\nlag-max = \"5\"",
                "pep.toml:2: invalid value '5'",
            ),
        ] {
            let message = parse(text, "").expect_err(text).message;
            assert!(message.contains(reason), "{message}");
        }
    }
}
