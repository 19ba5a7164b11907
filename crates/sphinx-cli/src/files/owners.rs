//! Users and groups, which have other numbers on another machine.

use std::collections::HashMap;

use nix::unistd::{Gid, Group, Uid, User};

/// Longest name of a user or a group.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// Numbers of a user and a group on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Whose something is at the sender: numbers, and the names that count before them. Empty where a number has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) user: Vec<u8>,
    pub(super) group: Vec<u8>,
}

impl Owner {
    /// Looks the names up, which may ask a server.
    pub(super) fn of(ids: Ids) -> Self {
        let Ids { uid, gid } = ids;
        let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
        let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
        Self {
            uid,
            gid,
            user: user.map_or_else(Vec::new, |user| short(user.name)),
            group: group.map_or_else(Vec::new, |group| short(group.name)),
        }
    }
}

/// The name, or an empty one if it is too long for the wire.
fn short(name: String) -> Vec<u8> {
    match name.len() {
        0..=NAME_BYTES_MAX => name.into_bytes(),
        _ => Vec::new(),
    }
}

/// The numbers here of names from elsewhere, each looked up once.
#[derive(Default)]
pub(super) struct Owners {
    users: HashMap<Vec<u8>, Option<u32>>,
    groups: HashMap<Vec<u8>, Option<u32>>,
}

/// Names remembered; of a peer that invents more each is looked up.
const REMEMBERED_MAX: usize = 1024;

impl Owners {
    /// Who that is here: whoever has the name, or else the number.
    pub(super) fn ids(&mut self, owner: &Owner) -> Ids {
        let user = |name: &str| User::from_name(name).ok()?.map(|user| user.uid.as_raw());
        let group = |name: &str| Group::from_name(name).ok()?.map(|group| group.gid.as_raw());
        Ids {
            uid: look_up(&mut self.users, &owner.user, user).unwrap_or(owner.uid),
            gid: look_up(&mut self.groups, &owner.group, group).unwrap_or(owner.gid),
        }
    }
}

fn look_up(
    known: &mut HashMap<Vec<u8>, Option<u32>>,
    name: &[u8],
    find: impl Fn(&str) -> Option<u32>,
) -> Option<u32> {
    if let Some(found) = known.get(name) {
        return *found;
    }
    let text = std::str::from_utf8(name).ok();
    let found = text
        .filter(|name| !name.is_empty() && !name.contains('\0'))
        .and_then(find);
    if known.len() < REMEMBERED_MAX {
        known.insert(name.to_vec(), found);
    }
    found
}
