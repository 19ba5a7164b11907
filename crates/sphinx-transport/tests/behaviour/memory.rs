//! What a session learned about its path helps the next one, where it is wanted.

use sphinx_transport::Options;

use crate::support::*;

#[test]
fn the_connecting_end_remembers_its_paths() {
    bounded(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("deep/paths");
        let options = |memory: bool| Options {
            path_memory: memory.then(|| file.clone()),
            ..Options::default()
        };
        let session = |memory: bool, bytes: usize| {
            let pair = pair_with(link(0.05, 1), link(0.0, 2), &options(memory));
            let loss = pair.client.stats().plr;
            transfer(&pair.client, &pair.server, &content(4, bytes));
            pair.client.close(0, "done");
            loss
        };
        let lines = || std::fs::read_to_string(&file).map(|text| text.lines().count());
        session(false, 3_000_000);
        assert!(lines().is_err(), "nothing was to be remembered");
        session(true, 10_000);
        assert!(lines().is_err(), "too little was learned");
        session(true, 3_000_000);
        assert_eq!(lines().unwrap(), 2, "a path behind the version");
        // Another server at the same address is at the end of the same path.
        session(true, 3_000_000);
        assert_eq!(lines().unwrap(), 2);
    });
}

#[test]
fn the_next_session_begins_with_it_though_the_server_is_another() {
    bounded(|| {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            path_memory: Some(directory.path().join("paths")),
            ..Options::default()
        };
        let first = pair_with(link(0.1, 1), link(0.0, 2), &options);
        let cold = first.client.stats().plr;
        transfer(&first.client, &first.server, &content(4, 4_000_000));
        first.client.close(0, "done");
        let second = pair_with(link(0.1, 3), link(0.0, 4), &options);
        wait_until("counters", || second.client.stats().plr > 0.0);
        let warm = second.client.stats().plr;
        assert!(warm > 0.05 && warm > cold, "{warm} after {cold}");
    });
}
