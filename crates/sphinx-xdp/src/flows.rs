//! Which packets may leave as frames, and their headers.
//!
//! The kernel decides: its routes say whether packets for an address leave by the interface, and its neighbour table says what Ethernet
//! address is next. Both are asked for once an address has been sent some packets, and again every second. All other packets are the kernel's.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sphinx_ether::{Flow, Mac};
use sphinx_net::Destination;
use sphinx_netdev::lookup;

/// Packets to an address that go by the kernel before it is asked about it: strangers, whose handshakes are shorter, cost nothing more.
const KERNEL_FIRST: u32 = 16;
/// How long an answer is good. Then one packet goes by the kernel, so that it sees to the neighbour as it does for its own traffic.
const FRESH: Duration = Duration::from_secs(1);
/// How long to wait where there is no answer yet.
const AGAIN: Duration = Duration::from_millis(20);
/// Addresses that are remembered.
const ENTRIES_MAX: usize = 4096;

/// From where and to where.
type Ends = (SocketAddr, Option<IpAddr>);

#[derive(Debug)]
struct Entry {
    /// Packets so far, up to [`KERNEL_FIRST`].
    sent: u32,
    /// When the kernel is asked, again or for the first time.
    ask_at: Instant,
    /// The headers; `None` while packets go by the kernel.
    flow: Option<Arc<Flow>>,
}

/// The addresses that packets are sent to.
#[derive(Debug)]
pub(crate) struct Flows {
    interface: u32,
    mac: Mac,
    local: SocketAddr,
    entries: Vec<Entry>,
    by_ends: HashMap<Ends, usize>,
    /// Most packets go where the one before them went.
    last: Option<(Ends, usize)>,
}

impl Flows {
    /// For packets that leave by this interface, with its address, from this socket.
    pub(crate) fn new(interface: u32, mac: Mac, local: SocketAddr) -> Self {
        Self {
            interface,
            mac,
            local,
            entries: Vec::new(),
            by_ends: HashMap::new(),
            last: None,
        }
    }

    /// The headers of a packet; `None` if it goes by the kernel.
    pub(crate) fn headers(&mut self, to: &Destination, now: Instant) -> Option<Arc<Flow>> {
        let ends = (to.remote, to.local_ip);
        let index = match self.last {
            Some((last, index)) if last == ends => index,
            _ => self.find(ends, now),
        };
        self.last = Some((ends, index));
        let entry = &mut self.entries[index];
        if entry.sent < KERNEL_FIRST {
            entry.sent += 1;
            return None;
        }
        if now < entry.ask_at {
            return entry.flow.clone();
        }
        let had_one = entry.flow.take().is_some();
        let flow = self.ask(to).map(Arc::new);
        let entry = &mut self.entries[index];
        entry.ask_at = now + if flow.is_some() { FRESH } else { AGAIN };
        entry.flow = flow.clone();
        flow.filter(|_| !had_one)
    }

    fn find(&mut self, ends: Ends, now: Instant) -> usize {
        if let Some(index) = self.by_ends.get(&ends) {
            return *index;
        }
        if self.entries.len() == ENTRIES_MAX {
            // They are found again soon.
            self.entries.clear();
            self.by_ends.clear();
        }
        let index = self.entries.len();
        self.entries.push(Entry {
            sent: 0,
            ask_at: now,
            flow: None,
        });
        self.by_ends.insert(ends, index);
        index
    }

    /// Headers as the kernel would write them. An error of it means that it sees to the packets itself, and tells what is wrong then.
    fn ask(&self, to: &Destination) -> Option<Flow> {
        let remote = to.remote.ip().to_canonical();
        let scope = match to.remote {
            SocketAddr::V6(remote) => Some(remote.scope_id()).filter(|scope| *scope != 0),
            SocketAddr::V4(_) => None,
        };
        let bound = Some(self.local.ip()).filter(|ip| !ip.is_unspecified());
        let wanted = to
            .local_ip
            .or(bound)
            .filter(|ip| ip.is_ipv4() == remote.is_ipv4());
        let way = lookup::way(remote, wanted, scope).ok().flatten()?;
        if way.interface != self.interface {
            return None;
        }
        let source = SocketAddr::new(wanted.or(way.source)?, self.local.port());
        let next = lookup::neighbour(self.interface, way.next).ok().flatten()?;
        let remote = SocketAddr::new(remote, to.remote.port());
        Flow::new((self.mac, next), source, remote)
    }
}
