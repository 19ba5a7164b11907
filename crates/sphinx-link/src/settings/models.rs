//! Links as people have them, by name. `docs/emulator.md` says where the numbers come from.

/// A kind of link: settings for both directions, the right end being the network's.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub help: &'static str,
    /// Keys, of which some begin with `forward.` or `return.`, and values.
    pub settings: &'static [(&'static str, &'static str)],
}

/// All models. *Forward* (from left to right) is what a user downloads: the left end is the server's.
pub const MODELS: [Model; 7] = [
    Model {
        name: "wifi",
        help: "Wi-Fi with other stations: turns 1 to 8 ms apart, 100 Mbit/s, packets sent again in a later turn",
        settings: &[
            ("rtt", "20ms"),
            ("rate", "turns:1ms-8ms,28p"),
            ("queue", "500p"),
            ("retries", "8%,4ms,7"),
        ],
    },
    Model {
        name: "lte",
        help: "LTE on the move: fades, deep queues, grants every 10 ms upwards, retransmissions of 8 ms, sleep",
        settings: &[
            ("rtt", "40ms"),
            ("forward.rate", "fading:20mbit,2,500ms"),
            ("return.rate", "fading:6mbit,2,500ms,10ms"),
            ("forward.queue", "2MB"),
            ("return.queue", "1MB"),
            ("retries", "10%,8ms,4"),
            ("wake", "10s,100ms"),
        ],
    },
    Model {
        name: "5g",
        help: "5G: faster fades, grants every 5 ms upwards, retransmissions of 4 ms, sleep",
        settings: &[
            ("rtt", "20ms"),
            ("forward.rate", "fading:150mbit,2,200ms"),
            ("return.rate", "fading:30mbit,2,200ms,5ms"),
            ("queue", "4MB"),
            ("retries", "10%,4ms,4"),
            ("wake", "10s,40ms"),
        ],
    },
    Model {
        name: "leo",
        help: "Satellites in low orbits: every 15 s another route, after a pause, and bursts of loss",
        settings: &[
            ("rtt", "40ms"),
            ("forward.rate", "routes:60mbit-250mbit,15s,50ms-200ms"),
            ("return.rate", "routes:8mbit-25mbit,15s,50ms-200ms"),
            ("shift", "15s,15ms"),
            ("queue", "100ms"),
            ("loss", "burst:0.5%,4"),
        ],
    },
    Model {
        name: "geo",
        help: "A geostationary satellite: 600 ms, upwards a grant to wait for after a pause",
        settings: &[
            ("rtt", "600ms"),
            ("forward.rate", "50mbit"),
            ("return.rate", "5mbit"),
            ("queue", "500ms"),
            ("forward.loss", "0.5%"),
            ("return.wake", "1s,560ms"),
        ],
    },
    Model {
        name: "policed",
        help: "A fast line whose provider drops what exceeds 100 Mbit/s",
        settings: &[
            ("rtt", "20ms"),
            ("rate", "1gbit"),
            ("queue", "20ms"),
            ("policer", "100mbit,125kB"),
        ],
    },
    Model {
        name: "docsis",
        help: "Cable: 200 Mbit/s down, upwards a few packets every 2 ms, as granted",
        settings: &[
            ("rtt", "24ms"),
            ("forward.rate", "200mbit"),
            ("return.rate", "turns:2ms,4p"),
            ("forward.queue", "50ms"),
            ("return.queue", "250ms"),
        ],
    },
];

pub(super) fn find(name: &str) -> Result<&'static Model, String> {
    MODELS
        .iter()
        .find(|model| model.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
            format!("'{name}' is none of {}", names.join(", "))
        })
}
