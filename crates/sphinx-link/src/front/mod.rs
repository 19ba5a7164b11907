//! The link for real traffic: two network namespaces, joined by TUN devices through a [`Link`] per
//! direction.
//!
//! [`Link`]: crate::Link

mod between;
mod engine;
mod lateness;
mod pool;
mod port;
mod stage;
mod thread;

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
    process::{Child, Command},
    time::{Duration, SystemTime},
};

use sphinx_netdev::{
    netns::Namespace,
    tun::{MTU_MAX, Tun},
};
use thiserror::Error;

pub use self::{
    between::{Interface, between},
    lateness::Lateness,
    stage::Stage,
    thread::{LinkThread, join},
};
use self::{port::Port, thread::Guests};
use crate::{ConfigError, Counters, LinkConfig, Record, Time};

/// Kernel TCP with buffers that never limit a transfer, and no memory of earlier connections: set in
/// both namespaces by default, so that runs can be compared.
pub const TCP_PARAMETERS: [(&str, &str); 4] = [
    ("net.ipv4.tcp_rmem", "4096 131072 67108864"),
    ("net.ipv4.tcp_wmem", "4096 131072 67108864"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_no_metrics_save", "1"),
];

/// The smallest MTU with which the kernel has IPv6 on an interface (RFC 8200, section 5).
const IPV6_MTU_MIN: usize = 1280;

/// The settings of a [`Front`].
#[derive(Clone, Debug, PartialEq)]
pub struct FrontConfig {
    /// What happens to packets from the left to the right end.
    pub left_to_right: LinkConfig,
    /// What happens to packets from the right to the left end.
    pub right_to_left: LinkConfig,
    /// The left end's IPv4 address and the length of its prefix: 10.77.0.1/24 by default.
    pub left_ipv4: (Ipv4Addr, u8),
    /// The right end's: 10.77.0.2/24 by default.
    pub right_ipv4: (Ipv4Addr, u8),
    /// The left end's IPv6 address and the length of its prefix: fd77::1/64 by default.
    pub left_ipv6: (Ipv6Addr, u8),
    /// The right end's: fd77::2/64 by default.
    pub right_ipv6: (Ipv6Addr, u8),
    /// MTU of both interfaces: 1500 by default; below 1280 there is no IPv6. A smaller [`LinkConfig::mtu`] is a hop inside the
    /// path that the ends do not know of (and that sends no ICMP message).
    pub mtu: usize,
    /// Packets the kernel may keep per interface while the link's thread is busy. The default,
    /// 10000, is a whole window; the bottleneck's queue is [`LinkConfig::queue`].
    pub kernel_queue_packets: u32,
    /// Kernel parameters to set in both namespaces; those that cannot be set become
    /// [warnings](Front::warnings). [`TCP_PARAMETERS`] by default.
    pub parameters: Vec<(String, String)>,
}

impl Default for FrontConfig {
    fn default() -> FrontConfig {
        let parameters = TCP_PARAMETERS.map(|(name, value)| (name.to_owned(), value.to_owned()));
        FrontConfig {
            left_to_right: LinkConfig::default(),
            right_to_left: LinkConfig {
                seed: 1,
                ..LinkConfig::default()
            },
            left_ipv4: (Ipv4Addr::new(10, 77, 0, 1), 24),
            right_ipv4: (Ipv4Addr::new(10, 77, 0, 2), 24),
            left_ipv6: (Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1), 64),
            right_ipv6: (Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2), 64),
            mtu: 1500,
            kernel_queue_packets: 10_000,
            parameters: parameters.into(),
        }
    }
}

/// Why a [`Front`] could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FrontError {
    /// A link's settings are impossible.
    #[error("impossible link: {0}")]
    Config(#[from] ConfigError),
    /// The MTU is larger than an IP packet can be.
    #[error("an MTU of {0} is more than {MTU_MAX}")]
    Mtu(usize),
    /// Namespaces, TUN devices, interfaces or threads were refused; [`probe`](sphinx_netdev::netns::probe) tells
    /// which access there is.
    #[error("the link cannot be set up: {0}")]
    System(#[from] io::Error),
}

/// One of the two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the left to the right end.
    LeftToRight,
    /// From the right to the left end.
    RightToLeft,
}

/// One of the two ends, or what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The left end.
    Left,
    /// The right end.
    Right,
}

/// Sees the packets of a [`Front`], from within the link's thread: it must not wait for anything.
pub trait Observer: Send {
    /// Called first, with the time of day at time 0 of the link.
    fn start(&mut self, _started: SystemTime) {}

    /// A packet leaves an end, or has been delivered there, at this time of the link.
    fn packet(&mut self, side: Side, at: Time, packet: &[u8]);

    /// Called within two milliseconds after packets have been shown.
    fn pause(&mut self) {}
}

/// What is on its way at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// Bytes in the queue, the packet being sent not included.
    pub queue_bytes: u64,
    /// Packets waiting, being sent, or in flight.
    pub packets: usize,
}

/// Totals of both directions and of the thread that drives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontCounters {
    /// From left to right.
    pub left_to_right: Counters,
    /// From right to left.
    pub right_to_left: Counters,
    /// From left to right, now.
    pub left_to_right_inside: Inside,
    /// From right to left, now.
    pub right_to_left_inside: Inside,
    /// How long 95 of 100 packets have waited for the link at most, from left to right, their own transmission included.
    pub left_to_right_wait_p95: Time,
    /// How late packets were delivered.
    pub lateness: Lateness,
    /// CPU time of the link's thread, in which the kernel does most of the receivers' work too.
    pub cpu: Duration,
    /// Multicast and broadcast packets, and what is not IP, which the link leaves out so that they shift
    /// no packet index. Between interfaces that exist they pass at once, with all of neighbour discovery.
    pub ignored: u64,
    /// Packets that an interface refused, for example because it was turned off.
    pub refused: u64,
    /// Records that did not fit in [`LinkConfig::records`].
    pub records_missed: u64,
}

/// One end of the link.
#[derive(Debug)]
pub struct End {
    namespace: Namespace,
    ipv4: Ipv4Addr,
    ipv6: Option<Ipv6Addr>,
}

impl End {
    /// The end's network namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The end's IPv4 address.
    pub fn ipv4(&self) -> Ipv4Addr {
        self.ipv4
    }

    /// The end's IPv6 address, unless the kernel has no IPv6, or none for so small an MTU.
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        self.ipv6
    }

    /// Runs a closure inside the namespace; see [`Namespace::run`].
    ///
    /// # Errors
    ///
    /// Those of [`Namespace::run`].
    pub fn run<T: Send>(&self, action: impl FnOnce() -> T + Send) -> io::Result<T> {
        self.namespace.run(action)
    }

    /// Starts a command inside the namespace; see [`Namespace::spawn`].
    ///
    /// # Errors
    ///
    /// Those of [`Namespace::spawn`].
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.namespace.spawn(command)
    }
}

/// A running link between two network namespaces, each with one interface (`left`, `right`).
///
/// A thread of its own takes packets from one interface, puts them through the [`Link`] of their
/// direction, and writes them to the other interface when they are due. Time 0 of both links is the
/// start. When this is dropped, the thread ends and both interfaces disappear; the namespaces
/// disappear with the last process in them.
///
/// Needs root, or [`enter_user_namespace`](sphinx_netdev::netns::enter_user_namespace) before.
///
/// # Example
///
/// ```no_run
/// use std::{process::Command, time::Duration};
/// use sphinx_link::{Depth, LinkConfig, Loss, Rate, front::{Front, FrontConfig}};
///
/// let link = LinkConfig {
///     rate: Rate::Constant(200_000_000),
///     queue: Depth::Bytes(250_000),
///     delay: Duration::from_millis(5),
///     ..LinkConfig::default()
/// };
/// let front = Front::start(FrontConfig {
///     left_to_right: LinkConfig { seed: 1, loss: Loss::Bernoulli(0.06), ..link.clone() },
///     right_to_left: LinkConfig { seed: 2, ..link },
///     ..FrontConfig::default()
/// })?;
/// front.left().spawn(Command::new("ping").args(["-c", "10", "10.77.0.2"]))?.wait()?;
/// println!("{} lost", front.counters().left_to_right.dropped_loss);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Link`]: crate::Link
#[derive(Debug)]
pub struct Front {
    left: End,
    right: End,
    link: LinkThread,
    warnings: Vec<String>,
}

impl Front {
    /// Creates the namespaces and interfaces, and starts the link.
    ///
    /// # Errors
    ///
    /// See [`FrontError`]. Nothing remains of what had been created.
    pub fn start(config: FrontConfig) -> Result<Front, FrontError> {
        Front::start_with(config, None, None)
    }

    /// The same with somebody who sees every packet, and something in front of the link that may change what passes.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Front::start).
    pub fn start_with(
        config: FrontConfig,
        observer: Option<Box<dyn Observer>>,
        stage: Option<Box<dyn Stage>>,
    ) -> Result<Front, FrontError> {
        config.left_to_right.validate()?;
        config.right_to_left.validate()?;
        if config.mtu > MTU_MAX {
            return Err(FrontError::Mtu(config.mtu));
        }
        let mut warnings = Vec::new();
        let (left, left_tun) = open_end(
            "left",
            &config,
            config.left_ipv4,
            config.left_ipv6,
            &mut warnings,
        )?;
        let (right, right_tun) = open_end(
            "right",
            &config,
            config.right_ipv4,
            config.right_ipv6,
            &mut warnings,
        )?;
        let ports = [left_tun, right_tun].map(Port::Tun);
        let links = [config.left_to_right, config.right_to_left];
        let link = LinkThread::start(ports, links, 0, config.mtu, Guests { observer, stage })?;
        Ok(Front {
            left,
            right,
            link,
            warnings,
        })
    }

    /// The left end.
    pub fn left(&self) -> &End {
        &self.left
    }

    /// The right end.
    pub fn right(&self) -> &End {
        &self.right
    }

    /// What could not be set up but is not essential, in words.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Takes it apart: the left and the right end, and the link, which ends when it is dropped.
    pub fn into_parts(self) -> (End, End, LinkThread) {
        (self.left, self.right, self.link)
    }

    /// The totals, at most 2 ms old.
    pub fn counters(&self) -> FrontCounters {
        self.link.counters()
    }

    /// Those of the link: see [`LinkThread::take_records`].
    pub fn take_records(&self, direction: Direction, into: &mut Vec<Record>) {
        self.link.take_records(direction, into);
    }

    /// Changes one direction under way: see [`LinkThread::reconfigure`].
    ///
    /// # Errors
    ///
    /// Any [`ConfigError`] of [`LinkConfig::validate`]; the link is then unchanged.
    pub fn reconfigure(&self, direction: Direction, config: LinkConfig) -> Result<(), ConfigError> {
        self.link.reconfigure(direction, config)
    }

    /// Ends the link and returns its final totals. Packets still inside are gone.
    ///
    /// # Errors
    ///
    /// Those of [`LinkThread::halt`].
    pub fn stop(mut self) -> io::Result<FrontCounters> {
        self.link.halt()?;
        Ok(self.link.counters())
    }
}

/// Creates a namespace with its interface.
fn open_end(
    name: &str,
    config: &FrontConfig,
    ipv4: (Ipv4Addr, u8),
    ipv6: (Ipv6Addr, u8),
    warnings: &mut Vec<String>,
) -> io::Result<(End, Tun)> {
    let namespace = Namespace::new()?;
    for (parameter, value) in &config.parameters {
        if let Err(error) = namespace.sysctl(parameter, value) {
            warnings.push(format!("{name}: {error}"));
        }
    }
    let has_ipv6 = carries_ipv6(config.mtu);
    if !has_ipv6 {
        let why = match config.mtu < IPV6_MTU_MIN {
            true => format!("no IPv6, which needs an MTU of {IPV6_MTU_MIN}"),
            false => "the kernel has no IPv6".to_owned(),
        };
        warnings.push(format!("{name}: {why}"));
    }
    let interface = Interface {
        namespace: &namespace,
        name,
        ipv4,
        ipv6: has_ipv6.then_some(ipv6),
        mtu: config.mtu,
        queue_packets: config.kernel_queue_packets,
    };
    let tun = interface.open()?;
    Ok((
        End {
            namespace,
            ipv4: ipv4.0,
            ipv6: has_ipv6.then_some(ipv6.0),
        },
        tun,
    ))
}

/// Whether interfaces of this MTU can have IPv6 addresses.
pub fn carries_ipv6(mtu: usize) -> bool {
    mtu >= IPV6_MTU_MIN && has_ipv6()
}

/// Whether the kernel has IPv6.
pub fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}
