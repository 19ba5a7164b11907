//! What a short session costs on the wire, handshake included.

use sphinx_link::LinkConfig;
use sphinx_transport::Options;

use crate::proxy::Way;
use crate::support::*;

const IP_OVERHEAD: usize = 28;

/// IP bytes there and back of a session that carries `len` bytes to the server, over a path that nobody knows.
fn session(len: usize, one_way: u64) -> [usize; 2] {
    let link = |seed| LinkConfig {
        delay: ms(one_way),
        ..link(0.0, seed)
    };
    let pair = pair_with(link(1), link(2), &Options::default());
    transfer(&pair.client, &pair.server, &content(1, len));
    pair.client.close(0, "done");
    std::thread::sleep(ms(3 * one_way));
    [Way::ToServer, Way::ToClient].map(|way| {
        let datagrams = pair.proxy.latest(way);
        datagrams.iter().map(|d| d.len() + IP_OVERHEAD).sum()
    })
}

/// Where the machine is late, a datagram may be sent twice: one run of a few has to be as small as it can be.
#[test]
fn ten_kilobytes_take_seventeen_there_and_seven_back() {
    bounded(|| {
        let mut runs = (0..8).map(|_| session(10_000, 20));
        let fits = |run: &[usize; 2]| run[0] <= 17_000 && run[1] <= 7_000;
        let mut seen = Vec::new();
        let found = runs.any(|run| {
            seen.push(run);
            fits(&run)
        });
        assert!(found, "{seen:?}");
    });
}
