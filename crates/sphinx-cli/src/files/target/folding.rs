//! Directories in which names that differ only in case are one, as on FAT and NTFS: nothing takes the place of what the same
//! transfer has put there.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, FileType};

use super::Target;
use crate::failure::fail_hint;
use crate::files::descent::Identity;
use crate::files::leftovers::names;
use crate::files::output::Refused;
use crate::files::paths::Name;
use sphinx_transport::ErrorKind;

/// What this transfer has put into a directory.
#[derive(Default)]
pub(super) struct Placed {
    /// Whether names are folded there, once one has shown it.
    folds: Option<Folding>,
    /// If names are folded: what has been put there, by inode.
    things: BTreeSet<Identity>,
    /// If inodes do not tell: the names of that, folded.
    names: BTreeSet<String>,
}

/// How it shows that two names are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Folding {
    /// It never does: they are not.
    None,
    /// They have the same inode.
    ByInode,
    /// By nothing else: each spelling has an inode of its own, as with exFAT in user space.
    ByName,
}

/// A name as it is compared where names are folded.
pub(in crate::files) fn folded(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_lowercase()
}

impl Target {
    /// What has been put into the innermost directory.
    fn placed(&mut self) -> &mut Placed {
        let depth = self.descent.depth();
        self.placed.truncate(depth + 1);
        self.placed.resize_with(depth + 1, Placed::default);
        &mut self.placed[depth]
    }

    /// A name that has come must not be another spelling of one that came before.
    pub(super) fn check_unfolded(&mut self, name: &Name) -> Result<(), Refused> {
        let here = self.here();
        let placed = self.placed();
        let there = || fs::statat(&here, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
        let has_come = match placed.folds {
            None | Some(Folding::None) => false,
            Some(Folding::ByInode) => {
                there().is_ok_and(|there| placed.things.contains(&Identity::of_stat(&there)))
            }
            Some(Folding::ByName) => placed.names.contains(&folded(name.as_bytes())),
        };
        if has_come {
            let message = format!(
                "{} is left out: where it is to be, something else that has come has that name",
                self.shown(name)
            );
            let hint = "names that differ only in case are one there: rename one of them";
            return Err(Refused::Entry(fail_hint(ErrorKind::LocalIo, message, hint)));
        }
        Ok(())
    }

    /// Notes what has this name: it has come, or is kept as it is.
    pub(super) fn note_placed(&mut self, name: &Name) {
        if self.is_trial() {
            return;
        }
        let here = self.here();
        let placed = self.placed();
        if placed.folds == Some(Folding::None) {
            return;
        }
        let Ok(there) = fs::statat(&here, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) else {
            return;
        };
        // A file with several hard links may have two names that differ only in case: nothing follows from its inode.
        let is_directory = FileType::from_raw_mode(there.st_mode) == FileType::Directory;
        if !is_directory && there.st_nlink > 1 {
            return;
        }
        let identity = Identity::of_stat(&there);
        if placed.folds.is_none() {
            placed.folds = folds(&here, name, identity);
        }
        match placed.folds {
            None | Some(Folding::None) => {}
            Some(Folding::ByInode) => drop(placed.things.insert(identity)),
            Some(Folding::ByName) => drop(placed.names.insert(folded(name.as_bytes()))),
        }
    }
}

/// Whether something is there under another spelling of its name, too; nothing if it has no other.
fn folds(directory: &OwnedFd, name: &Name, identity: Identity) -> Option<Folding> {
    let mut other = name.as_bytes().to_vec();
    for byte in &mut other {
        if byte.is_ascii_alphabetic() {
            *byte ^= b'a' ^ b'A';
        }
    }
    if other == name.as_bytes() {
        return None;
    }
    let Ok(there) = fs::statat(directory, other.as_slice(), AtFlags::SYMLINK_NOFOLLOW) else {
        return Some(Folding::None);
    };
    if Identity::of_stat(&there) == identity {
        return Some(Folding::ByInode);
    }
    // It is there, and not a name of its own.
    let is_listed = names(directory).map_or(true, |names| names.contains(&other));
    Some(match is_listed {
        true => Folding::None,
        false => Folding::ByName,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::hard_link;
    use std::path::Path;

    use super::*;
    use crate::files::output::{OutputDir, Rules};
    use crate::files::target::Place;
    use crate::files::wire::Attributes;

    const RULES: Rules = Rules {
        overwrite: true,
        merge: true,
        allow_dotfiles: false,
        partial: false,
        exact_modes: false,
        max_bytes: None,
        max_entries: None,
    };

    const ATTRIBUTES: Attributes = Attributes {
        mode: 0o700,
        mtime_s: 0,
        mtime_ns: 0,
    };

    fn name(name: &str) -> Name {
        Name::new(name.as_bytes()).expect("a name")
    }

    fn target(root: &Path) -> Target {
        Target::new(OutputDir::open(root, RULES).expect("writable"))
    }

    /// Whether a file of this name is put in place.
    fn place(target: &mut Target, called: &str) -> bool {
        match target.create(&name(called), Some(0), None) {
            Ok(Place::New(file)) => target.commit(&name(called), file, ATTRIBUTES).is_ok(),
            _ => false,
        }
    }

    #[test]
    fn names_are_told_apart_where_they_differ() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let mut target = target(root.path());
        assert!(place(&mut target, "1"));
        assert_eq!(target.placed().folds, None);
        for called in ["a", "A", "a", "1"] {
            assert!(place(&mut target, called));
            assert_eq!(target.placed().folds, Some(Folding::None));
            assert!(target.placed().things.is_empty());
        }
    }

    /// Other names of a file stand for other spellings of its name.
    #[test]
    fn nothing_takes_the_place_of_what_has_come() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| root.path().join(name);
        let mut target = target(root.path());
        target.placed().folds = Some(Folding::ByInode);
        assert!(place(&mut target, "a"));
        hard_link(path("a"), path("A")).unwrap();
        std::fs::write(path("b"), b"old").unwrap();
        assert!(!place(&mut target, "A"));
        assert!(target.make_link(&name("A"), b"b", ATTRIBUTES).is_err());
        // What was there before is replaced.
        assert!(place(&mut target, "b"));
        assert!(!place(&mut target, "b"));
        // The same holds for directories, and names in different directories do not clash.
        assert!(target.enter(&name("d"), 0o700).is_ok());
        assert!(place(&mut target, "a"));
        assert!(target.leave(ATTRIBUTES).is_ok());
        assert!(target.enter(&name("d"), 0o700).is_err());
        assert!(target.enter(&name("e"), 0o700).is_ok());
        assert_eq!(target.placed().folds, None);
    }

    #[test]
    fn names_tell_where_inodes_do_not() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let mut target = target(root.path());
        target.placed().folds = Some(Folding::ByName);
        std::fs::write(root.path().join("B"), b"old").unwrap();
        for called in ["a", "B", "été"] {
            assert!(place(&mut target, called), "{called}");
        }
        for called in ["A", "b", "ÉTÉ", "a"] {
            assert!(!place(&mut target, called), "{called}");
        }
    }

    #[test]
    fn another_spelling_of_a_name_shows_it() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| root.path().join(name);
        let flags = fs::OFlags::RDONLY | fs::OFlags::DIRECTORY;
        let directory = fs::open(root.path(), flags, fs::Mode::empty()).unwrap();
        for called in ["Foo.jpg", "bar", "12"] {
            std::fs::write(path(called), b"").unwrap();
        }
        hard_link(path("Foo.jpg"), path("fOO.JPG")).unwrap();
        std::fs::write(path("BAR"), b"another").unwrap();
        let folds = |called: &str| {
            let there = fs::statat(&directory, called, AtFlags::empty()).unwrap();
            folds(&directory, &name(called), Identity::of_stat(&there))
        };
        assert_eq!(folds("Foo.jpg"), Some(Folding::ByInode));
        assert_eq!(folds("bar"), Some(Folding::None));
        assert_eq!(folds("12"), None);
    }
}
