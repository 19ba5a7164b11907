//! Uploads that fill their senders' links: E-RF1 to 5.

use std::time::Duration;

use super::{Cell, Column, Design, Variant, What};

/// The link of the published experiments: downwards and upwards, with a deep buffer upwards.
const DEEP: &str =
    "forward.rate=7200kbit forward.queue=100ms return.rate=2mbit return.queue=1MB rtt=70ms";
const SHALLOW: &str =
    "forward.rate=7200kbit forward.queue=100ms return.rate=2mbit return.queue=64KiB rtt=70ms";
const CODEL: &str = "forward.rate=7200kbit forward.queue=100ms return.rate=2mbit return.queue=1MB return.aqm=codel rtt=70ms";
const TRACES: &str = "forward.rate=trace:lte.down return.rate=trace:lte.up queue=1MB rtt=70ms";

/// An upload, megabytes downwards, and small messages upwards, which wait as a ping does.
const BESIDE: &[&str] = &[
    "name=upload greedy",
    "name=downloads back flows=1 bytes=1MB interval=10s",
    "name=pings flows=1 bytes=64B interval=100ms",
];
const PAGES: &[&str] = &[
    "name=upload greedy",
    "name=downloads back flows=6 bytes=40kB interval=4s",
    "name=pings flows=1 bytes=64B interval=100ms",
];

const fn cell(
    name: &'static str,
    wireless: &'static str,
    congestion: &'static str,
    groups: &'static [&'static str],
) -> Cell {
    Cell {
        name,
        wired: "",
        wireless,
        agent_rate: "",
        upload: true,
        groups,
        congestion,
        sysctl: &[],
    }
}

const NONE: &str = "none";
const OURS: &str = "rsfc";
const CUBIC: &str = "1 MB of buffer, cubic";
const SHORT: &str = "64 KB of buffer, cubic";
const BBR: &str = "1 MB of buffer, bbr";
const MANAGED: &str = "CoDel, cubic";
const LTE: &str = "cellular traces, cubic";
const UPLOAD: usize = 0;
const DOWNLOADS: usize = 1;

const COLUMNS: &[Column] = &[
    Column {
        label: "upload, Mbit/s",
        group: "upload",
        what: What::Goodput,
    },
    Column {
        label: "downloads p50, ms",
        group: "downloads",
        what: What::Delivery(50),
    },
    Column {
        label: "p95",
        group: "downloads",
        what: What::Delivery(95),
    },
    Column {
        label: "messages upwards p50, ms",
        group: "pings",
        what: What::Delivery(50),
    },
    Column {
        label: "p95",
        group: "pings",
        what: What::Delivery(95),
    },
];

pub(in crate::figures) const DESIGN: Design = Design {
    name: "rsfc",
    title: "Uploads that do not fill their senders' links",
    about: "One upload, and beside it a megabyte downwards every 10 s and 64 bytes upwards every 100 ms, each on a connection that stays open: 7.2 Mbit/s downwards, 2.0 upwards, 70 ms. \
            `sphx pep run --agent rsfc` is on the way, behind the link. What messages take from program to program is the delay of the link and its queue.",
    cells: &[
        cell(CUBIC, DEEP, "cubic", BESIDE),
        cell(SHORT, SHALLOW, "cubic", BESIDE),
        cell(BBR, DEEP, "bbr", BESIDE),
        cell(MANAGED, CODEL, "cubic", BESIDE),
        cell(LTE, TRACES, "cubic", BESIDE),
    ],
    variants: &[
        Variant::none(NONE),
        Variant::middle(OURS, "--agent rsfc"),
        Variant::middle("rsfc, rledbat", "--agent rsfc:mode=rledbat"),
    ],
    columns: COLUMNS,
    claims: &[
        (
            "cubic, 1 MB of buffer: downloads are 5 times as fast",
            (CUBIC, NONE, DOWNLOADS),
            5.0,
            (CUBIC, OURS, DOWNLOADS),
        ),
        (
            "cubic, 1 MB of buffer: the upload keeps 0.9",
            (CUBIC, OURS, UPLOAD),
            0.9,
            (CUBIC, NONE, UPLOAD),
        ),
        (
            "cubic, 64 KB of buffer: the upload keeps 0.97",
            (SHORT, OURS, UPLOAD),
            0.97,
            (SHORT, NONE, UPLOAD),
        ),
        (
            "bbr: the upload keeps 0.97",
            (BBR, OURS, UPLOAD),
            0.97,
            (BBR, NONE, UPLOAD),
        ),
        (
            "CoDel: the upload keeps 0.97",
            (MANAGED, OURS, UPLOAD),
            0.97,
            (MANAGED, NONE, UPLOAD),
        ),
        (
            "traces: the upload keeps 0.85",
            (LTE, OURS, UPLOAD),
            0.85,
            (LTE, NONE, UPLOAD),
        ),
        (
            "traces: the p95 of messages upwards is half as long",
            (LTE, NONE, 4),
            2.0,
            (LTE, OURS, 4),
        ),
    ],
    remark: "The published experiments (phones of three operators, 7.2 and 2.0 Mbit/s) are scatter plots and distributions whose values are not in the text.",
    time: Duration::from_secs(40),
    at_once: 6,
};

pub(in crate::figures) const WEB: Design = Design {
    name: "rsfc-web",
    title: "Pages beside an upload",
    about: "One upload, and beside it pages of six objects of 40 kB, one page every 4 s, over six connections that stay open: 7.2 Mbit/s downwards, 2.0 upwards, 70 ms. \
            `sphx pep run --agent rsfc` is on the way, behind the link.",
    cells: &[
        cell(CUBIC, DEEP, "cubic", PAGES),
        cell(SHORT, SHALLOW, "cubic", PAGES),
        cell(BBR, DEEP, "bbr", PAGES),
        cell(MANAGED, CODEL, "cubic", PAGES),
    ],
    variants: &[Variant::none(NONE), Variant::middle(OURS, "--agent rsfc")],
    columns: COLUMNS,
    claims: &[
        (
            "cubic, 1 MB of buffer: objects come 3 times as fast",
            (CUBIC, NONE, DOWNLOADS),
            3.0,
            (CUBIC, OURS, DOWNLOADS),
        ),
        (
            "cubic, 64 KB of buffer: objects come as fast (0.97)",
            (SHORT, NONE, DOWNLOADS),
            0.97,
            (SHORT, OURS, DOWNLOADS),
        ),
    ],
    remark: "The published experiments (phones of three operators, 7.2 and 2.0 Mbit/s) are scatter plots and distributions whose values are not in the text.",
    time: Duration::from_secs(40),
    at_once: 6,
};

pub(in crate::figures) const ABLATION: Design = Design {
    name: "rsfc-ablation",
    title: "What makes RSFC what it is",
    about: "The upload of the figure `rsfc`, with its deep buffer and over a path that is another 0 to 200 ms longer every 15 s: by how long packets may wait, and with two uploads of one host.",
    cells: &[
        cell(CUBIC, DEEP, "cubic", BESIDE),
        cell(
            "a path that changes",
            "forward.rate=7200kbit forward.queue=100ms return.rate=2mbit return.queue=1MB rtt=70ms return.shift=15s,200ms",
            "cubic",
            BESIDE,
        ),
        cell(
            "two uploads",
            DEEP,
            "cubic",
            &[
                "name=upload greedy flows=2",
                "name=downloads back flows=1 bytes=1MB interval=10s",
                "name=pings flows=1 bytes=64B interval=100ms",
            ],
        ),
    ],
    variants: &[
        Variant::none(NONE),
        Variant::middle(OURS, "--agent rsfc"),
        Variant::middle("target 10 ms", "--agent rsfc:target=10ms"),
        Variant::middle("target 200 ms", "--agent rsfc:target=200ms"),
        Variant::middle("rledbat", "--agent rsfc:mode=rledbat"),
    ],
    columns: COLUMNS,
    claims: &[
        (
            "a path that changes: the upload keeps 0.85",
            ("a path that changes", OURS, UPLOAD),
            0.85,
            ("a path that changes", NONE, UPLOAD),
        ),
        (
            "two uploads: their sum keeps 0.9",
            ("two uploads", OURS, UPLOAD),
            0.9,
            ("two uploads", NONE, UPLOAD),
        ),
    ],
    remark: "That the agent would not find back after a longer path without its check of the rate and without `monitor` is shown in virtual time (`make mutants-pep`), where they are taken out.",
    time: Duration::from_secs(40),
    at_once: 6,
};
