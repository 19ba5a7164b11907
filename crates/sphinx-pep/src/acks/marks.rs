//! Marks: the machine that has the queue in front of the thin link tells the one that sends acknowledgements that they wait there too long (§5).

use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

use rustix::fd::{AsFd, BorrowedFd};

use crate::{
    Agent, FlowKey, Key, Time,
    channel::{self, Message},
    sealed::{self, Reader, time_of_day, write_flow},
};

/// Most datagrams read or sent before packets have their turn.
const BATCH: usize = 64;
/// Room for a datagram, in bytes: longer than any mark.
const DATAGRAM_BYTES_MAX: usize = 128;

/// Acknowledgements of a flow wait too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The flow.
    pub flow: FlowKey,
}

/// Seals marks.
pub type MarkSealer = channel::Sealer<Mark>;
/// Opens marks of any senders, each once and in order.
pub type MarkOpener = channel::Opener<Mark>;

impl Mark {
    /// Appends it: 4 or 6, then address and port of the fixed and of the mobile host, in network order.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_flow(out, &self.flow);
    }

    /// Reads what [`write`](Mark::write) has written, and nothing else.
    pub fn read(bytes: &[u8]) -> Option<Mark> {
        let mut reader = Reader(bytes);
        let flow = reader.flow()?;
        reader.0.is_empty().then_some(Mark { flow })
    }
}

impl Message for Mark {
    const MAGIC: [u8; 4] = *b"SPM\x01";

    fn write(&self, out: &mut Vec<u8>) {
        Mark::write(self, out);
    }

    fn read(bytes: &[u8]) -> Option<Mark> {
        Mark::read(bytes)
    }
}

/// A UDP socket for marks, which one agent tells and the other one hears.
#[derive(Debug)]
pub struct MarkPost {
    socket: UdpSocket,
    port: u16,
    sealer: MarkSealer,
    opener: MarkOpener,
    refused: u64,
}

impl MarkPost {
    /// Hears at this port, in the calling thread's namespace, and tells those who send acknowledgements, at the same port.
    ///
    /// # Errors
    ///
    /// Those of opening a socket: `AddrInUse` if somebody else listens there.
    pub fn open(key: Key, port: u16) -> io::Result<MarkPost> {
        let now = time_of_day();
        Ok(MarkPost {
            socket: sealed::socket(port)?,
            port,
            sealer: MarkSealer::new(key.clone(), now),
            opener: MarkOpener::new(key, now),
            refused: 0,
        })
    }

    /// Hands over what has come, and sends what the agent has to tell.
    pub(crate) fn serve(&mut self, agent: &mut Agent, now: &dyn Fn() -> Time) {
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        for _ in 0..BATCH {
            // An error is of one datagram, or says that there is none.
            let Ok(length) = self.socket.recv(&mut buffer) else {
                break;
            };
            match self.opener.open(time_of_day(), &buffer[..length]) {
                Some(mark) => agent.handle_mark(now(), &mark),
                None => self.refused += 1,
            }
        }
        while let Some(mark) = agent.poll_mark() {
            let datagram = self.sealer.seal(time_of_day(), &mark);
            let peer = SocketAddr::new(mark.flow.fixed.ip(), self.port);
            let sent = sealed::send(&self.socket, &datagram, peer);
            self.refused += u64::from(sent.is_err());
        }
    }

    /// The socket, which is readable when marks have come.
    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Marks that could not be sent, or were forged or old.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::Config;

    const NOW: u64 = 1_800_000_000_000_000_000;

    fn marks() -> [Mark; 2] {
        let v6 = |host: u16| [0xfd00, 0, 0, 0, 0, 0, 0, host];
        [
            FlowKey {
                fixed: ([127, 0, 0, 1], 40_000).into(),
                mobile: ([10, 0, 0, 2], 443).into(),
            },
            FlowKey {
                fixed: (v6(1), 40_000).into(),
                mobile: (v6(2), 443).into(),
            },
        ]
        .map(|flow| Mark { flow })
    }

    #[test]
    fn marks_are_opened_once_and_in_order_and_soon() {
        let key = Key::new([7; 32]);
        let [four, six] = marks();
        let mut opener = MarkOpener::new(key.clone(), NOW);
        let mut sealer = MarkSealer::new(key.clone(), 1);
        let [first, second, third] = [four, six, four].map(|it| sealer.seal(NOW, &it));
        assert_eq!(opener.open(NOW, &first), Some(four));
        assert_eq!(opener.open(NOW, &third), Some(four));
        // Again, an older one, and one that somebody has kept for a while.
        assert_eq!(opener.open(NOW, &third), None);
        assert_eq!(opener.open(NOW, &second), None);
        let kept = sealer.seal(NOW, &six);
        assert_eq!(opener.open(NOW + 6_000_000_000, &kept), None);
        // Who begins anew does not hear what was said before.
        let mut restarted = MarkOpener::new(key.clone(), NOW + 1);
        assert_eq!(restarted.open(NOW + 1, &first), None);
        let next = sealer.seal(NOW + 2, &six);
        assert_eq!(restarted.open(NOW + 2, &next), Some(six));
    }

    #[test]
    fn what_is_not_sealed_with_the_key_is_no_mark() {
        let key = Key::new([7; 32]);
        for mark in marks() {
            let sealed = MarkSealer::new(key.clone(), 1).seal(NOW, &mark);
            for at in 0..sealed.len() {
                let mut forged = sealed.clone();
                forged[at] ^= 1;
                let mut opener = MarkOpener::new(key.clone(), NOW);
                assert_eq!(opener.open(NOW, &forged), None, "{at}");
                assert_eq!(opener.open(NOW, &sealed[..at]), None, "{at}");
            }
            assert_eq!(
                MarkOpener::new(Key::new([8; 32]), NOW).open(NOW, &sealed),
                None
            );
            // Something else under the same key, and more than a mark.
            let inside = &sealed[..sealed.len() - 16];
            let other = [b"SPH\x01", &inside[4..]].concat();
            let longer = [inside, &[0]].concat();
            for message in [other, longer] {
                let mut opener = MarkOpener::new(key.clone(), NOW);
                assert_eq!(opener.open(NOW, &key.seal(message)), None);
            }
            let mut opener = MarkOpener::new(key.clone(), NOW);
            assert_eq!(opener.open(NOW, &sealed), Some(mark));
        }
    }

    #[test]
    fn forged_datagrams_are_counted_and_do_nothing() {
        let key = Key::new([3; 32]);
        let mut post = MarkPost::open(key.clone(), 0).expect("a socket");
        let port = post.socket.local_addr().expect("an address").port();
        let mut agent = Agent::new(Config::default());
        let mut other = MarkPost::open(Key::new([4; 32]), 0).expect("a socket");
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let forged = other.sealer.seal(time_of_day(), &marks()[0]);
        let good = MarkSealer::new(key, 1).seal(time_of_day(), &marks()[0]);
        // Loopback delivers at once, and in order.
        for datagram in [&forged, &good, &good, &vec![0; 500]] {
            sealed::send(&other.socket, datagram, here).expect("loopback");
        }
        post.serve(&mut agent, &|| 0);
        assert_eq!(post.refused(), 3);
    }
}
