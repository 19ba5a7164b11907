//! `sphx sync`: a copy that makes one directory the same as another.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use sphinx_transport::ErrorKind;

use super::plan::{Job, sides};
use super::{Asked, until_done};
use crate::args::sync::SyncArgs;
use crate::args::{Cli, Command};
use crate::commands::Context;
use crate::commands::retry::{Deed, Retry, tell_how};
use crate::failure::{Failure, Outcome, fail_hint, local_io, usage};
use crate::files::{Expected, OutputDir, Sync, SyncRequest, roots};
use crate::ssh::Place;
use crate::ssh::messages::{CopyRules, Named};
use crate::text::{printable, shell_line};

/// What the directory is called on the way that has no name at the other end.
const CONTENTS: &[u8] = b"contents";

pub(crate) fn run(mut args: SyncArgs, context: &Context) -> Outcome<u8> {
    if let Some(rate) = args.bwlimit {
        args.common.limit = Some(rate);
        args.ssh.written.0.push(format!("--limit={rate}bit"));
    }
    let paths = [args.source.clone(), args.destination.clone()];
    let (host, mut sources, destination) = sides(&paths, &["sync"], &["rsync", "-a"])?;
    let source = sources.remove(0);
    let request = request(&args, &source)?;
    let sync = Arc::new(Sync::new(request.clone())?);
    let name = match (request.contents, source.name()) {
        (true, _) => CONTENTS.to_vec(),
        (false, Some(name)) => name.to_vec(),
        (false, None) => unreachable!("what has no name is sent by its contents"),
    };
    let mut job = match destination.host {
        Some(_) => Job::Send {
            roots: match roots::no_directory(Path::new(OsStr::from_bytes(&source.path))) {
                Some(shown) => return Err(no_directory(&shown)),
                None => roots::synchronized(path(source.path), name, sync)?,
            },
            destination: destination.path,
            named: false,
        },
        None => {
            let output = OutputDir::synchronized(&path(destination.path), !args.no_partial, sync)?;
            let expected = Expected {
                names: BTreeSet::from([name.clone()]),
                directories: true,
            };
            let path = source.path;
            Job::Receive {
                sources: vec![Named { path, name }],
                output: output.expecting(expected),
            }
        }
    };
    let asked = Asked {
        host: &host,
        ssh: &args.ssh,
        common: &args.common,
        rules: CopyRules {
            recursive: true,
            preserve: true,
            partial: !args.no_partial,
        },
        sync: Some(request),
    };
    let mut retry = Retry::new(args.retry);
    let done = until_done(&asked, &mut job, &mut retry, context);
    match args.dry_run {
        // It changes nothing that another one could go on with.
        true => done,
        false => tell_how(done, Deed::Synchronizes, retry.has_begun(), context),
    }
}

/// The failure where a file is named and a directory has to be.
pub(in crate::commands) fn no_directory(shown: &str) -> Failure {
    let line = match Cli::try_parse().map(|cli| cli.command) {
        Ok(Command::Sync(args)) => copy_line(&args),
        _ => "sphx cp SRC DST".to_owned(),
    };
    fail_hint(
        ErrorKind::Usage,
        format!("{shown} is no directory"),
        format!("one file is copied by cp, if it has changed: {line}"),
    )
}

/// The line that copies what was to be synchronized.
fn copy_line(args: &SyncArgs) -> String {
    let SyncArgs {
        ssh,
        source,
        destination,
        ..
    } = args;
    let mut words = vec!["sphx".to_owned(), "cp".to_owned()];
    let shown = |word: &OsString| printable(word.as_encoded_bytes());
    words.extend(ssh.same_way());
    words.extend([shown(source), shown(destination)]);
    shell_line(words)
}

fn request(args: &SyncArgs, source: &Place) -> Outcome<SyncRequest> {
    let mut filter = Vec::new();
    for pattern in &args.exclude {
        filter.push([b"- ", pattern.as_encoded_bytes()].concat());
    }
    if let Some(file) = &args.filter_from {
        let shown = printable(file.as_os_str().as_encoded_bytes());
        let rules = fs::read(file).map_err(|error| local_io("read", &shown, error))?;
        // As rsync, which takes either for the end of a line; a name that is typed may have one in it.
        filter.extend(
            rules
                .split(|byte| b"\r\n".contains(byte))
                .map(<[u8]>::to_vec),
        );
    }
    if source.path.contains(&0) {
        return Err(usage("a path has a NUL in it"));
    }
    Ok(SyncRequest {
        // As rsync: what ends with a slash, and what has no name.
        contents: source.path.ends_with(b"/") || source.name().is_none(),
        dry_run: args.dry_run,
        delete: args.delete,
        max_delete: args.max_delete,
        checksum: args.checksum,
        whole: args.whole_file,
        filter,
    })
}

fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}
