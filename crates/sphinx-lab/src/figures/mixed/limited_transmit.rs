//! What Limited Transmit (RFC 3042) is worth.

use std::time::Duration;

use super::{Cell, Column, Design, Variant, What};

const NONE: &str = "with";
const WITHOUT: &str = "without";
const LOSSY: &str = "2 %, messages of 6 kB";

const fn cell(name: &'static str, wireless: &'static str, groups: &'static [&'static str]) -> Cell {
    Cell {
        name,
        wired: "rtt=96ms",
        wireless,
        agent_rate: "",
        upload: false,
        groups,
        congestion: "reno",
        // Tail loss probes and time-based detection do more than Limited Transmit does.
        sysctl: &["net.ipv4.tcp_early_retrans=0", "net.ipv4.tcp_recovery=0"],
    }
}

pub(in crate::figures) const DESIGN: Design = Design {
    name: "limited-transmit",
    title: "Limited Transmit",
    about: "Messages of four packets, one every 500 ms on each of 20 connections, and a transfer, over 100 ms that lose packets at random. Every sender here has \
            Limited Transmit (RFC 3042) built in; `sphx pep run --agent no-limited-transmit` holds the first two repeated acknowledgements until the \
            third comes, which is a kernel without it. Reno with SACK, without tail loss probes.",
    cells: &[
        cell(
            "1 %, messages of 6 kB",
            "rate=20mbit rtt=4ms forward.loss=1%",
            &["name=flow flows=20 bytes=5792B interval=500ms"],
        ),
        cell(
            LOSSY,
            "rate=20mbit rtt=4ms forward.loss=2%",
            &["name=flow flows=20 bytes=5792B interval=500ms"],
        ),
        cell(
            "5 %, messages of 6 kB",
            "rate=20mbit rtt=4ms forward.loss=5%",
            &["name=flow flows=20 bytes=5792B interval=500ms"],
        ),
        cell(
            "2 %, transfers",
            "rate=20mbit rtt=4ms forward.loss=2%",
            &["name=flow greedy flows=4"],
        ),
    ],
    variants: &[
        Variant::none(NONE),
        Variant::middle(WITHOUT, "--agent no-limited-transmit"),
    ],
    columns: &[
        Column {
            label: "delivery p99, ms",
            group: "flow",
            what: What::Delivery(99),
        },
        Column {
            label: "p50",
            group: "flow",
            what: What::Delivery(50),
        },
        Column {
            label: "p95",
            group: "flow",
            what: What::Delivery(95),
        },
        Column {
            label: "goodput, Mbit/s",
            group: "flow",
            what: What::Goodput,
        },
        Column {
            label: "sent again, %",
            group: "flow",
            what: What::Again,
        },
    ],
    claims: &[(
        "2 %: without Limited Transmit, the p95 of messages is at least as long (0.98)",
        (LOSSY, WITHOUT, 2),
        0.98,
        (LOSSY, NONE, 2),
    )],
    remark: "`tcp_recovery=0` has no effect since Linux 6.17, so time-based loss detection (RACK) is in both rows, and does most of what Limited Transmit was made for.",
    time: Duration::from_secs(30),
    at_once: 8,
};
