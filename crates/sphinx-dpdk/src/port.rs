//! A port, a burst at a time: all that is `unsafe`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use sphinx_ether::{ETHERNET_BYTES, Mac, Sums, UDP_BYTES};

use crate::eal::Eal;
use crate::error::DpdkError;

/// Packets of a burst, at most.
pub(crate) const BURST: usize = 32;
/// Packets that a queue of the card may have, each way, and those that there are for each.
const DESCRIPTORS: u16 = 1024;
const PACKETS: u32 = 8191;
/// The longest name of a card, with its driver's arguments.
const DEVICE_BYTES: usize = 512;

/// What a port says of itself; as in `shim.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    mtu: u16,
    mac: Mac,
    driver: [u8; 32],
    tx_sums: u8,
    rx_sums: u8,
    queues: u16,
}

// Checksums that the card sees to; as in `shim.c`.
const IPV4: u8 = 1;
const UDP: u8 = 2;

fn sums_of(bits: u8) -> Sums {
    Sums {
        ipv4: bits & IPV4 != 0,
        udp: bits & UDP != 0,
    }
}

// As in `shim.c`. What is behind the pointers to packets and pools is DPDK's own.
unsafe extern "C" {
    fn sphx_eal_init(count: c_int, words: *mut *mut c_char) -> c_int;
    fn sphx_first_port(port: *mut u16) -> c_int;
    fn sphx_port_open(
        port: u16,
        queues: u16,
        descriptors: u16,
        packets: u32,
        mtu: u16,
        pool: *mut *mut c_void,
        told: *mut Told,
    ) -> c_int;
    fn sphx_port_close(port: u16, device: *mut c_char, room: u16);
    fn sphx_port_again(device: *const c_char) -> c_int;
    fn sphx_thread_register();
    fn sphx_thread_unregister();
    fn sphx_rx_burst(
        port: u16,
        queue: u16,
        packets: *mut *mut c_void,
        data: *mut *mut u8,
        lengths: *mut u32,
        sums: *mut u8,
        most: u16,
    ) -> u16;
    fn sphx_alloc(
        pool: *mut c_void,
        length: u16,
        ip: u8,
        sums: u8,
        data: *mut *mut u8,
    ) -> *mut c_void;
    fn sphx_tx_burst(port: u16, queue: u16, packets: *mut *mut c_void, count: u16, sums: u8)
    -> u16;
    fn sphx_free(packets: *mut *mut c_void, count: u16);
}

fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Starts the library. To be called once in a process.
pub(crate) fn start_eal(words: Vec<CString>) -> io::Result<()> {
    // It changes their order, and keeps some: they stay for as long as the process does.
    let mut words: Vec<*mut c_char> = words.into_iter().map(CString::into_raw).collect();
    words.push(std::ptr::null_mut());
    let words = words.leak();
    // SAFETY: there are as many words as it is told of, behind which a null pointer stands; they live for ever, and nobody else uses them.
    check(unsafe { sphx_eal_init(words.len() as c_int - 1, words.as_mut_ptr()) })
}

/// A packet's memory, lent by the library.
#[derive(Debug)]
pub(crate) struct Packet {
    mbuf: NonNull<c_void>,
    data: NonNull<u8>,
    len: usize,
    sums: u8,
    _not_shared: PhantomData<*mut u8>,
}

// SAFETY: a packet belongs to whoever has it, on whatever thread; the library's pools take packets back from any.
unsafe impl Send for Packet {}

impl Packet {
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the library has given as many bytes there, in one piece, and nobody else has the packet. They began as zeros, as the memory
        // of pools does, or hold what was in them last.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Checksums that the card has found right, of a packet that was received.
    pub(crate) fn right_sums(&self) -> Sums {
        sums_of(self.sums)
    }

    /// Whoever gets the pointer has the packet.
    fn into_raw(self) -> *mut c_void {
        let mbuf = self.mbuf.as_ptr();
        std::mem::forget(self);
        mbuf
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        let mut mbuf = self.mbuf.as_ptr();
        // SAFETY: it is one packet, which nobody has any more.
        unsafe { sphx_free(&raw mut mbuf, 1) };
    }
}

/// A port that is on.
#[derive(Debug)]
pub(crate) struct Port {
    id: u16,
    pool: NonNull<c_void>,
    pub(crate) mtu: usize,
    pub(crate) mac: Mac,
    pub(crate) driver: String,
    tx_sums: u8,
    rx_sums: u8,
    eal: Eal,
}

// SAFETY: it is not written to, and the library's pools may be used by several threads at once.
unsafe impl Send for Port {}
// SAFETY: as above. Queues, which may not, are those who have them.
unsafe impl Sync for Port {}

/// A queue of a port, each way.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) port: Arc<Port>,
    number: u16,
    is_registered: bool,
}

impl Port {
    /// Turns on the first port that the library has found, with so many queues, and with packets of at most so many bytes if that is given.
    pub(crate) fn open(
        eal: Eal,
        mtu: Option<u16>,
        queues: usize,
    ) -> Result<impl Iterator<Item = Queue>, DpdkError> {
        let queues = u16::try_from(queues).unwrap_or(u16::MAX);
        let (mut id, mut pool, mut told) = (0, std::ptr::null_mut(), Told::default());
        // SAFETY: the pointer is valid for writing.
        if unsafe { sphx_first_port(&raw mut id) } != 0 {
            let device = eal.device().ok_or(DpdkError::NoPort)?;
            // SAFETY: there is a string, which ends with a zero.
            check(unsafe { sphx_port_again(device.as_ptr()) }).map_err(DpdkError::Port)?;
            // SAFETY: the pointer is valid for writing.
            check(unsafe { sphx_first_port(&raw mut id) }).map_err(|_| DpdkError::NoPort)?;
        }
        // SAFETY: the pointers are valid for writing. Who has `eal` is the only one to use the port.
        let opened = check(unsafe {
            sphx_port_open(
                id,
                queues,
                DESCRIPTORS,
                PACKETS * u32::from(queues),
                mtu.unwrap_or(0),
                &raw mut pool,
                &raw mut told,
            )
        });
        let driver = CStr::from_bytes_until_nul(&told.driver).unwrap_or_default();
        opened.map_err(|error| match told.queues {
            has if (1..queues).contains(&has) => DpdkError::Queues {
                driver: driver.to_string_lossy().into_owned(),
                has,
                wanted: queues,
            },
            _ => DpdkError::Port(error),
        })?;
        let pool = NonNull::new(pool).ok_or(DpdkError::NoPort)?;
        let port = Arc::new(Self {
            id,
            pool,
            mtu: usize::from(told.mtu),
            mac: told.mac,
            driver: driver.to_string_lossy().into_owned(),
            tx_sums: told.tx_sums,
            rx_sums: told.rx_sums,
            eal,
        });
        Ok((0..queues).map(move |number| Queue {
            port: Arc::clone(&port),
            number,
            is_registered: false,
        }))
    }

    /// Checksums of datagrams that the card computes.
    pub(crate) fn sends(&self) -> Sums {
        sums_of(self.tx_sums)
    }

    /// Checksums that the card looks at.
    pub(crate) fn reads(&self) -> Sums {
        sums_of(self.rx_sums)
    }

    /// A frame of so many bytes, to be written; `None` while there is none.
    pub(crate) fn allocate(&self, len: usize) -> Option<Packet> {
        self.allocate_with(len, (0, 0))
    }

    /// The same for a datagram of so many bytes, whose IP header has `ip`; the card [computes](Self::sends) its checksums.
    pub(crate) fn allocate_datagram(&self, ip: usize, len: usize) -> Option<Packet> {
        let ip_bytes = u8::try_from(ip).ok()?;
        let len = ETHERNET_BYTES + ip + UDP_BYTES + len;
        self.allocate_with(len, (ip_bytes, self.tx_sums))
    }

    fn allocate_with(&self, len: usize, (ip, sums): (u8, u8)) -> Option<Packet> {
        let bytes = u16::try_from(len).ok()?;
        let mut data = std::ptr::null_mut();
        // SAFETY: the pool is this port's and lives as long as the process; the pointer is valid for writing.
        let mbuf = unsafe { sphx_alloc(self.pool.as_ptr(), bytes, ip, sums, &raw mut data) };
        Some(Packet {
            mbuf: NonNull::new(mbuf)?,
            data: NonNull::new(data)?,
            len,
            sums: 0,
            _not_shared: PhantomData,
        })
    }
}

impl Queue {
    /// Appends what has arrived, at most a burst, to `packets`; how many there were.
    pub(crate) fn receive(&mut self, packets: &mut Vec<Packet>) -> usize {
        if !self.is_registered {
            // Once, on the thread that does the work.
            self.is_registered = true;
            // SAFETY: it concerns the calling thread only.
            unsafe { sphx_thread_register() };
        }
        let mut mbufs = [std::ptr::null_mut(); BURST];
        let mut data = [std::ptr::null_mut(); BURST];
        let mut lengths = [0; BURST];
        let mut sums = [0; BURST];
        // SAFETY: there is room for as many as it may return in each. The port is on, and nobody else has its queue.
        let count = unsafe {
            sphx_rx_burst(
                self.port.id,
                self.number,
                mbufs.as_mut_ptr(),
                data.as_mut_ptr(),
                lengths.as_mut_ptr(),
                sums.as_mut_ptr(),
                BURST as u16,
            )
        };
        let count = usize::from(count).min(BURST);
        for index in 0..count {
            if let (Some(mbuf), Some(data)) =
                (NonNull::new(mbufs[index]), NonNull::new(data[index]))
            {
                packets.push(Packet {
                    mbuf,
                    data,
                    len: lengths[index] as usize,
                    sums: sums[index],
                    _not_shared: PhantomData,
                });
            }
        }
        count
    }

    /// Sends the first packets of a queue, as many as the card takes, and removes them; whether all have gone.
    pub(crate) fn send(&mut self, packets: &mut Vec<Packet>) -> bool {
        let mut sent = 0;
        while sent < packets.len() {
            let burst = (packets.len() - sent).min(BURST);
            let mut mbufs = [std::ptr::null_mut(); BURST];
            for (mbuf, packet) in mbufs.iter_mut().zip(&packets[sent..]) {
                *mbuf = packet.mbuf.as_ptr();
            }
            // SAFETY: there are as many packets as it is told of. What it takes is the driver's and is forgotten here below; the rest stays.
            let taken = unsafe {
                sphx_tx_burst(
                    self.port.id,
                    self.number,
                    mbufs.as_mut_ptr(),
                    burst as u16,
                    self.port.tx_sums,
                )
            };
            let taken = usize::from(taken).min(burst);
            sent += taken;
            if taken < burst {
                break;
            }
        }
        for packet in packets.drain(..sent) {
            packet.into_raw();
        }
        packets.is_empty()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut device = [0_u8; DEVICE_BYTES];
        // SAFETY: nobody has a queue of the port any more. Packets that are still somewhere belong to the pool, which stays.
        // There is room for as many bytes as it is told of.
        unsafe { sphx_port_close(self.id, device.as_mut_ptr().cast(), DEVICE_BYTES as u16) };
        if let Ok(device) = CStr::from_bytes_until_nul(&device) {
            self.eal.note_device(device);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.is_registered {
            // SAFETY: it concerns the calling thread only, and does nothing for one that was not registered.
            unsafe { sphx_thread_unregister() };
        }
    }
}
