//! TCP as smoltcp does it: a stack that others wrote, with SACK, timestamps, delayed acknowledgements and two congestion controls.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::IpAddr;

use bytes::Bytes;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::End;
use super::tcp::{Settings, Time};

thread_local! {
    /// What timestamps are made of: the milliseconds of the virtual clock.
    static CLOCK: Cell<u32> = const { Cell::new(0) };
}

/// What has come for a stack, and what it has sent.
#[derive(Default)]
struct Wires {
    mtu: usize,
    arrived: VecDeque<Vec<u8>>,
    sent: Vec<Bytes>,
}

struct Arrived(Vec<u8>);

struct Room<'a>(&'a mut Vec<Bytes>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = vec![0; len];
        let result = write(&mut packet);
        self.0.push(packet.into());
        result
    }
}

impl Device for Wires {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Room<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), Room(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        Some(Room(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

/// One end of a connection.
pub(crate) struct Smol {
    settings: Settings,
    wires: Wires,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    received: Vec<u8>,
    written: usize,
    /// Whether the peer has ended its stream, so that all of it has come.
    is_whole: bool,
    is_reset: bool,
}

impl Smol {
    pub(crate) fn new(settings: Settings) -> Self {
        let is_v6 = settings.local.is_ipv6();
        let mut wires = Wires {
            // With the options of most segments.
            mtu: settings.segment + if is_v6 { 72 } else { 52 },
            ..Wires::default()
        };
        let mut config = smoltcp::iface::Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from(settings.isn);
        let mut interface = Interface::new(config, &mut wires, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let prefix = if is_v6 { 64 } else { 24 };
            let own = IpCidr::new(settings.local.ip().into(), prefix);
            addresses.push(own).expect("room for one");
        });
        let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
        let mut socket = Socket::new(buffer(settings.buffer), buffer(64 << 10));
        socket.set_nagle_enabled(settings.messages.is_none());
        socket.set_congestion_control(match settings.rack {
            true => CongestionControl::Cubic,
            false => CongestionControl::Reno,
        });
        if settings.timestamps {
            socket.set_tsval_generator(Some(|| CLOCK.get()));
        }
        match settings.active {
            true => socket
                .connect(
                    interface.context(),
                    endpoint(settings.remote),
                    endpoint(settings.local),
                )
                .expect("it may connect"),
            false => socket
                .listen(endpoint(settings.local))
                .expect("it may listen"),
        }
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        let mut end = Self {
            settings,
            wires,
            interface,
            sockets,
            handle,
            received: Vec::new(),
            written: 0,
            is_whole: false,
            is_reset: false,
        };
        end.work(0);
        end
    }

    fn reads(&self, now: Time) -> bool {
        let stall = self.settings.stall;
        stall.is_none_or(|(from, to)| now < from || now >= to)
    }

    /// Lets the stack do what is due, and the application read and write.
    fn work(&mut self, now: Time) {
        CLOCK.set((now / 1_000_000) as u32);
        let at = Instant::from_micros((now / 1000) as i64);
        // What the application takes or gives may be answered at once.
        for _ in 0..2 {
            self.interface.poll(at, &mut self.wires, &mut self.sockets);
            let reads = self.reads(now);
            let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
            while reads && socket.can_recv() {
                let take = |data: &mut [u8]| {
                    self.received.extend_from_slice(data);
                    (data.len(), ())
                };
                socket.recv(take).expect("it can");
            }
            let wanted = self.settings.reset_after;
            if wanted.is_some_and(|bytes| self.received.len() > bytes) {
                socket.abort();
            }
            let (there, _) = self.settings.written(now);
            if socket.may_send() && self.written < there {
                let rest = &self.settings.data[self.written..there];
                self.written += socket.send_slice(rest).expect("it may");
            }
            let is_written = self.written == self.settings.data.len();
            // Not both at once: smoltcp 0.14 does not always repeat a FIN in the state CLOSING.
            let may_close = match self.settings.active {
                true => socket.state() == State::CloseWait,
                false => matches!(socket.state(), State::Established | State::CloseWait),
            };
            if is_written && may_close {
                socket.close();
            }
            let is_ended = matches!(
                socket.state(),
                State::CloseWait | State::LastAck | State::Closing | State::TimeWait
            );
            self.is_whole |= is_ended && !socket.can_recv();
            self.is_reset |= socket.state() == State::Closed && !self.is_whole;
        }
    }

    fn socket(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }
}

fn endpoint(address: std::net::SocketAddr) -> (IpAddr, u16) {
    (address.ip(), address.port())
}

impl End for Smol {
    const MAY_HANG: bool = true;

    fn take(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.wires.sent)
    }

    fn receive(&mut self, now: Time, packet: &[u8]) {
        self.wires.arrived.push_back(packet.to_vec());
        self.work(now);
    }

    fn next_event(&mut self, now: Time) -> Option<Time> {
        let at = Instant::from_micros((now / 1000) as i64);
        let stack = self.interface.poll_at(at, &self.sockets);
        let stack = stack.map(|at| at.total_micros() as u64 * 1000);
        let stall = self.settings.stall.map(|(_, to)| to);
        let stall = stall.filter(|to| *to > now && self.socket().can_recv());
        let (there, writes) = self.settings.written(now);
        let writes = writes.filter(|_| self.socket().may_send() && self.written == there);
        stack.into_iter().chain(stall).chain(writes).min()
    }

    fn timeout(&mut self, now: Time) {
        self.work(now);
    }

    fn is_done(&self) -> bool {
        let is_sent = matches!(self.socket().state(), State::TimeWait | State::Closed);
        self.is_whole && (is_sent || self.socket().state() == State::FinWait2)
    }

    fn is_reset(&self) -> bool {
        self.is_reset
    }

    fn state(&self) -> String {
        let socket = self.socket();
        let (state, waiting) = (socket.state(), socket.send_queue());
        let rest = self.settings.data.len() - self.written;
        let received = self.received.len();
        format!("{state}: {waiting} bytes wait, {rest} behind them; {received} received")
    }

    fn received_bytes(&self) -> usize {
        self.received.len()
    }

    fn received(self) -> Vec<u8> {
        self.received
    }
}
