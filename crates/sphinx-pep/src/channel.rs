//! Messages between agents that share a key: sealed with keyed BLAKE3, numbered by the time of day, never accepted twice.
//!
//! ```text
//! what it is 4 | sender 8 | number 8 | message | tag 16
//! ```
//!
//! The sender is a number of the process that seals. The number of a message is its time, in nanoseconds since 1970,
//! or one more than the last one's: whoever opens it accepts a sender's messages in order, and only those of the last and the
//! next five seconds. It accepts none from before its own beginning either.
//!
//! Clocks may be set back. Whoever seals goes on as another sender then, and whoever opens as if it had just begun, but for what it remembers of senders: a message of
//! before is not accepted again when its time comes once more.

use std::{collections::BTreeMap, marker::PhantomData};

use crate::sealed::{Key, Reader};

/// How far the clocks of two agents may differ, and a message be on its way.
const AGE_NS_MAX: u64 = 5_000_000_000;
/// Senders that are followed at a time.
const SENDERS_MAX: usize = 64;

/// What agents tell each other.
pub trait Message: Sized {
    /// The first bytes of a message, which tell its kind and version.
    const MAGIC: [u8; 4];

    /// Appends the message without its magic number.
    fn write(&self, out: &mut Vec<u8>);

    /// The message that [`write`](Message::write) writes as these bytes; `None` if there is none.
    fn read(bytes: &[u8]) -> Option<Self>;
}

/// Seals messages.
#[derive(Debug)]
pub struct Sealer<M> {
    key: Key,
    sender: u64,
    last: u64,
    kind: PhantomData<M>,
}

impl<M: Message> Sealer<M> {
    /// `sender` must be another one for each sealer with this key: the time of day at which it begins will do.
    pub fn new(key: Key, sender: u64) -> Sealer<M> {
        Sealer {
            key,
            sender,
            last: 0,
            kind: PhantomData,
        }
    }

    /// A datagram, sealed at a time of day in nanoseconds since 1970.
    pub fn seal(&mut self, now: u64, message: &M) -> Vec<u8> {
        if now.saturating_add(AGE_NS_MAX) < self.last {
            // The clock was set back: numbers that go on from there would be from the future until it is as late again.
            (self.sender, self.last) = (now, 0);
        }
        self.last = now.max(self.last.saturating_add(1));
        let mut out = M::MAGIC.to_vec();
        out.extend(self.sender.to_be_bytes());
        out.extend(self.last.to_be_bytes());
        message.write(&mut out);
        self.key.seal(out)
    }
}

/// Opens messages of any senders, each once and in order.
#[derive(Debug)]
pub struct Opener<M> {
    key: Key,
    since: u64,
    /// The last number of each sender, by its id.
    newest: BTreeMap<u64, u64>,
    kind: PhantomData<M>,
}

impl<M: Message> Opener<M> {
    /// Opens what is sealed with this key from a time of day on, in nanoseconds since 1970.
    pub fn new(key: Key, now: u64) -> Opener<M> {
        Opener {
            key,
            since: now,
            newest: BTreeMap::new(),
            kind: PhantomData,
        }
    }

    /// The message in a datagram that has come at a time of day; `None` if it is forged, damaged, old, or not newer than the newest of
    /// its sender so far.
    pub fn open(&mut self, now: u64, datagram: &[u8]) -> Option<M> {
        let mut reader = Reader(self.key.open(datagram)?);
        if reader.take()? != M::MAGIC {
            return None;
        }
        let sender = u64::from_be_bytes(reader.take()?);
        let number = u64::from_be_bytes(reader.take()?);
        let message = M::read(reader.0)?;
        if now.saturating_add(AGE_NS_MAX) < self.since {
            // The clock was set back after this opener began.
            self.since = now;
        }
        if number < self.since || number.abs_diff(now) > AGE_NS_MAX {
            return None;
        }
        if self
            .newest
            .get(&sender)
            .is_some_and(|newest| number <= *newest)
        {
            return None;
        }
        if self.newest.len() == SENDERS_MAX && !self.newest.contains_key(&sender) {
            // Of those that were last heard so long ago, everything is too old.
            self.newest
                .retain(|_, newest| newest.saturating_add(AGE_NS_MAX) >= now);
            if self.newest.len() == SENDERS_MAX {
                return None;
            }
        }
        self.newest.insert(sender, number);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::format::tests::messages;

    type Sealer = super::Sealer<crate::handoff::Handover>;
    type Opener = super::Opener<crate::handoff::Handover>;

    const NOW: u64 = 1_800_000_000_000_000_000;

    #[test]
    fn hand_overs_are_opened_once_and_in_order_and_soon() {
        let key = Key::new([7; 32]);
        let [full, least] = messages();
        let mut opener = Opener::new(key.clone(), NOW);
        let (mut sealer, mut other) = (Sealer::new(key.clone(), 1), Sealer::new(key.clone(), 2));
        let [first, second, third] = [&full, &least, &full].map(|it| sealer.seal(NOW, it));
        assert_eq!(opener.open(NOW, &first).as_ref(), Some(&full));
        assert_eq!(opener.open(NOW, &third).as_ref(), Some(&full));
        // A message that comes again, and one older than the last, are refused.
        assert_eq!(
            (opener.open(NOW, &third), opener.open(NOW, &second)),
            (None, None)
        );
        // Another sender has numbers of its own.
        let theirs = other.seal(NOW, &least);
        assert_eq!(opener.open(NOW, &theirs).as_ref(), Some(&least));
        // What is kept for later is too old then, also for one that knows nothing of the sender.
        let kept = sealer.seal(NOW, &full);
        let later = NOW + AGE_NS_MAX + 10;
        assert_eq!(opener.open(later, &kept), None);
        assert_eq!(opener.open(later, &third), None);
        let mut restarted = Opener::new(key.clone(), NOW + 100);
        assert_eq!(restarted.open(NOW + 100, &kept), None);
        // A clock that is ahead, by less and by more than is allowed.
        let ahead = other.seal(NOW + AGE_NS_MAX, &least);
        assert!(restarted.open(NOW + 100, &ahead).is_some());
        let ahead = other.seal(NOW + 2 * AGE_NS_MAX, &least);
        assert_eq!(restarted.open(NOW + 100, &ahead), None);
        // Only this many senders are remembered.
        for sender in 0..200 {
            let sealed = Sealer::new(key.clone(), 1000 + sender).seal(NOW + 200, &least);
            let _ = opener.open(NOW + 200, &sealed);
        }
        assert_eq!(opener.newest.len(), SENDERS_MAX);
    }

    #[test]
    fn a_clock_that_is_set_back_ends_no_messages() {
        const LATER: u64 = NOW + 7_200_000_000_000;
        let key = Key::new([7; 32]);
        let [full, least] = messages();
        let mut opener = Opener::new(key.clone(), LATER);
        let (mut sealer, mut other) = (Sealer::new(key.clone(), LATER), Sealer::new(key, 2));
        let before = sealer.seal(LATER, &full);
        assert!(opener.open(LATER, &before).is_some());
        // Both clocks were two hours ahead.
        let [first, second] = [NOW + 10, NOW + 20].map(|now| sealer.seal(now, &full));
        // What is older than the step is refused, and it is noticed by this one.
        assert_eq!(opener.open(NOW + 15, &first), None);
        assert_eq!(opener.open(NOW + 30, &second).as_ref(), Some(&full));
        assert_eq!(opener.open(NOW + 30, &second), None);
        // A sender whose clock was right all the time.
        let theirs = other.seal(NOW + 40, &least);
        assert_eq!(opener.open(NOW + 40, &theirs).as_ref(), Some(&least));
        // A copy from before the step does nothing, now or when its time has come.
        assert_eq!(opener.open(NOW + 50, &before), None);
        assert_eq!(opener.open(LATER, &before), None);
        // A step that is as short as what clocks may differ by begins nothing anew.
        let mut sealer = Sealer::new(Key::new([7; 32]), 3);
        sealer.seal(NOW + AGE_NS_MAX, &full);
        let short = sealer.seal(NOW, &full);
        assert_eq!(short[4..12], 3_u64.to_be_bytes());
    }

    #[test]
    fn what_is_not_sealed_with_the_key_is_no_hand_over() {
        let key = Key::new([7; 32]);
        let sealed = Sealer::new(key.clone(), 1).seal(NOW, &messages()[0]);
        for at in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[at] ^= 1;
            let mut opener = Opener::new(key.clone(), NOW);
            assert_eq!(opener.open(NOW, &forged), None, "{at}");
            assert_eq!(opener.open(NOW, &sealed[..at]), None, "{at}");
        }
        let mut opener = Opener::new(Key::new([8; 32]), NOW);
        assert_eq!(opener.open(NOW, &sealed), None);
        // A report of losses under the same key is none.
        let mut report = b"SPE\x02".to_vec();
        report.extend(&sealed[4..sealed.len() - 16]);
        let mut opener = Opener::new(key.clone(), NOW);
        assert_eq!(opener.open(NOW, &key.seal(report)), None);
        assert!(opener.open(NOW, &sealed).is_some());
    }
}
