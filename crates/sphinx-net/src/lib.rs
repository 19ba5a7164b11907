//! Batched packet input and output, network namespaces and TUN devices.
