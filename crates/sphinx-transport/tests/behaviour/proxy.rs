//! A UDP proxy on loopback: the link between a client and a server.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sphinx_link::{Datagram, Link, LinkConfig};
use sphinx_net::udp::{UdpConfig, UdpIo};
use sphinx_net::{Interest, PacketIo, PacketRx};

/// Datagrams of each direction that are remembered.
const REMEMBERED: usize = 512;
/// How often a direction looks for orders when nothing comes.
const LOOK: Duration = Duration::from_millis(10);

/// A direction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToServer,
    ToClient,
}

/// Stands between one client and a server; ends when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

struct State {
    ends: AtomicBool,
    silent: AtomicBool,
    rebind: AtomicBool,
    server: SocketAddr,
    client: Mutex<Option<SocketAddr>>,
    /// Faces the client.
    front: UdpSocket,
    /// Faces the server.
    back: Mutex<UdpSocket>,
    /// What has been delivered, per direction.
    delivered: [Mutex<Delivered>; 2],
}

#[derive(Default)]
struct Delivered {
    count: usize,
    latest: VecDeque<Vec<u8>>,
}

impl Proxy {
    /// A link to `server`.
    pub(crate) fn start(server: SocketAddr, to_server: LinkConfig, to_client: LinkConfig) -> Proxy {
        let (front, back) = (open(server.ip()), open(server.ip()));
        let address = front.local_addr();
        let state = Arc::new(State {
            ends: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            rebind: AtomicBool::new(false),
            server,
            client: Mutex::default(),
            front: sender(&front),
            back: Mutex::new(sender(&back)),
            delivered: Default::default(),
        });
        let base = Instant::now();
        let directions = [
            (Way::ToServer, front, to_server),
            (Way::ToClient, back, to_client),
        ];
        let threads = directions.map(|(way, io, link)| {
            let link = Link::new(link).unwrap();
            let state = Arc::clone(&state);
            std::thread::spawn(move || state.run(way, io, link, base))
        });
        Proxy {
            address,
            state,
            threads: threads.into(),
        }
    }

    /// Where the client sends to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Drop everything, or stop doing so.
    pub(crate) fn set_silent(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::Relaxed);
    }

    /// Gives the client another source address, as seen by the server.
    pub(crate) fn rebind(&self) {
        self.state.rebind.store(true, Ordering::Relaxed);
    }

    /// How many datagrams have been delivered.
    pub(crate) fn delivered(&self, way: Way) -> usize {
        self.state.delivered(way).count
    }

    /// The latest datagrams delivered, oldest first.
    pub(crate) fn latest(&self, way: Way) -> Vec<Vec<u8>> {
        self.state.delivered(way).latest.iter().cloned().collect()
    }

    /// Delivers a datagram of our own, past the link, from the address that the end expects.
    pub(crate) fn inject(&self, way: Way, payload: &[u8]) {
        self.state.send(way, payload);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed, and the test has failed by it.
            let _ = thread.join();
        }
    }
}

impl State {
    fn run(&self, way: Way, mut io: UdpIo, mut link: Link<Datagram>, base: Instant) {
        let now = || base.elapsed().as_nanos() as u64;
        while !self.ends.load(Ordering::Relaxed) {
            let next = link.next_event().map(|at| at.saturating_sub(now()));
            let wait = next.unwrap_or(u64::MAX).min(LOOK.as_nanos() as u64);
            io.wait(Interest::Read, Some(wait)).unwrap();
            while let count @ 1.. = io.rx().recv().unwrap() {
                for index in 0..count {
                    let mut received = io.rx().received(index).unwrap();
                    let source = received.remote;
                    if way == Way::ToServer {
                        *self.client.lock().unwrap() = Some(source);
                    }
                    let ecn = received.ecn.bits();
                    for payload in received.segments() {
                        let datagram = Datagram {
                            source,
                            destination: self.server,
                            ecn,
                            payload: payload.to_vec(),
                        };
                        if !self.silent.load(Ordering::Relaxed) {
                            link.enqueue(now(), datagram);
                        }
                    }
                }
            }
            while let Some(delivery) = link.poll(now()) {
                if !self.silent.load(Ordering::Relaxed) {
                    self.send(way, &delivery.packet.payload);
                    let mut delivered = self.delivered(way);
                    delivered.count += 1;
                    delivered.latest.push_back(delivery.packet.payload);
                    if delivered.latest.len() > REMEMBERED {
                        delivered.latest.pop_front();
                    }
                }
            }
            if way == Way::ToClient && self.rebind.swap(false, Ordering::Relaxed) {
                io = open(self.server.ip());
                *self.back.lock().unwrap() = sender(&io);
            }
        }
    }

    /// What cannot be sent is lost, as on any link.
    fn send(&self, way: Way, payload: &[u8]) {
        let _ = match way {
            Way::ToServer => self.back.lock().unwrap().send_to(payload, self.server),
            Way::ToClient => {
                let client = *self.client.lock().unwrap();
                client.map_or(Ok(0), |client| self.front.send_to(payload, client))
            }
        };
    }

    fn delivered(&self, way: Way) -> MutexGuard<'_, Delivered> {
        self.delivered[usize::from(way == Way::ToClient)]
            .lock()
            .unwrap()
    }
}

/// A socket on loopback, of the family of `like`.
fn open(like: IpAddr) -> UdpIo {
    let ip = match like {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => like,
    };
    UdpIo::open(&UdpConfig::new((ip, 0).into())).unwrap()
}

/// A handle to send with from the other direction's thread.
fn sender(io: &UdpIo) -> UdpSocket {
    io.as_fd().try_clone_to_owned().unwrap().into()
}
