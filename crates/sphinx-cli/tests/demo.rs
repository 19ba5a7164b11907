//! The demonstration, short.

mod common;

use common::{Running, Scratch};

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
    for field in ["goodput_mbit_s", "wire_bytes_per_byte", "block_ms_mean"] {
        assert!(
            sphinx[field].as_f64().is_some_and(|number| number > 0.0),
            "{field} in {done}"
        );
    }
    assert!(done["scene"] == "relay" || rows.len() > 1, "{done}");
}
