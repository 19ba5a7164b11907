//! Sessions with real keys, whose epochs are as short as no session has them, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use sphinx_driver::keys::{Direction, Keys, SessionSecret};
use sphinx_driver::{EndReason, SendAs};
use sphinx_link::{Jitter, LinkConfig, Loss, Order};
use sphinx_proto::cc::CcKind;
use sphinx_proto::{PathId, RepairMode, Urgency};
use sphinx_sim::{MS, Pair, SEC, Say, Scenario};

fn keys(direction: Direction, epoch_packets: u64) -> Keys {
    let secret = SessionSecret::new(&[1; 32], &[2; 32]);
    let Keys {
        sealer,
        opener,
        origin,
    } = secret.keys(direction, PathId::FIRST);
    Keys {
        sealer: sealer.with_epoch_packets(epoch_packets),
        opener,
        origin,
    }
}

fn build(scenario: &Scenario, epoch_packets: u64) -> Pair<Keys> {
    let directions = [Direction::ClientToServer, Direction::ServerToClient];
    scenario.build_with(directions.map(|direction| keys(direction, epoch_packets)))
}

fn lossy(seed: u64) -> LinkConfig {
    LinkConfig {
        seed,
        delay: Duration::from_millis(2),
        loss: Loss::Bernoulli(0.06),
        jitter: Jitter {
            max: Duration::from_millis(3),
            order: Order::Free,
        },
        ..LinkConfig::default()
    }
}

#[test]
fn keys_change_many_times_under_loss_and_reordering() {
    let mut scenario = Scenario::new((lossy(1), lossy(2))).both_ways(1_500_000);
    scenario.cc = CcKind::Fixed(2_500_000);
    let mut pair = build(&scenario, 128);
    pair.must_transfer(10 * SEC);
    for end in &pair.ends {
        let keys = end.protection();
        assert!(keys.sealer.epoch() >= 3 && keys.opener.epoch() >= 3);
        assert_eq!(end.counters().invalid, 0, "sealed with another key");
    }
}

/// Who only receives sends nothing but SACKs, which nobody acknowledges: he has to ask before his key is used up.
#[test]
fn keys_change_where_nothing_is_sent_but_feedback() {
    let mut scenario = Scenario::new((lossy(7), lossy(8)));
    scenario.cc = CcKind::Fixed(2_500_000);
    let send_as = SendAs {
        flow: 0,
        kind: None,
        urgency: Urgency::default(),
        life: 200 * MS,
        repair: RepairMode::InTime,
    };
    let say = |number| Say {
        at: number * MS,
        len: 1000,
        send_as,
    };
    scenario.client.says = (0..5000).map(say).collect();
    let mut pair = build(&scenario, 128);
    pair.run_until(6 * SEC, |_| false);
    assert!(pair.server().heard().len() > 4900);
    for end in &pair.ends {
        assert!(end.events.is_empty(), "{:?}", end.events);
        assert!(end.protection().sealer.epoch() >= 3);
    }
}

/// News of the window, which are to be acknowledged, leave on the faster path alone.
#[test]
fn keys_change_on_each_of_two_paths() {
    let way = |seed, delay_ms| LinkConfig {
        seed,
        delay: Duration::from_millis(delay_ms),
        ..LinkConfig::default()
    };
    let mut scenario = Scenario::new((way(1, 2), way(2, 2)))
        .path(0, (way(3, 4), way(4, 4)))
        .bulk(10_000_000);
    scenario.cc = CcKind::Fixed(2_500_000);
    let mut pair = build(&scenario, 128);
    pair.must_transfer(20 * SEC);
    for end in &pair.ends {
        assert!(end.events.is_empty(), "{:?}", end.events);
        let paths = end.session().path_stats();
        assert!(paths.iter().all(|path| path.packets_sent > 3 * 128));
        assert_eq!(paths.len(), 2);
    }
}

/// Whoever forges packets long enough may guess a tag one day: the session ends before. (A real one would have seen 2^52.)
#[test]
fn too_many_forgeries_end_the_session() {
    let clean = LinkConfig {
        delay: Duration::from_millis(2),
        ..LinkConfig::default()
    };
    let mut scenario = Scenario::new((clean.clone(), clean)).bulk(1_000_000);
    scenario.cc = CcKind::Fixed(2_500_000);
    let directions = [Direction::ClientToServer, Direction::ServerToClient];
    let mut pair = scenario.build_with(directions.map(|direction| {
        let Keys {
            sealer,
            opener,
            origin,
        } = keys(direction, 128);
        let opener = opener.with_failures_max(20);
        Keys {
            sealer,
            opener,
            origin,
        }
    }));
    let mut forged = 0;
    pair.tap = Some(Box::new(move |_, side, datagram| {
        forged += usize::from(side == 0);
        if side != 0 || forged > 21 {
            return Vec::new();
        }
        let mut forgery = datagram.clone();
        *forgery.payload.last_mut().expect("a tag") ^= 1;
        vec![forgery]
    }));
    assert!(pair.run_until(SEC, |pair| {
        pair.ends.iter().all(|end| !end.events.is_empty())
    }));
    let ends = pair.ends.each_ref().map(|end| &end.events[0].1);
    assert_eq!(*ends[1], EndReason::Forgeries);
    assert!(
        matches!(ends[0], EndReason::ClosedByPeer { code: 5, .. }),
        "{ends:?}"
    );
}

/// Each packet comes after one with the same header and another body, which is opened into the same place: nothing stays of that.
#[test]
fn forged_symbols_leave_nothing_in_their_places() {
    for flip in [0, 40, 1] {
        let mut scenario = Scenario::new((lossy(5), lossy(6))).both_ways(400_000);
        scenario.cc = CcKind::Fixed(2_500_000);
        let mut pair = build(&scenario, 1 << 23);
        let forged = Rc::new(RefCell::new([0_u64; 2]));
        let counted = Rc::clone(&forged);
        pair.tap = Some(Box::new(move |_, side, datagram| {
            let mut forgery = datagram.clone();
            let len = forgery.payload.len();
            // From behind: of the tag, or of the body behind what header protection looks at.
            let at = len - 1 - flip.min(len - 39);
            forgery.payload[at] ^= 0x55;
            counted.borrow_mut()[1 - side] += 1;
            vec![forgery]
        }));
        pair.must_transfer(60 * SEC);
        for (end, forged) in std::iter::zip(&pair.ends, *forged.borrow()) {
            let invalid = end.counters().invalid;
            // Those that are late are replays, and others are lost.
            assert!(invalid > forged / 4, "{invalid} of {forged} were opened");
        }
    }
}

/// No acknowledgement comes back: the key is used up, and the session says so. What would have been the
/// next packet does not leave in the clear.
#[test]
fn a_key_that_is_used_up_ends_the_session() {
    let dead = LinkConfig {
        loss: Loss::Bernoulli(1.0),
        ..lossy(4)
    };
    let mut scenario = Scenario::new((lossy(3), dead)).bulk(130_000);
    scenario.cc = CcKind::Fixed(2_500_000);
    let mut pair = build(&scenario, 20);
    let sent = Rc::new(RefCell::new(Vec::new()));
    let tapped = Rc::clone(&sent);
    pair.tap = Some(Box::new(move |_, side, datagram| {
        if side == 0 {
            tapped.borrow_mut().push(datagram.payload.clone());
        }
        Vec::new()
    }));
    assert!(pair.run_until(SEC, |pair| !pair.client().events.is_empty()));
    let (_, end) = &pair.client().events[0];
    assert!(
        matches!(end, EndReason::CannotSeal(why) if why.contains("key used up")),
        "{end:?}"
    );
    assert!(pair.client().session().is_finished());
    // What was not sealed is blank.
    let sent = sent.borrow();
    let (last, sealed) = sent.split_last().expect("packets");
    assert_eq!(sealed.len(), 20);
    assert!(last.iter().all(|byte| *byte == 0), "plaintext on the wire");
}
