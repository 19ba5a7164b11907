//! What the client says of several paths: frames PATH_STATUS and BOND, and the parameter of that name (`docs/protocol.md` §10.5).

use super::{Reader, WireError, put_varint};
use crate::PathId;
use crate::paths::{Bond, PATHS_MAX, PathRole};

/// What the server is told of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStatus {
    /// The path.
    pub path: PathId,
    /// Rises with every such frame: the highest of a path counts.
    pub number: u64,
    /// When the path is used.
    pub role: PathRole,
    /// What a byte costs on it.
    pub cost: u32,
    /// Most that is to be sent on it, IP bytes per second; 0: whatever rate control allows.
    pub limit: u64,
}

impl PathStatus {
    /// Appends the fields.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.path.get()));
        put_varint(out, self.number);
        out.push(u8::from(self.role == PathRole::Backup));
        put_varint(out, u64::from(self.cost));
        put_varint(out, self.limit);
    }

    /// Reads the fields behind `path`.
    pub(super) fn decode(path: PathId, r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            path,
            number: r.varint()?,
            role: match r.u8()? {
                0 => PathRole::Primary,
                1 => PathRole::Backup,
                _ => return Err(WireError::Invalid("role of a path")),
            },
            cost: r.varint()?.min(u64::from(u32::MAX)) as u32,
            limit: r.varint()?,
        })
    }
}

impl Bond {
    /// Appends the mode, and for how many paths.
    pub fn encode(self, out: &mut Vec<u8>) {
        let (mode, copies) = match self {
            Self::Aggregate => (0, 0),
            Self::Redundant { copies } => (1, copies),
            Self::Backup => (2, 0),
            Self::Cheapest => (3, 0),
        };
        out.push(mode);
        put_varint(out, u64::from(copies));
    }

    /// Takes them. A mode that this version does not know counts as [`Bond::Aggregate`], which needs nothing of the other end.
    ///
    /// # Errors
    /// If the input ends before.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let mode = r.u8()?;
        let copies = r.varint()?.min(PATHS_MAX as u64) as u8;
        Ok(match mode {
            1 => Self::Redundant { copies },
            2 => Self::Backup,
            3 => Self::Cheapest,
            _ => Self::Aggregate,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Frame, FrameIter};

    #[track_caller]
    fn vector(frame: &Frame<'_>, bytes: &[u8]) {
        let mut out = Vec::new();
        frame.encode(&mut out);
        assert_eq!(out, bytes);
        let mut read = FrameIter::new(bytes);
        assert_eq!(read.next(), Some(Ok(frame.clone())));
        assert_eq!(read.next(), None);
        assert!(frame.is_ack_eliciting());
        for len in 1..bytes.len() {
            assert!(
                FrameIter::new(&bytes[..len])
                    .next()
                    .is_some_and(|r| r.is_err()),
                "{len}"
            );
        }
    }

    #[test]
    fn vectors() {
        let status = PathStatus {
            path: PathId::new(1),
            number: 3,
            role: PathRole::Backup,
            cost: 5,
            limit: 2_500_000,
        };
        vector(
            &Frame::PathStatus(status),
            &[23, 1, 3, 1, 5, 0x80, 0x26, 0x25, 0xa0],
        );
        vector(&Frame::MaxPaths(8), &[24, 8]);
        let redundant = Bond::Redundant { copies: 2 };
        for (bond, fields) in [
            (Bond::Aggregate, [0, 0]),
            (redundant, [1, 2]),
            (Bond::Backup, [2, 0]),
            (Bond::Cheapest, [3, 0]),
        ] {
            let number = 4;
            vector(&Frame::Bond { number, bond }, &[[25, 4], fields].concat());
        }
    }

    #[test]
    fn what_is_beyond() {
        let first = |bytes: &[u8]| FrameIter::new(bytes).next().expect("a frame").is_ok();
        assert!(!first(&[24, 0]), "no paths");
        assert!(!first(&[23, 1, 3, 2, 5, 0]), "no such role");
        let mut read = FrameIter::new(&[25, 0, 9, 0x40, 99, 24, 0x44, 0]);
        let bond = Bond::Aggregate;
        assert_eq!(read.next(), Some(Ok(Frame::Bond { number: 0, bond })));
        assert_eq!(read.next(), Some(Ok(Frame::MaxPaths(255))));
    }
}
