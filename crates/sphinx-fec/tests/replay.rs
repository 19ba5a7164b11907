//! The fuzz targets, over their corpora and over random input.

use std::path::Path;

use proptest::prelude::*;

mod hostile;

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    // The crate may be tested without the repository around it.
    let Ok(files) = std::fs::read_dir(&corpus) else {
        return;
    };
    for file in files {
        let path = file.expect("a readable directory").path();
        run(&std::fs::read(path).expect("a readable file"));
    }
}

#[test]
fn block_corpus() {
    replay("blocks", hostile::blocks);
}

#[test]
fn window_corpus() {
    replay("window", hostile::window);
}

proptest! {
    #[test]
    fn random_blocks(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        hostile::blocks(&data);
    }

    #[test]
    fn random_streams(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        hostile::window(&data);
    }
}
