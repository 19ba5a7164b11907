//! One datagram at a time, at sockets that somebody else has opened and waits for, with the address of this machine that it was sent to: so that
//! its answer can come from there.

use std::io;
use std::os::fd::BorrowedFd;

use super::mmsg::{RecvBatch, SendBatch, SendFormat};
use super::options;
use crate::queue::{Memory, Transmit};
use crate::{Destination, Received};

/// Has the kernel say, as far as it can, which address each datagram was sent to that arrives at a UDP socket from now on.
pub fn tell_local_ip(socket: BorrowedFd<'_>) {
    options::tell_local_ip(socket);
}

/// Memory to receive and send datagrams with, one by one. No call waits.
pub struct Singles {
    recv: RecvBatch,
    send: SendBatch,
}

impl Singles {
    /// With room for received datagrams of so many bytes, at least 1; longer ones are cut.
    pub fn new(bytes: usize) -> Self {
        Self {
            recv: RecvBatch::new(1, bytes),
            send: SendBatch::new(),
        }
    }

    /// The next datagram that has arrived. Which address it was sent to is known if [the kernel says so](tell_local_ip).
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none; otherwise those of the socket.
    pub fn recv(&mut self, socket: BorrowedFd<'_>) -> io::Result<Received<'_>> {
        loop {
            self.recv.recv(socket)?;
            let message = self.recv.message(0);
            // The kernel gives the sender of every datagram; one without is passed over.
            let Some(remote) = message.remote else {
                continue;
            };
            return Ok(Received {
                remote,
                local_ip: message.fields.local_ip,
                ecn: message.fields.ecn,
                timestamp_ns: message.fields.timestamp_ns,
                stride: message.len.max(1),
                payload: self.recv.payload(0, message.len),
            });
        }
    }

    /// Sends a datagram, which may be empty, without a mark for congestion. `v6_socket`: the socket is IPv6, so that IPv4 takes its IPv6 form.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room; otherwise those of the socket.
    pub fn send(
        &mut self,
        (socket, v6_socket): (BorrowedFd<'_>, bool),
        to: &Destination,
        data: &[u8],
    ) -> io::Result<()> {
        let format = SendFormat {
            v6_socket,
            ecn: false,
        };
        let whole = Transmit {
            to: *to,
            segment_size: 0,
            memory: 0,
            offset: 0,
            len: data.len(),
        };
        let sent = self.send.send(socket, format, Memory::of(data), &[whole]);
        sent.map(drop)
    }
}
