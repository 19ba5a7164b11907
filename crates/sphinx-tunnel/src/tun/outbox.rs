//! Packets on their way from a device into a session.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sphinx_transport::asynchronous::Session;
use sphinx_transport::{DatagramOptions, Error, Urgency};
use tokio::sync::Notify;

use super::fq_codel::{Departure, FqCodel};
use super::packet::{self, MTU_MIN};
use super::{MTU, device::Device};
use crate::datagrams::PACKET_FLOWS;
use crate::relay::Counts;

/// Bytes that wait for one session, at most.
const BYTES_MAX: usize = 1 << 20;
/// What was measured of the path is good for so long.
const PATH_TIME: Duration = Duration::from_millis(50);
/// Until then a session looks for what its path carries; packets that do not fit yet are cut.
const SETTLED_TIME: Duration = Duration::from_secs(3);
/// What a datagram in order has in front, beside what one without has.
const ORDER_BYTES: usize = 17;
/// Handed to the session ahead of its turn: what leaves in this time, and at least so much.
const AHEAD_TIME: f64 = 0.002;
const AHEAD_BYTES: f64 = 4096.0;
/// The same of what the session cuts and codes ahead.
const SESSION_TIME: f64 = 0.008;
const SESSION_BYTES: f64 = 65_536.0;
/// Bytes that leave for one of ours.
const WIRE_SHARE: f64 = 1.5;
/// An answer to a loss takes so much of a round trip, and so much more.
const ANSWER: f64 = 1.5;
const ANSWER_TIME: Duration = Duration::from_millis(10);
/// What may stay lost of a connection that is to fill the path, and what the last answer leaves.
const LOST: f64 = 1e-5;
const LAST_LOST: f64 = 2e-3;
/// Answers to losses that are waited for.
const ANSWERS: (f64, f64) = (1.0, 6.0);
/// However slow the path is.
const LIFE_MAX: Duration = Duration::from_secs(3);
/// Flows that send little go before others, inside the session too.
const SPARSE: u8 = 2;

/// Packets that wait for one session.
pub(super) struct Outbox {
    queue: Mutex<FqCodel>,
    news: Notify,
    began: Instant,
    /// Largest packet that is not cut; 0 as long as that is not known.
    mtu: AtomicUsize,
    counts: Arc<Counts>,
}

impl Outbox {
    /// `counts`: of bytes, for people.
    pub(super) fn new(counts: Arc<Counts>) -> Self {
        let seed = RandomState::new().hash_one(0);
        Self {
            queue: Mutex::new(FqCodel::new(BYTES_MAX, seed)),
            news: Notify::new(),
            began: Instant::now(),
            mtu: AtomicUsize::new(0),
            counts,
        }
    }

    fn lock(&self) -> MutexGuard<'_, FqCodel> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Takes a packet of a device, or tells its sender what would fit.
    pub(super) fn push(&self, packet: &[u8], device: &Device) {
        let mtu = self.mtu.load(Ordering::Relaxed);
        if mtu > 0 && packet.len() > mtu && packet::must_stay_whole(packet) {
            if let Some(answer) = packet::too_big(packet, mtu) {
                device.write(&answer);
            }
            return;
        }
        let mut packet = packet.to_vec();
        packet::clamp_mss(&mut packet, if mtu > 0 { mtu } else { MTU });
        self.lock().push(self.now(), packet);
        self.news.notify_one();
    }

    /// A packet that has arrived: connections that it opens keep to what fits here.
    pub(super) fn arrived(&self, packet: &mut [u8]) {
        let bytes = packet.len() as u64;
        self.counts.received.fetch_add(bytes, Ordering::Relaxed);
        let mtu = self.mtu.load(Ordering::Relaxed);
        packet::clamp_mss(packet, if mtu > 0 { mtu } else { MTU });
    }

    fn pop(&self) -> Option<Departure> {
        self.lock().pop(self.now())
    }

    /// Sends what comes, in flows from `first` on, until the session ends: why it has.
    pub(super) async fn drain(&self, session: &Session, first: u64) -> Error {
        let mut path = Path::of(session);
        loop {
            if path.at.elapsed() >= PATH_TIME {
                path = Path::of(session);
                if self.began.elapsed() >= SETTLED_TIME {
                    self.mtu.store(path.mtu, Ordering::Relaxed);
                }
            }
            if let Err(error) = session.datagrams_below(path.ahead).await {
                return error;
            }
            match self.pop() {
                Some(departure) => {
                    let bytes = departure.packet.len() as u64;
                    self.counts.sent.fetch_add(bytes, Ordering::Relaxed);
                    let options = path.options(first, &departure);
                    // One that cannot be sent is lost; that the session has ended shows above.
                    let _ = session.send_datagram(&departure.packet, &options);
                }
                None => self.news.notified().await,
            }
        }
    }
}

/// What is known of a path.
#[derive(Debug, Clone, Copy)]
struct Path {
    at: Instant,
    /// Largest packet that is not cut.
    mtu: usize,
    /// Bytes that are handed over ahead.
    ahead: usize,
    /// How long a packet is of use, but for its own bytes.
    life: Duration,
    /// IP bytes per second.
    rate: f64,
}

impl Path {
    fn of(session: &Session) -> Self {
        let session = session.as_blocking();
        let stats = session.stats();
        let rate = (stats.pacing_rate as f64).max(1000.0);
        Self {
            at: Instant::now(),
            mtu: session
                .max_unfragmented()
                .saturating_sub(ORDER_BYTES)
                .clamp(MTU_MIN, MTU),
            ahead: (rate * AHEAD_TIME).max(AHEAD_BYTES) as usize,
            life: life(stats.rtt, stats.plr, rate),
            rate,
        }
    }

    fn options(&self, first: u64, departure: &Departure) -> DatagramOptions {
        let own = Duration::from_secs_f64(departure.packet.len() as f64 * WIRE_SHARE / self.rate);
        let flow = first + 2 * (departure.queue as u64 % PACKET_FLOWS);
        let options = DatagramOptions::default()
            .flow(flow)
            .repaired_within((self.life + own).min(LIFE_MAX));
        let options = match packet::is_echo(&departure.packet) {
            true => options,
            false => options.ordered(),
        };
        match departure.is_sparse {
            true => options.urgency(Urgency::new(SPARSE)),
            false => options,
        }
    }
}

/// How long a packet is of use after it was handed over: until it leaves and arrives, and as many answers to losses as leave a connection that little is
/// lost of. Later ones of its flow wait as long for it.
fn life(rtt: Duration, plr: f64, rate: f64) -> Duration {
    let answers = match plr > 0.0 {
        // After all but the last one so much is missing, of which the last one leaves its share.
        true => ((LOST / LAST_LOST).ln() / plr.min(0.9).ln()).ceil(),
        false => ANSWERS.0,
    };
    let answers = answers.clamp(ANSWERS.0, ANSWERS.1);
    let waiting = (rate * AHEAD_TIME).max(AHEAD_BYTES) + (rate * SESSION_TIME).max(SESSION_BYTES);
    let leaves = Duration::from_secs_f64(waiting * WIRE_SHARE / rate).min(LIFE_MAX);
    rtt / 2 + leaves + (rtt.mul_f64(ANSWER) + ANSWER_TIME).mul_f64(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_grows_with_the_round_trip_and_with_losses() {
        let ms = Duration::from_millis;
        let of = |rtt, plr| life(ms(rtt), plr, 25e6) - Duration::from_secs_f64(0.015);
        assert_eq!(of(10, 0.0), ms(5 + 25));
        assert_eq!(of(10, 0.06), ms(5 + 2 * 25));
        assert_eq!(of(100, 0.06), ms(50 + 2 * 160));
        assert_eq!(of(100, 0.2), ms(50 + 4 * 160));
        assert!(of(100, 1.0) == ms(50 + 6 * 160));
    }
}
