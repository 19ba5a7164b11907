//! What a copy is to do, and every way in which it cannot have been meant.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use sphinx_transport::ErrorKind;

use crate::args::cp::CpArgs;
use crate::failure::{Failure, Outcome, fail_hint, usage};
use crate::files::roots::Root;
use crate::files::{Expected, Landing, OutputDir, roots};
use crate::ssh::messages::{CopyRules, Named, Task};
use crate::ssh::{Host, Place};
use crate::text::{own_command_line_with, printable, shell_line};

/// Which way, with what is wrong on this side found before the other is troubled.
pub(super) enum Job {
    Send {
        roots: Vec<Root>,
        destination: Vec<u8>,
        /// The other end has told under which name the only one of them comes.
        named: bool,
    },
    Receive {
        sources: Vec<Named>,
        output: OutputDir,
    },
}

impl Job {
    pub(super) fn plan(args: &CpArgs) -> Outcome<(Host, Self)> {
        let mut words = vec!["cp"];
        words.extend(args.recursive.then_some("-r"));
        let (host, mut sources, destination) = sides(&args.paths, &words, &words)?;
        if let Some(source) = sources.iter().find(|source| source.path.contains(&0)) {
            return Err(usage(format!(
                "{} has a NUL in it",
                printable(&source.path)
            )));
        }
        if destination.host.is_some() {
            let roots = roots_of(args, &sources)?;
            let destination = destination.path;
            let job = Self::Send {
                roots,
                destination,
                named: false,
            };
            return Ok((host, job));
        }
        let path = PathBuf::from(OsString::from_vec(destination.path));
        let landing = Landing::find(&path, sources.len(), args.recursive)?;
        let mut names = BTreeSet::new();
        let mut named = Vec::new();
        for source in &mut sources {
            let name = match (&landing.name, source.name()) {
                (Some(name), _) => name.clone(),
                (None, Some(name)) => name.to_vec(),
                (None, None) => return Err(nameless(args, source, &path)),
            };
            if !names.insert(name.clone()) {
                return Err(twice(&name));
            }
            let path = std::mem::take(&mut source.path);
            named.push(Named { path, name });
        }
        let output = OutputDir::open(&landing.directory, rules(args).of_receiver())?;
        let expected = Expected {
            names,
            directories: args.recursive,
        };
        let job = Self::Receive {
            sources: named,
            output: output.expecting(expected),
        };
        Ok((host, job))
    }

    /// What the other end has to do for this job.
    pub(super) fn task(&self) -> Task {
        match self {
            Self::Send {
                roots,
                destination,
                named,
            } => Task::Receive {
                destination: destination.clone(),
                names: roots.iter().map(Root::name).collect(),
                again: *named,
            },
            Self::Receive { sources, .. } => Task::Send {
                sources: sources.clone(),
            },
        }
    }
}

/// The other machine, the sources, and where they go. One side is there. `words` begin such a command, `here` one that
/// does the same on one machine.
pub(super) fn sides(
    paths: &[OsString],
    words: &[&str],
    here: &[&str],
) -> Outcome<(Host, Vec<Place>, Place)> {
    let written = |words: &[&str]| {
        words
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    let places: Outcome<Vec<Place>> = paths.iter().map(|text| Place::parse(text)).collect();
    let mut sources = places?;
    let destination = sources.pop().filter(|_| !sources.is_empty());
    let Some(destination) = destination else {
        return Err(fail_hint(
            ErrorKind::Usage,
            "there is one path where two are needed",
            "what to copy comes first, then where to: sphx cp FILE HOST:",
        ));
    };
    let is_there = sources.iter().any(|source| source.host.is_some());
    if let Some(host) = &destination.host {
        let Some(source) = sources.iter().find_map(|source| source.host.as_ref()) else {
            return Ok((host.clone(), sources, destination));
        };
        let paths = paths.iter().map(|path| printable(path.as_encoded_bytes()));
        let prefix = format!("{}:", source.destination);
        let paths = paths.map(|path| {
            path.strip_prefix(&prefix)
                .map_or(path.clone(), str::to_owned)
        });
        let is_at_one = sources
            .iter()
            .all(|source| source.host.as_ref() == Some(host));
        let line = match is_at_one {
            true => written(here),
            false => written(&[&["sphx"][..], words].concat()),
        };
        let line = shell_line(line.into_iter().chain(paths));
        return Err(fail_hint(
            ErrorKind::Usage,
            "both sides are at other machines",
            format!(
                "run it at one of them: {}",
                shell_line(["ssh".to_owned(), source.destination.clone(), line])
            ),
        ));
    }
    if !is_there {
        let paths = paths.iter().map(|path| printable(path.as_encoded_bytes()));
        let line = written(here).into_iter().chain(paths);
        return Err(fail_hint(
            ErrorKind::Usage,
            "both sides are on this machine",
            format!(
                "another machine is written HOST:PATH; here this does it: {}",
                shell_line(line)
            ),
        ));
    }
    let host = sources.iter().find_map(|source| source.host.clone());
    let host = host.expect("one of them is there");
    if sources
        .iter()
        .any(|source| source.host.as_ref() != Some(&host))
    {
        return Err(fail_hint(
            ErrorKind::Usage,
            "the sources are not at one machine",
            "copy what is at each machine with a command of its own",
        ));
    }
    Ok((host, sources, destination))
}

fn roots_of(args: &CpArgs, sources: &[Place]) -> Outcome<Vec<Root>> {
    let mut names = BTreeSet::new();
    let mut things = Vec::new();
    for source in sources {
        let path = PathBuf::from(OsString::from_vec(source.path.clone()));
        let name = source.name().ok_or_else(|| unnamed(args, source))?;
        if !names.insert(name.to_vec()) {
            return Err(twice(name));
        }
        things.push((path, name.to_vec()));
    }
    let roots = roots::renamed(things)?;
    match roots::find_directory(&roots) {
        Some(shown) if !args.recursive => Err(directory(&shown)),
        _ => Ok(roots),
    }
}

fn twice(name: &[u8]) -> Failure {
    let shown = printable(name);
    usage(format!("two of the sources are called {shown}"))
        .with_hint("copy one of them under another name, with a command of its own")
}

/// Something of this machine that has no name at the other end.
fn unnamed(args: &CpArgs, source: &Place) -> Failure {
    let shown = printable(&source.path);
    let sync = another(
        args,
        &["sync"],
        [shown.clone(), "HOST:DIRECTORY/".to_owned()],
    );
    // A directory may be known by its name from above.
    let path = PathBuf::from(OsString::from_vec(source.path.clone()));
    let whole = path.canonicalize().ok();
    let whole = whole.filter(|path| path.file_name().is_some());
    let named = whole.map_or_else(String::new, |path| {
        let path = printable(path.as_os_str().as_encoded_bytes());
        let line = another(args, &["cp", "-r"], [path, "HOST:".to_owned()]);
        format!("name what is to be copied: {line}; or ")
    });
    fail_hint(
        ErrorKind::Usage,
        format!("'{shown}' has no name to get at the other end"),
        format!("{named}copy what is in it: {sync}"),
    )
}

fn nameless(args: &CpArgs, source: &Place, destination: &Path) -> Failure {
    let host = (source.host.as_ref()).map_or("", |host| &host.destination);
    let path = format!("{host}:{}", printable(&source.path));
    let destination = printable(destination.as_os_str().as_encoded_bytes());
    let destination = destination.trim_end_matches('/');
    let sync = another(args, &["sync"], [path.clone(), format!("{destination}/")]);
    let named = another(args, &["cp", "-r"], [path, format!("{destination}/NAME")]);
    fail_hint(
        ErrorKind::Usage,
        format!("what is at {host} has no name to get here"),
        format!("to copy what is in it: {sync}; or give it a name: {named}"),
    )
}

/// Another command that gets to the other end as this one does.
fn another(args: &CpArgs, words: &[&str], paths: [String; 2]) -> String {
    let words = ["sphx"].iter().chain(words).map(|word| (*word).to_owned());
    shell_line(words.chain(args.ssh.same_way()).chain(paths))
}

/// The failure where a directory is named without `-r`.
pub(in crate::commands) fn directory(shown: &str) -> Failure {
    fail_hint(
        ErrorKind::Usage,
        format!("{shown} is a directory"),
        format!("directories need -r: {}", own_command_line_with("-r")),
    )
}

pub(super) fn rules(args: &CpArgs) -> CopyRules {
    CopyRules {
        recursive: args.recursive,
        preserve: args.preserve,
        partial: !args.no_partial,
    }
}
