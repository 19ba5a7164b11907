//! The sender's side of a tree: what is in it, in which order it goes, and what a file's digest is.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::paths::{SafePath, link_target};
use super::wire::{Attributes, Totals};
use crate::failure::{Outcome, fail, local_io, usage};
use crate::text::printable;
use sphinx_transport::ErrorKind;

/// One PATH of the command line and the name it gets at the other end.
#[derive(Debug)]
pub(crate) struct Root {
    source: PathBuf,
    name: OsString,
}

/// Something to send, in the order of sending: a directory, its contents, its end.
#[derive(Debug)]
pub(super) enum Step {
    Directory {
        path: SafePath,
    },
    DirectoryEnd {
        path: SafePath,
        attributes: Attributes,
    },
    File {
        path: SafePath,
        source: PathBuf,
    },
    Symlink {
        path: SafePath,
        attributes: Attributes,
        target: Vec<u8>,
    },
    /// Left out, with the reason.
    Skipped {
        reason: String,
    },
}

/// Checks the PATHs: they exist, have names, and the names differ.
pub(crate) fn roots(paths: Vec<PathBuf>) -> Outcome<Vec<Root>> {
    let mut roots: Vec<Root> = Vec::new();
    for source in paths {
        // A link that the user names is meant for what it points to.
        fs::metadata(&source).map_err(|error| local_io("read", &shown(&source), error))?;
        let name = match source.file_name() {
            Some(name) => name.to_owned(),
            // "." and ".." have a name, only not in what was written.
            None => fs::canonicalize(&source)
                .map_err(|error| local_io("read", &shown(&source), error))?
                .file_name()
                .ok_or_else(|| usage(format!("{} has no name to send", shown(&source))))?
                .to_owned(),
        };
        if roots.iter().any(|root| root.name == name) {
            let name = printable(name.as_bytes());
            return Err(usage(format!("two of the paths are called {name}")));
        }
        roots.push(Root { source, name });
    }
    Ok(roots)
}

/// Counts what there is to send, for progress. What changes meanwhile does no harm.
pub(crate) fn totals(roots: &[Root]) -> Outcome<Totals> {
    let mut totals = Totals::default();
    for step in Walk::new(roots) {
        match step? {
            Step::Skipped { .. } => continue,
            Step::File { source, .. } => {
                let metadata = fs::metadata(&source);
                let metadata =
                    metadata.map_err(|error| local_io("read", &shown(&source), error))?;
                totals.bytes = totals.bytes.saturating_add(metadata.len());
            }
            _ => {}
        }
        totals.entries += 1;
    }
    Ok(totals)
}

/// Walks the roots in order, each directory sorted by name. Memory grows with the names of the
/// directories on the way down, not with the tree.
pub(super) struct Walk<'a> {
    roots: std::slice::Iter<'a, Root>,
    open: Vec<OpenDirectory>,
}

struct OpenDirectory {
    source: PathBuf,
    path: SafePath,
    attributes: Attributes,
    /// Names still to come, last first.
    names: Vec<OsString>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(roots: &'a [Root]) -> Self {
        Self {
            roots: roots.iter(),
            open: Vec::new(),
        }
    }

    fn step(&mut self) -> Outcome<Option<Step>> {
        let Some(directory) = self.open.last_mut() else {
            let Some(root) = self.roots.next() else {
                return Ok(None);
            };
            let path = safe_path(root.name.as_bytes().to_vec(), &root.source)?;
            let metadata = fs::metadata(&root.source)
                .map_err(|error| local_io("read", &shown(&root.source), error))?;
            return self.object(root.source.clone(), path, &metadata).map(Some);
        };
        let Some(name) = directory.names.pop() else {
            let OpenDirectory {
                path, attributes, ..
            } = self.open.pop().expect("its last element was just seen");
            return Ok(Some(Step::DirectoryEnd { path, attributes }));
        };
        let source = directory.source.join(&name);
        let path = [directory.path.as_bytes(), b"/", name.as_bytes()].concat();
        let path = safe_path(path, &source)?;
        let metadata = fs::symlink_metadata(&source)
            .map_err(|error| local_io("read", &shown(&source), error))?;
        self.object(source, path, &metadata).map(Some)
    }

    fn object(&mut self, source: PathBuf, path: SafePath, metadata: &Metadata) -> Outcome<Step> {
        let kind = metadata.file_type();
        if kind.is_file() {
            return Ok(Step::File { path, source });
        }
        if kind.is_dir() {
            let names = names(&source)
                .map_err(|error| local_io("read the directory", &shown(&source), error))?;
            let attributes = attributes(metadata);
            self.open.push(OpenDirectory {
                source,
                path: path.clone(),
                attributes,
                names,
            });
            return Ok(Step::Directory { path });
        }
        if kind.is_symlink() {
            let target = fs::read_link(&source)
                .map_err(|error| local_io("read the link", &shown(&source), error))?;
            let target = target.into_os_string().into_vec();
            return Ok(match link_target(&path, &target) {
                Ok(()) => Step::Symlink {
                    path,
                    attributes: attributes(metadata),
                    target,
                },
                Err(_) => Step::Skipped {
                    reason: format!(
                        "skipped {}: the link points out of what is sent, to {}",
                        shown(&source),
                        printable(&target)
                    ),
                },
            });
        }
        Ok(Step::Skipped {
            reason: format!("skipped {}: neither file nor directory", shown(&source)),
        })
    }
}

impl Iterator for Walk<'_> {
    type Item = Outcome<Step>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

fn names(directory: &Path) -> std::io::Result<Vec<OsString>> {
    let mut names = fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<Vec<_>, _>>()?;
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

fn safe_path(bytes: Vec<u8>, source: &Path) -> Outcome<SafePath> {
    SafePath::new(bytes).map_err(|error| {
        fail(
            ErrorKind::LocalIo,
            format!("cannot send {}: {error}", shown(source)),
        )
    })
}

pub(super) fn attributes(metadata: &Metadata) -> Attributes {
    Attributes {
        // The mask leaves twelve bits.
        mode: (metadata.mode() & 0o7777) as u16,
        mtime_s: metadata.mtime(),
        mtime_ns: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
    }
}

/// A path for messages.
pub(super) fn shown(path: &Path) -> String {
    printable(OsStr::as_bytes(path.as_os_str()))
}

/// BLAKE3 of a file's contents.
///
/// A file without holes has the digest that `b3sum` prints. Hashing a hole as zeros would let a
/// few bytes from a peer cost any amount of work, so a file with holes has the digest of: the
/// digest of its data, then the digest of the list of its holes (offset and length, 8 bytes each).
#[derive(Default)]
pub(super) struct ContentDigest {
    data: blake3::Hasher,
    holes: Option<blake3::Hasher>,
}

impl ContentDigest {
    pub(super) fn data(&mut self, bytes: &[u8]) {
        self.data.update(bytes);
    }

    pub(super) fn hole(&mut self, offset: u64, bytes: u64) {
        let holes = self.holes.get_or_insert_default();
        holes.update(&offset.to_be_bytes());
        holes.update(&bytes.to_be_bytes());
    }

    pub(super) fn finish(&self) -> [u8; 32] {
        let data = self.data.finalize();
        match &self.holes {
            None => data.into(),
            Some(holes) => {
                let mut both = blake3::Hasher::new();
                both.update(data.as_bytes());
                both.update(holes.finalize().as_bytes());
                both.finalize().into()
            }
        }
    }
}
