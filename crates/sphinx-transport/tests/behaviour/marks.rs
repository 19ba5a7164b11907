//! ECN marks on the way through real sockets: the emulator between two TUN devices marks, the kernel
//! carries the marks, and the paper's rate control obeys them. Skipped, saying why, where namespaces
//! are not allowed.

use std::sync::atomic::{AtomicBool, Ordering};

use sphinx_link::front::{Front, FrontConfig};
use sphinx_link::{Aqm, Depth, LinkConfig};
use sphinx_netdev::netns::{Access, probe};
use sphinx_transport::{Cc, Options, Server, Service};

use crate::support::*;

/// Windows of the sender, sampled during a transfer over a link with a queue that never overflows,
/// and how many packets were marked.
fn windows(aqm: Aqm) -> (Vec<u64>, u64) {
    let front = Front::start(FrontConfig {
        left_to_right: LinkConfig {
            aqm,
            queue: Depth::Time(ms(5000)),
            ..link(0.02, 1)
        },
        right_to_left: link(0.0, 2),
        ..FrontConfig::default()
    });
    let front = front.unwrap();
    let options = Options {
        cc: Cc::AimdEcn,
        ..Options::default()
    };
    let listen = (front.right().ipv4(), 0).into();
    let bind = || Server::bind(listen, Service::Application, &options);
    let listener = front.right().run(bind).unwrap().unwrap();
    let ticket = ticket(&listener, listener.local_addr());
    let connect = || client(&ticket, &options);
    let client = front.left().run(connect).unwrap().unwrap();
    let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
    let over = AtomicBool::new(false);
    let windows = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut windows = Vec::new();
            while !over.load(Ordering::Relaxed) {
                windows.push(client.stats().cwnd);
                std::thread::sleep(ms(3));
            }
            windows
        });
        transfer(&client, &server, &content(3, 4_000_000));
        over.store(true, Ordering::Relaxed);
        sampler.join().expect("no panic")
    });
    (windows, front.counters().left_to_right.marked)
}

fn falls(windows: &[u64]) -> usize {
    windows.windows(2).filter(|pair| pair[1] < pair[0]).count()
}

#[test]
fn marks_slow_aimd_ecn_down_and_losses_do_not() {
    if !matches!(probe(), Ok(Access::Direct)) {
        sphinx_testing::skipped!("needs root (user namespaces would work, but not beside threads)");
        return;
    }
    bounded(|| {
        let (with, marked) = windows(Aqm::mark_above(Depth::Time(ms(10))));
        assert!(marked > 0 && falls(&with) > 0, "{marked} {with:?}");
        let (without, marked) = windows(Aqm::default());
        assert!(marked == 0 && falls(&without) == 0, "{without:?}");
        assert!(without.last() > with.iter().max(), "{without:?} {with:?}");
    });
}
