//! The receiver's output directory: the only place where a peer's bytes and names meet the file
//! system.
//!
//! Every object is reached from the open output directory one component at a time, each opened as a
//! directory without following links. So no name a peer invents, no link it sends and no link that
//! was there before leads outside, also when somebody changes the tree meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::paths::{COMPONENT_BYTES_MAX, SafePath};
use super::wire::Attributes;
use crate::failure::{Outcome, fail_hint, local_io};
use crate::text::{hex, printable};
use sphinx_transport::ErrorKind;

/// Permission bits a peer may set: no set-user-id, set-group-id or sticky bit.
const MODE_MASK: u16 = 0o777;
/// Names tried before giving up on a free one.
const TEMPORARY_ATTEMPTS: u32 = 16;

/// An open output directory.
#[derive(Clone)]
pub(crate) struct OutputDir {
    root: Arc<OwnedFd>,
    overwrite: bool,
}

/// Creates objects below an output directory; keeps the directory it used last open, because
/// neighbours follow each other.
pub(super) struct Target {
    output: OutputDir,
    recent: Option<(Vec<u8>, Arc<OwnedFd>)>,
}

/// A file under a temporary name; removed when dropped before [`Target::commit`].
pub(super) struct Temporary {
    directory: Arc<OwnedFd>,
    name: Vec<u8>,
    file: File,
    committed: bool,
}

impl OutputDir {
    /// Opens `path`, making it if it is missing, and makes sure that files can be created in it.
    pub(crate) fn open(path: &Path, overwrite: bool) -> Outcome<Self> {
        let shown = printable(path.as_os_str().as_encoded_bytes());
        let refused = |error| local_io("write to the output directory", &shown, error);
        std::fs::create_dir_all(path).map_err(refused)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty()).map_err(|e| refused(e.into()))?;
        let output = Self {
            root: Arc::new(root),
            overwrite,
        };
        Temporary::create(&output.root, b"probe").map_err(|e| refused(e.into()))?;
        Ok(output)
    }

    pub(super) fn target(&self) -> Target {
        Target {
            output: self.clone(),
            recent: None,
        }
    }
}

impl Target {
    /// Makes a directory; one that exists is as good. True if it was made.
    pub(super) fn make_directory(&mut self, path: &SafePath) -> Outcome<bool> {
        let (parent, name) = self.locate(path)?;
        // Private until complete; the final permissions come with the end of the directory.
        match fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => match open_directory(&parent, name) {
                Ok(_) => Ok(false),
                Err(error) => Err(self.refused("use", path, error)),
            },
            Err(error) => Err(self.refused("create", path, error)),
        }
    }

    /// Gives a directory its permissions and modification time.
    pub(super) fn finish_directory(
        &mut self,
        path: &SafePath,
        attributes: Attributes,
    ) -> Outcome<()> {
        let (parent, name) = self.locate(path)?;
        // Its own descriptor may be the recent one: the permissions apply all the same.
        open_directory(&parent, name)
            .and_then(|directory| apply(&directory, attributes))
            .map_err(|error| self.refused("set the attributes of", path, error))
    }

    /// Makes a symbolic link.
    pub(super) fn make_link(
        &mut self,
        path: &SafePath,
        target: &[u8],
        attributes: Attributes,
    ) -> Outcome<()> {
        let (parent, name) = self.locate(path)?;
        let made = if self.output.overwrite {
            let temporary = temporary_name(name);
            temporary.and_then(|temporary| {
                fs::symlinkat(target, &parent, temporary.as_slice())?;
                fs::renameat(&parent, temporary.as_slice(), &parent, name).inspect_err(|_| {
                    // The failure to report is the one above.
                    let _ = fs::unlinkat(&parent, temporary.as_slice(), AtFlags::empty());
                })
            })
        } else {
            fs::symlinkat(target, &parent, name)
        };
        made.map_err(|error| self.refused("create", path, error))?;
        // Best effort: some file systems keep no times for links.
        let _ = fs::utimensat(&parent, name, &times(attributes), AtFlags::SYMLINK_NOFOLLOW);
        Ok(())
    }

    /// Opens a temporary file beside the place where `path` will be.
    pub(super) fn create(&mut self, path: &SafePath) -> Outcome<Temporary> {
        let (parent, name) = self.locate(path)?;
        if !self.output.overwrite && fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(self.refused("create", path, Errno::EXIST));
        }
        Temporary::create(&parent, name).map_err(|error| self.refused("create", path, error))
    }

    /// Gives a complete, verified temporary file its attributes and its name.
    pub(super) fn commit(
        &mut self,
        path: &SafePath,
        mut temporary: Temporary,
        attributes: Attributes,
    ) -> Outcome<()> {
        let name = path.split_last().1;
        let renamed = apply(&temporary.file, attributes).and_then(|()| {
            let (directory, from) = (&temporary.directory, temporary.name.as_slice());
            match self.output.overwrite {
                true => fs::renameat(directory, from, directory, name),
                false => rename_new(directory, from, name),
            }
        });
        match renamed {
            Ok(()) => {
                temporary.committed = true;
                Ok(())
            }
            Err(error) => Err(self.refused("create", path, error)),
        }
    }

    /// The open directory that holds `path`, and its name there.
    fn locate<'p>(&mut self, path: &'p SafePath) -> Outcome<(Arc<OwnedFd>, &'p [u8])> {
        let (parent, name) = path.split_last();
        if parent.is_empty() {
            return Ok((self.output.root.clone(), name));
        }
        if let Some((recent, directory)) = &self.recent
            && recent == parent
        {
            return Ok((directory.clone(), name));
        }
        let mut directory = self.output.root.clone();
        for component in parent.split(|byte| *byte == b'/') {
            let opened = open_directory(&directory, component);
            directory = Arc::new(opened.map_err(|error| self.refused("enter", path, error))?);
        }
        self.recent = Some((parent.to_vec(), directory.clone()));
        Ok((directory, name))
    }

    fn refused(&self, what: &str, path: &SafePath, error: Errno) -> crate::failure::Failure {
        let shown = printable(path.as_bytes());
        match error {
            Errno::EXIST => fail_hint(
                ErrorKind::LocalIo,
                format!("{shown} exists already"),
                "receive with --overwrite to replace files",
            ),
            Errno::LOOP | Errno::NOTDIR => fail_hint(
                ErrorKind::LocalIo,
                format!("cannot {what} {shown}: a part of the path is no directory"),
                "symbolic links in the output directory are not followed",
            ),
            error => local_io(what, &shown, error),
        }
    }
}

impl Temporary {
    fn create(directory: &Arc<OwnedFd>, name: &[u8]) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        for _ in 0..TEMPORARY_ATTEMPTS {
            let name = temporary_name(name)?;
            let mode = Mode::RUSR | Mode::WUSR;
            match fs::openat(directory, name.as_slice(), flags | OFlags::CLOEXEC, mode) {
                Ok(file) => {
                    let (directory, file) = (directory.clone(), File::from(file));
                    return Ok(Self {
                        directory,
                        name,
                        file,
                        committed: false,
                    });
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EXIST)
    }

    /// Writes at any place; what is never written becomes a hole, once
    /// [`set_size`](Self::set_size) has made one at the end real.
    pub(super) fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Reads back what has been written.
    pub(super) fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    pub(super) fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing better can be done about a temporary that cannot be removed.
            let _ = fs::unlinkat(&self.directory, self.name.as_slice(), AtFlags::empty());
        }
    }
}

fn open_directory(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(parent, name, flags, Mode::empty())
}

/// Renames without ever replacing anything.
fn rename_new(directory: &OwnedFd, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    match fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
        // Some file systems cannot; a hard link fails on an existing name everywhere.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::linkat(directory, from, directory, to, AtFlags::empty())?;
            fs::unlinkat(directory, from, AtFlags::empty())
        }
        other => other,
    }
}

fn apply(file: impl std::os::fd::AsFd, attributes: Attributes) -> Result<(), Errno> {
    fs::fchmod(
        &file,
        Mode::from_raw_mode(u32::from(attributes.mode & MODE_MASK)),
    )?;
    fs::futimens(&file, &times(attributes))
}

fn times(attributes: Attributes) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_NOW,
        },
        last_modification: Timespec {
            tv_sec: attributes.mtime_s,
            tv_nsec: i64::from(attributes.mtime_ns),
        },
    }
}

/// `.NAME.sphx-XXXXXXXX.part`, NAME shortened where the whole would be too long.
fn temporary_name(name: &[u8]) -> Result<Vec<u8>, Errno> {
    const MARK: &[u8] = b".sphx-";
    const END: &[u8] = b".part";
    let mut random = [0; 4];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let random = hex(&random);
    let room = COMPONENT_BYTES_MAX - 1 - MARK.len() - random.len() - END.len();
    let kept = &name[..name.len().min(room)];
    Ok([b".", kept, MARK, random.as_bytes(), END].concat())
}
