//! The batch interface between the engine and a packet back end.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::slice::ChunksMut;
use std::time::Duration;

use crate::{Counters, Waker};

/// Bytes of frames that sessions take in one turn of the engine loop. The back end has more, for the control plane.
pub const TURN_BYTES: usize = 256 << 10;
/// Receive calls in one turn: feedback must not wait behind an endless stream of packets.
pub const TURN_RECEIVES: usize = 4;
/// Largest number of bytes that leave as one segmented send: the largest UDP payload of an IPv4 packet.
pub(crate) const DATAGRAM_BATCH_BYTES_MAX: usize = 65_507;

/// A packet back end, driven by one thread in batches: a half that receives, a half that sends, and what
/// they share.
///
/// Packets lie in frames: memory of the back end that the network card or the kernel reads and writes. A
/// frame is lent out to be opened or sealed in place, and is never cleared: what a frame holds before it is written is
/// what its last user left there.
///
/// Nothing here blocks except [`wait`](Self::wait). One turn of the engine loop is:
///
/// 1. [`wait`](Self::wait) until packets can be read, the [`Waker`] rings or a timer is due;
/// 2. [`recv`](PacketRx::recv) and visit every buffer with [`received`](PacketRx::received),
///    repeated while the batch was full;
/// 3. write what is due into [frames](PacketTx::frame) and [`flush`](PacketTx::flush) them; if not
///    everything went out, wait with [`Interest::ReadWrite`] and flush again later.
pub trait PacketIo: Send {
    /// The half that receives.
    type Rx: PacketRx;
    /// The half that sends.
    type Tx: PacketTx;

    /// What it is called in reports: `udp` for instance, or how it was opened.
    fn name(&self) -> &'static str;

    /// The half that receives.
    fn rx(&mut self) -> &mut Self::Rx;

    /// The half that sends.
    fn tx(&mut self) -> &mut Self::Tx;

    /// What this back end can do now. It may shrink at run time, for instance when the kernel
    /// refuses segmentation offload for the route in use, and then grow again.
    fn capabilities(&self) -> Capabilities;

    /// The address packets are received on. The port is never 0; the IP address is unspecified
    /// when the back end listens on all of them.
    fn local_addr(&self) -> SocketAddr;

    /// The addresses packets are received on, where the kernel does not know them: of a back end that has a card to itself. None of any other one.
    fn own_addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Waits until what `interest` names is possible, the [`Waker`] rings, or `timeout_ns`
    /// nanoseconds have passed; `None` waits without limit and `Some(0)` only looks. It may
    /// return early with nothing ready, for instance after a signal.
    ///
    /// # Errors
    ///
    /// Only when the back end is unusable.
    fn wait(&mut self, interest: Interest, timeout_ns: Option<u64>) -> io::Result<Ready>;

    /// A handle that ends [`wait`](Self::wait) from any thread. All handles of a back end are
    /// equal.
    fn waker(&self) -> Waker;

    /// The caller is going to poll for packets without a pause for this long, so a card's driver may be polled instead of waiting for its interrupts.
    /// Where the back end has no such thing, or this process may not have it, nothing changes.
    fn expect_busy_polling(&mut self, time: Duration) {
        let _ = time;
    }

    /// Another socket, that sends from and receives at this address, and through this interface alone if one is named: for a further path.
    /// It replaces a socket that was attached at this address before.
    ///
    /// # Errors
    ///
    /// Those of opening a socket, and `Unsupported` of a back end that has one only.
    fn attach(&mut self, local: IpAddr, device: Option<&str>) -> io::Result<()> {
        let _ = (local, device);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Closes the socket that was [attached](Self::attach) at this address, if there is one. What has not left by it is dropped.
    fn detach(&mut self, local: IpAddr) {
        let _ = local;
    }

    /// Everything counted since the back end was opened.
    fn counters(&self) -> Counters;
}

/// The half of a back end that receives.
///
/// The buffers of a batch are the back end's own (a page that the kernel copied to, an AF_XDP
/// frame, a DPDK mbuf): they are lent until the next [`recv`](Self::recv), which gives them back to the
/// kernel or the card.
pub trait PacketRx: Send {
    /// Receives a batch of buffers and returns how many are held: 0 when nothing is waiting, at
    /// most [`Capabilities::recv_batch_max`]. Buffers of the previous batch are given back.
    ///
    /// # Errors
    ///
    /// Only when the back end is unusable. Errors that the network caused are counted in
    /// [`Counters::recv_errors`] instead.
    fn recv(&mut self) -> io::Result<usize>;

    /// The buffer `index` of the batch of the last [`recv`](Self::recv), or `None` when the batch
    /// is shorter.
    fn received(&mut self, index: usize) -> Option<Received<'_>>;

    /// Gives the buffer `index` of the batch away for `memory` that is as large, which takes its place: the datagrams lie in front, as
    /// [`received`](Self::received) has said. `false`, and nothing has changed, where the buffers are not to be had, or have another size.
    fn exchange(&mut self, index: usize, memory: &mut Vec<u8>) -> bool {
        let _ = (index, memory);
        false
    }

    /// The addresses of which the network has said, since the last call, that nobody listens there (ICMP
    /// "port unreachable"). Whoever guesses the addresses and ports of both ends can forge that.
    ///
    /// A back end that hears no such messages returns none.
    fn take_refused(&mut self) -> Vec<SocketAddr> {
        Vec::new()
    }
}

/// The half of a back end that sends.
///
/// Datagrams are written where they leave from. Whoever sends takes a [`frame`](Self::frame) for each, writes all of it,
/// and [flushes](Self::flush) once for many.
pub trait PacketTx: Send {
    /// Takes a frame for one datagram of `len` bytes, to be written by the caller; it leaves with the
    /// next [`flush`](Self::flush), in the order in which frames were taken. Its content is unspecified: every byte
    /// has to be written. A frame of length 0 is not sent.
    ///
    /// Datagrams that follow each other to the same destination leave in one piece of work while their
    /// sizes allow it (all equal, the last may be shorter), where the back end has segmentation offload.
    ///
    /// `None` when all frames are taken (flush, and wait until the back end is writable), or when `len` is more
    /// than a frame holds.
    fn frame(&mut self, to: &Destination, len: usize) -> Option<&mut [u8]>;

    /// Takes frames for datagrams of `len` bytes each as [`frame`](Self::frame) takes one, at most so many, and at least one. They lie one after another.
    fn frames(&mut self, to: &Destination, len: usize, _most: usize) -> Option<&mut [u8]> {
        self.frame(to, len)
    }

    /// Takes over memory in which datagrams for one destination have been written, one after another, of these lengths. They leave as frames do, in the
    /// order in which they were taken, and then the memory is dropped. What there is no room for is lost, as it would be in a queue that is full.
    ///
    /// How many bytes were copied: none where the back end sends from any memory.
    fn take_over(
        &mut self,
        to: &Destination,
        memory: Written,
        lens: &mut dyn Iterator<Item = usize>,
    ) -> usize {
        let mut rest = (*memory).as_ref();
        let mut copied = 0;
        for len in lens {
            let Some((datagram, behind)) = rest.split_at_checked(len) else {
                break;
            };
            if let Some(frame) = self.frame(to, len) {
                frame.copy_from_slice(datagram);
                copied += len;
            }
            rest = behind;
        }
        copied
    }

    /// Bytes of the frames that are taken. Those that have left count until all have. Of several sockets, those that [are full](Self::is_full)
    /// do not count: what waits for them is not to keep others from sending.
    fn taken_bytes(&self) -> usize;

    /// Whether the socket that sends this has not taken all that the last [`flush`](Self::flush) had for it, while another one has: more for there would only
    /// wait. Never of a back end with one socket.
    fn is_full(&self, to: &Destination) -> bool {
        let _ = to;
        false
    }

    /// Sends what the frames hold and says whether all of it is gone, which means handed to the
    /// network or dropped. `false` means that the back end is full: flush again when it is
    /// writable. Drops are appended to `dropped`, with where the datagrams would have gone, and do
    /// not stop the datagrams behind them.
    ///
    /// # Errors
    ///
    /// Only when the back end is unusable.
    fn flush(&mut self, dropped: &mut Vec<(Destination, Dropped)>) -> io::Result<bool>;

    /// The error behind the most recent [`Dropped`], if there was one.
    fn last_error(&self) -> Option<io::Error>;
}

/// Memory of somebody else, with datagrams that are to be sent.
pub type Written = Box<dyn AsRef<[u8]> + Send>;

/// Where datagrams go and how they are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where to send. A [`SocketAddr::V4`] works on a dual-stack socket too.
    pub remote: SocketAddr,
    /// Source address, or `None` to let routing choose.
    pub local_ip: Option<IpAddr>,
    /// ECN codepoint.
    pub ecn: Ecn,
}

/// What a back end can do, found out when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Most datagrams that leave in one piece of work: at least 1, which means no segmentation
    /// offload.
    pub segments_max: usize,
    /// Segmentation offload (GSO) worked when the back end was opened and was refused later.
    /// `segments_max` is 1 until it is tried again.
    pub gso_downgraded: bool,
    /// One received buffer can hold several datagrams (GRO).
    pub gro: bool,
    /// [`Destination::ecn`] is written into packets.
    pub ecn_send: bool,
    /// [`Received::ecn`] is read from packets; otherwise it is always [`Ecn::NotEct`].
    pub ecn_recv: bool,
    /// [`Received::local_ip`] is known, and [`Destination::local_ip`] is respected.
    pub local_ip: bool,
    /// [`Received::timestamp_ns`] is known.
    pub timestamps: bool,
    /// Packets are sent with "don't fragment", and the path MTU the kernel remembers is ignored.
    pub dont_fragment: bool,
    /// Most buffers that one [`PacketRx::recv`] returns.
    pub recv_batch_max: usize,
    /// Kernel memory for packets waiting to be received, in bytes, as the kernel accounts for it
    /// (bookkeeping included). 0 when the back end has no such limit.
    pub recv_buffer_bytes: usize,
    /// Kernel memory for packets waiting to be sent, likewise.
    pub send_buffer_bytes: usize,
}

/// The explicit congestion notification field of an IP packet (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not take part.
    #[default]
    NotEct = 0b00,
    /// ECN-capable transport, codepoint 1 (L4S, RFC 9331).
    Ect1 = 0b01,
    /// ECN-capable transport, codepoint 0.
    Ect0 = 0b10,
    /// Congestion experienced: a router marked the packet.
    Ce = 0b11,
}

impl Ecn {
    /// The codepoint in the two low bits of a traffic class or type-of-service byte.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The two bits as they appear in the packet.
    #[must_use]
    pub fn bits(self) -> u8 {
        self as u8
    }
}

/// One received buffer: one datagram, or several that the kernel joined.
///
/// Datagrams are joined by size and addresses only, never by what they hold, so every segment
/// must be looked at on its own.
#[derive(Debug)]
pub struct Received<'a> {
    /// Where the datagrams came from. IPv4 is always [`SocketAddr::V4`], on a dual-stack socket
    /// too.
    pub remote: SocketAddr,
    /// The address they were sent to.
    pub local_ip: Option<IpAddr>,
    /// ECN codepoint, the same for all segments.
    pub ecn: Ecn,
    /// When the kernel received the first segment, in nanoseconds since the Unix epoch by the
    /// system's wall clock.
    pub timestamp_ns: Option<u64>,
    /// Length of every segment but the last, which may be shorter, in bytes; at least 1.
    pub stride: usize,
    /// The datagrams one after another. The receiver may change them in place.
    pub payload: &'a mut [u8],
}

impl Received<'_> {
    /// The datagrams, in order of arrival. A buffer that holds one empty datagram yields none.
    pub fn segments(&mut self) -> ChunksMut<'_, u8> {
        self.payload.chunks_mut(self.stride.max(1))
    }
}

/// Datagrams that were given up, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// How many: more than one where they would have left in one piece of work.
    pub datagrams: usize,
    /// Length of the longest of them in bytes. With [`DropReason::TooLarge`] this length does
    /// not fit the path.
    pub segment_size: usize,
    /// Why they were given up.
    pub reason: DropReason,
}

/// Why a datagram could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// Not permitted, usually by a firewall rule.
    Denied,
    /// The system has no memory for packets.
    NoBuffers,
    /// Any other error; see [`PacketTx::last_error`].
    Other,
    /// An earlier datagram was answered with "port unreachable".
    Refused,
    /// Larger than the interface's MTU: a signal for path MTU discovery.
    TooLarge,
    /// There is no route, the network is down, or the socket cannot speak the address family.
    Unreachable,
}

/// What [`PacketIo::wait`] waits for besides the [`Waker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Packets to receive.
    Read,
    /// Packets to receive, or room to send.
    ReadWrite,
}

/// What [`PacketIo::wait`] found. Nothing is set after a timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ready {
    /// [`PacketRx::recv`] has something to return.
    pub readable: bool,
    /// The network has reported errors, which [`PacketRx::recv`] fetches.
    pub errors: bool,
    /// [`PacketTx::flush`] can make progress; only reported with [`Interest::ReadWrite`].
    pub writable: bool,
    /// A [`Waker`] rang. Reporting it clears it.
    pub woken: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecn_bits_round_trip_and_ignore_the_rest_of_the_byte() {
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            assert_eq!(Ecn::from_bits(ecn.bits()), ecn);
            assert_eq!(Ecn::from_bits(ecn.bits() | 0b1011_1000), ecn);
        }
    }

    #[test]
    fn segments_split_at_the_stride() {
        let mut bytes = [0; 250];
        let mut received = Received {
            remote: SocketAddr::from(([127, 0, 0, 1], 1)),
            local_ip: None,
            ecn: Ecn::NotEct,
            timestamp_ns: None,
            stride: 100,
            payload: &mut bytes,
        };
        let lengths: Vec<usize> = received.segments().map(|segment| segment.len()).collect();
        assert_eq!(lengths, [100, 100, 50]);
    }
}
