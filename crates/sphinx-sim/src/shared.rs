//! Several sessions over one link.

use sphinx_link::{Datagram, Link, LinkConfig, Packet};
use sphinx_proto::Nanos;

use crate::end::End;
use crate::plain::Plain;
use crate::scenario::Scenario;

/// A datagram, and the place of its session.
struct Of(usize, Datagram);

impl Packet for Of {
    fn ip_len(&self) -> usize {
        self.1.ip_len()
    }

    fn mark_ce(&mut self) -> bool {
        self.1.mark_ce()
    }

    fn clear_ecn(&mut self) {
        self.1.clear_ecn();
    }

    fn corruptible_bits(&self) -> u64 {
        self.1.corruptible_bits()
    }

    fn flip_bit(&mut self, bit: u64) {
        self.1.flip_bit(bit);
    }

    fn duplicate(&self) -> Self {
        Self(self.0, self.1.duplicate())
    }
}

/// Sessions whose packets all take the same link. In each, index 0 is the client, which sends forward, and 1 the server.
pub struct Shared {
    /// The time.
    pub now: Nanos,
    /// The ends of each session.
    pub sessions: Vec<[End<Plain>; 2]>,
    links: [Link<Of>; 2],
}

impl Shared {
    /// The sessions of these scenarios over a link of both directions; their own links count for the round trip that they expect first.
    pub fn new((forward, backward): &(LinkConfig, LinkConfig), scenarios: &[Scenario]) -> Self {
        let links = [forward, backward];
        Self {
            now: 0,
            sessions: scenarios.iter().map(|one| one.build().ends).collect(),
            links: links.map(|config| Link::new(config.clone()).expect("a valid link")),
        }
    }

    /// Runs until this time.
    pub fn run_until(&mut self, limit: Nanos) {
        let mut out = Vec::new();
        loop {
            for (at, ends) in self.sessions.iter_mut().enumerate() {
                for (end, link) in ends.iter_mut().zip(&mut self.links) {
                    end.drive(self.now, &mut out);
                    let datagrams = out.drain(..);
                    datagrams.for_each(|datagram| link.enqueue(self.now, Of(at, datagram)));
                }
            }
            let ends = self.sessions.iter_mut().flatten();
            let links = self.links.iter().filter_map(Link::next_event);
            let next = ends.filter_map(End::next_event).chain(links).min();
            let Some(next) = next.filter(|next| *next <= limit) else {
                self.now = self.now.max(limit);
                return;
            };
            self.now = self.now.max(next);
            for (side, link) in self.links.iter_mut().enumerate() {
                while let Some(delivery) = link.poll(self.now) {
                    let Of(at, datagram) = delivery.packet;
                    self.sessions[at][1 - side].receive(self.now, datagram);
                }
            }
        }
    }
}
