//! Paths that carry nothing for a while.

use std::time::{Duration, Instant};

use sphinx_link::{Blackout, LinkConfig};

use crate::support::*;

#[test]
fn five_seconds_without_any_packet_in_the_middle_are_survived() {
    bounded(|| {
        // The transfer takes at least 2 s on this link.
        let dark = |seed| LinkConfig {
            blackouts: vec![Blackout {
                start: ms(1000),
                end: ms(6000),
            }],
            ..link(0.0, seed)
        };
        let pair = pair(dark(1), dark(2));
        let begin = Instant::now();
        transfer(&pair.client, &pair.server, &content(6, 10_000_000));
        assert!(begin.elapsed() > Duration::from_secs(6));
    });
}

#[test]
fn a_silence_while_nothing_is_sent_is_survived() {
    bounded(|| {
        let pair = pair(link(0.0, 1), link(0.0, 2));
        transfer(&pair.client, &pair.server, &content(7, 10_000));
        pair.proxy.set_silent(true);
        std::thread::sleep(ms(3000));
        pair.proxy.set_silent(false);
        transfer(&pair.server, &pair.client, &content(8, 10_000));
    });
}

#[test]
fn a_silent_path_is_probed_with_few_packets() {
    bounded(|| {
        let pair = pair(link(0.0, 1), link(0.0, 2));
        let data = content(9, 2_000_000);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| send_all(&pair.client, &data));
            let mut stream = pair.server.accept_stream().unwrap();
            stream.read(&mut [0; 1]).unwrap();
            pair.proxy.set_silent(true);
            let sent = || pair.client.stats().wire_packets_sent;
            // First the window is filled, then only probes leave, half a second apart at last.
            let mut before = 0;
            wait_until("the window is full", || {
                std::thread::sleep(ms(200));
                sent() - std::mem::replace(&mut before, sent()) < 20
            });
            let begin = Instant::now();
            wait_until("probes", || sent() >= before + 12);
            let probes = sent() - before;
            let seconds = begin.elapsed().as_secs_f64() + 1.0;
            assert!(probes as f64 <= 40.0 * seconds, "{probes} in {seconds} s");
            pair.proxy.set_silent(false);
            let received = read_all(&mut stream).unwrap();
            assert!(received == data[1..], "other bytes");
            sending.join().expect("no panic").unwrap();
        });
    });
}
