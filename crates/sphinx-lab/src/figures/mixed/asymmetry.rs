//! Transfers whose acknowledgements have a thin way: E-AS1 to 4.

use std::time::Duration;

use super::{Cell, Column, Design, Variant, What};

/// Buffers of 100 KB on both sides, as published.
const PUBLISHED: &[&str] = &[
    "net.ipv4.tcp_wmem=4096 100000 100000",
    "net.ipv4.tcp_rmem=4096 100000 100000",
];

const BULK: &[&str] = &["name=bulk greedy"];
const TWO: &[&str] = &["name=bulk greedy flows=2"];
const SIX: &[&str] = &["name=bulk greedy flows=6"];
const TWELVE: &[&str] = &["name=bulk greedy flows=12"];
const BOTH: &[&str] = &["name=bulk greedy", "name=other back greedy"];
/// Messages go the way of the acknowledgements, and wait as a ping does.
const PINGED: &[&str] = &[
    "name=bulk greedy",
    "name=pings back bytes=64B interval=100ms",
];
const MEGABYTES: &[&str] = &[
    "name=bulk fetch bytes=1MB interval=5s",
    "name=pings back bytes=64B interval=500ms",
];
const BESIDE: &[&str] = &[
    "name=bulk fetch bytes=10MB interval=4s",
    "name=other back greedy",
];

/// The right host sends at 10 Mbit/s; what acknowledges it goes the thin way.
const fn cell(
    name: &'static str,
    (wireless, agent_rate): (&'static str, &'static str),
    congestion: &'static str,
    sysctl: &'static [&'static str],
) -> Cell {
    Cell {
        name,
        wired: "rtt=10ms",
        wireless,
        agent_rate,
        upload: true,
        groups: BULK,
        congestion,
        sysctl,
        places: 1,
    }
}

/// A link of today.
const fn fast(name: &'static str, groups: &'static [&'static str]) -> Cell {
    const LINK: &str =
        "return.rate=200mbit return.queue=50ms forward.rate=500kbit forward.queue=50p rtt=10ms";
    Cell {
        groups,
        places: AT_ONCE / 2,
        ..cell(name, (LINK, "475kbit"), "cubic", &[])
    }
}

/// A packet radio as that of the published experiment, but ten times as fast: whatever goes either way uses one channel, and each hop sends it again.
/// Agents let about half of the acknowledgements go that there would be.
const fn radio(
    name: &'static str,
    (wireless, agent_rate): (&'static str, &'static str),
    groups: &'static [&'static str],
) -> Cell {
    Cell {
        groups,
        ..cell(name, (wireless, agent_rate), "reno", PUBLISHED)
    }
}

const AT_ONCE: usize = 8;
/// What messages take at least from the left host to the right one, in milliseconds.
const WAY_MS: f64 = 10.0;
const HOP: &str = "rate=1mbit queue=20p rtt=10ms radio=2500us,300us";
const HOPS_2: &str = "rate=1mbit queue=20p rtt=10ms radio=2500us,300us,2";
const HOPS_3: &str = "rate=1mbit queue=20p rtt=10ms radio=2500us,300us,3";

const NONE: &str = "none";
const AF: &str = "AF";
const RENO_10: &str = "28.8 kbit/s, 10 packets, reno";
const RENO_50: &str = "28.8 kbit/s, 50 packets, reno";
const CUBIC_10: &str = "28.8 kbit/s, 10 packets, cubic";
const CUBIC_50: &str = "28.8 kbit/s, 50 packets, cubic";
const RADIO_2: &str = "radio, 2 hops";
const FAST: &str = "200 : 0.5 Mbit/s, cubic";
const FETCHED: &str = "28.8 kbit/s, 50 packets, cubic, autotuned, 1 MB every 5 s";
const FAST_PINGED: &str = "200 : 0.5 Mbit/s, cubic, and messages";
const FAST_FETCHED: &str = "200 : 0.5 Mbit/s, cubic, 10 MB beside an upload";
const PINGS: usize = 4;
const FETCHES: usize = 5;

pub(in crate::figures) const DESIGN: Design = Design {
    name: "asymmetry",
    title: "Acknowledgements with a thin way",
    about: "A transfer at 10 Mbit/s whose acknowledgements go by 9.6 to 128 kbit/s with room for 10 or 50 packets, 20 ms of round trip, buffers of 100 KB (as published) \
            but where it says `autotuned`; with compressed headers, pure acknowledgements count for 6 bytes there. `AF`: `sphx pep run --agent ack-filter` in front of the thin \
            link; `ACC`: `ack-cc`; `AF+AR`: `ack-reconstruct` on the sender's host besides; `AF+SA`: `pace` there. The queue of agents is that of the link, at 95 % of its rate. Objects are fetched over new connections, and messages go the way of acknowledgements on one that stays open; what they wait is \
            beyond the 10 ms of the way. The radios have one channel of 1 Mbit/s for both directions, 2.5 ms and up to 15 slots of 0.3 ms before each packet, and 1 to 3 hops on it (ten times as fast as those published); agents let \
            2 to 6 kbit/s of acknowledgements go to it, about half of what there would be.",
    cells: &[
        cell(
            "9.6 kbit/s, 10 packets, reno",
            (
                "return.rate=10mbit forward.rate=9600bit forward.queue=10p rtt=10ms",
                "9120bit",
            ),
            "reno",
            PUBLISHED,
        ),
        cell(
            RENO_10,
            (
                "return.rate=10mbit forward.rate=28800bit forward.queue=10p rtt=10ms",
                "27360bit",
            ),
            "reno",
            PUBLISHED,
        ),
        cell(
            RENO_50,
            (
                "return.rate=10mbit forward.rate=28800bit forward.queue=50p rtt=10ms",
                "27360bit",
            ),
            "reno",
            PUBLISHED,
        ),
        cell(
            CUBIC_10,
            (
                "return.rate=10mbit forward.rate=28800bit forward.queue=10p rtt=10ms",
                "27360bit",
            ),
            "cubic",
            PUBLISHED,
        ),
        cell(
            CUBIC_50,
            (
                "return.rate=10mbit forward.rate=28800bit forward.queue=50p rtt=10ms",
                "27360bit",
            ),
            "cubic",
            PUBLISHED,
        ),
        cell(
            "28.8 kbit/s, 10 packets, reno, compressed",
            (
                "return.rate=10mbit forward.rate=28800bit forward.queue=10p rtt=10ms forward.compress=acks:6B",
                "27360bit",
            ),
            "reno",
            PUBLISHED,
        ),
        cell(
            "128 kbit/s, 10 packets, reno",
            (
                "return.rate=10mbit forward.rate=128kbit forward.queue=10p rtt=10ms",
                "121600bit",
            ),
            "reno",
            PUBLISHED,
        ),
        cell(
            "28.8 kbit/s, 50 packets, cubic, autotuned",
            (
                "return.rate=10mbit forward.rate=28800bit forward.queue=50p rtt=10ms",
                "27360bit",
            ),
            "cubic",
            &[],
        ),
        cell(
            "28.8 kbit/s, 50 packets, bbr, autotuned",
            (
                "return.rate=10mbit forward.rate=28800bit forward.queue=50p rtt=10ms",
                "27360bit",
            ),
            "bbr",
            &[],
        ),
        fast(FAST, BULK),
        fast("200 : 0.5 Mbit/s, cubic, beside an upload", BOTH),
        Cell {
            groups: MEGABYTES,
            ..cell(
                FETCHED,
                (
                    "return.rate=10mbit forward.rate=28800bit forward.queue=50p rtt=10ms",
                    "27360bit",
                ),
                "cubic",
                &[],
            )
        },
        fast(FAST_PINGED, PINGED),
        fast(FAST_FETCHED, BESIDE),
        radio("radio, 1 hop", (HOP, "5kbit"), BULK),
        radio(RADIO_2, (HOPS_2, "3kbit"), BULK),
        radio("radio, 3 hops", (HOPS_3, "2kbit"), BULK),
        radio("radio, 2 hops, 2 transfers", (HOPS_2, "3kbit"), TWO),
        radio("radio, 2 hops, 6 transfers", (HOPS_2, "4kbit"), SIX),
        radio("radio, 2 hops, 12 transfers", (HOPS_2, "6kbit"), TWELVE),
    ],
    variants: &[
        Variant::none(NONE),
        Variant::middle("ACC", "--agent ack-cc:rate=RATE"),
        Variant::middle(AF, "--agent ack-filter:rate=RATE"),
        Variant {
            right: Some("--agent ack-reconstruct"),
            ..Variant::middle("AF+AR", "--agent ack-filter:rate=RATE")
        },
        Variant {
            right: Some("--agent pace"),
            ..Variant::middle("AF+SA", "--agent ack-filter:rate=RATE")
        },
        Variant::middle("AF, acks-first", "--agent ack-filter:rate=RATE,acks-first"),
    ],
    columns: &[
        Column {
            label: "goodput, Mbit/s",
            group: "bulk",
            what: What::Goodput,
        },
        Column {
            label: "packets take p95, ms",
            group: "bulk",
            what: What::Transit(95),
        },
        Column {
            label: "sent again, %",
            group: "bulk",
            what: What::Again,
        },
        Column {
            label: "Jain",
            group: "bulk",
            what: What::Jain,
        },
        Column {
            label: "messages against it wait p95, ms",
            group: "pings",
            what: What::Waiting(95, WAY_MS),
        },
        Column {
            label: "objects p50, ms",
            group: "bulk",
            what: What::Delivery(50),
        },
    ],
    claims: &[
        (
            "reno, 10 packets: AF is 1.8 times as fast",
            (RENO_10, AF, 0),
            1.8,
            (RENO_10, NONE, 0),
        ),
        (
            "cubic, 10 packets: AF is 1.8 times as fast",
            (CUBIC_10, AF, 0),
            1.8,
            (CUBIC_10, NONE, 0),
        ),
        (
            "reno, 50 packets: AF is 4 times as fast",
            (RENO_50, AF, 0),
            4.0,
            (RENO_50, NONE, 0),
        ),
        (
            "cubic, 50 packets: AF is 4 times as fast",
            (CUBIC_50, AF, 0),
            4.0,
            (CUBIC_50, NONE, 0),
        ),
        (
            "200 : 0.5 Mbit/s: AF costs nothing (0.98)",
            (FAST, AF, 0),
            0.98,
            (FAST, NONE, 0),
        ),
        (
            "autotuned, 50 packets: AF fetches 1 MB 1.8 times as fast",
            (FETCHED, NONE, FETCHES),
            1.8,
            (FETCHED, AF, FETCHES),
        ),
        (
            "autotuned, 50 packets: with AF, what else goes with the acknowledgements waits a fifth (p95)",
            (FETCHED, NONE, PINGS),
            5.0,
            (FETCHED, AF, PINGS),
        ),
        (
            "200 : 0.5 Mbit/s: with AF, what else goes with the acknowledgements waits a fifth (p95)",
            (FAST_PINGED, NONE, PINGS),
            5.0,
            (FAST_PINGED, AF, PINGS),
        ),
        (
            "200 : 0.5 Mbit/s, beside an upload: AF fetches 10 MB twice as fast",
            (FAST_FETCHED, NONE, FETCHES),
            2.0,
            (FAST_FETCHED, AF, FETCHES),
        ),
        (
            "radio, 2 hops: AF costs nothing (0.98)",
            (RADIO_2, AF, 0),
            0.98,
            (RADIO_2, NONE, 0),
        ),
    ],
    remark: "Published are bars from 0 to 10 Mbit/s for Reno, ACC, AF and AF+AR with 28.8 kbit/s and room for 10 and 50 packets, whose values are not in the text: \
             compressed headers help, and much room hurts Reno and ACC. Without a filter, 28.8 kbit/s carry 90 acknowledgements of 40 bytes a second, which bounds a sender of 1000-byte segments to \
             0.72 Mbit/s, or 1.44 where every second one is acknowledged. Over packet radios (Ricochet), AF was worth 20 to 35 % for 1 to 3 hops, and made 2 to 12 connections fairer by 25 % (Jain). CAKE's filter is not among the contestants: the kernel here has no `sch_cake`.",
    time: Duration::from_secs(20),
    at_once: AT_ONCE,
};
