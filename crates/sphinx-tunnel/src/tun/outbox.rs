//! Packets on their way from a device into a session.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sphinx_transport::Error;
use sphinx_transport::asynchronous::Session;
use tokio::sync::Notify;

use super::fq_codel::{Departure, FqCodel};
use super::packet;
use super::path::Path;
use super::{MTU, device::Device};
use crate::datagrams::{self, PACKET_FLOWS};
use crate::relay::Counts;

/// Bytes that wait for one session, at most.
pub(super) const OUTBOX_BYTES_MAX: usize = 4 << 20;
/// How long a measurement of the path is used.
const PATH_TIME: Duration = Duration::from_millis(50);
/// Until then a session looks for what its path carries; packets that do not fit yet are cut.
const SETTLED_TIME: Duration = Duration::from_secs(3);

/// Packets that wait for one session.
pub(super) struct Outbox {
    queue: Mutex<FqCodel>,
    news: Notify,
    began: Instant,
    /// Largest packet that is not cut; 0 as long as that is not known.
    mtu: AtomicUsize,
    counts: Arc<Counts>,
    is_over: AtomicBool,
    over: Notify,
}

impl Outbox {
    /// `counts`: bytes carried, for events.
    pub(super) fn new(counts: Arc<Counts>) -> Self {
        let seed = RandomState::new().hash_one(0);
        Self {
            queue: Mutex::new(FqCodel::new(OUTBOX_BYTES_MAX, seed)),
            news: Notify::new(),
            began: Instant::now(),
            mtu: AtomicUsize::new(0),
            counts,
            is_over: AtomicBool::new(false),
            over: Notify::new(),
        }
    }

    /// Another session has got an address of this client: serving this one is to stop.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.over.notify_one();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Waits until [`end`](Self::end) is called.
    pub(super) async fn over(&self) {
        self.over.notified().await;
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
        let _order = Order { session, first };
        let (mut path, mut at) = (path_of(session), Instant::now());
        loop {
            if at.elapsed() >= PATH_TIME {
                (path, at) = (path_of(session), Instant::now());
                self.lock().suit(path.rtt);
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
                    let manner = path.manner(first, &departure);
                    // If this fails the session has ended, which is noticed above.
                    let (packet, options) = (&departure.packet, manner.options());
                    datagrams::send(session, packet, &options, manner.ordered);
                }
                None => self.news.notified().await,
            }
        }
    }
}

/// The order of the flows from the first on, which others may have when packets are carried no more.
struct Order<'a> {
    session: &'a Session,
    first: u64,
}

impl Drop for Order<'_> {
    fn drop(&mut self) {
        for number in 0..PACKET_FLOWS {
            let session = self.session.as_blocking();
            session.end_ordered(self.first + 2 * number);
        }
    }
}

fn path_of(session: &Session) -> Path {
    let session = session.as_blocking();
    let stats = session.stats();
    Path::new(
        session.max_unfragmented(),
        stats.rtt,
        stats.plr,
        stats.pacing_rate,
    )
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use tokio::time::timeout;

    use super::*;
    use crate::loopback::Loopback;

    /// A client that lost its address asks again on the same session.
    #[tokio::test]
    async fn packets_are_in_order_whenever_they_are_carried_again() {
        let loopback = Loopback::new();
        let (near, far) = loopback.session().await;
        let mut data = Vec::new();
        for round in 0..4 {
            let outbox = Outbox::new(Arc::default());
            let arrive = async {
                // So many connections that most of the flows are used.
                for port in 1..=500 {
                    let mut packet = Vec::new();
                    let builder = PacketBuilder::ipv4([10, 9, 0, 1], [10, 9, 0, 2], 64);
                    let builder = builder.tcp(port, 80, 1, 1000);
                    builder.write(&mut packet, b"hello").expect("built");
                    let arrived = loop {
                        outbox.lock().push(outbox.now(), packet.clone());
                        outbox.news.notify_one();
                        // On a busy machine one may be out of date before it leaves.
                        let arrives = far.take_datagram(&mut data);
                        if let Ok(arrived) = timeout(Duration::from_secs(1), arrives).await {
                            break arrived.expect("a session");
                        }
                    };
                    assert!(arrived.number.is_some(), "{port} in round {round}");
                }
            };
            tokio::select! {
                error = outbox.drain(&near, 2 * PACKET_FLOWS * round) => panic!("{error}"),
                () = arrive => {}
            }
        }
    }
}
