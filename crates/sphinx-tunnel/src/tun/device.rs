//! A network interface in an event loop.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

use sphinx_netdev::tun::{JoiningTun, MTU_MAX, TunConfig, Unfinished};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::MTU;

/// Packets, joined ones count once, that are taken before others have their turn.
const TURN: usize = 32;
/// Packets that the kernel keeps while this end is busy. The queue that matters is ours.
const QUEUE_PACKETS: u32 = 500;
/// Names that are tried where none is asked for.
const NAMES_MAX: u32 = 64;

/// An interface whose packets come here.
pub(super) struct Device {
    file: AsyncFd<Raw>,
    buffer: Mutex<Vec<u8>>,
}

struct Raw(JoiningTun);

impl AsRawFd for Raw {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Device {
    /// Opens an interface of this name, or of the next free one of ours, without addresses.
    pub(super) fn open(name: Option<&str>) -> io::Result<Self> {
        let open = |name: String| {
            let config = TunConfig {
                name,
                mtu: MTU,
                queue_packets: QUEUE_PACKETS,
                addresses: Vec::new(),
            };
            Self::new(JoiningTun::open_any(&config)?)
        };
        if let Some(name) = name {
            return open(name.to_owned());
        }
        let mut number = 0;
        loop {
            match open(format!("sphx{number}")) {
                Err(error) if is_taken(&error) && number < NAMES_MAX => number += 1,
                opened => return opened,
            }
        }
    }

    /// In an event loop.
    pub(super) fn new(tun: JoiningTun) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe, for files that may change: this one is the device's for as long as that lives"
        )]
        let file = AsyncFd::new(Raw(tun))?;
        Ok(Self {
            file,
            buffer: Mutex::new(vec![0; MTU_MAX + 1]),
        })
    }

    pub(super) fn name(&self) -> &str {
        self.file.get_ref().0.name()
    }

    /// Waits for packets, and gives each to `each`, complete and alone.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) async fn read(&self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        // What cannot be taken apart is of no kind that was asked for.
        self.read_joined(|rest, packet| {
            rest.finish(packet, &mut each);
        })
        .await
    }

    /// The same, as the kernel has left them.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) async fn read_joined(
        &self,
        each: impl FnMut(Unfinished, &mut [u8]),
    ) -> io::Result<()> {
        // That of an interface which is gone is an error, and nothing to read.
        let mut ready = self
            .file
            .ready(Interest::READABLE | Interest::ERROR)
            .await?;
        if !self.read_now(each)? {
            ready.clear_ready();
        }
        Ok(())
    }

    /// Takes what is there, but no more than lets others have their turn: whether there may be more.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) fn read_now(&self, mut each: impl FnMut(Unfinished, &mut [u8])) -> io::Result<bool> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..TURN {
            match self.file.get_ref().0.receive(&mut buffer) {
                Ok((rest, len)) => each(rest, &mut buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Gives the kernel a packet. One that it does not take is lost.
    pub(super) fn write(&self, packet: &[u8]) {
        let _ = self.file.get_ref().0.send(packet);
    }

    /// Gives a packet back to the kernel, with as much left to be done about it.
    pub(super) fn write_back(&self, rest: Unfinished, packet: &[u8]) {
        let _ = self.file.get_ref().0.send_unfinished(rest, packet);
    }
}

/// Whether this is what reading says when somebody has removed the interface.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::ResourceBusy
    )
}
