//! Sphinx endpoints, sessions and streams: the engine, the QUIC control plane and the public API.

#![forbid(unsafe_code)]
