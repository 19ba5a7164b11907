//! Bulk transfers arrive whole.

use sphinx_link::Loss;

use crate::pair::{Scenario, SEC, link};

#[test]
fn clean() {
    let mut pair = Scenario::new(link(200, 10, Loss::None, 1)).bulk(5_000_000).build();
    assert!(pair.run_transfer(20 * SEC));
    println!("{:?} {:#?}", pair.now, pair.client().session.stats());
}

#[test]
fn six_percent() {
    let mut pair = Scenario::new(link(200, 10, Loss::Bernoulli(0.06), 1)).bulk(5_000_000).build();
    assert!(pair.run_transfer(20 * SEC));
    println!("{:?} {:#?}", pair.now, pair.client().session.stats());
}
