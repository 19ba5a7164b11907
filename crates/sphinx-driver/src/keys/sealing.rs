//! Sealing: who hands out the right to seal a packet, and what seals it.

use std::sync::Arc;

use aws_lc_rs::aead::{Aad, Nonce};
use sphinx_proto::wire::{HEADER_LEN, Header, OVERHEAD, TAG_LEN};
use sphinx_proto::{PacketNumber, PathId};

use super::{EpochKey, HeaderKey, Secret, update};

/// Most packets sealed with one key (§3; the confidentiality limit of RFC 9001 §6.6).
pub(super) const EPOCH_PACKETS: u64 = 1 << 23;

/// After this part of an epoch the peer is asked to acknowledge a packet of it: there is time for questions that are lost.
const ASK_PART: u64 = 4;

/// Why a packet was not sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The packet number is not above every number sealed before, so a nonce would repeat.
    #[error("packet number used before")]
    NumberUsed,
    /// The epoch is used up and the peer has not acknowledged any packet of it.
    #[error("key used up before the peer acknowledged any packet sealed with it")]
    EpochExhausted,
    /// The permit is one of another key.
    #[error("permit of another key")]
    OtherKey,
    /// The buffer does not have the size that the plaintext needs.
    #[error("datagram buffer has the wrong size")]
    BufferSize,
}

/// The right to seal one packet with the key of one epoch and path. It cannot be copied, sealing takes it, and only a
/// [`Sequencer`] makes it: so whoever seals, and wherever, no nonce is used twice.
#[derive(Debug)]
pub struct Permit {
    path: PathId,
    epoch: u64,
    packet_number: PacketNumber,
}

impl Permit {
    /// Of the key, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of the packet.
    pub fn packet_number(&self) -> PacketNumber {
        self.packet_number
    }
}

/// Hands out each packet number of a path once, and rising.
#[derive(Debug)]
pub struct Sequencer {
    path: PathId,
    /// One above the largest number handed out.
    next: PacketNumber,
}

impl Sequencer {
    /// The sequencer of a path on which nothing has been sealed.
    pub fn new(path: PathId) -> Self {
        Self {
            path,
            next: PacketNumber::ZERO,
        }
    }

    /// The right to seal this packet with the key of `epoch`.
    ///
    /// # Errors
    /// [`SealError::NumberUsed`] when the number is not above all that were handed out.
    pub fn permit(&mut self, epoch: u64, packet_number: PacketNumber) -> Result<Permit, SealError> {
        self.check(packet_number)?;
        self.next = packet_number + 1;
        Ok(Permit {
            path: self.path,
            epoch,
            packet_number,
        })
    }

    fn check(&self, packet_number: PacketNumber) -> Result<(), SealError> {
        match packet_number < self.next || packet_number == PacketNumber::MAX {
            true => Err(SealError::NumberUsed),
            false => Ok(()),
        }
    }
}

/// What seals the packets of one epoch, direction and path. It never changes: any thread may use it.
pub struct SealingKey {
    path: PathId,
    epoch: u64,
    hp: Arc<HeaderKey>,
    key: EpochKey,
}

impl SealingKey {
    /// Seals `datagram` in place: 22 bytes for the header, the plaintext body, 16 bytes for the tag.
    ///
    /// `phase` and `packet_number` of `header` are not looked at.
    ///
    /// # Errors
    /// When the permit is for another key, or the datagram too short: it has not changed then, and the permit is gone.
    pub fn seal(
        &self,
        permit: Permit,
        header: &Header,
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        let (head, body, tag) = parts(datagram)?;
        let nonce = self.begin(permit, header, head)?;
        let sealed = (self.key.aead)
            .seal_in_place_separate_tag(nonce, Aad::from(&*head), body)
            .expect(BELOW_LIMIT);
        tag.copy_from_slice(sealed.as_ref());
        self.hp.apply(datagram);
        Ok(())
    }

    /// Seals `body`, which stays as it is, into `datagram`, which has 38 bytes more. Else as [`seal`](Self::seal).
    ///
    /// # Errors
    /// Those of [`seal`](Self::seal), and when the datagram has another size.
    pub fn seal_from(
        &self,
        permit: Permit,
        header: &Header,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        self.seal_body(permit, header, body, datagram)?;
        self.hp.apply(datagram);
        Ok(())
    }

    /// Seals a packet without header protection.
    #[inline]
    fn seal_body(
        &self,
        permit: Permit,
        header: &Header,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        let (head, sealed, tag) = parts(datagram)?;
        if sealed.len() != body.len() {
            return Err(SealError::BufferSize);
        }
        let nonce = self.begin(permit, header, head)?;
        (self.key.aead)
            .seal_out_of_place_scatter(nonce, Aad::from(&*head), body, sealed, &[], tag)
            .expect(BELOW_LIMIT);
        Ok(())
    }

    /// Writes the header of the packet that may be sealed; its nonce.
    #[inline]
    fn begin(
        &self,
        permit: Permit,
        header: &Header,
        head: &mut [u8; HEADER_LEN],
    ) -> Result<Nonce, SealError> {
        let Permit {
            path,
            epoch,
            packet_number,
        } = permit;
        if (path, epoch) != (self.path, self.epoch) {
            return Err(SealError::OtherKey);
        }
        let header = Header {
            phase: phase(epoch),
            packet_number: packet_number.truncated(),
            ..*header
        };
        *head = header.encode();
        Ok(self.key.nonce(path, packet_number))
    }
}

const BELOW_LIMIT: &str = "a datagram is far below the size limit of AES-GCM";

fn body_len(datagram: &[u8]) -> Result<usize, SealError> {
    let len = datagram.len().checked_sub(OVERHEAD);
    len.ok_or(SealError::BufferSize)
}

/// Header, body and tag of a datagram.
type Parts<'a> = (
    &'a mut [u8; HEADER_LEN],
    &'a mut [u8],
    &'a mut [u8; TAG_LEN],
);

#[inline]
fn parts(datagram: &mut [u8]) -> Result<Parts<'_>, SealError> {
    let (head, rest) = (datagram.split_first_chunk_mut()).ok_or(SealError::BufferSize)?;
    let (body, tag) = (rest.split_last_chunk_mut()).ok_or(SealError::BufferSize)?;
    Ok((head, body, tag))
}

fn phase(epoch: u64) -> bool {
    epoch & 1 == 1
}

/// Seals the packets of one direction and path, or hands out permits to, and moves through the epochs.
pub struct Sealer {
    sequencer: Sequencer,
    key: Arc<SealingKey>,
    secret: Secret,
    epoch_packets: u64,
    /// First packet number of the epoch.
    pub(super) first: PacketNumber,
    /// A packet of the epoch has been acknowledged.
    confirmed: bool,
}

impl Sealer {
    pub(super) fn new(secret: Secret, path: PathId) -> Self {
        let key = SealingKey {
            path,
            epoch: 0,
            hp: Arc::new(HeaderKey::new(&secret)),
            key: EpochKey::new(&secret),
        };
        Self {
            sequencer: Sequencer::new(path),
            key: Arc::new(key),
            secret,
            epoch_packets: EPOCH_PACKETS,
            first: PacketNumber::ZERO,
            confirmed: false,
        }
    }

    /// Same, but an epoch lasts `packets` packets, instead of 2^23: lets tests see many epochs.
    pub fn with_epoch_packets(mut self, packets: u64) -> Self {
        self.epoch_packets = packets;
        self
    }

    /// Packets of an epoch.
    pub(crate) fn epoch_packets(&self) -> u64 {
        self.epoch_packets
    }

    /// What is sealed from now on is of the next epoch, whose keys come from `secret` and not from the present one.
    pub(super) fn follow_with(&mut self, secret: Secret) {
        self.begin_epoch(secret, self.sequencer.next);
    }

    fn begin_epoch(&mut self, secret: Secret, first: PacketNumber) {
        self.key = Arc::new(SealingKey {
            path: self.key.path,
            epoch: self.key.epoch + 1,
            hp: Arc::clone(&self.key.hp),
            key: EpochKey::new(&secret),
        });
        self.secret = secret;
        self.first = first;
        self.confirmed = false;
    }

    /// Key phase of the packets being sealed: the epoch's lowest bit.
    pub fn phase(&self) -> bool {
        phase(self.epoch())
    }

    /// Epochs begun, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.key.epoch
    }

    /// The key of the permits that were handed out last.
    pub fn key(&self) -> &Arc<SealingKey> {
        &self.key
    }

    /// The peer has acknowledged `packet_number`; lets the next epoch begin in its time.
    pub fn acked(&mut self, packet_number: PacketNumber) {
        if (self.first..self.sequencer.next).contains(&packet_number) {
            self.confirmed = true;
        }
    }

    /// Whether much of the epoch is used, and no packet of it has been acknowledged: without that no other begins.
    pub fn wants_answer(&self) -> bool {
        !self.confirmed && self.sequencer.next - self.first >= self.epoch_packets / ASK_PART
    }

    /// Seals `datagram` in place: 22 bytes for the header, the plaintext body, 16 bytes for the tag.
    ///
    /// `phase` and `packet_number` of `header` are not looked at. Packet numbers must rise from call
    /// to call; gaps are allowed. On an error neither the datagram nor the sealer has changed.
    pub fn seal(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        body_len(datagram)?;
        let permit = self.permit(packet_number)?;
        self.key.seal(permit, header, datagram)
    }

    /// Seals `body`, which stays as it is, into `datagram`, which has exactly 38 bytes more. Else as [`seal`].
    ///
    /// [`seal`]: Self::seal
    pub fn seal_from(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        body: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        if body_len(datagram)? != body.len() {
            return Err(SealError::BufferSize);
        }
        let permit = self.permit(packet_number)?;
        self.key.seal_from(permit, header, body, datagram)
    }

    /// Seals bodies of `body_len` bytes each, which lie one after another and stay as they are, into datagrams that do so too, each with exactly 38 bytes more. The first one has this
    /// header and number, and each of the others the number and the row behind those of the one before. Else as [`seal`](Self::seal), but after an error
    /// some of them may have been sealed.
    pub fn seal_run(
        &mut self,
        header: &Header,
        packet_number: PacketNumber,
        (bodies, body_len): (&[u8], usize),
        datagrams: &mut [u8],
    ) -> Result<(), SealError> {
        let stride = body_len + OVERHEAD;
        let packets = bodies.chunks_exact(body_len.max(1));
        if !packets.remainder().is_empty() || packets.len() * stride != datagrams.len() {
            return Err(SealError::BufferSize);
        }
        let (mut header, mut packet_number) = (*header, packet_number);
        for (body, datagram) in packets.zip(datagrams.chunks_exact_mut(stride)) {
            let permit = self.permit(packet_number)?;
            self.key.seal_body(permit, &header, body, datagram)?;
            packet_number += 1;
            header.row += 1;
        }
        self.key.hp.apply_all(datagrams, stride);
        Ok(())
    }

    /// The right to seal this packet with the present [`key`](Self::key), after beginning the next epoch when it is time.
    ///
    /// # Errors
    /// When the number is not above all handed out before, or the key is used up; nothing has changed then.
    pub fn permit(&mut self, packet_number: PacketNumber) -> Result<Permit, SealError> {
        self.sequencer.check(packet_number)?;
        if packet_number - self.first >= self.epoch_packets {
            if !self.confirmed {
                return Err(SealError::EpochExhausted);
            }
            self.begin_epoch(update(&self.secret), packet_number);
        }
        self.sequencer.permit(self.key.epoch, packet_number)
    }
}
