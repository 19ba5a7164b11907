//! Extended attributes of files and directories: those that users give them. Others (capabilities, access lists,
//! labels of the kernel) mean something to their machine only, or give rights.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

/// Most extended attributes of one file.
const NUMBER_MAX: usize = 64;
/// Names and values of one file together; most file systems have room for a few thousand bytes.
const FILE_XATTRS_BYTES_MAX: usize = 256 << 10;
/// Limits of the kernel: bytes of all names of a file together, and of one value.
const NAMES_BYTES_MAX: usize = 64 << 10;
const VALUE_BYTES_MAX: usize = 64 << 10;
const PREFIX: &[u8] = b"user.";

/// Names and values, in the order of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Xattrs(Vec<(Vec<u8>, Vec<u8>)>);

/// Why some cannot be among those of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XattrError {
    Name,
    TooMuch,
}

impl fmt::Display for XattrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => {
                "a name that does not begin with \"user.\", or that is not behind the one before"
            }
            Self::TooMuch => "it has more of them than 64, or than 256 KiB",
        })
    }
}

impl Xattrs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (self.0.iter()).map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// Adds one; they come in the order of their names.
    pub(super) fn add(&mut self, name: Vec<u8>, value: Vec<u8>) -> Result<(), XattrError> {
        let behind = self.0.last().is_none_or(|(last, _)| *last < name);
        if !behind || !name.starts_with(PREFIX) || name == PREFIX || name.contains(&0) {
            return Err(XattrError::Name);
        }
        let bytes: usize = self
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        // A length travels in two bytes.
        let fits = self.len() < NUMBER_MAX
            && value.len() <= usize::from(u16::MAX)
            && bytes + name.len() + value.len() <= FILE_XATTRS_BYTES_MAX;
        match fits {
            true => self.0.push((name, value)),
            false => return Err(XattrError::TooMuch),
        }
        Ok(())
    }

    /// Reads those of an open file or directory; empty where the file system knows none.
    pub(super) fn read(file: impl AsFd) -> io::Result<Self> {
        let mut names = names(&file)?;
        names.sort_unstable();
        let mut xattrs = Self::default();
        // The system calls write into a buffer; the kernel allows no longer values than this.
        let mut value = vec![0; if names.is_empty() { 0 } else { VALUE_BYTES_MAX }];
        for name in names {
            let length = match fs::fgetxattr(&file, name.as_slice(), value.as_mut_slice()) {
                Ok(length) => length,
                // Removed since the names were listed.
                Err(Errno::NODATA) => continue,
                Err(error) => return Err(error.into()),
            };
            (xattrs.add(name, value[..length].to_vec()))
                .map_err(|error| io::Error::other(format!("its extended attributes: {error}")))?;
        }
        Ok(xattrs)
    }

    /// Reads those of a file in an open directory. Most files have none, and are not opened to find that out. Links are not
    /// followed.
    pub(super) fn read_at(directory: &OwnedFd, name: &[u8]) -> io::Result<Self> {
        let number = directory.as_raw_fd().to_string();
        let path = [b"/proc/self/fd/", number.as_bytes(), b"/", name].concat();
        let mut list = [0; 256];
        match fs::llistxattr(path, &mut list[..]) {
            Ok(length) if user_names(&list[..length]).next().is_none() => {
                return Ok(Self::default());
            }
            Err(Errno::OPNOTSUPP) => return Ok(Self::default()),
            // There are some, or there are more names than fit, or /proc is not mounted: the file has to be opened.
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Self::read(File::from(fs::openat(
            directory,
            name,
            flags,
            Mode::empty(),
        )?))
    }

    /// Makes them those of an open file or directory.
    pub(super) fn write(&self, file: impl AsFd) -> Result<(), Errno> {
        let there = names(&file)?;
        for name in &there {
            if self.iter().all(|(wanted, _)| wanted != name) {
                fs::fremovexattr(&file, name.as_slice())?;
            }
        }
        (self.iter()).try_for_each(|(name, value)| {
            fs::fsetxattr(&file, name, value, fs::XattrFlags::empty())
        })
    }
}

/// The names of those that users give.
fn names(file: impl AsFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut list = vec![0; 1024];
    let length = loop {
        match fs::flistxattr(&file, list.as_mut_slice()) {
            Err(Errno::RANGE) if list.len() < NAMES_BYTES_MAX => list.resize(NAMES_BYTES_MAX, 0),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => break 0,
            length => break length?,
        }
    };
    Ok(user_names(&list[..length]).map(<[u8]>::to_vec).collect())
}

/// The names that users may set (`user.…`), in a list of the kernel, which separates names by NUL.
fn user_names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let names = list.split(|byte| *byte == 0);
    names.filter(|name| name.starts_with(PREFIX))
}
