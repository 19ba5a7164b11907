//! The emulated link without namespaces: a relay between two UDP sockets on loopback.
//!
//! The same elements as everywhere else decide what happens to each datagram; only the kernel's own
//! TCP cannot be sent through it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sphinx_link::{Datagram, Link, LinkConfig, Packet};
use sphinx_transport::ErrorKind;

use crate::failure::{Outcome, fail, local_io};

const DATAGRAM_BYTES_MAX: usize = 65_536;
/// How often a relay with nothing to do looks whether it should end.
const IDLE: Duration = Duration::from_millis(50);

pub(super) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sender: Mutex<Option<SocketAddr>>,
    receiver: Mutex<Option<SocketAddr>>,
    offered_bytes: AtomicU64,
    delivered_bytes: AtomicU64,
}

impl Relay {
    pub(super) fn start(forward: LinkConfig, back: LinkConfig) -> Outcome<Self> {
        let refused = |error| local_io("open", "a socket on loopback", error);
        let bind = || -> io::Result<(UdpSocket, UdpSocket)> {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_nonblocking(true)?;
            Ok((socket.try_clone()?, socket))
        };
        let (front_in, front_out) = bind().map_err(refused)?;
        let (back_in, back_out) = bind().map_err(refused)?;
        let address = front_in.local_addr().map_err(refused)?;
        let shared = Arc::new(Shared::default());
        let link =
            |config| Link::new(config).map_err(|error| fail(ErrorKind::Other, error.to_string()));
        let directions = [
            Direction {
                link: link(forward)?,
                from: front_in,
                to: back_out,
                forward: true,
            },
            Direction {
                link: link(back)?,
                from: back_in,
                to: front_out,
                forward: false,
            },
        ];
        let mut relay = Self {
            address,
            shared,
            threads: Vec::new(),
        };
        for direction in directions {
            let shared = relay.shared.clone();
            let thread = thread::Builder::new().name("relay".to_owned());
            let thread = thread.spawn(move || direction.run(&shared));
            relay.threads.push(thread.map_err(refused)?);
        }
        Ok(relay)
    }

    /// Where the sender finds the link.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the link ends.
    pub(super) fn connect(&self, receiver: SocketAddr) {
        set(&self.shared.receiver, receiver);
    }

    pub(super) fn offered_bytes(&self) -> u64 {
        self.shared.offered_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn delivered_bytes(&self) -> u64 {
        self.shared.delivered_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // If it has panicked, what it relayed has still been counted.
            let _ = thread.join();
        }
    }
}

fn set(slot: &Mutex<Option<SocketAddr>>, address: SocketAddr) {
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
}

fn get(slot: &Mutex<Option<SocketAddr>>) -> Option<SocketAddr> {
    *slot.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Direction {
    link: Link<Datagram>,
    from: UdpSocket,
    to: UdpSocket,
    forward: bool,
}

impl Direction {
    fn run(mut self, shared: &Shared) {
        let started = Instant::now();
        let now = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        // Sleeping to the microsecond; where that is refused, delays are a little longer.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000));
        while !shared.stop.load(Ordering::Relaxed) {
            // An error is a full or a vanished socket: for a link, a lost packet.
            while let Ok((length, source)) = self.from.recv_from(&mut buffer) {
                let destination = if self.forward {
                    set(&shared.sender, source);
                    get(&shared.receiver)
                } else {
                    get(&shared.sender)
                };
                let Some(destination) = destination else {
                    continue;
                };
                let payload = buffer[..length].to_vec();
                let packet = Datagram {
                    source,
                    destination,
                    ecn: 0,
                    payload,
                };
                if self.forward {
                    shared
                        .offered_bytes
                        .fetch_add(packet.ip_len() as u64, Ordering::Relaxed);
                }
                self.link.enqueue(now(), packet);
                self.deliver(now(), shared);
            }
            self.deliver(now(), shared);
            let wait = self.link.next_event().map_or(IDLE, |at| {
                Duration::from_nanos(at.saturating_sub(now())).min(IDLE)
            });
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: wait.subsec_nanos().into(),
            };
            // A failed wait only makes this loop turn faster.
            let _ = poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&wait));
        }
    }

    fn deliver(&mut self, now: u64, shared: &Shared) {
        while let Some(delivery) = self.link.poll(now) {
            let packet = delivery.packet;
            if self.forward {
                shared
                    .delivered_bytes
                    .fetch_add(packet.ip_len() as u64, Ordering::Relaxed);
            }
            // An error is a full or a vanished socket, as above: for a link, a lost packet.
            let _ = self.to.send_to(&packet.payload, packet.destination);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sphinx_link::Loss;

    #[test]
    fn both_directions_have_their_delay_and_loss() {
        let delay = Duration::from_millis(20);
        let back = LinkConfig {
            delay,
            ..LinkConfig::default()
        };
        let forward = LinkConfig {
            loss: Loss::Packets(vec![1]),
            ..back.clone()
        };
        let relay = Relay::start(forward, back).unwrap();
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for socket in [&receiver, &sender] {
            socket
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
        }
        relay.connect(receiver.local_addr().unwrap());
        let started = Instant::now();
        for byte in [1, 2, 3] {
            sender.send_to(&[byte; 100], relay.address()).unwrap();
        }
        let mut buffer = [0; 200];
        let (length, link) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!((length, buffer[0]), (100, 1));
        receiver.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[0], 3);
        assert!(started.elapsed() >= delay);
        receiver.send_to(b"back", link).unwrap();
        let (length, from) = sender.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"back"[..], relay.address()));
        assert!(started.elapsed() >= 2 * delay);
        assert_eq!((relay.offered_bytes(), relay.delivered_bytes()), (384, 256));
    }
}
