//! TCP, UDP and Unix sockets forwarded over Sphinx sessions (`docs/tunnel.md`): what `sphx tunnel` and `sphx server` do.
//!
//! | room | holds |
//! | --- | --- |
//! | `forward` | forwards as people write them |
//! | `permit` | who may reach what |
//! | `wire`, `exchange` | headers and replies on streams |
//! | `relay` | bytes between a connection and a stream |
//! | `datagrams`, `udp` | datagrams between sockets and flows |
//! | `dial` | names resolved, targets connected |
//! | `proxy` | SOCKS5 and HTTP CONNECT |
//! | `tun` | IP packets of a network interface |
//! | `grant`, `limits` | what one client may do, and how much of it |
//! | `live` | a session, and what comes to it |
//! | `client`, `server` | the two ends |
//! | `event` | what there is to tell |

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod client;
mod datagrams;
mod dial;
mod event;
mod exchange;
mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grant;
mod limits;
mod live;
#[cfg(test)]
mod loopback;
mod permit;
mod proxy;
mod relay;
mod server;
mod tun;
mod udp;
mod wire;

pub use client::{ClientError, Plan, Stop, forward, is_known, join, stdio};
pub use event::{Event, Events};
pub use forward::{Carried, Forward, ForwardError, Giving, Listen, listen_address, target};
pub use grant::{Grant, Granted, Limits};
pub use permit::{Permit, PermitError, Transport};
pub use proxy::Credentials;
pub use server::Server;
pub use tun::{
    Hub, MTU, Pool, PoolTaken, Prefix, ProgramDevice, Reserved, Settings, TunPlan, parse_network,
    parse_prefix,
};
pub use wire::{Refusal, Status, Target};
