//! Which relative paths and link targets may cross.
//!
//! The sender produces only what passes here; the receiver trusts nothing that does not.

use std::fmt;

/// Longest path, separators included.
pub(crate) const PATH_BYTES_MAX: usize = 4096;
/// Longest component, as every common file system has it.
pub(crate) const COMPONENT_BYTES_MAX: usize = 255;

/// A relative path that names something strictly below its root: no empty, `.` or `..` component,
/// no NUL, within the limits. Bytes, not necessarily UTF-8.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SafePath(Vec<u8>);

impl SafePath {
    pub(crate) fn new(bytes: Vec<u8>) -> Result<Self, PathError> {
        if bytes.len() > PATH_BYTES_MAX {
            return Err(PathError::TooLong);
        }
        bytes.split(|byte| *byte == b'/').try_for_each(component)?;
        Ok(Self(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    /// The directories above, and the last component.
    pub(crate) fn split_last(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&self.0[..at], &self.0[at + 1..]),
            None => (&[], &self.0),
        }
    }

    /// How many directories lie between the root and the object.
    fn depth(&self) -> usize {
        self.components().count() - 1
    }
}

impl fmt::Debug for SafePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::text::printable(&self.0))
    }
}

/// Why a path may not cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// Empty, or with an empty component: absolute paths are among these.
    Empty,
    /// `.` or `..`.
    Dots,
    Nul,
    TooLong,
    /// A link that could lead out of the tree.
    Escapes,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is absolute or has an empty component",
            Self::Dots => "it has a . or .. component",
            Self::Nul => "it contains a NUL byte",
            Self::TooLong => "it is too long",
            Self::Escapes => "it leads out of the tree",
        })
    }
}

fn component(bytes: &[u8]) -> Result<(), PathError> {
    match bytes {
        b"" => Err(PathError::Empty),
        b"." | b".." => Err(PathError::Dots),
        _ if bytes.contains(&0) => Err(PathError::Nul),
        _ if bytes.len() > COMPONENT_BYTES_MAX => Err(PathError::TooLong),
        _ => Ok(()),
    }
}

/// Whether a symbolic link at `link` may point to `target`.
///
/// Only relative targets, and `..` only in front, at most as often as the link has real directories
/// of the sent tree above it. The receiver makes those directories itself and never through a link,
/// so the leading `..`s end at a real directory inside the tree; every later component is inside it
/// or is again a link that obeys this rule. The first component of a path is the object that was
/// sent, and a link may not climb above that object: what lies beside it belongs to the user.
pub(crate) fn link_target(link: &SafePath, target: &[u8]) -> Result<(), PathError> {
    if target.len() > PATH_BYTES_MAX {
        return Err(PathError::TooLong);
    }
    let climbs = target
        .split(|byte| *byte == b'/')
        .take_while(|part| *part == b"..")
        .count();
    let mut rest = target.split(|byte| *byte == b'/').skip(climbs);
    rest.try_for_each(|part| match component(part) {
        Err(PathError::Dots) => Err(PathError::Escapes),
        other => other,
    })?;
    // A link that is itself what was sent has no directory of the tree around it.
    match climbs < link.depth() {
        true => Ok(()),
        false => Err(PathError::Escapes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> SafePath {
        SafePath::new(text.as_bytes().to_vec()).expect(text)
    }

    fn refused(bytes: &[u8]) -> PathError {
        SafePath::new(bytes.to_vec()).expect_err("must be refused")
    }

    #[test]
    fn accepted() {
        assert_eq!(path("a/b c/…").components().count(), 3);
        assert_eq!(path("...").split_last(), (&b""[..], &b"..."[..]));
        assert_eq!(path("a/b/c").split_last(), (&b"a/b"[..], &b"c"[..]));
        assert!(SafePath::new(b"caf\xe9".to_vec()).is_ok());
        assert!(SafePath::new(vec![b'x'; 255]).is_ok());
    }

    #[test]
    fn refused_paths() {
        for bytes in [&b""[..], b"/", b"/etc/passwd", b"a//b", b"a/", b"//a"] {
            assert_eq!(refused(bytes), PathError::Empty);
        }
        for bytes in [&b"."[..], b"..", b"../a", b"a/../b", b"a/.", b"./a"] {
            assert_eq!(refused(bytes), PathError::Dots);
        }
        assert_eq!(refused(b"a\0b"), PathError::Nul);
        assert_eq!(refused(&[b'x'; 256]), PathError::TooLong);
        assert_eq!(refused("x/".repeat(2100).as_bytes()), PathError::TooLong);
    }

    #[test]
    fn links() {
        let link = path("tree/sub/link");
        for target in ["other", "sub2/other", "../other", "..", "../x/y"] {
            assert_eq!(link_target(&link, target.as_bytes()), Ok(()), "{target}");
        }
        for target in [
            "../../tree2",
            "../..",
            "../../..",
            "/etc",
            "",
            "a/../../..",
            "a/..",
            "a/./b",
            "a//b",
            "a\0",
        ] {
            assert!(link_target(&link, target.as_bytes()).is_err(), "{target}");
        }
        assert_eq!(
            link_target(&path("link"), b"sibling"),
            Err(PathError::Escapes)
        );
        assert_eq!(link_target(&path("tree/link"), b"sibling"), Ok(()));
        assert_eq!(
            link_target(&path("tree/link"), b"../sibling"),
            Err(PathError::Escapes)
        );
    }

    proptest! {
        #[test]
        fn what_passes_stays_below(bytes in "[a./\\x00]{0,12}") {
            if let Ok(path) = SafePath::new(bytes.into_bytes()) {
                let mut depth = 0_i64;
                for part in path.components() {
                    prop_assert!(part != b".." && part != b"." && !part.is_empty());
                    depth += 1;
                }
                prop_assert!(depth > 0 && path.as_bytes()[0] != b'/');
            }
        }

        #[test]
        fn links_that_pass_stay_in_the_tree(link in "t(/[ab]){0,3}", target in "[ab./]{0,12}") {
            let link = path(&link);
            if link_target(&link, target.as_bytes()).is_ok() {
                // Depth below the parent of the sent object; it must never come back to 0.
                let mut depth = link.depth() as i64;
                for part in target.split('/') {
                    depth += if part == ".." { -1 } else { 1 };
                    prop_assert!(depth >= 1, "{link:?} -> {target}");
                }
            }
        }
    }
}
