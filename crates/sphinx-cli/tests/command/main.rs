//! The `sphx` command as its users meet it: real processes, files, pipes, sockets and, where they are allowed, network
//! namespaces. One binary for all of it: links once, and tests that wait do so together.

mod common;
mod cp;
mod ctl;
mod deep_trees;
#[cfg(feature = "lab")]
mod demo;
mod early;
#[cfg(all(feature = "lab", feature = "pep"))]
mod examples;
mod faults;
mod figures;
mod files;
#[cfg(feature = "tunnel")]
mod joining;
#[cfg(feature = "lab")]
mod lab;
#[cfg(feature = "lab")]
mod lab_link;
#[cfg(all(feature = "lab", feature = "pep"))]
mod lab_path;
mod many_streams;
mod memory;
mod one_port;
#[cfg(all(feature = "dpdk", feature = "lab", feature = "pep"))]
mod over_dpdk;
mod partial;
#[cfg(all(feature = "lab", feature = "pep"))]
mod past_the_kernel;
#[cfg(all(feature = "lab", feature = "pep"))]
mod pep;
#[cfg(all(feature = "lab", feature = "pep"))]
mod pep_between;
#[cfg(all(feature = "lab", feature = "pep"))]
mod pep_moves;
#[cfg(all(feature = "lab", feature = "pep"))]
mod pep_stages;
mod perf;
mod pipes;
mod receiving;
mod resume;
#[cfg(all(feature = "lab", feature = "pep"))]
mod scripts;
#[cfg(all(feature = "lab", feature = "pep"))]
mod several_paths;
mod shards;
mod standing;
mod streams;
#[cfg(all(feature = "lab", feature = "pep"))]
mod thin;
mod tickets;
#[cfg(feature = "tunnel")]
mod tunnel;
#[cfg(all(feature = "lab", feature = "tunnel"))]
mod tunnel_ip;
#[cfg(all(feature = "lab", feature = "tunnel"))]
mod tunnel_programs;
#[cfg(all(feature = "lab", feature = "tunnel"))]
mod tunnel_split;
mod usage;
mod values;
mod workers;
