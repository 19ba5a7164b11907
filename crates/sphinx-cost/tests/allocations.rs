//! No packet asks the allocator for memory, neither where it is sent nor where it is received. A test of its own, because it counts what the process allocates.

use std::alloc::System;

use sphinx_cost::{Io, Load, measure};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations of a transfer, and its packets.
fn count(bytes: u64, workers: bool) -> (f64, f64) {
    let load = Load {
        bytes,
        mtu: 1500,
        loss: 0.0,
        io: Io::Udp,
        workers,
        paper: None,
    };
    let region = Region::new(ALLOCATOR);
    let costs = measure(&load).expect("loopback");
    let stats = region.change();
    let allocations = stats.allocations + stats.reallocations;
    (allocations as f64, costs.packets as f64 * 10.0 / 9.0)
}

/// Blocks ask for memory, and feedback; there are many packets to each of them.
#[test]
fn no_packet_allocates() {
    const EACH_MAX: f64 = 0.25;
    for workers in [false, true] {
        let (short, long) = (count(50_000_000, workers), count(150_000_000, workers));
        // What a session needs once is in both.
        let each = (long.0 - short.0) / (long.1 - short.1);
        println!("{each:.3} allocations a packet, workers: {workers}");
        assert!(each < EACH_MAX, "{each:.3} a packet, workers: {workers}");
    }
}
