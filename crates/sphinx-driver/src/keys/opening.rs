//! Opening: which key a packet is opened with, and what opens it.

use std::ops::Range;
use std::sync::Arc;

use sphinx_proto::wire::{HEADER_LEN, Header, OVERHEAD};
use sphinx_proto::{Nanos, PacketNumber, PathId, Time};

use super::{EpochKey, HeaderKey, Secret, update};

/// Most packets of a session that may fail to open (§3; the integrity limit of RFC 9001 §6.6).
const FAILURES_MAX: u64 = 1 << 52;
/// An epoch lasts at least so long (§3): no link carries 2^23 packets in this time, and a peer that flips the phase with every
/// packet would have a key derived for each.
const EPOCH_TIME_MIN: Nanos = 1_000_000;
/// The previous epoch's key is kept for this many probe timeouts (§3).
const PREVIOUS_KEY_PTOS: u64 = 3;

/// Why a packet was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is not from the peer, or damaged, or of a forgotten epoch.
    #[error("packet does not open")]
    Invalid,
    /// So many packets did not open that a forged one might: none is opened any more.
    #[error("too many packets did not open")]
    TooManyInvalid,
}

/// What opens the packets of one epoch, direction and path. It never changes: any thread may use it.
pub struct OpeningKey {
    path: PathId,
    key: EpochKey,
}

impl OpeningKey {
    fn new(path: PathId, secret: &Secret) -> Arc<Self> {
        let key = EpochKey::new(secret);
        Arc::new(Self { path, key })
    }

    /// Opens, in place, a datagram whose header protection has been removed: where its body lies, if the packet is whole. Otherwise its
    /// bytes are garbage.
    pub fn open(&self, packet_number: PacketNumber, datagram: &mut [u8]) -> Option<Range<usize>> {
        let len = self.key.open(self.path, packet_number, datagram)?;
        Some(HEADER_LEN..HEADER_LEN + len)
    }

    /// Opens such a datagram into `body`: whether the packet is whole, and its body as long as that. Otherwise what `body` holds is garbage.
    fn open_into(&self, packet_number: PacketNumber, datagram: &[u8], body: &mut [u8]) -> bool {
        self.key.open_into(self.path, packet_number, datagram, body)
    }
}

/// What the first epoch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Early {
    /// It is the handshake's.
    Never,
    /// It is an early one, and the handshake is not over: no other epoch follows.
    Alone,
    /// It is an early one; the handshake's follow.
    Followed,
}

/// Opens the packets of one direction and path, and follows the epochs.
pub struct Opener {
    path: PathId,
    hp: HeaderKey,
    /// The epoch before, and when to forget it.
    previous: Option<(Arc<OpeningKey>, Time)>,
    current: Arc<OpeningKey>,
    /// Whether the first epoch is an early one, and what its successor's keys come from known.
    early: Early,
    /// Derived ahead, so that a forged phase costs no more than any other forgery
    /// (RFC 9001 §6.3).
    next: Arc<OpeningKey>,
    pub(super) next_secret: Secret,
    epoch: u64,
    /// Earliest time at which the next epoch may begin.
    next_from: Time,
    /// Smallest and largest packet number opened with the current key.
    opened: Option<(PacketNumber, PacketNumber)>,
    /// Packets that some key did not open, in all epochs, and how many of them there may be.
    pub(super) failures: u64,
    failures_max: u64,
}

impl Opener {
    pub(super) fn new(secret: &Secret, path: PathId) -> Self {
        let next_secret = update(secret);
        Self {
            path,
            hp: HeaderKey::new(secret),
            previous: None,
            current: OpeningKey::new(path, secret),
            early: Early::Never,
            next: OpeningKey::new(path, &next_secret),
            next_secret,
            epoch: 0,
            next_from: Time::ZERO,
            opened: None,
            failures: 0,
            failures_max: FAILURES_MAX,
        }
    }

    /// The same of an epoch that no other follows before [`follow_with`](Self::follow_with).
    pub(super) fn early(secret: &Secret, path: PathId) -> Self {
        Self {
            early: Early::Alone,
            ..Self::new(secret, path)
        }
    }

    /// The keys of the epoch behind an early one.
    pub(super) fn follow_with(&mut self, secret: Secret) {
        self.early = Early::Followed;
        self.next = OpeningKey::new(self.path, &secret);
        self.next_secret = secret;
    }

    /// The phase that a datagram as it was received says it is of; `None` for what cannot be a packet. Nothing has shown yet that it is one.
    pub fn phase_of(&self, datagram: &[u8]) -> Option<bool> {
        let mut front = *datagram.first_chunk::<OVERHEAD>()?;
        self.unprotect(&mut front).map(|header| header.phase)
    }

    /// Same, but at most `packets` packets may fail to open, instead of 2^52: lets tests see what follows.
    pub fn with_failures_max(mut self, packets: u64) -> Self {
        self.failures_max = packets;
        self
    }

    /// The epoch of the newest packets opened, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Removes the header protection in place. `None` when the datagram is too short or the header
    /// is not one of this version; the packet is then to be dropped, and its bytes are garbage.
    pub fn unprotect(&self, datagram: &mut [u8]) -> Option<Header> {
        if datagram.len() < OVERHEAD {
            return None;
        }
        self.hp.apply(datagram);
        Header::decode(datagram.first_chunk()?)
    }

    /// Removes the header protection of datagrams that lie one after another, each of `stride` bytes but for the last one. Those that are too short for a
    /// packet stay as they are; of the others [`Header::decode`] says which can be one.
    pub fn unprotect_all(&self, datagrams: &mut [u8], stride: usize) {
        self.hp.apply_all(datagrams, stride);
    }

    /// Opens, in place, a datagram whose header protection has been removed, and returns where the
    /// plaintext body lies in it.
    ///
    /// `header` is what [`unprotect`] returned, `packet_number` its expansion to 64 bits, `now`
    /// a clock that never steps back and `pto` the present probe timeout; they decide how long
    /// the previous epoch's key is kept. After an error the opener is as before and the datagram's
    /// bytes are garbage.
    ///
    /// [`unprotect`]: Self::unprotect
    pub fn open(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
        now: Time,
        pto: Nanos,
    ) -> Result<Range<usize>, OpenError> {
        let epoch = self.choose(header, packet_number, now)?;
        let key = self.key(epoch).ok_or(OpenError::Invalid)?;
        let body = key.open(packet_number, datagram);
        self.note(epoch, packet_number, body.is_some(), now, pto)?;
        body.ok_or(OpenError::Invalid)
    }

    /// Opens such a datagram into `body`, which has to be as long as its body. Otherwise as [`open`](Self::open): after an error what `body`
    /// holds is garbage, and the datagram is as it was.
    pub fn open_into(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        (datagram, body): (&[u8], &mut [u8]),
        now: Time,
        pto: Nanos,
    ) -> Result<(), OpenError> {
        let epoch = self.choose(header, packet_number, now)?;
        let key = self.key(epoch).ok_or(OpenError::Invalid)?;
        let is_open = key.open_into(packet_number, datagram, body);
        self.note(epoch, packet_number, is_open, now, pto)?;
        is_open.then_some(()).ok_or(OpenError::Invalid)
    }

    /// The epoch whose [`key`](Self::key) is to open the packet. The arguments are those of [`open`](Self::open).
    ///
    /// # Errors
    /// When there is none, or no packet is opened any more.
    pub fn choose(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        now: Time,
    ) -> Result<u64, OpenError> {
        if self.failures > self.failures_max {
            return Err(OpenError::TooManyInvalid);
        }
        if self
            .previous
            .as_ref()
            .is_some_and(|(_, until)| *until < now)
        {
            self.previous = None;
        }
        let current_phase = self.epoch & 1 == 1;
        match self.opened {
            _ if header.phase == current_phase => Ok(self.epoch),
            _ if self.early == Early::Alone => Err(OpenError::Invalid),
            // All of the early epoch may be lost.
            None if self.early == Early::Followed => Ok(self.epoch + 1),
            Some((_, largest)) if packet_number > largest && now >= self.next_from => {
                Ok(self.epoch + 1)
            }
            Some((smallest, _)) if packet_number < smallest && self.previous.is_some() => {
                Ok(self.epoch - 1)
            }
            _ => Err(OpenError::Invalid),
        }
    }

    /// The key of an epoch, while it is known.
    pub fn key(&self, epoch: u64) -> Option<&Arc<OpeningKey>> {
        let previous = || self.previous.as_ref().map(|(key, _)| key);
        match epoch {
            _ if epoch == self.epoch => Some(&self.current),
            _ if epoch == self.epoch + 1 => Some(&self.next),
            _ if epoch + 1 == self.epoch => previous(),
            _ => None,
        }
    }

    /// A packet was opened with the key of `epoch`, or was not: what follows for the epochs. Whoever opens packets elsewhere calls this in
    /// their order of arrival.
    ///
    /// # Errors
    /// [`OpenError::TooManyInvalid`] when it was not, and none is opened any more.
    #[inline]
    pub fn note(
        &mut self,
        epoch: u64,
        packet_number: PacketNumber,
        is_open: bool,
        now: Time,
        pto: Nanos,
    ) -> Result<(), OpenError> {
        if !is_open {
            self.failures += 1;
            return match self.failures > self.failures_max {
                true => Err(OpenError::TooManyInvalid),
                false => Ok(()),
            };
        }
        if epoch == self.epoch + 1 {
            let until = now.saturating_add(pto.saturating_mul(PREVIOUS_KEY_PTOS));
            self.next_secret = update(&self.next_secret);
            let next = OpeningKey::new(self.path, &self.next_secret);
            let current = std::mem::replace(&mut self.next, next);
            let previous = std::mem::replace(&mut self.current, current);
            self.previous = Some((previous, until));
            self.epoch += 1;
            self.next_from = now.saturating_add(EPOCH_TIME_MIN);
            self.opened = Some((packet_number, packet_number));
        } else if epoch == self.epoch {
            let (smallest, largest) = self.opened.unwrap_or((packet_number, packet_number));
            self.opened = Some((smallest.min(packet_number), largest.max(packet_number)));
        }
        Ok(())
    }
}
