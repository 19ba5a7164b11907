//! Transfers whose acknowledgements have a thin way: E-AS1 to 4.

use std::time::Duration;

use super::{Cell, Column, Design, Variant, What};

/// Buffers of 100 KB on both sides, as published.
const PUBLISHED: &[&str] = &[
    "net.ipv4.tcp_wmem=4096 100000 100000",
    "net.ipv4.tcp_rmem=4096 100000 100000",
];

const BULK: &[&str] = &["name=bulk greedy"];
const BOTH: &[&str] = &["name=bulk greedy", "name=other back greedy"];

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
    }
}

const NONE: &str = "none";
const AF: &str = "AF";
const RENO_10: &str = "28.8 kbit/s, 10 packets, reno";
const RENO_50: &str = "28.8 kbit/s, 50 packets, reno";
const CUBIC_10: &str = "28.8 kbit/s, 10 packets, cubic";
const CUBIC_50: &str = "28.8 kbit/s, 50 packets, cubic";
const FAST: &str = "200 : 0.5 Mbit/s, cubic";

pub(in crate::figures) const DESIGN: Design = Design {
    name: "asymmetry",
    title: "Acknowledgements with a thin way",
    about: "A transfer at 10 Mbit/s whose acknowledgements go by 9.6 to 128 kbit/s with room for 10 or 50 packets, 20 ms of round trip, buffers of 100 KB (as published) \
            but where it says `autotuned`; with compressed headers, pure acknowledgements count for 6 bytes there. `AF`: `sphx pep run --agent ack-filter` in front of the thin \
            link; `ACC`: `ack-cc`; `AF+AR`: `ack-reconstruct` on the sender's host besides; `AF+SA`: `pace` there. The queue of agents is that of the link, at 95 % of its rate.",
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
        cell(
            FAST,
            (
                "return.rate=200mbit return.queue=50ms forward.rate=500kbit forward.queue=50p rtt=10ms",
                "475kbit",
            ),
            "cubic",
            &[],
        ),
        Cell {
            name: "200 : 0.5 Mbit/s, cubic, beside an upload",
            groups: BOTH,
            ..cell(
                "",
                (
                    "return.rate=200mbit return.queue=50ms forward.rate=500kbit forward.queue=50p rtt=10ms",
                    "475kbit",
                ),
                "cubic",
                &[],
            )
        },
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
    ],
    remark: "Published are bars from 0 to 10 Mbit/s for Reno, ACC, AF and AF+AR with 28.8 kbit/s and room for 10 and 50 packets, whose values are not in the text: \
             compressed headers help, and much room hurts Reno and ACC. Without a filter, 28.8 kbit/s carry 90 acknowledgements of 40 bytes a second, which bounds a sender of 1000-byte segments to \
             0.72 Mbit/s, or 1.44 where every second one is acknowledged. CAKE's filter is not among the contestants: the kernel here has no `sch_cake`. Nor is the radio with one channel for both directions, which \
             the emulator does not have.",
    time: Duration::from_secs(20),
    at_once: 8,
};
