//! The demonstration, short.

use crate::common::{Running, Scratch};

#[test]
fn the_demo_compares_what_the_system_allows() {
    let scratch = Scratch::new();
    let arguments = [
        "demo",
        "--json",
        "--rate",
        "50mbit",
        "--seconds",
        "2s",
        "--loss",
        "1%",
    ];
    let ended = Running::start(&scratch, &arguments, &[]).end().expect(0);
    let done = ended.done();
    let rows = done["rows"].as_array().expect("rows");
    let sphinx = rows.last().expect("a row");
    assert_eq!(sphinx["transport"], "Sphinx");
    let is_measured = |field: &str| sphinx[field].as_f64().is_some_and(|number| number > 0.0);
    for field in ["goodput_mbit_s", "wire_bytes_per_byte"] {
        assert!(is_measured(field), "{field} in {done}");
    }
    // Of a second of blocks a machine with no time for it sends hardly more than the warm-up, and says so.
    let is_late = sphinx["blocks_unsent"].as_u64() > Some(0);
    assert!(is_measured("block_ms_mean") || is_late, "{done}");
    assert!(done["scene"] == "relay" || rows.len() > 1, "{done}");
}
