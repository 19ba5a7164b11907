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
const ANSWER_TTL: Duration = Duration::from_secs(1);
/// How long to wait where it is not known yet who is next on the link.
const ASK_INTERVAL: Duration = Duration::from_millis(20);
/// Addresses that are remembered, and for how long at least those of sessions that send.
const ENTRIES_MAX: usize = 4096;
const ACTIVE_FLOW_LIFETIME: Duration = Duration::from_secs(10);

/// Remote address of a flow, and its local one where that is set.
type Ends = (SocketAddr, Option<IpAddr>);

#[derive(Clone, Debug)]
struct Entry {
    /// Packets sent so far, up to [`KERNEL_FIRST`].
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
        let asked = self.ask(to);
        let entry = &mut self.entries[index];
        entry.ask_at = now + asked.as_ref().map_or_else(|wait| *wait, |_| ANSWER_TTL);
        let flow = asked.ok().map(Arc::new);
        entry.flow = flow.clone();
        flow.filter(|_| !had_one)
    }

    fn find(&mut self, ends: Ends, now: Instant) -> usize {
        if let Some(index) = self.by_ends.get(&ends) {
            return *index;
        }
        if self.entries.len() == ENTRIES_MAX {
            self.make_room(now);
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

    /// Forgets strangers, and who has been sent nothing for a while; everybody, should that not be enough: they are found again soon.
    fn make_room(&mut self, now: Instant) {
        let before = std::mem::take(&mut self.entries);
        self.by_ends.retain(|_, index| {
            let entry = &before[*index];
            let is_kept = entry.sent == KERNEL_FIRST && now < entry.ask_at + ACTIVE_FLOW_LIFETIME;
            if is_kept {
                *index = self.entries.len();
                self.entries.push(entry.clone());
            }
            is_kept
        });
        if self.entries.len() == ENTRIES_MAX {
            self.entries.clear();
            self.by_ends.clear();
        }
    }

    /// Headers as the kernel would write them; or how long it sees to the packets itself, and tells what may be wrong with them, before it is asked again.
    fn ask(&self, to: &Destination) -> Result<Flow, Duration> {
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
        let way = lookup::way(remote, wanted, scope).ok().flatten();
        // Routes that lead elsewhere seldom change, and there may be many such addresses.
        let way = way.filter(|way| way.interface == self.interface);
        let way = way.ok_or(ANSWER_TTL)?;
        let source = wanted.or(way.source).ok_or(ANSWER_TTL)?;
        let source = SocketAddr::new(source, self.local.port());
        let next = lookup::neighbour(self.interface, way.next).ok().flatten();
        let next = next.ok_or(ASK_INTERVAL)?;
        let remote = SocketAddr::new(remote, to.remote.port());
        Flow::new((self.mac, next), source, remote).ok_or(ANSWER_TTL)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use sphinx_net::Ecn;

    use super::*;

    /// No interface has that number: the kernel's routes lead elsewhere.
    const NOWHERE: u32 = i32::MAX as u32;

    fn to(number: usize) -> Destination {
        let ip = Ipv4Addr::from_bits(0x0a53_0000 + number as u32);
        Destination {
            remote: (ip, 9).into(),
            local_ip: None,
            ecn: Ecn::NotEct,
        }
    }

    /// As if packets had gone there, and the kernel had just said how.
    fn know(flows: &mut Flows, to: &Destination, now: Instant) {
        for _ in 0..KERNEL_FIRST {
            assert!(flows.headers(to, now).is_none());
        }
        let index = flows.find((to.remote, to.local_ip), now);
        let flow = Flow::new(([2; 6], [4; 6]), flows.local, to.remote);
        let entry = &mut flows.entries[index];
        entry.flow = flow.map(Arc::new);
        entry.ask_at = now + ANSWER_TTL;
    }

    /// Sessions go on past the kernel however many strangers there are; those that have ended go with them.
    #[test]
    fn strangers_are_forgotten_first() {
        let local = "10.82.0.1:7".parse().unwrap();
        let mut flows = Flows::new(NOWHERE, [2; 6], local);
        let before = Instant::now();
        let now = before + ANSWER_TTL + ACTIVE_FLOW_LIFETIME;
        for number in 0..3 {
            know(&mut flows, &to(number), before);
        }
        for number in 3..6 {
            know(&mut flows, &to(number), now);
        }
        for number in 6..3 * ENTRIES_MAX {
            assert!(flows.headers(&to(number), now).is_none());
            assert!(flows.entries.len() <= ENTRIES_MAX);
            assert_eq!(flows.entries.len(), flows.by_ends.len());
        }
        for number in 0..3 {
            assert!(flows.headers(&to(number), now).is_none());
            let index = flows.by_ends[&(to(number).remote, None)];
            assert_eq!(flows.entries[index].sent, 1);
        }
        for number in 3..6 {
            let flow = flows.headers(&to(number), now).unwrap();
            // Uses the flow of this address.
            let mut frame = vec![0; flow.header_bytes()];
            flow.complete(&mut frame, 0);
            assert_eq!(frame[30..34], (0x0a53_0000 + number as u32).to_be_bytes());
        }
    }

    /// To ask takes longer than to send, and the answer will be the same for a while.
    #[test]
    fn who_is_found_elsewhere_is_not_asked_for_all_the_time() {
        let local = "10.82.0.1:7".parse().unwrap();
        let mut flows = Flows::new(NOWHERE, [2; 6], local);
        let now = Instant::now();
        for _ in 0..=KERNEL_FIRST {
            assert!(flows.headers(&to(1), now).is_none());
        }
        assert_eq!(flows.entries[0].ask_at, now + ANSWER_TTL);
    }

    #[test]
    fn more_sessions_than_there_is_room_for_are_found_again() {
        let local = "10.82.0.1:7".parse().unwrap();
        let mut flows = Flows::new(NOWHERE, [2; 6], local);
        let now = Instant::now();
        for number in 0..=ENTRIES_MAX {
            know(&mut flows, &to(number), now);
        }
        assert_eq!(flows.entries.len(), 1);
        assert!(flows.headers(&to(ENTRIES_MAX), now).is_some());
    }
}
