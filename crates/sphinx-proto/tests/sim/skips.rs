//! Packet numbers that are left out, so that a peer that acknowledges what it cannot have is found out.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use sphinx_link::LinkConfig;
use sphinx_proto::cc::CcKind;
use sphinx_proto::wire::Header;
use sphinx_sim::{SEC, Scenario};

/// To neither end is a number that was left out a loss, once the receiver has been told of it.
#[test]
fn numbers_left_out_are_no_losses() {
    for seed in 0..8 {
        let clean = LinkConfig {
            seed,
            delay: Duration::from_millis(5),
            ..LinkConfig::default()
        };
        let mut scenario = Scenario::new((clean.clone(), clean)).both_ways(4_000_000);
        scenario.cc = CcKind::Fixed(2_500_000);
        let mut pair = scenario.build();
        let sent = Rc::new(RefCell::new([const { BTreeSet::new() }; 2]));
        let tapped = Rc::clone(&sent);
        pair.tap = Some(Box::new(move |_, side, datagram| {
            let header = datagram.payload.first_chunk().and_then(Header::decode);
            let number = header.expect("a packet").packet_number;
            tapped.borrow_mut()[side].insert(number);
            Vec::new()
        }));
        pair.must_transfer(10 * SEC);
        // Until after the next keep-alive, which tells of numbers left out at the very end.
        let end = pair.now + 5 * SEC;
        pair.run_until(end, |_| false);
        for (side, sent) in sent.borrow().iter().enumerate() {
            let last = sent.last().copied().expect("packets");
            let left_out: Vec<u32> = (0..last).filter(|n| !sent.contains(n)).collect();
            assert!((3..=12).contains(&left_out.len()), "{left_out:?}");
            assert!(left_out.windows(2).all(|pair| pair[1] > pair[0] + 1));
            let sender = pair.ends[side].session().stats();
            let receiver = pair.ends[1 - side].session().stats();
            assert_eq!((sender.losses_spurious, sender.repair_reactive), (0, 0));
            let lost = [sender.losses_sent, receiver.losses_received].map(|losses| {
                let losses = losses.expect("measured");
                (losses.mean, losses.recent, losses.burst)
            });
            assert_eq!(lost, [(0.0, 0.0, 1.0); 2], "seed {seed}");
        }
    }
}
