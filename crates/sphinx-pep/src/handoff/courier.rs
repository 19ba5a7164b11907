//! Hand-overs on their way between two machines.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

use rustix::{
    fd::{AsFd, BorrowedFd},
    net::sockopt,
};

use super::{Opener, Sealer};
use crate::{
    Agent, Key, Time,
    sealed::{self, time_of_day},
};

/// Most datagrams read or sent before packets have their turn.
const BATCH: usize = 64;
/// Room for a datagram, in bytes: the longest packet and what is around it.
const DATAGRAM_BYTES_MAX: usize = 10_240;
/// A flow's whole cache comes at once; the kernel's usual room is a fifth of that.
const ROOM_BYTES: usize = 4 << 20;

/// A UDP socket by which agents of different hops tell each other of flows.
#[derive(Debug)]
pub struct Courier {
    socket: UdpSocket,
    sealer: Sealer,
    opener: Opener,
    /// A datagram that the kernel had no room for, and where it goes.
    waiting: Option<(SocketAddr, Vec<u8>)>,
    refused: u64,
}

impl Courier {
    /// Hears and tells at this port, in the calling thread's namespace. Where `CAP_NET_ADMIN` is missing, less of what comes at once
    /// is heard.
    ///
    /// # Errors
    ///
    /// Those of opening a socket: `AddrInUse` if somebody else listens there.
    pub fn open(key: Key, port: u16) -> io::Result<Courier> {
        let socket = sealed::socket(port)?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, ROOM_BYTES).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, ROOM_BYTES)?;
        }
        let now = time_of_day();
        Ok(Courier {
            socket,
            sealer: Sealer::new(key.clone(), now),
            opener: Opener::new(key, now),
            waiting: None,
            refused: 0,
        })
    }

    /// Hands over what has come, and sends what the agent has to tell; true if there is more of either.
    pub(crate) fn serve(&mut self, agent: &mut Agent, now: &dyn Fn() -> Time) -> bool {
        self.hear(agent, now) | self.tell(agent)
    }

    fn hear(&mut self, agent: &mut Agent, now: &dyn Fn() -> Time) -> bool {
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        for _ in 0..BATCH {
            // An error is of one datagram, or says that there is none.
            let Ok(length) = self.socket.recv(&mut buffer) else {
                return false;
            };
            match self.opener.open(time_of_day(), &buffer[..length]) {
                Some(message) => agent.handle_handover(now(), &message),
                None => self.refused += 1,
            }
        }
        true
    }

    fn tell(&mut self, agent: &mut Agent) -> bool {
        for _ in 0..BATCH {
            let waiting = self.waiting.take().or_else(|| {
                let (peer, message) = agent.poll_handover()?;
                Some((peer, self.sealer.seal(time_of_day(), &message)))
            });
            let Some((peer, datagram)) = waiting else {
                return false;
            };
            match self.send(peer, &datagram) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.waiting = Some((peer, datagram));
                    return true;
                }
                result => self.refused += u64::from(result.is_err()),
            }
        }
        true
    }

    fn send(&self, peer: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        sealed::send(&self.socket, datagram, peer)
    }

    /// The socket, which is readable when messages have come.
    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Messages that could not be sent, or were not sealed with the key, or old.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Config, handoff::format::tests::messages};

    #[test]
    fn forged_datagrams_are_counted_and_no_flow_is_known_by_them() {
        let key = Key::new([3; 32]);
        let mut courier = Courier::open(key.clone(), 0).expect("a socket");
        let port = courier.socket.local_addr().expect("an address").port();
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut other = Courier::open(key, 0).expect("a socket");
        let mut agent = Agent::new(Config::default());
        let forged = Sealer::new(Key::new([4; 32]), 1).seal(time_of_day(), &messages()[0]);
        // Loopback delivers at once, and in order.
        other.send(peer, &forged).expect("loopback");
        assert!(!courier.serve(&mut agent, &|| 0));
        assert_eq!((courier.refused(), agent.flows_known()), (1, 0));
        let good = other.sealer.seal(time_of_day(), &messages()[0]);
        for _ in 0..2 {
            other.send(peer, &good).expect("loopback");
        }
        courier.serve(&mut agent, &|| 0);
        assert_eq!((courier.refused(), agent.flows_known()), (2, 1));
    }
}
