//! A queue of an interface: its socket, memory and rings.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
    XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::config::Transfer;
use crate::error::XdpError;
use crate::program::{STAMP_BYTES, STAMP_MARK};
use crate::ring::{Consumer, Producer, ring_bytes};
use crate::umem::{Mapping, Umem};

/// What drivers keep free in front of a frame that arrives.
const HEADROOM: usize = 256;
/// Chunks, of which the smaller ones hold a packet of 1500 bytes.
const CHUNK_SMALL: usize = 2048;
const CHUNK_LARGE: usize = 4096;
/// Memory for what arrives, and for what leaves.
const RX_BYTES: usize = 8 << 20;
const TX_BYTES: usize = 4 << 20;
/// Packets that may leave at a time.
const TX_SLOTS_MAX: usize = 2048;
/// Memory for packets on their way that the kernel has copied.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// Entries that the kernel copies for one call, at least: 16 before 2021, 32 since.
const COPIED_MIN: u32 = 16;
/// How often, and how long in between, binding is tried again: the kernel lets go of a queue some time after the process that had it.
const BIND_ATTEMPTS: u32 = 40;
const BIND_PAUSE: Duration = Duration::from_millis(50);

/// Sizes of frames, chunks and rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Bytes of a chunk.
    chunk: usize,
    /// Chunks for what arrives.
    rx_chunks: usize,
    /// Chunks of a slot, which lie next to each other, and slots.
    slot_chunks: usize,
    slots: usize,
    /// Frames take several chunks.
    pub(crate) is_multi: bool,
}

impl Sizes {
    /// For frames of so many bytes; `sends`: some will leave by this queue.
    pub(crate) fn for_frames(bytes: usize, sends: bool) -> Self {
        let chunk = if bytes + HEADROOM <= CHUNK_SMALL {
            CHUNK_SMALL
        } else {
            CHUNK_LARGE
        };
        let slot_chunks = bytes.div_ceil(chunk);
        let slots = (TX_BYTES / (slot_chunks * chunk)).min(TX_SLOTS_MAX);
        Self {
            chunk,
            rx_chunks: RX_BYTES / chunk,
            slot_chunks,
            slots: if sends { slots } else { 0 },
            is_multi: bytes + HEADROOM > chunk,
        }
    }

    fn bytes(&self) -> usize {
        self.chunk * (self.rx_chunks + self.slot_chunks * self.slots)
    }

    fn slot_bytes(&self) -> usize {
        self.chunk * self.slot_chunks
    }

    /// Entries of the rings for what leaves.
    fn tx_entries(&self) -> u32 {
        (self.slot_chunks * self.slots).next_power_of_two() as u32
    }
}

/// A socket with its memory, for one queue of an interface.
#[derive(Debug)]
pub(crate) struct Queue {
    rx: Consumer<XdpDesc>,
    fill: Producer<u64>,
    tx: Option<Producer<XdpDesc>>,
    completion: Consumer<u64>,
    socket: OwnedFd,
    umem: Umem,
    sizes: Sizes,
    is_zero_copy: bool,
    /// Slots that may be written, by their number.
    free: Vec<u32>,
    /// Parts of what each slot sends that have not come back.
    parts: Vec<u8>,
}

impl Queue {
    /// Opens a queue of an interface. `transfer`: how packets get into the memory, `None` for the best way.
    pub(crate) fn open(
        (interface, index): (&str, u32),
        queue: u32,
        transfer: Option<Transfer>,
        sizes: Sizes,
    ) -> Result<Self, XdpError> {
        let of =
            |step: &'static str| move |error: Errno| XdpError::of(step, interface, error.into());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
            .map_err(of("opening an AF_XDP socket"))?;
        let system =
            |step: &'static str| move |error: io::Error| XdpError::of(step, interface, error);
        let umem = Umem::new(sizes.bytes()).map_err(system("allocating frames"))?;
        let registration = XdpUmemReg {
            addr: umem.mapping().address(),
            len: umem.mapping().len() as u64,
            chunk_size: sizes.chunk as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&socket, registration).map_err(|error| match error {
            Errno::NOBUFS => XdpError::LockedMemory {
                bytes: sizes.bytes(),
            },
            error => of("sharing frames with the kernel")(error),
        })?;
        let rx_entries = sizes.rx_chunks as u32;
        let tx_entries = sizes.tx_entries();
        let sized = sockopt::set_xdp_umem_fill_ring_size(&socket, rx_entries)
            .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(&socket, tx_entries))
            .and_then(|()| sockopt::set_xdp_rx_ring_size(&socket, rx_entries))
            .and_then(|()| match sizes.slots {
                0 => Ok(()),
                _ => sockopt::set_xdp_tx_ring_size(&socket, tx_entries),
            });
        sized.map_err(of("making rings"))?;
        let offsets = sockopt::xdp_mmap_offsets(&socket).map_err(of("making rings"))?;
        let map = |page, bytes| Mapping::shared(socket.as_fd(), page, bytes);
        let rings = || -> io::Result<_> {
            let rx = map(
                XDP_PGOFF_RX_RING,
                ring_bytes::<XdpDesc>(&offsets.rx, rx_entries),
            )?;
            let fill = map(
                XDP_UMEM_PGOFF_FILL_RING,
                ring_bytes::<u64>(&offsets.fr, rx_entries),
            )?;
            let completion = ring_bytes::<u64>(&offsets.cr, tx_entries);
            let completion = map(XDP_UMEM_PGOFF_COMPLETION_RING, completion)?;
            let tx = match sizes.slots {
                0 => None,
                _ => {
                    let bytes = ring_bytes::<XdpDesc>(&offsets.tx, tx_entries);
                    Some(Producer::new(
                        map(XDP_PGOFF_TX_RING, bytes)?,
                        &offsets.tx,
                        tx_entries,
                    )?)
                }
            };
            Ok((
                Consumer::new(rx, &offsets.rx, rx_entries)?,
                Producer::new(fill, &offsets.fr, rx_entries)?,
                Consumer::new(completion, &offsets.cr, tx_entries)?,
                tx,
            ))
        };
        let (rx, mut fill, completion, tx) = rings().map_err(system("making rings"))?;
        for chunk in 0..sizes.rx_chunks {
            fill.push((chunk * sizes.chunk) as u64);
        }
        fill.publish();
        // What the system's limit does not allow is done without.
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER_BYTES)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES));
        bind(&socket, (interface, index), queue, transfer, sizes.is_multi)?;
        let options = sockopt::xdp_options(&socket).map_err(of("asking for the options"))?;
        Ok(Self {
            rx,
            fill,
            tx,
            completion,
            socket,
            umem,
            sizes,
            is_zero_copy: options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY),
            free: (0..sizes.slots as u32).rev().collect(),
            parts: vec![0; sizes.slots],
        })
    }

    /// The card reads and writes the frames itself.
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Memory for packets that have arrived, in bytes.
    pub(crate) fn rx_bytes(&self) -> usize {
        self.sizes.rx_chunks * self.sizes.chunk
    }

    /// Whether nothing has arrived.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.rx.is_empty()
    }

    /// Takes the next packet, or the next part of one: where it is, and whether more of it follows. Its frame has to be [given
    /// back](Self::give_back).
    pub(crate) fn take(&mut self) -> Option<(Range<usize>, bool)> {
        let desc = self.rx.pop()?;
        let (start, len) = (desc.addr as usize, desc.len as usize);
        let more = desc.options.contains(XdpDescOptions::XDP_PKT_CONTD);
        Some((start..start.saturating_add(len), more))
    }

    /// What of a frame that was taken lies there; nothing if the kernel has told of a place where there can be none.
    pub(crate) fn taken(&mut self, place: &Range<usize>) -> &mut [u8] {
        let rx_end = self.sizes.rx_chunks * self.sizes.chunk;
        if place.end > rx_end {
            return &mut [];
        }
        // SAFETY: the frame is one for what arrives, has been taken out of the ring, and is not given back while it is borrowed.
        let frame = unsafe { self.umem.frame(place.start, place.len()) };
        frame.unwrap_or_default()
    }

    /// When the packet of a frame that was taken arrived, by the monotonic clock, in nanoseconds, if the program could say so. It says so once.
    pub(crate) fn take_stamp(&mut self, place: &Range<usize>) -> Option<u64> {
        let rx_end = self.sizes.rx_chunks * self.sizes.chunk;
        if place.start % self.sizes.chunk < STAMP_BYTES || place.start > rx_end {
            return None;
        }
        // SAFETY: it is the part in front of a frame for what arrives, in the same chunk, that has been taken out of the ring.
        let stamp = unsafe { self.umem.frame(place.start - STAMP_BYTES, STAMP_BYTES) }?;
        let (at, mark) = stamp.split_first_chunk_mut::<8>()?;
        let is_marked = *mark == u64::from(STAMP_MARK.cast_unsigned()).to_ne_bytes();
        // Whatever is written here next without a mark is not to be taken for this.
        mark.fill(0);
        is_marked.then(|| u64::from_ne_bytes(*at))
    }

    /// Gives the kernel a frame for what arrives next.
    pub(crate) fn give_back(&mut self, place: &Range<usize>) {
        let chunk = self.sizes.chunk;
        let start = place.start - place.start % chunk;
        if start < self.sizes.rx_chunks * chunk {
            // There is room, as there is for every chunk.
            self.fill.push(start as u64);
        }
    }

    /// Lets the kernel know what has been taken and given back since.
    pub(crate) fn release(&mut self) {
        self.rx.release();
        self.fill.publish();
        if self.is_zero_copy && self.fill.needs_wakeup() {
            // The driver has run out of frames, and looks again.
            let nothing: &mut [u8] = &mut [];
            let _ = rustix::net::recv(&self.socket, nothing, RecvFlags::DONTWAIT);
        }
    }

    /// A slot to write a frame into.
    pub(crate) fn take_slot(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.reap();
        }
        self.free.pop()
    }

    /// What is in a slot, so many bytes, at most as many as a frame of the interface has.
    pub(crate) fn slot(&mut self, slot: u32, len: usize) -> &mut [u8] {
        let start = self.slot_start(slot);
        let len = len.min(self.sizes.slot_bytes());
        // SAFETY: slots lie behind the frames for what arrives. It has been taken, and is in no ring before it is sent.
        unsafe { self.umem.frame(start, len) }.unwrap_or_default()
    }

    /// Puts a slot aside that is not sent.
    pub(crate) fn free_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Hands a slot over to be sent, once it is [published](Self::kick); `false` if there is no room for it now.
    pub(crate) fn send_slot(&mut self, slot: u32, len: usize) -> bool {
        let start = self.slot_start(slot);
        let chunk = self.sizes.chunk;
        let parts = len.div_ceil(chunk);
        let Some(tx) = &mut self.tx else {
            return false;
        };
        if !tx.has_room(parts as u32) {
            return false;
        }
        if let Some(left) = self.parts.get_mut(slot as usize) {
            // There are fewer than 16: no packet is longer than 64 KiB and a chunk.
            *left = parts as u8;
        }
        for part in 0..parts {
            let at = part * chunk;
            let options = if part + 1 < parts {
                XdpDescOptions::XDP_PKT_CONTD
            } else {
                XdpDescOptions::empty()
            };
            tx.push(XdpDesc {
                addr: (start + at) as u64,
                len: (len - at).min(chunk) as u32,
                options,
            });
        }
        true
    }

    fn slot_start(&self, slot: u32) -> usize {
        self.sizes.rx_chunks * self.sizes.chunk + slot as usize * self.sizes.slot_bytes()
    }

    /// Has the kernel send what was handed over; how many calls that took, and whether all of it is on its way.
    ///
    /// # Errors
    ///
    /// When the interface is off or gone, or the socket unusable.
    pub(crate) fn kick(&mut self) -> (u64, io::Result<bool>) {
        let Some(tx) = &mut self.tx else {
            return (0, Ok(true));
        };
        tx.publish();
        let send = || rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT).map(drop);
        if !self.is_zero_copy {
            return copy_all(|| tx.waiting(), send);
        }
        if tx.waiting() == 0 || !tx.needs_wakeup() {
            return (0, Ok(true));
        }
        // A card goes on by itself.
        let sent = match send() {
            Ok(()) => Ok(true),
            Err(error) if is_later(error) => Ok(false),
            Err(error) => Err(error.into()),
        };
        (1, sent)
    }

    /// Takes back the slots of what has been sent.
    pub(crate) fn reap(&mut self) {
        let (chunk, slot_bytes) = (self.sizes.chunk, self.sizes.slot_bytes());
        let first = self.sizes.rx_chunks * chunk;
        while let Some(address) = self.completion.pop() {
            let Some(at) = (address as usize).checked_sub(first) else {
                continue;
            };
            let slot = at / slot_bytes;
            // A slot is free once all parts of its frame have been read.
            match self.parts.get_mut(slot) {
                Some(parts @ 1) => {
                    *parts = 0;
                    self.free.push(slot as u32);
                }
                Some(parts) => *parts = parts.saturating_sub(1),
                None => {}
            }
        }
        self.completion.release();
    }
}

/// Has the kernel copy what waits, a part for each call, until all is on its way or it takes no more. `waiting`: entries that it has not read, as far as it tells.
///
/// Since Linux 6.17 or so it tells after each call. Before, it tells only once it has read all that it found when it last looked, and a call that has copied its part
/// looks like one that has copied nothing. So calls that seem to do nothing are repeated for as long as their parts may not have been all.
fn copy_all(
    mut waiting: impl FnMut() -> u32,
    mut send: impl FnMut() -> Result<(), Errno>,
) -> (u64, io::Result<bool>) {
    let (mut calls, mut untold) = (0, 0);
    let mut left = waiting();
    while left > 0 {
        calls += 1;
        let sent = send();
        let before = std::mem::replace(&mut left, waiting());
        untold = if left < before { 0 } else { untold + 1 };
        match sent {
            _ if untold == 0 => {}
            Err(Errno::AGAIN) if untold < left.div_ceil(COPIED_MIN) => {}
            Ok(()) => return (calls, Ok(false)),
            Err(error) if is_later(error) => return (calls, Ok(false)),
            Err(error) => return (calls, Err(error.into())),
        }
    }
    (calls, Ok(true))
}

/// Whether the same call may succeed later.
fn is_later(error: Errno) -> bool {
    matches!(
        error,
        Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR
    )
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bind(
    socket: &OwnedFd,
    (interface, index): (&str, u32),
    queue: u32,
    transfer: Option<Transfer>,
    is_multi: bool,
) -> Result<(), XdpError> {
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    match transfer {
        Some(Transfer::Copy) => flags |= SocketAddrXdpFlags::XDP_COPY,
        Some(Transfer::ZeroCopy) => flags |= SocketAddrXdpFlags::XDP_ZEROCOPY,
        None => {}
    }
    if is_multi {
        flags |= SocketAddrXdpFlags::XDP_USE_SG;
    }
    let address = SocketAddrXdp::new(flags, index, queue);
    let mut attempts = 1;
    let named = || interface.to_owned();
    loop {
        match rustix::net::bind(socket, &address) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) if attempts < BIND_ATTEMPTS => {
                attempts += 1;
                thread::sleep(BIND_PAUSE);
            }
            Err(Errno::BUSY) => {
                return Err(XdpError::QueueBusy {
                    interface: named(),
                    queue,
                });
            }
            Err(Errno::INVAL) if queue > 0 || !is_multi => {
                return Err(XdpError::NoQueue {
                    interface: named(),
                    queue,
                });
            }
            Err(error) if transfer == Some(Transfer::ZeroCopy) => {
                return Err(XdpError::NoZeroCopy {
                    interface: named(),
                    queue,
                    source: error.into(),
                });
            }
            Err(error) => return Err(XdpError::of("binding to a queue", interface, error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A kernel that copies a part of what waits for each call.
    struct Kernel {
        waits: u32,
        /// What it says of that, and whether it does so after each call, or only once nothing waits.
        told: u32,
        tells: bool,
        part: u32,
        /// How many entries it has room for.
        room: u32,
    }

    impl Kernel {
        fn send(&mut self) -> Result<(), Errno> {
            let copied = self.part.min(self.waits).min(self.room);
            self.waits -= copied;
            self.room -= copied;
            if self.tells || self.waits == 0 {
                self.told = self.waits;
            }
            match self.waits {
                0 => Ok(()),
                _ => Err(Errno::AGAIN),
            }
        }

        fn copy_all(self) -> (u64, bool) {
            let kernel = RefCell::new(self);
            let waiting = || kernel.borrow().told;
            let (calls, all) = copy_all(waiting, || kernel.borrow_mut().send());
            (calls, all.unwrap())
        }
    }

    #[test]
    fn all_is_copied_also_by_a_kernel_that_does_not_tell() {
        for (part, tells) in [(16, false), (32, false), (32, true)] {
            for waits in [0, 1, 16, 17, 32, 160, 175, 1024] {
                let kernel = Kernel {
                    waits,
                    told: waits,
                    tells,
                    part,
                    room: u32::MAX,
                };
                let calls = u64::from(waits.div_ceil(part));
                assert_eq!(kernel.copy_all(), (calls, true), "{waits} by {part}");
            }
        }
    }

    #[test]
    fn a_kernel_that_is_full_is_not_asked_for_ever() {
        for (room, tells, calls_max) in [
            (0, true, 11),
            (0, false, 11),
            (64, true, 9),
            (64, false, 11),
        ] {
            let kernel = Kernel {
                waits: 175,
                told: 175,
                tells,
                part: 32,
                room,
            };
            let (calls, all) = kernel.copy_all();
            assert!(calls <= calls_max && !all, "{calls}");
        }
    }

    #[test]
    fn other_errors_end_it() {
        let (calls, all) = copy_all(|| 175, || Err(Errno::NETDOWN));
        assert_eq!((calls, all.is_err()), (1, true));
        for later in [Ok(()), Err(Errno::NOBUFS), Err(Errno::BUSY)] {
            let (calls, all) = copy_all(|| 175, || later);
            assert_eq!((calls, all.unwrap()), (1, false));
        }
    }

    #[test]
    fn chunks_hold_what_the_interface_has() {
        let usual = Sizes::for_frames(1514, true);
        assert_eq!(
            (usual.chunk, usual.slot_chunks, usual.is_multi),
            (2048, 1, false)
        );
        let jumbo = Sizes::for_frames(9014, true);
        assert_eq!(
            (jumbo.chunk, jumbo.slot_chunks, jumbo.is_multi),
            (4096, 3, true)
        );
        let page = Sizes::for_frames(3840, true);
        assert_eq!(
            (page.chunk, page.slot_chunks, page.is_multi),
            (4096, 1, false)
        );
        for sizes in [usual, jumbo, page] {
            assert!(sizes.rx_chunks.is_power_of_two() && sizes.slots > 0);
            assert!(sizes.bytes() <= RX_BYTES + TX_BYTES);
        }
        assert_eq!(Sizes::for_frames(1514, false).slots, 0);
    }
}
