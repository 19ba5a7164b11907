//! What more than one of the examples needs.

use sphinx_pep::{
    Config, Stage,
    acks::{AckFilter, Mode, ReturnQueue},
    returning::Returning,
    rsfc::Rsfc,
};

/// Beside `stage`, all that may be there at once, with a queue in front of a link of this rate that has room for so many bytes.
pub(crate) fn every_stage(stage: Stage, bits_per_second: u64, bytes: usize) -> Config {
    let queue = ReturnQueue {
        bits_per_second,
        bytes,
        acks_first: true,
        mode: Mode::Conservative,
    };
    Config {
        stage,
        reports: matches!(stage, Stage::Snoop(_)),
        ack_filter: Some(AckFilter {
            queue: Some(queue),
            every_ns: None,
        }),
        returning: Returning::Reconstruct,
        pace: true,
        rsfc: Some(Rsfc::default()),
        ..Config::default()
    }
}
