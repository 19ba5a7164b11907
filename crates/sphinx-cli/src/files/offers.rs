//! What is offered: most of it is what was offered before.

use super::paths::PATH_BYTES_MAX;
use super::source::SourceId;
use super::wire::Attributes;
use crate::failure::{Outcome, protocol};

/// Flags: fields that an offer has beside those that every offer has.
pub(super) const OFFER_MODE: u8 = 1;
pub(super) const OFFER_NANOSECONDS: u8 = 2;
pub(super) const OFFER_SOURCE: u8 = 4;

/// Files offered and not sent yet in a synchronization. There every file is offered, and of most of them nothing else is sent.
pub(super) const SYNC_OFFERS_MAX: usize = 32_768;

/// A file that the sender will come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offered {
    /// Its path below the output directory.
    pub(super) path: Vec<u8>,
    pub(super) size: u64,
    pub(super) attributes: Attributes,
    pub(super) source: Option<SourceId>,
}

/// What a file will be, told by what was offered before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// How many first bytes of its path are those of the offer before.
    pub(super) shared: u64,
    /// The rest of its path.
    pub(super) rest: Vec<u8>,
    pub(super) size: u64,
    /// Since the time of the one before, in seconds.
    pub(super) later_s: i64,
    pub(super) mtime_ns: u32,
    /// `None` if the mode is that of the offer before.
    pub(super) mode: Option<u16>,
    pub(super) source: Option<SourceId>,
}

impl Offer {
    /// Writes it, behind its type.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let flag = |is_there: bool, flag| if is_there { flag } else { 0 };
        out.push(
            flag(self.mode.is_some(), OFFER_MODE)
                | flag(self.mtime_ns > 0, OFFER_NANOSECONDS)
                | flag(self.source.is_some(), OFFER_SOURCE),
        );
        put_number(out, self.shared);
        put_number(out, self.rest.len() as u64);
        out.extend_from_slice(&self.rest);
        put_number(out, self.size);
        put_number(out, zigzag(self.later_s));
        if self.mtime_ns > 0 {
            out.extend_from_slice(&self.mtime_ns.to_be_bytes());
        }
        if let Some(mode) = self.mode {
            out.extend_from_slice(&mode.to_be_bytes());
        }
        if self.source.is_some() {
            out.extend_from_slice(&SourceId::bytes(self.source));
        }
    }
}

/// The offers of a transfer, in their order: the same at both ends.
#[derive(Default)]
pub(super) struct Series {
    path: Vec<u8>,
    mtime_s: i64,
    mode: u16,
}

impl Series {
    /// How the next file is offered.
    pub(super) fn offer(&mut self, file: &Offered) -> Offer {
        let pairs = self.path.iter().zip(&file.path);
        let shared = pairs.take_while(|(before, byte)| before == byte).count();
        let Attributes {
            mode,
            mtime_s,
            mtime_ns,
        } = file.attributes;
        let offer = Offer {
            shared: shared as u64,
            rest: file.path[shared..].to_vec(),
            size: file.size,
            later_s: mtime_s.wrapping_sub(self.mtime_s),
            mtime_ns,
            mode: Some(mode).filter(|mode| *mode != self.mode),
            source: file.source,
        };
        self.path.truncate(shared);
        self.path.extend_from_slice(&offer.rest);
        (self.mtime_s, self.mode) = (mtime_s, mode);
        offer
    }

    /// What the next offer is about.
    ///
    /// # Errors
    /// Its path has more in common with the one before than that has, or is too long.
    pub(super) fn next(&mut self, offer: &Offer) -> Outcome<Offered> {
        let shared = usize::try_from(offer.shared).unwrap_or(usize::MAX);
        if shared > self.path.len() || shared + offer.rest.len() > PATH_BYTES_MAX {
            return Err(protocol("the path of an offer is refused"));
        }
        self.path.truncate(shared);
        self.path.extend_from_slice(&offer.rest);
        self.mtime_s = self.mtime_s.wrapping_add(offer.later_s);
        self.mode = offer.mode.unwrap_or(self.mode);
        Ok(Offered {
            path: self.path.clone(),
            size: offer.size,
            attributes: Attributes {
                mode: self.mode,
                mtime_s: self.mtime_s,
                mtime_ns: offer.mtime_ns,
            },
            source: offer.source,
        })
    }
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow (LEB128).
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Small numbers of either sign become small ones.
fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// The number that [`zigzag`] has made this one of.
pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}
