//! Which names and link targets may cross.
//!
//! The sender produces only what passes here; the receiver trusts nothing that does not.

use std::fmt;

/// Longest path below the output directory, separators included.
pub(crate) const PATH_BYTES_MAX: usize = 4096;
/// Longest component, as every common file system has it.
pub(crate) const COMPONENT_BYTES_MAX: usize = 255;

/// One component of a path: not empty, neither `.` nor `..`, without `/` and NUL, within the limit.
/// Bytes, not necessarily UTF-8.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Name(Vec<u8>);

impl Name {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, PathError> {
        let bytes = bytes.into();
        component(&bytes)?;
        Ok(Self(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::text::printable(&self.0))
    }
}

/// Why a name or a link may not cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// A link that starts at the root of the file system.
    Absolute,
    Empty,
    /// A name with a separator.
    Slash,
    /// `.` or `..`.
    Dots,
    Nul,
    TooLong,
    /// A link that leads out of the tree.
    Escapes,
    /// A link that climbs (`..`) out of what is no directory of the tree.
    Detour,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::Absolute => "it is absolute",
            Self::Slash => "it contains a /",
            Self::Dots => "it is . or ..",
            Self::Nul => "it contains a NUL byte",
            Self::TooLong => "it is too long",
            Self::Escapes => "it leads out of what is sent",
            Self::Detour => "it has .. behind what is no directory of what is sent",
        })
    }
}

fn component(bytes: &[u8]) -> Result<(), PathError> {
    match bytes {
        b"" => Err(PathError::Empty),
        b"." | b".." => Err(PathError::Dots),
        _ if bytes.contains(&0) => Err(PathError::Nul),
        _ if bytes.contains(&b'/') => Err(PathError::Slash),
        _ if bytes.len() > COMPONENT_BYTES_MAX => Err(PathError::TooLong),
        _ => Ok(()),
    }
}

/// The path of what has this name in a directory; that of the outermost directory is empty.
pub(super) fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory.is_empty() {
        true => name.to_vec(),
        false => [directory, b"/", name].concat(),
    }
}

/// Somebody who walks through real directories, starting in that of a link.
pub(super) trait Walker {
    /// Goes to the directory above.
    fn up(&mut self);
    /// Into a directory; false if there is none of this name. A link to one is none.
    fn enter(&mut self, name: &[u8]) -> bool;
}

/// Whether a symbolic link may point to `target`. `depth` is the number of directories of the tree
/// around the link, that of the object that was sent included.
///
/// Targets are relative and never climb above the object that was sent: what lies beside it belongs
/// to the user. What `..` climbs out of must be a real directory of the tree, which `walker` tells,
/// because out of a link it would lead anywhere. Directories are never replaced by links, so it stays
/// true; and so a link is as good as the text of its target, in whatever order links are made: every
/// `..` ends in a real directory inside the tree, and every other component is inside it or is again
/// a link that obeys this rule.
pub(super) fn link_target(
    mut depth: usize,
    target: &[u8],
    walker: &mut impl Walker,
) -> Result<(), PathError> {
    if target.len() > PATH_BYTES_MAX {
        return Err(PathError::TooLong);
    }
    match target.first() {
        None => return Err(PathError::Empty),
        Some(b'/') => return Err(PathError::Absolute),
        // A link that is itself what was sent has no directory of the tree around it.
        Some(_) if depth == 0 => return Err(PathError::Escapes),
        Some(_) => {}
    }
    // Components behind the walker's place that nobody has climbed out of.
    let mut ahead: Vec<&[u8]> = Vec::new();
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                for name in ahead.drain(..) {
                    if !walker.enter(name) {
                        return Err(PathError::Detour);
                    }
                    depth += 1;
                }
                depth -= 1;
                if depth == 0 {
                    return Err(PathError::Escapes);
                }
                walker.up();
            }
            name => {
                component(name)?;
                ahead.push(name);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Has every directory whose name starts with d.
    struct Everywhere;

    impl Walker for Everywhere {
        fn up(&mut self) {}
        fn enter(&mut self, name: &[u8]) -> bool {
            name.starts_with(b"d")
        }
    }

    fn judged(depth: usize, target: &str) -> Result<(), PathError> {
        link_target(depth, target.as_bytes(), &mut Everywhere)
    }

    #[test]
    fn names() {
        for bytes in [&b"..."[..], b"a b", b"caf\xe9", &[b'x'; 255]] {
            assert_eq!(Name::new(bytes).unwrap().as_bytes(), bytes);
        }
        for (bytes, error) in [
            (&b""[..], PathError::Empty),
            (b".", PathError::Dots),
            (b"..", PathError::Dots),
            (b"a/b", PathError::Slash),
            (b"/", PathError::Slash),
            (b"a\0b", PathError::Nul),
            (&[b'x'; 256], PathError::TooLong),
        ] {
            assert_eq!(Name::new(bytes), Err(error));
        }
    }

    #[test]
    fn links() {
        for target in [
            "other",
            "./f",
            "d/",
            "d/../f",
            "d//./f",
            "sub2/other",
            "../other",
            "..",
            "../x/y",
            "d/e/f",
            "d/d2/../../f",
            "../d/../f",
            ".",
            "../.",
        ] {
            assert_eq!(judged(2, target), Ok(()), "{target}");
        }
        for (target, error) in [
            ("../../tree2", PathError::Escapes),
            ("../..", PathError::Escapes),
            ("d/../../..", PathError::Escapes),
            ("./.././..", PathError::Escapes),
            ("/etc", PathError::Absolute),
            ("", PathError::Empty),
            ("f/..", PathError::Detour),
            ("d/f/../..", PathError::Detour),
            ("a\0", PathError::Nul),
        ] {
            assert_eq!(judged(2, target), Err(error), "{target}");
        }
        assert_eq!(judged(0, "sibling"), Err(PathError::Escapes));
        assert_eq!(judged(1, "sibling"), Ok(()));
        assert_eq!(judged(1, "../sibling"), Err(PathError::Escapes));
        assert_eq!(judged(1, &"x/".repeat(2100)), Err(PathError::TooLong),);
    }

    proptest! {
        #[test]
        fn links_that_pass_stay_in_the_tree(depth in 0_usize..4, target in "[abd./]{0,12}") {
            if judged(depth, &target).is_ok() {
                // Depth below the parent of the sent object; it must never come back to 0.
                let mut depth = depth as i64;
                for part in target.split('/') {
                    depth += match part { ".." => -1, "" | "." => 0, _ => 1 };
                    prop_assert!(depth >= 1, "{target}");
                }
            }
        }
    }
}
