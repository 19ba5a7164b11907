//! The fuzz targets of this crate, over their corpora and over random bytes.

use proptest::prelude::*;
use sphinx_fuzz::{card, driver, fec, link, pep, replay, session, wire};

macro_rules! targets {
    ($($target:ident: $run:path, $len:literal;)*) => {$(
        mod $target {
            use super::*;

            #[test]
            fn corpus() {
                replay(stringify!($target), $run);
            }

            proptest! {
                #[test]
                fn random(data in prop::collection::vec(any::<u8>(), 0..$len)) {
                    $run(&data);
                }
            }
        }
    )*};
}

targets! {
    blocks: fec::blocks, 2000;
    window: fec::window, 2000;
    header: wire::header, 40;
    ethernet: card::frames, 300;
    frames: wire::frames, 300;
    segments: wire::segments, 100;
    bundle: wire::bundle, 200;
    fragment: wire::fragment, 40;
    sessions: session::hostile_peer, 700;
    drivers: driver::hostile_peer, 700;
    generations: sphinx_fuzz::generations::hostile_peer, 700;
    papers: sphinx_fuzz::paper::hostile_peer, 700;
    packets: link::packet, 100;
    links: link::settings, 300;
    agent: pep::agent, 600;
    queue: pep::queue, 200;
    reports: pep::reports, 200;
    handovers: pep::handovers, 200;
    marks: pep::marks, 60;
}
