//! What says that a session is forgotten (`docs/protocol.md` §9.1).

use std::fmt;

use super::OVERHEAD;

/// Length of a reset in bytes: that of the smallest packet.
pub const RESET_LEN: usize = OVERHEAD + 1;

/// What the end that has made a connection id shows when it knows nothing of the id's session any more. Nobody else but the session's other end knows
/// it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ResetToken([u8; Self::LEN]);

impl ResetToken {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// From the bytes on the wire.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes on the wire. To be compared in constant time.
    pub fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// What a datagram shows if it is a reset; nearly all packets of sessions look as if they were one.
    pub fn shown_by(datagram: &[u8]) -> Option<&[u8; Self::LEN]> {
        let shown = datagram.last_chunk();
        shown.filter(|_| datagram.len() >= RESET_LEN)
    }

    /// The reset that shows it; all else of it is as `random`, which nobody can foresee, but for what tells the planes apart.
    pub fn reset(&self, random: [u8; RESET_LEN]) -> [u8; RESET_LEN] {
        let mut reset = random;
        reset[0] = 0x80 | reset[0] & 0x3f;
        if reset[1..5] == [0; 4] {
            reset[1] = 1;
        }
        reset[RESET_LEN - Self::LEN..].copy_from_slice(&self.0);
        reset
    }
}

impl fmt::Debug for ResetToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::is_data_plane;

    /// The vector of `docs/protocol.md` §12.
    #[test]
    fn vector() {
        let token = ResetToken::new(std::array::from_fn(|n| 0xf0 + n as u8));
        let reset = token.reset(std::array::from_fn(|n| n as u8 | 0xc0));
        let expected = [
            0x80, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd,
            0xce, 0xcf, 0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xf0, 0xf1, 0xf2, 0xf3, 0xf4,
            0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff,
        ];
        assert_eq!(reset, expected);
        assert_eq!(ResetToken::shown_by(&reset), Some(token.bytes()));
        assert_eq!(ResetToken::shown_by(&reset[1..]), None, "too short");
    }

    #[test]
    fn whatever_is_random_it_is_of_the_data_plane() {
        let token = ResetToken::new([0; ResetToken::LEN]);
        for random in [0, 0x3f, 0x40, 0x80, 0xff] {
            assert!(is_data_plane(&token.reset([random; RESET_LEN])));
        }
    }

    #[test]
    fn nobody_sees_it_in_a_message() {
        let token = ResetToken::new([7; ResetToken::LEN]);
        assert_eq!(format!("{token:?}"), "ResetToken(..)");
    }
}
