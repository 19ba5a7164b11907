//! Small objects over a hop that is bad for a while, now and then: E-SN4.

use std::time::Duration;

use super::{Cell, Column, Design, Variant, What};

/// Good and bad periods whose lengths are spread evenly by their logarithms, as those of the published channel.
const WIRELESS: &str = "rate=2mbit rtt=4ms queue=32kB loss=periods:20ms-22s,1ms-400ms";
const WIRED: &str = "rate=10mbit rtt=96ms";

const fn cell(name: &'static str, groups: &'static [&'static str]) -> Cell {
    Cell {
        name,
        wired: WIRED,
        wireless: WIRELESS,
        agent_rate: "",
        upload: false,
        groups,
        congestion: "cubic",
        sysctl: &[],
        places: 1,
    }
}

const NONE: &str = "none";
const SACK: &str = "sack";

pub(in crate::figures) const DESIGN: Design = Design {
    name: "snoop-web",
    title: "Snoop: small objects over a hop with bad periods",
    about: "Objects of 12 kB to a mobile host, one every 400 ms on each of one to four connections that stay open, by kernel TCP (CUBIC): 10 Mbit/s and \
            96 ms on the wired side, then 2 Mbit/s and 4 ms. The hop loses everything in periods of 1 to 400 ms, between good ones of 20 ms to 22 s, both \
            spread evenly by their logarithms. *Delivery* is from the time at which an object was due to the time at which the program had all of it.",
    cells: &[
        cell(
            "1 connection",
            &["name=objects flows=1 bytes=12kB interval=400ms"],
        ),
        cell(
            "2 connections",
            &["name=objects flows=2 bytes=12kB interval=400ms"],
        ),
        cell(
            "3 connections",
            &["name=objects flows=3 bytes=12kB interval=400ms"],
        ),
        cell(
            "4 connections",
            &["name=objects flows=4 bytes=12kB interval=400ms"],
        ),
    ],
    variants: &[
        Variant::none(NONE),
        Variant::middle("ll", "--agent snoop:profile=ll"),
        Variant::middle("classic", "--agent snoop:profile=classic"),
        Variant::middle(SACK, "--agent snoop:profile=sack"),
    ],
    columns: &[
        Column {
            label: "delivery p95, ms",
            group: "objects",
            what: What::Delivery(95),
        },
        Column {
            label: "p50",
            group: "objects",
            what: What::Delivery(50),
        },
        Column {
            label: "p99",
            group: "objects",
            what: What::Delivery(99),
        },
        Column {
            label: "objects",
            group: "objects",
            what: What::Delivered,
        },
        Column {
            label: "sent again by the sender, %",
            group: "objects",
            what: What::Again,
        },
    ],
    claims: &[(
        "4 connections: with `sack`, 95 % are delivered as fast as without an agent (0.98)",
        ("4 connections", NONE, 0),
        0.98,
        ("4 connections", SACK, 0),
    )],
    remark: "Published were downloads in 1000 s of a channel recorded in 1995, in which each object had a connection of its own (Reno 102 to 206, Snoop 849 \
             to 1085, with one connection for all 966 and 3000): the recording is not there, and the order of the columns in the source is not certain. The \
             longest bad periods of the published axis (22 s) are left out: in them nothing helps.",
    time: Duration::from_secs(60),
    at_once: 8,
};
