//! Why DPDK cannot be used.

use std::io;

/// Why a back end over DPDK cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// The address to listen on is none of the port's.
    #[error("{0} is none of the addresses given behind -- in --io dpdk")]
    Address(std::net::IpAddr),
    /// DPDK is used already, by another session of this process.
    #[error("DPDK is in use by another endpoint of this process")]
    Busy,
    /// The library does not start: its own words are on standard error.
    #[error("DPDK does not start: {0}")]
    Eal(io::Error),
    /// There is no port.
    #[error("DPDK has found no port")]
    NoPort,
    /// The port does not start.
    #[error("DPDK's port does not start: {0}")]
    Port(io::Error),
    /// The port has fewer queues than there are to be engines.
    #[error("DPDK's driver {driver} has {has} queues each way here, fewer than {wanted}")]
    Queues {
        /// Name of the driver.
        driver: String,
        /// Queues that the driver has each way.
        has: u16,
        /// Queues that were asked for.
        wanted: u16,
    },
    /// The process is out of something else.
    #[error("{0}")]
    System(#[from] io::Error),
}
