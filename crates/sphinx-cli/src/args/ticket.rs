//! Where the ticket comes from: a file, standard input, the environment, an argument, or a server that was joined.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use sphinx_transport::{ErrorKind, Ticket};
use zeroize::Zeroizing;

use crate::failure::{Failure, Outcome, fail_hint, local_io, usage};
use crate::report::Reporter;
use crate::state::line;
#[cfg(feature = "tunnel")]
use crate::state::servers::Servers;
use crate::text::{TICKET_PREFIX, printable};

/// How much is shown of what is no ticket.
const BEGINNING_CHARS: usize = 8;
/// Longest text that is read in search of a ticket.
const TICKET_BYTES_MAX: u64 = 16 * 1024;
/// Longest line of standard input that may hold one.
const LINE_BYTES_MAX: usize = 4096;
const HINT: &str =
    "the receiving end prints it, or writes it with --ticket-file; it starts with sphx1";

/// Where a ticket was found, before it is read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// On the command line, where other users of the machine can see it.
    Argument(Zeroizing<String>),
    Environment(Zeroizing<String>),
    File(PathBuf),
    Stdin,
    /// The name of a server that was joined.
    Server(String),
}

/// How the name of a server that was joined is told from what else may stand in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Nothing else may: any name is one.
    Bare,
    /// A path may: behind the name there is a colon.
    Colon,
}

impl Names {
    fn find(self, text: &str) -> Option<String> {
        match self {
            Self::Bare => line::name(text).ok(),
            Self::Colon => line::name(text.strip_suffix(':')?).ok(),
        }
    }
}

/// A ticket file that is not there is most often one that has not been copied yet.
fn unreadable(shown: &str, error: io::Error) -> Failure {
    let missing = error.kind() == io::ErrorKind::NotFound;
    let failure = local_io("read the ticket file", shown, error);
    match missing {
        true => failure.with_hint("copy the file that the other end wrote with --ticket-file"),
        false if failure.hint.is_empty() => failure.with_hint(HINT),
        false => failure,
    }
}

/// Refuses an argument beside a ticket file, where nothing but a ticket or the name of a server can be one: it would be ignored.
pub(crate) fn refuse_two(ticket_file: Option<&Path>, argument: Option<&OsStr>) -> Outcome<()> {
    match (ticket_file, argument) {
        (Some(_), Some(_)) => Err(usage(
            "there are two tickets: one in --ticket-file and one as an argument",
        )),
        _ => Ok(()),
    }
}

/// Separates the ticket from the paths of `send`.
///
/// `environment` is $SPHX_TICKET. A ticket named on the command line wins over it.
pub(crate) fn split_arguments(
    ticket_file: Option<&Path>,
    arguments: Vec<OsString>,
    environment: Option<OsString>,
) -> Outcome<(Source, Vec<PathBuf>)> {
    let mut paths: Vec<PathBuf> = arguments.into_iter().map(PathBuf::from).collect();
    let source = match find(
        ticket_file,
        (
            paths.first().map(|path| path.as_os_str()),
            Some(Names::Colon),
        ),
        environment,
    )? {
        (source, true) => {
            paths.remove(0);
            source
        }
        (source, false) => source,
    };
    Ok((source, paths))
}

/// The source of the ticket, and whether the argument was it. `names`: how the name of a server may stand in its place, if it may.
pub(crate) fn find(
    ticket_file: Option<&Path>,
    (argument, names): (Option<&OsStr>, Option<Names>),
    environment: Option<OsString>,
) -> Outcome<(Source, bool)> {
    if let Some(path) = ticket_file {
        return Ok((Source::File(path.to_owned()), false));
    }
    match argument.and_then(OsStr::to_str) {
        Some("-") => return Ok((Source::Stdin, true)),
        Some(text) if is_ticket(bare(text)) => {
            return Ok((Source::Argument(text.to_owned().into()), true));
        }
        Some(text) => {
            if let Some(name) = names.and_then(|names| names.find(text)) {
                return Ok((Source::Server(name), true));
            }
        }
        None => {}
    }
    if let Some(text) = environment.filter(|text| !text.is_empty()) {
        let text = text
            .into_string()
            .map_err(|_| malformed("$SPHX_TICKET is not text"))?;
        return Ok((Source::Environment(text.into()), false));
    }
    let message = match argument {
        Some(argument) => {
            let shown = beginning(argument);
            format!(
                "there is no ticket: '{shown}' is not one (all begin with {TICKET_PREFIX}), and \
                 $SPHX_TICKET is not set"
            )
        }
        None => "there is no ticket".to_owned(),
    };
    Err(fail_hint(
        ErrorKind::Usage,
        message,
        "give it with --ticket-file F, as - (standard input), or in $SPHX_TICKET",
    ))
}

/// Of an argument that is no path here only its beginning: it may be a ticket that was cut off in
/// front.
fn beginning(argument: &OsStr) -> String {
    let shown = printable(argument.as_encoded_bytes());
    if Path::new(argument).symlink_metadata().is_ok() {
        return shown;
    }
    match shown.char_indices().nth(BEGINNING_CHARS) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

/// The word that is a ticket by its looks. Words, quotes and commas around it are tolerated, so that
/// a whole printed line or a field of JSON can be given; so are capital letters.
fn token(text: &str) -> Option<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .find(|word| is_ticket(word))
}

/// An argument without what was copied with it. A path with a name like a ticket's stays a path.
fn bare(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || "\"'`,;\u{feff}".contains(c))
}

fn is_ticket(word: &str) -> bool {
    let prefix = word.get(..TICKET_PREFIX.len());
    prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(TICKET_PREFIX))
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Tells whoever gave the ticket as an argument that it is not private there.
pub(crate) fn note_exposure(source: &Source, reporter: &Reporter) {
    if let Source::Argument(_) = source {
        reporter.note(
            "note: other users of this machine can see the ticket on the command line; \
             --ticket-file F and - (standard input) keep it private",
        );
    }
}

/// Reads and parses the ticket.
pub(crate) fn read(source: Source) -> Outcome<Ticket> {
    let text = match source {
        Source::Server(name) => return of_server(&name),
        Source::Argument(text) | Source::Environment(text) => text,
        Source::File(path) => {
            let shown = printable(path.as_os_str().as_encoded_bytes());
            let read = || bounded(File::open(&path)?);
            read().map_err(|error| unreadable(&shown, error))?
        }
        Source::Stdin => {
            if io::stdin().is_terminal() {
                eprint!("Ticket: ");
            }
            // Not through the standard library's buffer, which would swallow what follows the line: the next reader of standard input gets that.
            let input = io::stdin().as_fd().try_clone_to_owned();
            let line = input
                .and_then(|input| first_line(File::from(input)))
                .map_err(|error| local_io("read the ticket from", "standard input", error))?;
            if line.len() == LINE_BYTES_MAX {
                let message = "the first line of standard input is longer than any ticket";
                return Err(malformed(message));
            }
            if line.trim_ascii().is_empty() {
                return Err(malformed("the first line of standard input is empty"));
            }
            text_of(&line)
        }
    };
    let token = token(&text).ok_or_else(|| malformed("there is no ticket in what was given"))?;
    Ok(token.parse::<Ticket>()?)
}

#[cfg(feature = "tunnel")]
fn of_server(name: &str) -> Outcome<Ticket> {
    Servers::ticket(&Servers::place()?, name)
}

#[cfg(not(feature = "tunnel"))]
fn of_server(name: &str) -> Outcome<Ticket> {
    let message = format!("there is no server called {name}: this build joins none");
    Err(fail_hint(ErrorKind::Usage, message, HINT))
}

fn text_of(bytes: &[u8]) -> Zeroizing<String> {
    String::from_utf8_lossy(bytes).into_owned().into()
}

fn bounded(input: impl Read) -> io::Result<Zeroizing<String>> {
    // Allocated once in full size: a buffer that grew would leave copies of the secret in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(TICKET_BYTES_MAX as usize + 1));
    input.take(TICKET_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(text_of(&bytes))
}

/// The first line of `input` without its end, cut off where it is too long for a ticket. Who writes it
/// may keep the other end open, and what follows stays unread.
fn first_line(mut input: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(LINE_BYTES_MAX));
    let mut byte = [0];
    while line.len() < LINE_BYTES_MAX {
        match input.read(&mut byte) {
            Ok(0) => break,
            Ok(_) if byte == *b"\n" => break,
            Ok(_) => line.extend(byte),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

fn malformed(message: &str) -> Failure {
    fail_hint(ErrorKind::Usage, message, HINT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn paths(words: &[&str]) -> Vec<PathBuf> {
        words.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn with_a_ticket_file_everything_is_a_path() {
        let (source, rest) =
            split_arguments(Some(Path::new("t")), os(&["sphx1abc", "-"]), None).unwrap();
        assert_eq!(source, Source::File("t".into()));
        assert_eq!(rest, paths(&["sphx1abc", "-"]));
    }

    #[test]
    fn ticket_as_first_argument() {
        let (source, rest) = split_arguments(None, os(&["sphx1abc", "a"]), None).unwrap();
        assert_eq!(source, Source::Argument(String::from("sphx1abc").into()));
        assert_eq!(rest, paths(&["a"]));
        let (source, rest) = split_arguments(None, os(&["-", "a"]), Some("sphx1e".into())).unwrap();
        assert_eq!(source, Source::Stdin);
        assert_eq!(rest, paths(&["a"]));
    }

    #[test]
    fn ticket_from_the_environment() {
        let (source, rest) = split_arguments(None, os(&["a", "b"]), Some("sphx1e".into())).unwrap();
        assert_eq!(source, Source::Environment(String::from("sphx1e").into()));
        assert_eq!(rest, paths(&["a", "b"]));
    }

    #[test]
    fn a_server_is_called_by_its_name() {
        let environment = || Some("sphx1e".into());
        let (source, rest) = split_arguments(None, os(&["office:", "a"]), environment()).unwrap();
        assert_eq!(source, Source::Server("office".to_owned()));
        assert_eq!(rest, paths(&["a"]));
        // Paths stay paths.
        for path in ["office", "./office:", "in/office:", ":", "office:in", "-:"] {
            let (source, rest) = split_arguments(None, os(&[path]), environment()).unwrap();
            assert_eq!(source, Source::Environment(String::from("sphx1e").into()));
            assert_eq!(rest, paths(&[path]));
        }
        let find = |text: &str, names| {
            let argument = Some(OsStr::new(text));
            find(None, (argument, names), None).map(|found| found.0)
        };
        let office = Source::Server("office".to_owned());
        assert_eq!(find("office", Some(Names::Bare)).unwrap(), office);
        assert_eq!(find("-", Some(Names::Bare)).unwrap(), Source::Stdin);
        assert!(find("office:", Some(Names::Bare)).is_err());
        assert!(find("office", None).is_err());
    }

    #[test]
    fn a_ticket_is_found_in_whatever_is_around_it() {
        for text in [
            "sphx1abc",
            " sphx1abc\r\n",
            "\"sphx1abc\",",
            "'sphx1abc'",
            "\u{feff}sphx1abc",
            "ticket: sphx1abc",
        ] {
            assert_eq!(token(text), Some("sphx1abc"), "{text:?}");
        }
        assert_eq!(token("SPHX1ABC"), Some("SPHX1ABC"));
        for text in ["", "sphx", "movie.mkv", "asphx1"] {
            assert_eq!(token(text), None, "{text:?}");
        }
        assert!(is_ticket(bare(" \"sphx1abc\",\n")));
        for path in ["sphx1.txt", "./sphx1abc", "pics/sphx1abc", "sphx1 abc"] {
            assert!(!is_ticket(bare(path)), "{path}");
        }
    }

    #[test]
    fn missing_parts_are_usage_errors() {
        for (arguments, environment) in [(os(&["a"]), None), (os(&["a"]), Some(OsString::new()))] {
            let failure = split_arguments(None, arguments, environment).unwrap_err();
            assert_eq!(failure.kind, ErrorKind::Usage);
        }
    }

    #[test]
    fn only_the_first_line_is_read() {
        let mut input = &b"sphx1abc\nmore"[..];
        assert_eq!(first_line(&mut input).unwrap().as_slice(), b"sphx1abc");
        assert_eq!(input, b"more");
        assert_eq!(
            first_line(&b"sphx1abc"[..]).unwrap().as_slice(),
            b"sphx1abc"
        );
        let endless = first_line(io::repeat(b'x')).unwrap();
        assert_eq!(endless.len(), LINE_BYTES_MAX);
    }
}
