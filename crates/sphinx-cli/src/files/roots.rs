//! What the user names to be sent, and how much it is.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::descent::Identity;
use super::paths::Name;
use super::sync::Sync;
use super::walk::{Step, Walk};
use super::wire::Announced;
use crate::failure::{Outcome, fail_hint, local_io, protocol, usage};
use crate::text::printable;
use sphinx_transport::ErrorKind;

/// The path that means standard input, and the name that it gets at the other end.
const STDIN_PATH: &str = "-";
const STDIN_NAME: &[u8] = b"stdin";

/// Something that the user has named, and its name at the other end.
#[derive(Debug)]
pub(crate) struct Root {
    pub(super) source: Source,
    pub(super) name: Name,
    /// What of it is sent, and how, if it is to be synchronized.
    pub(super) sync: Option<Arc<Sync>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A file, a directory or a pipe.
    Path(PathBuf),
    Stdin,
}

impl Root {
    pub(crate) fn name(&self) -> Vec<u8> {
        self.name.as_bytes().to_vec()
    }

    /// Whether the rules leave out all of it: the name of a directory that comes with its own one is in every path.
    pub(super) fn is_excluded(&self) -> bool {
        let is_excluded = |sync: &Arc<Sync>| {
            !sync.asked.contents && sync.filter.excludes(self.name.as_bytes(), true)
        };
        self.sync.as_ref().is_some_and(is_excluded)
    }
}

/// Checks the PATHs: they exist, can be sent, have names, and the names differ. `stdin` is the name
/// for standard input.
pub(crate) fn roots(paths: Vec<PathBuf>, stdin: Option<&OsStr>) -> Outcome<Vec<Root>> {
    let mut roots: Vec<Root> = Vec::new();
    let stdin = stdin.map(|name| (name.as_bytes().to_vec(), Source::Stdin));
    for found in paths.into_iter().map(root).chain(stdin.map(Ok)) {
        let (name, source) = found?;
        let shown = printable(&name);
        let name = Name::new(name)
            .map_err(|error| usage(format!("'{shown}' is no name for a file: {error}")))?;
        if roots.iter().any(|root| root.name == name) {
            return Err(usage(format!("two of the paths are called {shown}")));
        }
        if source == Source::Stdin && roots.iter().any(|root| root.source == Source::Stdin) {
            return Err(usage("standard input can be sent only once"));
        }
        roots.push(Root {
            source,
            name,
            sync: None,
        });
    }
    Ok(roots)
}

/// Whether standard input is among what is sent.
pub(crate) fn reads_stdin(roots: &[Root]) -> bool {
    roots.iter().any(|root| root.source == Source::Stdin)
}

/// Whether everything is still there when it has been read.
pub(crate) fn can_be_read_again(roots: &[Root]) -> bool {
    roots.iter().all(|root| match &root.source {
        Source::Path(path) => !fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()),
        Source::Stdin => false,
    })
}

/// Checks paths that are sent under names of their own, which differ. What is missing is told when its turn comes, if
/// something else is there.
pub(crate) fn renamed(things: Vec<(PathBuf, Vec<u8>)>) -> Outcome<Vec<Root>> {
    let is_missing = |path: &Path| {
        fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let some_are_there = things.iter().any(|(path, _)| !is_missing(path));
    let root = |(path, name): (PathBuf, Vec<u8>)| {
        let name = Name::new(name)
            .map_err(|error| usage(format!("{} has no name to send: {error}", shown(&path))))?;
        if !(some_are_there && is_missing(&path)) {
            check_kind(&path)?;
        }
        let source = Source::Path(path);
        Ok(Root {
            source,
            name,
            sync: None,
        })
    };
    things.into_iter().map(root).collect()
}

/// What is at `path`, if it is something else than a directory.
pub(crate) fn no_directory(path: &Path) -> Option<String> {
    let found = path.metadata();
    (found.is_ok_and(|found| !found.is_dir())).then(|| shown(path))
}

/// The directory at `path`, to be synchronized.
pub(crate) fn synchronized(path: PathBuf, name: Vec<u8>, sync: Arc<Sync>) -> Outcome<Vec<Root>> {
    let mut roots = renamed(vec![(path, name)])?;
    for root in &mut roots {
        root.sync = Some(sync.clone());
    }
    Ok(roots)
}

/// Gives the only thing that is sent another name.
pub(crate) fn rename(roots: &mut [Root], name: Vec<u8>) -> Outcome<()> {
    let name = Name::new(name).map_err(|error| protocol(format!("a name is refused: {error}")))?;
    match roots {
        [root] => root.name = name,
        _ => return Err(protocol("one name for several things")),
    }
    Ok(())
}

/// The first directory among them.
pub(crate) fn find_directory(roots: &[Root]) -> Option<String> {
    roots.iter().find_map(|root| match &root.source {
        Source::Path(path) if path.is_dir() => Some(shown(path)),
        _ => None,
    })
}

fn root(path: PathBuf) -> Outcome<(Vec<u8>, Source)> {
    if path.as_os_str() == STDIN_PATH {
        return Ok((STDIN_NAME.to_vec(), Source::Stdin));
    }
    let refused = |error| local_io("read", &shown(&path), error);
    check_kind(&path)?;
    let name = match path.file_name() {
        Some(name) => name.as_bytes().to_vec(),
        // "." and ".." have a name, only not in what was written.
        None => fs::canonicalize(&path)
            .map_err(refused)?
            .file_name()
            .ok_or_else(|| usage(format!("{} has no name to send", shown(&path))))?
            .as_bytes()
            .to_vec(),
    };
    Ok((name, Source::Path(path)))
}

/// A link that the user names is meant for what it points to.
fn check_kind(path: &Path) -> Outcome<()> {
    let found = fs::metadata(path).map_err(|error| local_io("read", &shown(path), error))?;
    let kind = found.file_type();
    match kind.is_file() || kind.is_dir() || kind.is_fifo() {
        true => Ok(()),
        false => Err(fail_hint(
            ErrorKind::LocalIo,
            format!("{} is neither file, directory nor pipe", shown(path)),
            "to send what can be read from it: sphx send --stdin NAME < IT",
        )),
    }
}

/// Counts what there is to send. What changes meanwhile does no harm, and what cannot be read is told
/// when its turn comes.
pub(crate) fn announce(roots: &[Root]) -> Outcome<Announced> {
    let mut announced = Announced {
        entries: 0,
        bytes: Some(0),
        source: None,
    };
    let is_sync = roots.iter().any(|root| root.sync.is_some());
    let mut linked = BTreeSet::new();
    let mut walk = Walk::to_count(roots);
    while let Some(step) = walk.next()? {
        match step {
            Step::DirectoryEnd { .. } => continue,
            // Of files with several names only one brings contents where a tree is synchronized.
            Step::File { stat, .. }
                if is_sync && stat.st_nlink > 1 && !linked.insert(Identity::of_stat(&stat)) => {}
            Step::File { stat, .. } => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                announced.bytes = announced.bytes.map(|bytes| bytes.saturating_add(size));
            }
            Step::Stream { .. } => announced.bytes = None,
            Step::Directory { .. }
            | Step::Symlink { .. }
            | Step::Skipped { .. }
            | Step::Failed(_) => {}
        }
        announced.entries += 1;
    }
    Ok(announced)
}

/// A path for messages.
pub(super) fn shown(path: &Path) -> String {
    printable(OsStr::as_bytes(path.as_os_str()))
}
