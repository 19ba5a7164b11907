//! Where a copy comes to: into a directory, or under another name.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::leftovers::is_unfinished;
use super::roots::shown;
use crate::failure::{Outcome, fail_hint, local_io};
use sphinx_transport::ErrorKind;

/// What `cp` makes of its last argument.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    /// The directory, which exists, into which things are copied.
    pub(crate) directory: PathBuf,
    /// The name that the only thing copied gets, if that is another one.
    pub(crate) name: Option<Vec<u8>>,
}

impl Landing {
    /// `things` come to `destination`; with `recursive` a directory may be among them.
    ///
    /// # Errors
    /// There is no such place.
    pub(crate) fn find(destination: &Path, things: usize, recursive: bool) -> Outcome<Self> {
        let found = destination.metadata();
        let is_directory = found.as_ref().is_ok_and(|found| found.is_dir());
        // An earlier copy to this name made the directory and was interrupted: this one goes on in it.
        let is_begun = things == 1 && recursive && is_directory && is_unfinished(destination);
        if is_directory && !is_begun {
            return Ok(Self {
                directory: destination.to_owned(),
                name: None,
            });
        }
        let is_new = (found.as_ref()).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        let into_directory = destination.as_os_str().as_bytes().ends_with(b"/");
        let shown = shown(destination);
        if things != 1 || into_directory && !(is_new && recursive || is_begun) {
            return Err(fail_hint(
                match things {
                    1 => ErrorKind::LocalIo,
                    _ => ErrorKind::Usage,
                },
                format!("{shown} is no directory"),
                match is_new {
                    true => format!("make it: mkdir -p {shown}"),
                    false => "name another place: something else is there".to_owned(),
                },
            ));
        }
        Self::under_its_name(destination)
    }

    /// One thing comes as `destination`, whatever is there: also where all of it has come without the sender's knowing.
    ///
    /// # Errors
    /// There is no such place.
    pub(crate) fn under_its_name(destination: &Path) -> Outcome<Self> {
        let shown = shown(destination);
        let refused = |error| local_io("use", &shown, error);
        let name =
            (destination.file_name()).ok_or_else(|| refused(io::ErrorKind::NotFound.into()))?;
        let parent = match destination.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Err(refused(io::ErrorKind::NotFound.into())),
        };
        match parent.metadata() {
            Ok(found) if found.is_dir() => Ok(Self {
                directory: parent.to_owned(),
                name: Some(name.as_bytes().to_vec()),
            }),
            Ok(_) => Err(refused(io::ErrorKind::NotADirectory.into())),
            Err(error) => Err(refused(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn as_cp_does() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), b"x").unwrap();
        std::os::unix::fs::symlink("dir", at("link")).unwrap();
        let find = |name: &str, things, recursive| Landing::find(&at(name), things, recursive);
        let into = |name: &str| Landing {
            directory: at(name),
            name: None,
        };
        let named = |name: &str| Landing {
            directory: root.path().to_owned(),
            name: Some(name.as_bytes().to_vec()),
        };
        for name in ["dir", "dir/", "link"] {
            assert_eq!(find(name, 3, false), Ok(into(name)));
        }
        for name in ["new", "file"] {
            assert_eq!(find(name, 1, false), Ok(named(name)));
            assert_eq!(find(name, 2, true).unwrap_err().kind, ErrorKind::Usage);
        }
        assert_eq!(find("new/", 1, true), Ok(named("new")));
        // What a copy has begun it goes on with.
        fs::create_dir(at("begun")).unwrap();
        fs::write(at("begun/.sphx-unfinished"), b"").unwrap();
        for name in ["begun", "begun/"] {
            assert_eq!(find(name, 1, true), Ok(named("begun")));
        }
        assert_eq!(find("begun", 1, false), Ok(into("begun")));
        assert_eq!(find("begun", 2, true), Ok(into("begun")));
        // Nothing says any more that it was this copy which has made it.
        for name in ["dir", "dir/", "new", "file"] {
            let found = Landing::under_its_name(&at(name));
            assert_eq!(found, Ok(named(name.trim_end_matches('/'))), "{name}");
        }
        for (name, recursive) in [
            ("new/", false),
            ("file/", true),
            ("no/new", true),
            ("file/new", true),
            ("dir/no/..", true),
        ] {
            let failure = find(name, 1, recursive).unwrap_err();
            assert_eq!(failure.kind, ErrorKind::LocalIo, "{name}");
        }
    }
}
