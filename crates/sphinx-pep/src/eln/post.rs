//! Reports on their way between two machines.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

use rustix::fd::{AsFd, BorrowedFd};

use super::{LossReport, Opener, Sealer};
use crate::{
    Agent, Key, Time,
    sealed::{self, time_of_day},
};

/// Most datagrams read before packets have their turn.
const BATCH: usize = 64;
/// Room for a datagram, in bytes: longer than any report.
const DATAGRAM_BYTES_MAX: usize = 1024;

/// A UDP socket for reports: the base station tells, the mobile host hears.
#[derive(Debug)]
pub struct Post {
    socket: UdpSocket,
    way: Way,
    refused: u64,
}

#[derive(Debug)]
enum Way {
    Tell { sealer: Sealer, port: u16 },
    Hear(Opener),
}

impl Post {
    /// Tells the mobile hosts of flows, at this port, what the hop has lost. Opened in the calling thread's
    /// namespace.
    ///
    /// # Errors
    ///
    /// Those of opening a socket.
    pub fn tell(key: Key, port: u16) -> io::Result<Post> {
        let sealer = Sealer::new(key, time_of_day());
        Post::new(0, Way::Tell { sealer, port })
    }

    /// Hears, at this port, what the hop has lost.
    ///
    /// # Errors
    ///
    /// Those of opening a socket: `AddrInUse` if somebody else listens there.
    pub fn hear(key: Key, port: u16) -> io::Result<Post> {
        Post::new(port, Way::Hear(Opener::new(key, time_of_day())))
    }

    fn new(port: u16, way: Way) -> io::Result<Post> {
        let socket = sealed::socket(port)?;
        Ok(Post {
            socket,
            way,
            refused: 0,
        })
    }

    /// Hands over what has come, or sends what the agent has to tell, and returns that.
    pub(crate) fn serve(&mut self, agent: &mut Agent, now: &dyn Fn() -> Time) -> Vec<LossReport> {
        let mut told = Vec::new();
        match &mut self.way {
            Way::Tell { .. } => {
                while let Some(report) = agent.poll_report() {
                    self.refused += u64::from(self.send(&report).is_err());
                    told.push(report);
                }
            }
            Way::Hear(opener) => {
                let mut buffer = [0; DATAGRAM_BYTES_MAX];
                for _ in 0..BATCH {
                    // An error is of one datagram, or says that there is none.
                    let Ok(length) = self.socket.recv(&mut buffer) else {
                        break;
                    };
                    if let Some(report) = opener.open(time_of_day(), &buffer[..length]) {
                        agent.handle_report(now(), &report);
                    } else {
                        self.refused += 1;
                    }
                }
            }
        }
        told
    }

    /// The socket, which is readable when reports have come.
    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reports that could not be sent, or were not sealed with the key, or old.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    fn send(&mut self, report: &LossReport) -> io::Result<()> {
        let Way::Tell { sealer, port } = &mut self.way else {
            return Ok(());
        };
        let sealed = sealer.seal(time_of_day(), report);
        let peer = SocketAddr::new(report.flow.mobile.ip(), *port);
        sealed::send(&self.socket, &sealed, peer)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Config, Place};

    #[test]
    fn forged_datagrams_are_counted_and_do_nothing() {
        let key = Key::new([3; 32]);
        let mut hears = Post::hear(key.clone(), 0).expect("a socket");
        let port = hears.socket.local_addr().expect("an address").port();
        let teller = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let mut agent = Agent::new(Config {
            place: Place::Mobile,
            ..Config::default()
        });
        let report = LossReport {
            flow: crate::FlowKey {
                fixed: ([127, 0, 0, 1], 443).into(),
                mobile: ([127, 0, 0, 1], 4000).into(),
            },
            ranges: vec![(1, 2)],
        };
        let good = Sealer::new(key.clone(), 1).seal(time_of_day(), &report);
        let forged = Sealer::new(Key::new([4; 32]), 2).seal(time_of_day(), &report);
        // Loopback delivers at once, and in order.
        for datagram in [&forged, &good, &good] {
            teller
                .send_to(datagram, (Ipv4Addr::LOCALHOST, port))
                .expect("loopback");
        }
        hears.serve(&mut agent, &|| 0);
        assert_eq!(hears.refused(), 2);
        let mut tells = Post::tell(key, port).expect("a socket");
        tells.send(&report).expect("loopback");
        hears.serve(&mut agent, &|| 0);
        assert_eq!((hears.refused(), tells.refused()), (2, 0));
    }
}
