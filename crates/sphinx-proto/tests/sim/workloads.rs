//! What applications send: messages, many streams, pauses, extremes of size.

use sphinx_fec::CodeId;
use sphinx_link::{GilbertElliott, Loss};
use sphinx_proto::Profile;
use sphinx_sim::{MS, Reader, SEC, Scenario, Write, link};

use crate::table::{bernoulli, blocks};

fn write(at: u64, stream: u64, len: u64, end_of_stream: bool) -> Write {
    Write {
        at,
        stream,
        len,
        end_of_stream,
    }
}

/// A block of 100 kB every 40 ms: the floor is 5 ms of delay and 4.2 ms of serialisation.
#[test]
fn blocks_complete_without_a_second_round() {
    for (p, mean, p99) in [(0.0, 9.4, 9.5), (0.06, 10.0, 11.0), (0.2, 11.5, 14.0)] {
        let scenario = Scenario::new(link(200, 10, bernoulli(p), 1));
        let result = blocks(&scenario, 100_000, 40 * MS, 525, 25);
        assert!(
            result.mean_ms < mean && result.p99_ms < p99,
            "loss {p}: {result:?}"
        );
        assert!(result.second_rounds < 0.01, "loss {p}: {result:?}");
    }
}

/// Repair ahead follows how many packets are lost in a row, as far as there is room for it.
#[test]
fn blocks_in_bursts_of_loss() {
    let scenario = |burst| {
        let loss = Loss::GilbertElliott(GilbertElliott::bursts(0.05, burst));
        Scenario::new(link(200, 10, loss, 1))
    };
    for (burst, overhead) in [(2.0, 1.45), (4.0, 1.6), (8.0, 1.9)] {
        let result = blocks(&scenario(burst), 100_000, 40 * MS, 525, 25);
        assert!(result.second_rounds < 0.015, "{burst}: {result:?}");
        assert!(result.overhead < overhead, "{burst}: {result:?}");
    }
    // Half of the link is taken by the blocks alone.
    let result = blocks(&scenario(16.0), 100_000, 8 * MS, 1025, 25);
    assert!(
        result.mean_ms < 12.0 && result.overhead < 1.75,
        "{result:?}"
    );
    // A higher failure probability costs less repair.
    let mut cheap = scenario(4.0);
    cheap.epsilon = 0.1;
    let result = blocks(&cheap, 100_000, 40 * MS, 525, 25);
    assert!(
        (0.03..0.2).contains(&result.second_rounds) && result.overhead < 1.35,
        "{result:?}"
    );
}

#[test]
fn streams_without_bytes() {
    let mut scenario = Scenario::new(link(100, 20, bernoulli(0.3), 1));
    scenario.client.writes = (0..20).map(|i| write(i * MS, i, 0, true)).collect();
    scenario.build().must_transfer(5 * SEC);
}

#[test]
fn blocks_of_one_byte() {
    let mut scenario = Scenario::new(link(100, 20, bernoulli(0.1), 2));
    scenario.client.writes = (0..2000).map(|i| write(0, 0, 1, i == 1999)).collect();
    scenario.client.reader = Reader::InOrder;
    scenario.build().must_transfer(5 * SEC);
}

#[test]
fn the_largest_blocks() {
    for code in [Some(CodeId::Rlc), None] {
        let mut scenario = Scenario::new(link(100, 20, bernoulli(0.1), 3)).bulk(6_000_000);
        scenario.code = code;
        scenario.client.shape = Some((1024, 1160));
        scenario.build().must_transfer(10 * SEC);
    }
}

#[test]
fn many_streams_and_pauses() {
    for profile in [Profile::Bulk, Profile::Latency] {
        let mut scenario = Scenario::new(link(100, 20, bernoulli(0.06), 4));
        scenario.profile = profile;
        scenario.client.reader = Reader::InOrder;
        scenario.server.reader = Reader::InOrder;
        for stream in 0..20 {
            for i in 0..5 {
                for (side, end) in [&mut scenario.client, &mut scenario.server]
                    .into_iter()
                    .enumerate()
                {
                    let number = 2 * stream + side as u64;
                    let at = (i * 97 + number * 13) * MS;
                    let len = 1 + (i * 7919 + number * 104_729) % 50_000;
                    end.writes.push(write(at, stream, len, i == 4));
                }
            }
        }
        scenario.build().must_transfer(10 * SEC);
    }
}

/// Paced messages of 1000 bytes arrive within a round trip and a half.
#[test]
fn small_messages_are_quick() {
    let scenario = Scenario::new(link(100, 20, Loss::Bernoulli(0.05), 6));
    let result = blocks(&scenario, 1000, 5 * MS, 2000, 200);
    assert!(result.mean_ms < 12.0 && result.p99_ms < 45.0, "{result:?}");
}
