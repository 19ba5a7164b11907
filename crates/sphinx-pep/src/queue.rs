//! Traffic of one interface, or of this machine, led to an agent by the packet filter's queue: on end hosts too, where no
//! routing could lead it to a device.
//!
//! Packets that come in by the wireless interface are judged before it is decided where they go, those that
//! go out by it when they are about to; those of chosen connections of this machine where they reach it and leave it. What the agent passes goes on from there; what it sends by
//! itself comes from a raw socket, with a mark by which the rules leave it alone. Rules and queue vanish with
//! the process.
//!
//! Where addresses are translated, packets come with those of the inner network. What is sent from here then has to be translated in one direction
//! only (`docs/decisions/0154-inner-addresses.md`).
//!
//! Of a bridge's port, packets come where the bridge forwards them, and [`ports`] knows how others leave it.

mod ports;

use std::{
    io,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ports::Ports;
use rustix::{
    fd::{AsFd, BorrowedFd},
    io::Errno,
    net::netdevice::name_to_index,
};
use sphinx_netdev::{
    ethernet::index_and_is_port,
    filter::may_translate,
    nfqueue::{
        Hook, Inbox, Queue, Queued, RawSender, Rules, Selection, is_taken, read, shows_ports,
    },
};

use crate::{
    Agent, Cause, Output, Place, Side, Time,
    attach::{Port, Served},
    segment::Segment,
};

/// The table of the rules, and the number of the queue.
pub(crate) const TABLE: &str = "sphx-pep";
pub(crate) const QUEUE: u16 = 7749;
/// Mark of packets that the agent itself sends: rules do not lead them to it again.
const MARK: u32 = 0x7749_7749;
/// Mark of those among them that are no part of a tracked connection; they leave with [`MARK`].
const MARK_UNTRACKED: u32 = 0x7749_774a;
/// Most packets that wait for the agent; while the queue is full, others pass without it.
const QUEUE_PACKETS: u32 = 1024;
/// So many packets are read, or a few more, before the loop turns to other things.
const BATCH: usize = 64;
/// How often it is looked whether the interface is still the one that it was, and whether addresses are translated.
const INTERFACE_POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Interface {
    name: String,
    index: u32,
}

/// A queue, and the rules that lead there.
#[derive(Debug)]
pub(crate) struct Filtered {
    rules: Rules,
    queue: Queue,
    sender: RawSender,
    /// The wireless interface, if it was one that was chosen.
    interface: Option<Interface>,
    ports: Option<Ports>,
    /// What is sent from here goes untracked where that has to be, or the kernel has no rules for that.
    tells_tracked_apart: bool,
    looked: Instant,
    inbox: Inbox,
    /// Packets that have been read since the queue was last empty.
    waiting: usize,
    refused: u64,
    /// The side whose packets come in by the interface.
    beyond: Side,
}

impl Filtered {
    /// See [`Attachment::nfqueue`](crate::attach::Attachment::nfqueue).
    pub(crate) fn of_interface(name: &str, place: Place) -> io::Result<Filtered> {
        let (index, is_port) = index_and_is_port(name)?;
        if is_port && !shows_ports() {
            let message = format!(
                "{name} is a port of a bridge, which does not show its packets to the packet filter: \
                 modprobe br_netfilter; sysctl net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1; \
                 or, for what this machine routes, name the bridge"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let name = name.to_owned();
        let selection = match is_port {
            true => Selection::Port(name.clone()),
            false => Selection::Interface(name.clone()),
        };
        let mut filtered = Filtered::open(&selection, place)?;
        filtered.sender.set_interface(index);
        filtered.interface = Some(Interface { name, index });
        filtered.ports = is_port.then(|| Ports::new(index));
        filtered.see_translation();
        Ok(filtered)
    }

    /// See [`of_interface`](Filtered::of_interface) and [`Attachment::own`](crate::attach::Attachment::own).
    pub(crate) fn open(selection: &Selection, place: Place) -> io::Result<Filtered> {
        if is_open()? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let sender = RawSender::open(MARK)?;
        // Somebody else's queue cannot be had, although there are rights.
        let queue = Queue::open(QUEUE, QUEUE_PACKETS).map_err(|error| {
            let message = format!("queue {QUEUE} of the packet filter: {error}");
            match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    io::Error::new(io::ErrorKind::ResourceBusy, message)
                }
                kind => io::Error::new(kind, message),
            }
        })?;
        Ok(Filtered {
            rules: Rules::install(TABLE, selection, QUEUE, MARK).map_err(missing)?,
            queue,
            sender,
            interface: None,
            ports: None,
            tells_tracked_apart: false,
            looked: Instant::now(),
            inbox: Inbox::new(),
            waiting: 0,
            refused: 0,
            beyond: place.sender().other(),
        })
    }

    /// Where addresses are translated, those of what is sent from here have to be so in one direction, and must not be in the other one. What leaves a bridge by a port
    /// does not come by connection tracking.
    fn see_translation(&mut self) {
        if self.tells_tracked_apart || self.ports.is_some() || !may_translate() {
            return;
        }
        self.tells_tracked_apart = match self.tell_tracked_apart() {
            Ok(()) => true,
            // A kernel that has no such rules will have none later either; a lack of memory, say, may be over at the next look.
            Err(error) => {
                [Some(Errno::NOENT), Some(Errno::OPNOTSUPP)].contains(&Errno::from_io_error(&error))
            }
        };
    }

    fn tell_tracked_apart(&mut self) -> io::Result<()> {
        // First: with the rules alone, what they refuse could not be sent at all.
        let untracked = RawSender::open(MARK_UNTRACKED)?;
        match self.rules.tell_tracked_apart(MARK, MARK_UNTRACKED) {
            // They are there since an earlier look, whose answer was lost.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            told => told?,
        }
        self.sender.set_untracked(untracked);
        Ok(())
    }

    /// Looks whether another interface has the name. True if that is the port of a bridge: packets were not judged until now.
    fn see_interface(&mut self) -> bool {
        let Some(interface) = &mut self.interface else {
            return false;
        };
        // This waits for no lock of the kernel, unlike what follows.
        if name_to_index(&self.queue, &interface.name) == Ok(interface.index) {
            return false;
        }
        // An interface that is gone may come again, so its rules stay.
        let Ok((index, is_port)) = index_and_is_port(&interface.name) else {
            return false;
        };
        // A new interface is made first, and put into its bridge afterwards.
        if is_port != self.ports.is_some() {
            return false;
        }
        interface.index = index;
        self.sender.set_interface(index);
        self.ports = is_port.then(|| Ports::new(index));
        is_port
    }

    /// Lets the agent judge a packet.
    fn handle(&mut self, queued: Queued<'_>, agent: &mut Agent, now: Time) {
        let incoming = [Hook::Prerouting as u8, Hook::Input as u8];
        let is_incoming = match &self.ports {
            Some(ports) => match ports.is_incoming(&queued) {
                Some(is_incoming) => is_incoming,
                None => return self.queue.accept(queued.id),
            },
            None => incoming.contains(&queued.hook),
        };
        let from = match is_incoming {
            true => self.beyond,
            false => self.beyond.other(),
        };
        let packet = Bytes::copy_from_slice(queued.packet);
        if let Some(ports) = &mut self.ports {
            ports.learn(&queued, || agent.is_of_host(from, &packet));
        }
        agent.handle_packet(now, from, packet.clone());
        let mut judged = false;
        while let Some(output) = agent.poll_output() {
            let onward = !judged && output.to == from.other();
            match output.cause {
                // The agent has not changed the packet.
                Cause::Passed if onward && output.packet.as_ptr() == packet.as_ptr() => {
                    self.queue.accept(queued.id);
                    judged = true;
                }
                Cause::Bundled | Cause::Concealed | Cause::Slowed
                    if onward && are_of_one_flow(&output.packet, &packet) =>
                {
                    self.queue.replace(queued.id, &output.packet);
                    judged = true;
                }
                _ => self.inject(&output),
            }
        }
        if judged {
            return;
        }
        match self.knows_way_of(&packet) && !self.goes_at_once(&packet) {
            // It is held, or waits in the agent's own queue, and will be sent from here.
            true => self.queue.drop(queued.id),
            // The agent cannot send the packet itself, or the packet may not wait.
            false => self.queue.accept(queued.id),
        }
    }

    fn knows_way_of(&self, packet: &[u8]) -> bool {
        let known = |ports: &Ports| ports.know_way_of(packet);
        self.ports.as_ref().is_none_or(known)
    }

    /// Whether a packet never waits. Had that of a SYN been dropped, connection tracking would have forgotten how its destination was translated, and the
    /// answer would come from an address that nobody has asked. At a port, the way of a connection is not known before its answer was answered.
    fn goes_at_once(&self, packet: &[u8]) -> bool {
        match self.ports {
            Some(_) => Segment::begins(packet),
            None => Segment::opens(packet),
        }
    }

    /// Sends a packet that is not on its way in the kernel.
    fn inject(&mut self, output: &Output) {
        let is_new = output.cause == Cause::Repair;
        if self.goes_at_once(&output.packet) || !(is_new || self.knows_way_of(&output.packet)) {
            // The packet has gone on already, or adds nothing to one that has.
            return;
        }
        // What was passed before it leaves first.
        self.flush();
        let sent = match &mut self.ports {
            Some(ports) => ports.send(&output.packet),
            None => self.sender.send(&output.packet),
        };
        self.refused += u64::from(sent.is_err());
    }

    fn flush(&mut self) {
        self.refused += u64::from(self.queue.flush().is_err());
    }
}

/// "Not found" is said of parts of the kernel, not of an interface.
fn missing(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            let message = "the packet filter of this kernel has no queues";
            io::Error::new(io::ErrorKind::Unsupported, message)
        }
        _ => error,
    }
}

/// Whether the kernel's packet may carry the bytes of another: its route, its translation of addresses and the host that it goes to are
/// those of its flow.
fn are_of_one_flow(one: &[u8], other: &[u8]) -> bool {
    matches!(
        (Segment::ends(one), Segment::ends(other)),
        (Ok(one), Ok(other)) if one == other
    )
}

/// Whether an agent of this kind is there.
pub(crate) fn is_open() -> io::Result<bool> {
    is_taken(TABLE)
}

impl Port for Filtered {
    fn inputs(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.queue.as_fd()]
    }

    fn serve(&mut self, _: usize, agent: &mut Agent, now: &dyn Fn() -> Time) -> io::Result<Served> {
        let mut inbox = std::mem::take(&mut self.inbox);
        let (mut packets, mut emptied) = (0, false);
        let mut result = Ok(());
        while packets < BATCH && !emptied {
            match self.queue.receive(&mut inbox) {
                Ok(all) => {
                    emptied = all;
                    for message in inbox.messages() {
                        read(message, |queued| {
                            packets += 1;
                            self.handle(queued, agent, now());
                            if self.queue.is_full() {
                                self.flush();
                            }
                        });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    emptied = true;
                }
                // Packets that found the queue full have passed without the agent.
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                    agent.handle_unseen(now());
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.inbox = inbox;
        self.flush();
        self.waiting += packets;
        if self.waiting >= QUEUE_PACKETS as usize {
            // The queue may have been full, and then others have passed.
            agent.handle_unseen(now());
        }
        if emptied {
            self.waiting = 0;
        }
        result.map(|()| Served { packets, emptied })
    }

    fn send(&mut self, agent: &mut Agent) {
        while let Some(output) = agent.poll_output() {
            self.inject(&output);
        }
    }

    fn look(&mut self) -> io::Result<bool> {
        if self.interface.is_none() || self.looked.elapsed() < INTERFACE_POLL_INTERVAL {
            return Ok(false);
        }
        self.looked = Instant::now();
        self.see_translation();
        Ok(self.see_interface())
    }

    fn withdraw(&mut self) -> io::Result<()> {
        self.rules.remove()
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}
