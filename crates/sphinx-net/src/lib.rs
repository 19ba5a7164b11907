//! Batched packet input and output, network namespaces and TUN devices.

pub mod netns;
pub mod tun;
