//! `sphx sync`: a copy that makes one directory the same as another.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::plan::{Job, sides};
use super::{Asked, until_done};
use crate::args::sync::SyncArgs;
use crate::commands::Context;
use crate::commands::retry::tell_how;
use crate::failure::{Outcome, local_io, usage};
use crate::files::{Expected, OutputDir, Sync, SyncRequest, roots};
use crate::ssh::Place;
use crate::ssh::messages::{CopyRules, Named};

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
            roots: roots::synchronized(path(source.path), name, sync)?,
            destination: destination.path,
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
    let done = until_done(&asked, &mut job, args.retry, context);
    tell_how(done, "synchronized", true, context)
}

fn request(args: &SyncArgs, source: &Place) -> Outcome<SyncRequest> {
    let mut filter = Vec::new();
    for pattern in &args.exclude {
        filter.push([b"- ", pattern.as_encoded_bytes()].concat());
    }
    if let Some(file) = &args.filter_from {
        let shown = crate::text::printable(file.as_os_str().as_encoded_bytes());
        let rules = fs::read(file).map_err(|error| local_io("read", &shown, error))?;
        filter.extend(rules.split(|byte| *byte == b'\n').map(<[u8]>::to_vec));
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
