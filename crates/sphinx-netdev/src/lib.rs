//! Network namespaces, TUN devices, Ethernet interfaces, and routes to them.
//!
//! What emulates a link or stands in its path uses these: the front end of the emulator, the lab,
//! the demonstration and the agent for unmodified TCP. Packets of an endpoint are the
//! business of `sphinx-net`; back ends that bypass the kernel ask here what it knows of the network.
//!
//! - [`cgroup`]: groups of processes, and one of its own for this process;
//! - [`checksum`]: the sums in the headers of IP and TCP;
//! - [`netns`]: namespaces of this process, with or without root;
//! - [`confine`]: one program in namespaces of its own;
//! - [`pidns`]: programs that end together;
//! - [`tun`]: devices that carry the packets of a namespace to this process;
//! - [`ethernet`]: frames of an interface that exists;
//! - [`header`]: numbers in the headers of IP and TCP;
//! - [`lookup`]: interfaces, routes and neighbours, as the kernel knows them;
//! - [`filter`]: what the packet filter does with packets that others should see;
//! - [`nfqueue`]: packets on their way through the kernel, judged by this process;
//! - [`qdisc`]: queues in front of interfaces;
//! - [`route`]: rules and routes that divert traffic to a device;
//! - [`split`]: routes that lead some destinations into a tunnel, and leave others out;
//! - [`tcp`]: what the kernel knows of a connection;
//! - [`uplinks`]: interfaces with a default route, and when they change;
//! - [`usage`]: what processes have used of the machine.
//!
//! The crate is for Linux.

pub mod cgroup;
pub mod checksum;
pub mod confine;
pub mod ethernet;
pub mod filter;
pub mod header;
mod join;
pub mod lookup;
mod netlink;
pub mod netns;
mod nfnetlink;
pub mod nfqueue;
mod offload;
pub mod pidns;
pub mod qdisc;
pub mod route;
pub mod split;
pub mod tcp;
pub mod tun;
pub mod uplinks;
pub mod usage;
