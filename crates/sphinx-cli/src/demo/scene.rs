//! Where the demonstration plays: two network namespaces joined by the emulator, or, where those are
//! not allowed, a relay on loopback.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command};

use sphinx_link::front::{Front, FrontConfig};
use sphinx_link::{Depth, LinkConfig, Loss, Rate};
use sphinx_netdev::netns::{Access, enter_user_namespace, probe};
use sphinx_transport::ErrorKind;

use super::contender::Contender;
use super::relay::Relay;
use crate::args::demo::DemoArgs;
use crate::failure::{Outcome, fail};

/// Congestion controls that the running kernel offers.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The kind of stage there will be.
#[derive(Debug)]
pub(crate) enum Scene {
    Namespaces,
    /// Relays over loopback, with the reason why there are no namespaces.
    Relay(String),
}

impl Scene {
    /// Finds out what is allowed and takes it. Has to be called while the process has one thread.
    pub(crate) fn prepare() -> Self {
        let entered = match probe() {
            Ok(Access::Direct) => Ok(()),
            Ok(Access::UserNamespace) => enter_user_namespace().map_err(|error| error.to_string()),
            Err(refused) => Err(refused.to_string()),
        };
        match entered {
            Ok(()) => Self::Namespaces,
            Err(reason) => Self::Relay(reason),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Relay(_) => "relay",
        }
    }

    /// The transports that can be shown here.
    pub(super) fn contenders(&self) -> Vec<Contender> {
        match self {
            Self::Relay(_) => vec![Contender::Sphinx],
            Self::Namespaces => {
                let available = fs::read_to_string(AVAILABLE).unwrap_or_default();
                let has = |name: &str| available.split_whitespace().any(|word| word == name);
                let tcp = [Contender::TcpCubic, Contender::TcpBbr].into_iter();
                let tcp = tcp.filter(|contender| contender.congestion_control().is_some_and(has));
                tcp.chain([Contender::Sphinx]).collect()
            }
        }
    }
}

/// A fresh emulated link.
pub(super) enum Stage {
    Namespaces(Box<Front>),
    Relay(Relay),
}

/// The two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Sender,
    Receiver,
}

impl Stage {
    pub(super) fn build(scene: &Scene, args: &DemoArgs) -> Outcome<Self> {
        let (forward, back) = links(args);
        match scene {
            Scene::Namespaces => {
                let config = FrontConfig {
                    left_to_right: forward,
                    right_to_left: back,
                    ..FrontConfig::default()
                };
                let front = Front::start(config)
                    .map_err(|error| fail(ErrorKind::Other, error.to_string()))?;
                Ok(Self::Namespaces(Box::new(front)))
            }
            Scene::Relay(_) => Relay::start(forward, back).map(Self::Relay),
        }
    }

    pub(super) fn warnings(&self) -> &[String] {
        match self {
            Self::Namespaces(front) => front.warnings(),
            Self::Relay(_) => &[],
        }
    }

    /// Where the receiver listens.
    pub(super) fn listen(&self, port: u16) -> SocketAddr {
        match self {
            Self::Namespaces(front) => (front.right().ipv4(), port).into(),
            Self::Relay(_) => (Ipv4Addr::LOCALHOST, 0).into(),
        }
    }

    /// What the receiver's ticket names instead of where it listens, if that differs.
    pub(super) fn advertise(&self) -> Option<SocketAddr> {
        match self {
            Self::Namespaces(_) => None,
            Self::Relay(relay) => Some(relay.address()),
        }
    }

    /// Tells the emulated link the address at which the receiver listens now.
    pub(super) fn connect(&self, receiver: SocketAddr) {
        if let Self::Relay(relay) = self {
            relay.connect(receiver);
        }
    }

    pub(super) fn spawn(&self, side: Side, command: &mut Command) -> io::Result<Child> {
        match (self, side) {
            (Self::Namespaces(front), Side::Sender) => front.left().spawn(command),
            (Self::Namespaces(front), Side::Receiver) => front.right().spawn(command),
            (Self::Relay(_), _) => command.spawn(),
        }
    }

    /// IP bytes that the sender has handed to the link.
    pub(super) fn offered_bytes(&self) -> u64 {
        match self {
            Self::Namespaces(front) => front.counters().left_to_right.offered_bytes,
            Self::Relay(relay) => relay.offered_bytes(),
        }
    }

    /// IP bytes that have come out at the receiver.
    pub(super) fn delivered_bytes(&self) -> u64 {
        match self {
            Self::Namespaces(front) => front.counters().left_to_right.delivered_bytes,
            Self::Relay(relay) => relay.delivered_bytes(),
        }
    }
}

/// Both directions: the same rate, half the round trip, a queue of one bandwidth-delay product;
/// losses towards the receiver only.
fn links(args: &DemoArgs) -> (LinkConfig, LinkConfig) {
    let product = u128::from(args.rate) * args.rtt.as_nanos() / 8_000_000_000;
    // At least ten packets of 1500 bytes, or the queue could not even out anything.
    let queue = u64::try_from(product).unwrap_or(u64::MAX).max(15_000);
    let back = LinkConfig {
        seed: args.seed.wrapping_mul(2).wrapping_add(1),
        mtu: Some(1500),
        rate: Rate::Constant(args.rate),
        queue: Depth::Bytes(queue),
        delay: args.rtt / 2,
        ..LinkConfig::default()
    };
    let forward = LinkConfig {
        seed: args.seed.wrapping_mul(2),
        loss: Loss::Bernoulli(args.loss),
        ..back.clone()
    };
    (forward, back)
}
