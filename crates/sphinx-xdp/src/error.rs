//! Why an interface cannot be used.

use std::io;

/// Why a back end over AF_XDP cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// There is another XDP program at the interface, which only one can have.
    #[error("{interface} has another XDP program")]
    Busy {
        /// The interface.
        interface: String,
    },
    /// The process lacks a capability.
    #[error("{step} at {interface} is not permitted")]
    Denied {
        /// What was refused.
        step: &'static str,
        /// The interface.
        interface: String,
    },
    /// There is no interface of that name.
    #[error("there is no interface {interface}")]
    NoInterface {
        /// The interface.
        interface: String,
    },
    /// The interface is turned off.
    #[error("{interface} is down")]
    Down {
        /// The interface.
        interface: String,
    },
    /// It has no Ethernet frames.
    #[error("{interface} is not an Ethernet interface")]
    NotEthernet {
        /// The interface.
        interface: String,
    },
    /// The driver cannot run XDP programs.
    #[error("the driver of {interface} has no native XDP")]
    NoNative {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The driver cannot share memory with a process.
    #[error("the driver of {interface} has no zero copy at queue {queue}")]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no such queue.
    #[error("{interface} has no queue {queue}")]
    NoQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// Each engine is to have a queue of its own.
    #[error("{interface} has queues for {has} engines, not for {wanted}")]
    FewQueues {
        /// The interface.
        interface: String,
        /// Queues that it has, of those that were asked for.
        has: usize,
        /// Engines, each of which wants a queue of its own.
        wanted: usize,
    },
    /// Another process has the queue.
    #[error("queue {queue} of {interface} is in use")]
    QueueBusy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The process may not lock as much memory as is shared with the kernel.
    #[error(
        "the limit on locked memory is below the {bytes} bytes that are shared with the kernel"
    )]
    LockedMemory {
        /// Bytes of locked memory that each queue needs.
        bytes: usize,
    },
    /// The kernel does not know what is needed.
    #[error("{step} at {interface}: {source}")]
    System {
        /// What failed.
        step: &'static str,
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl XdpError {
    /// What a step's error means.
    pub(crate) fn of(step: &'static str, interface: &str, source: io::Error) -> Self {
        let interface = interface.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied { step, interface },
            _ => Self::System {
                step,
                interface,
                source,
            },
        }
    }
}
