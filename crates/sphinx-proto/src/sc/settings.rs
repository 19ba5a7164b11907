//! The schemes, and their encoding in the parameters of the handshake.

use sphinx_fec::generation::GENERATION_MAX;

use super::SYMBOL_OVERHEAD;
use crate::wire::{Reader, WireError, put_varint};

/// Version of the mode on the wire.
const VERSION: u64 = 1;
/// A full generation has at least `SYMBOLS_MIN` symbols, and at least `PER_BUFFER` of them fit the
/// buffer. If they still have enough symbols, `PER_BUFFER_WANTED` fit it: behind a loss less has to
/// wait then.
const SYMBOLS_MIN: u64 = 16;
const PER_BUFFER: u64 = 4;
const PER_BUFFER_WANTED: u64 = 8;
/// Bytes of a symbol of a full generation, at least.
const SYMBOL_LEN_MIN: u64 = 64;

/// How several paths are used where the receiver's buffer is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sc {
    /// Systematic coding (SC-MPTCP): as many rows as the expected loss needs, then the source
    /// symbols, on any path; the rows replace what is lost.
    Systematic,
    /// The same without source symbols: only rows, and nothing is given out before a generation is
    /// complete.
    Rlnc,
    /// No coding: symbols leave on the path with the shortest round trip that has room, and what is
    /// lost is sent again on the same path.
    MinRtt,
    /// No coding, and a slow path is left unused where the fastest one would have sent everything
    /// sooner (ECF).
    Ecf,
}

/// All of them, with the names that people use.
const SCHEMES: [(&str, Sc); 4] = [
    ("sc", Sc::Systematic),
    ("sc:rlnc", Sc::Rlnc),
    ("min-rtt", Sc::MinRtt),
    ("ecf", Sc::Ecf),
];

impl Sc {
    /// The scheme with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        let mut schemes = SCHEMES.iter();
        schemes.find(|(its, _)| *its == name).map(|(_, sc)| *sc)
    }

    /// Name of the scheme.
    pub fn name(self) -> &'static str {
        SCHEMES[self.at()].0
    }

    /// Names of all schemes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SCHEMES.iter().map(|(name, _)| *name)
    }

    fn at(self) -> usize {
        match self {
            Self::Systematic => 0,
            Self::Rlnc => 1,
            Self::MinRtt => 2,
            Self::Ecf => 3,
        }
    }

    /// Whether the scheme sends repair rows.
    pub(crate) fn is_coded(self) -> bool {
        matches!(self, Self::Systematic | Self::Rlnc)
    }

    /// The value of the parameter of an end that wants it (§2.1).
    pub fn encode(self) -> Vec<u8> {
        let mut out = Self::known();
        put_varint(&mut out, self.at() as u64);
        out
    }

    /// The value of the parameter of an end that knows the mode.
    pub fn known() -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, VERSION);
        out
    }

    /// From the value of the parameter: the scheme, if one is wanted.
    ///
    /// # Errors
    /// For what is malformed, and for a scheme that does not exist.
    pub fn decode(value: &[u8]) -> Result<Option<Self>, WireError> {
        let mut reader = Reader::new(value);
        let version = reader.varint()?;
        if version != VERSION || reader.is_empty() {
            return Ok(None);
        }
        let at = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
        let scheme = SCHEMES.get(at).map(|(_, sc)| *sc);
        match scheme.filter(|_| reader.is_empty()) {
            Some(scheme) => Ok(Some(scheme)),
            None => Err(WireError::Invalid("scheme")),
        }
    }

    /// Symbols of a full generation and bytes of each, in a buffer of this size, where packets take symbols of so many bytes.
    pub(crate) fn shape(self, buffer: u64, symbol_len_max: u16) -> (u16, u16) {
        let part = buffer / PER_BUFFER;
        let most = u64::from(symbol_len_max);
        let fitting = (part / SYMBOLS_MIN).saturating_sub(SYMBOL_OVERHEAD);
        // Without coding a generation is only a number of symbols.
        let symbol_len = match self.is_coded() {
            true => fitting.clamp(SYMBOL_LEN_MIN, most) & !1,
            false => most,
        };
        let fitting = |parts| buffer / parts / (symbol_len + SYMBOL_OVERHEAD);
        let n = fitting(PER_BUFFER_WANTED).max(fitting(PER_BUFFER).min(SYMBOLS_MIN));
        (n.clamp(1, GENERATION_MAX as u64) as u16, symbol_len as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_wire() {
        for (name, sc) in SCHEMES {
            assert_eq!(Sc::by_name(name), Some(sc));
            assert_eq!(sc.name(), name);
            assert_eq!(Sc::decode(&sc.encode()), Ok(Some(sc)));
        }
        assert_eq!(Sc::by_name("sc:"), None);
        assert_eq!(Sc::decode(&Sc::known()), Ok(None));
        assert_eq!(Sc::decode(&[2, 9, 9]), Ok(None), "a later version");
        for wrong in [&[][..], &[1, 4], &[1, 0, 0], &[1, 0x40]] {
            assert!(Sc::decode(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn four_generations_fit_the_buffer() {
        for kib in [16, 32, 64, 128, 256, 512, 4096] {
            for most in [1162, 1434, 8914] {
                let (n, symbol_len) = Sc::Systematic.shape(kib << 10, most);
                let cost = super::super::generation_cost((n, symbol_len));
                assert!(4 * cost <= kib << 10, "{kib} KiB: {n} of {symbol_len}");
                assert!((16..=64).contains(&n), "{kib} KiB: {n} of {symbol_len}");
            }
        }
        assert_eq!(Sc::Systematic.shape(64 << 10, 1434), (16, 960));
        assert_eq!(Sc::Systematic.shape(128 << 10, 1434), (16, 1434));
        assert_eq!(Sc::Systematic.shape(256 << 10, 1434), (21, 1434));
        assert_eq!(Sc::MinRtt.shape(16 << 10, 1434), (2, 1434));
    }
}
