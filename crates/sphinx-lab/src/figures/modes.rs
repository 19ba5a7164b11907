//! Delivery modes: what small messages take and how they come, by everything that carries them.

use super::{
    Sheet, Studio,
    curves::{
        dropped_percent, late_percent, loss_percent, p99_ms, packets_per_message, wire_ratio,
    },
    sweep::{Sweep, View},
};
use crate::runner::ScenarioFailure;

pub(super) const SCENARIOS: &[(&str, &str)] = &[scenario!("modes-live"), scenario!("modes-thin")];

const VIEWS: &[View] = &[
    View::linear("messages dropped (%)", dropped_percent)
        .part("-dropped")
        .with_places(2),
    View::linear("messages late or dropped (%)", late_percent)
        .part("-late")
        .with_places(2),
    View::linear("IP bytes sent for a byte delivered", wire_ratio)
        .part("-bytes")
        .with_places(2),
    View::linear("packets sent for a message delivered", packets_per_message)
        .part("-packets")
        .with_places(2),
    View::logarithmic("99th percentile (ms) of what came", p99_ms).part("-p99"),
];

const SWEEPS: [Sweep; 2] = [
    Sweep {
        part: "live",
        title: "A live stream",
        about: "1000 bytes every 5 ms, RTT 50 ms; what comes more than 100 ms behind its time is of no use. `sphinx-live` and \
                `sphinx-datagrams` know that, and so does SRT: with a latency of 75 ms, which it adds to the path's 25 ms, it gives \
                messages out 100 ms behind their time (in steps of its timer, some 10 ms), so that all its messages are late by \
                a hair; what counts there is what it drops. `srt-100ms` gives them out 125 ms behind their time. Of \
                `sphinx-datagrams-plain` and `quinn-datagrams` nothing is repaired. All bytes count that go over the link, handshakes \
                and ends included.",
        x_label: "packet loss rate (%)",
        x: loss_percent,
        is_x_logarithmic: false,
        views: VIEWS,
    },
    Sweep {
        part: "thin",
        title: "A thin stream",
        about: "200 bytes every 20 ms for a minute, RTT 50 ms: games, shells, control. Late is what comes more than 25 ms behind the \
                path's own 25 ms. `sphinx`, `sphinx-8-streams` and `sphinx-bundle-0` are streams. Over one stream a message is there \
                when all before it are; over eight in turn hardly any waits for another. With `sphinx-bundle-0` nothing is bundled. \
                All bytes count that go over the link, handshakes and ends included, and what is sent ahead before a path is known, \
                both of which weigh more the shorter a session is.",
        x_label: "packet loss rate (%)",
        x: loss_percent,
        is_x_logarithmic: false,
        views: VIEWS,
    },
];

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    sheet.title(
        "Delivery modes",
        "Small messages by streams, live messages and datagrams, beside kernel TCP, QUIC (quinn) and SRT (`srt-live-transmit`), over \
         links of the same settings; with one seed, all that go over UDP lose the same packets. Medians of the seeds.",
    );
    for (scenario, sweep) in SCENARIOS.iter().zip(&SWEEPS) {
        if !sweep.draw(*scenario, studio, sheet)? {
            return Ok(false);
        }
    }
    Ok(true)
}
