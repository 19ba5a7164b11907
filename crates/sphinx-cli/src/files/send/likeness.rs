//! What else a file has in common with its copy where a tree is synchronized: its other names, its owner, and extended
//! attributes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use rustix::fs::Stat;

use super::Sender;
use crate::channel::Outgoing;
use crate::failure::Outcome;
use crate::files::descent::Identity;
use crate::files::owners::{Ids, Owner};
use crate::files::paths::Name;
use crate::files::walk::ids;
use crate::files::wire::Entry;
use crate::files::xattrs::Xattrs;

/// What the receiver has been told about attributes so far.
#[derive(Default)]
pub(super) struct Likeness {
    /// Files with several hard links that have been sent, by inode: the path of the first name.
    linked: BTreeMap<Identity, Vec<u8>>,
    /// Owner of the entries that follow, as told last.
    owner: Option<Ids>,
}

impl Likeness {
    /// A file is at the receiver, at `path`.
    pub(super) fn has_come(&mut self, stat: &Stat, path: &[u8]) {
        if stat.st_nlink > 1 {
            self.linked.insert(Identity::of_stat(stat), path.to_vec());
        }
    }
}

impl<O: Outgoing> Sender<'_, O> {
    /// Sends only the name of a file that has come under another one; true if it has.
    pub(super) fn hard_link(&mut self, name: &Name, stat: &Stat) -> Outcome<bool> {
        if self.sync.is_none() || stat.st_nlink < 2 {
            return Ok(false);
        }
        let Some(path) = self.likeness.linked.get(&Identity::of_stat(stat)) else {
            return Ok(false);
        };
        let (name, path) = (name.clone(), path.clone());
        self.entry(&Entry::HardLink { name, path })?;
        Ok(true)
    }

    /// Tells the owner and the extended attributes of a file, or why they cannot be read.
    pub(super) fn tell_attributes(
        &mut self,
        name: &Name,
        file: Option<&File>,
        stat: &Stat,
    ) -> Outcome<io::Result<()>> {
        if self.sync.is_none() {
            return Ok(Ok(()));
        }
        let xattrs = match file {
            Some(file) => Xattrs::read(file),
            None => self.walk.xattrs_of(name),
        };
        match xattrs {
            Ok(xattrs) => {
                self.tell_owner(ids(stat))?;
                self.tell_xattrs(xattrs).map(Ok)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Tells whose the following entries are, if that has changed.
    pub(super) fn tell_owner(&mut self, ids: Ids) -> Outcome<()> {
        if self.sync.is_none() || self.likeness.owner.replace(ids) == Some(ids) {
            return Ok(());
        }
        self.record(&Entry::Owner(Owner::of(ids)))
    }

    pub(super) fn tell_xattrs(&mut self, xattrs: Xattrs) -> Outcome<()> {
        match xattrs.is_empty() {
            true => Ok(()),
            false => self.record(&Entry::Xattrs(xattrs)),
        }
    }
}
