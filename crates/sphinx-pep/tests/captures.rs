//! Captures of kernel TCP, replayed: what comes out is the same for ever, unless the rules change. The captures are of downloads of 14 kB
//! by HTTP, beside the server, in front of an emulated hop of 10 Mbit/s and 20 ms:
//!
//! ```sh
//! sphx lab link --rtt 20ms --rate 10mbit --return loss=packets:5,7-8 --pcap caps \
//!      --right 'python3 -m http.server --bind :: 80' -- sh -c 'sleep 5; curl -s http://10.77.0.2/page -o out'
//! ```
//!
//! and `caps/right.pcap` of it: with SACK; without (`tcp_sack` 0 at both ends) and with losses 5 and 9; over IPv6, with losses 6 and 13.

use sphinx_pep::{Agent, Config, Network, Profile, Stage, replay::replay};

/// A capture, a profile, and what comes of both: repaired, held and concealed, packets written, and the beginning of
/// the BLAKE3 hash of the capture that is written.
type Golden = (&'static str, Profile, [u64; 3], u64, &'static str);

const GOLDEN: [Golden; 9] = [
    ("sack", Profile::Sack, [3, 1, 2], 34, "b1bda700f2cbd7df"),
    ("sack", Profile::Classic, [0, 0, 0], 32, "a529e4cd97e1432b"),
    ("sack", Profile::Ll, [3, 0, 0], 35, "8fdfe999ce152027"),
    ("plain", Profile::Sack, [1, 3, 0], 29, "5296cb49d317dd4c"),
    ("plain", Profile::Classic, [1, 5, 0], 27, "d5bc58f0ad671f53"),
    ("plain", Profile::Ll, [1, 0, 0], 32, "480aeaad66420fb2"),
    ("ipv6", Profile::Sack, [3, 1, 2], 33, "c61d838ac76d34e3"),
    ("ipv6", Profile::Classic, [2, 0, 0], 33, "351f4538b0405038"),
    ("ipv6", Profile::Ll, [3, 0, 0], 34, "88542db3ea5f2729"),
];

fn capture(name: &str) -> &'static [u8] {
    match name {
        "sack" => include_bytes!("captures/sack.pcap"),
        "plain" => include_bytes!("captures/plain.pcap"),
        _ => include_bytes!("captures/ipv6.pcap"),
    }
}

fn mobile() -> [Network; 2] {
    let ipv4 = Network::new([10, 77, 0, 1].into(), 32);
    let ipv6 = Network::new([0xfd77, 0, 0, 0, 0, 0, 0, 1].into(), 128);
    [ipv4, ipv6].map(|network| network.expect("a network"))
}

#[test]
fn captures_of_kernels_are_replayed_as_ever() {
    let replayed = GOLDEN.map(|(name, profile, ..)| {
        let mut agent = Agent::new(Config {
            stage: Stage::Snoop(profile),
            ..Config::default()
        });
        let mut output = Vec::new();
        let totals = replay(capture(name), &mut output, &mobile(), &mut agent).expect("the laws");
        let counts = agent.counts();
        let told = [counts.repaired, counts.held, counts.concealed];
        let hash = blake3::hash(&output).to_hex();
        (name, profile, told, totals.written, hash[..16].to_owned())
    });
    let golden = GOLDEN.map(|(name, profile, told, written, hash)| {
        (name, profile, told, written, hash.to_owned())
    });
    assert!(replayed == golden, "{replayed:#?}");
}
