//! Both directions of a link.

use crate::{
    Time,
    channel::Channel,
    config::{ConfigError, LinkConfig, Radio},
    link::{Delivery, Link},
    packet::Packet,
};

/// Both directions of a link: two [`Link`]s that know nothing of each other or, with [`LinkConfig::radio`], that share a channel on which one packet is sent
/// at a time.
///
/// It is driven as a `Link` is, and directions are numbered: 0 goes from left to right.
#[derive(Debug)]
pub struct Pair<P> {
    links: [Link<P>; 2],
    channel: Option<Channel>,
    /// Everything on the channel has been carried until this time.
    free: Time,
}

impl<P: Packet> Pair<P> {
    /// Two empty directions.
    ///
    /// # Errors
    ///
    /// Any [`ConfigError`] of [`LinkConfig::validate`]; and if only one of them has the radio.
    pub fn new(mut configs: [LinkConfig; 2]) -> Result<Pair<P>, ConfigError> {
        let radio = shared_radio(&configs)?;
        for config in &mut configs {
            config.validate()?;
            config.radio = None;
        }
        let channel = radio.map(|radio| Channel::new(radio, configs[0].seed));
        let [first, second] = configs;
        let mut links = [Link::new(first)?, Link::new(second)?];
        for link in &mut links {
            link.share(channel.is_some());
        }
        Ok(Pair {
            links,
            channel,
            free: 0,
        })
    }

    /// Changes a direction under way; see [`Link::reconfigure`].
    ///
    /// # Errors
    ///
    /// Any [`ConfigError`] of [`LinkConfig::validate`]; and another radio. The link is then unchanged.
    pub fn reconfigure(
        &mut self,
        now: Time,
        direction: usize,
        mut config: LinkConfig,
    ) -> Result<(), ConfigError> {
        if config.radio != self.channel.as_ref().map(Channel::radio) {
            return Err(ConfigError::RadioOfOne);
        }
        self.advance(now);
        config.radio = None;
        self.links[direction].reconfigure(now, config)
    }

    /// A direction's link.
    pub fn link(&self, direction: usize) -> &Link<P> {
        &self.links[direction]
    }

    /// Both links, to take what they have recorded.
    pub(crate) fn links_mut(&mut self) -> &mut [Link<P>; 2] {
        &mut self.links
    }

    /// Hands a packet to a direction at time `now`; see [`Link::enqueue`].
    pub fn enqueue(&mut self, now: Time, direction: usize, packet: P) {
        self.advance(now);
        // A link that sleeps does so in both directions: a packet of one keeps the other awake.
        self.links.iter_mut().for_each(|link| link.advance(now));
        if let Some(until) = self.links[1 - direction].awake_until() {
            self.links[direction].keep_awake(until);
        }
        self.links[direction].enqueue(now, packet);
        self.advance(now);
    }

    /// The next packet that has arrived by `now` in a direction; see [`Link::poll`].
    pub fn poll(&mut self, now: Time, direction: usize) -> Option<Delivery<P>> {
        self.advance(now);
        self.links[direction].poll(now)
    }

    /// The earliest time at which [`poll`](Pair::poll) may return a packet for a direction; `None` while that needs further input. It may return nothing then, and the next
    /// event is later.
    pub fn next_event(&self) -> Option<Time> {
        let arrivals = self.links.iter().filter_map(Link::next_event);
        let turn = self.channel.as_ref().and_then(|_| self.next_turn());
        arrivals.chain(turn.filter(|at| *at != Time::MAX)).min()
    }

    /// When the channel is free, if anybody wants it or has it: one packet has been sent, or another one may go.
    fn next_turn(&self) -> Option<Time> {
        let links = || self.links.iter();
        let sent = links().filter_map(Link::sending_until).min();
        sent.or_else(|| links().filter_map(|link| link.could_begin(self.free)).min())
    }

    /// Lets everything happen that happens on a shared channel up to `now`.
    fn advance(&mut self, now: Time) {
        let Some(mut channel) = self.channel.take() else {
            return;
        };
        while let Some(at) = self.next_turn().filter(|at| *at <= now) {
            if self.links.iter().any(|link| link.sending_until().is_some()) {
                self.links.iter_mut().for_each(|link| link.advance(at));
                self.free = at;
                continue;
            }
            let has = [0, 1].map(|direction| {
                let begin = self.links[direction].could_begin(self.free);
                begin.is_some_and(|begin| begin <= at)
            });
            let turn = channel.turn(has);
            self.links[turn.direction].take_turn(at.saturating_add(turn.wait), turn.times);
        }
        self.channel = Some(channel);
    }
}

/// The radio that both directions have, if they have one.
fn shared_radio(configs: &[LinkConfig; 2]) -> Result<Option<Radio>, ConfigError> {
    match configs[0].radio == configs[1].radio {
        true => Ok(configs[0].radio),
        false => Err(ConfigError::RadioOfOne),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{IpPacket, Rate, RateStep, Wake};

    const MS: Time = 1_000_000;

    /// Without slots, so that nothing is left to chance; 1000 bytes take a millisecond.
    fn radio(hops: u32) -> LinkConfig {
        LinkConfig {
            rate: Rate::Constant(8_000_000),
            radio: Some(Radio {
                turnaround: Duration::from_millis(2),
                slot: Duration::ZERO,
                hops,
            }),
            ..LinkConfig::default()
        }
    }

    fn packet(bytes: usize) -> IpPacket {
        IpPacket(vec![0; bytes])
    }

    fn arrivals(pair: &mut Pair<IpPacket>) -> Vec<(usize, Time)> {
        let mut arrived = Vec::new();
        while let Some(now) = pair.next_event() {
            for direction in [0, 1] {
                while let Some(delivery) = pair.poll(now, direction) {
                    arrived.push((direction, delivery.at));
                }
            }
        }
        arrived
    }

    #[test]
    fn directions_of_a_radio_wait_for_each_other() {
        for (hops, expected) in [
            (1, [(0, 3 * MS), (1, 6 * MS)]),
            (2, [(0, 6 * MS), (1, 12 * MS)]),
        ] {
            let mut pair = Pair::new([radio(hops), radio(hops)]).unwrap();
            pair.enqueue(0, 0, packet(1000));
            pair.enqueue(MS, 1, packet(1000));
            assert_eq!(arrivals(&mut pair), expected);
        }
        let alone = LinkConfig {
            radio: None,
            ..radio(1)
        };
        let mut pair = Pair::new([alone.clone(), alone]).unwrap();
        pair.enqueue(0, 0, packet(1000));
        pair.enqueue(0, 1, packet(1000));
        assert_eq!(arrivals(&mut pair), [(0, MS), (1, MS)]);
    }

    #[test]
    fn another_rate_holds_for_what_waits_for_its_turn() {
        let mut pair = Pair::new([radio(1), radio(1)]).unwrap();
        pair.enqueue(0, 0, packet(1000));
        pair.enqueue(0, 0, packet(1000));
        let half = LinkConfig {
            rate: Rate::Constant(4_000_000),
            ..radio(1)
        };
        // The rate changes before the first bit of the first packet is sent.
        pair.reconfigure(MS, 0, half).unwrap();
        assert_eq!(arrivals(&mut pair), [(0, 4 * MS), (0, 8 * MS)]);
    }

    /// It had its turn, for ever, and the other way none.
    #[test]
    fn a_direction_that_pauses_leaves_the_channel_to_the_other() {
        let rate = |rate| LinkConfig { rate, ..radio(1) };
        let mut pair = Pair::new([rate(Rate::Constant(0)), radio(1)]).unwrap();
        for direction in [0, 1] {
            pair.enqueue(0, direction, packet(1000));
        }
        assert_eq!(arrivals(&mut pair), [(1, 3 * MS)]);
        pair.reconfigure(10 * MS, 0, radio(1)).unwrap();
        assert_eq!(arrivals(&mut pair), [(0, 13 * MS)]);
        // A schedule that pauses does not hold it either.
        let step = |ms, bits_per_second| RateStep {
            at: Duration::from_millis(ms),
            bits_per_second,
        };
        let later = Rate::Steps {
            steps: vec![step(0, 0), step(20, 8_000_000)],
            repeat: None,
        };
        let mut pair = Pair::new([rate(later), radio(1)]).unwrap();
        for direction in [0, 1] {
            pair.enqueue(0, direction, packet(1000));
        }
        assert_eq!(arrivals(&mut pair), [(1, 3 * MS), (0, 23 * MS)]);
    }

    #[test]
    fn what_sleeps_is_woken_up_once_for_both_directions() {
        let sleeping = || LinkConfig {
            wake: Some(Wake {
                idle: Duration::from_secs(10),
                delay: Duration::from_millis(100),
            }),
            radio: None,
            ..radio(1)
        };
        let mut pair = Pair::new([sleeping(), sleeping()]).unwrap();
        let from = 20_000 * MS;
        pair.enqueue(from, 0, packet(1000));
        assert_eq!(arrivals(&mut pair), [(0, from + 101 * MS)]);
        let answer = from + 101 * MS;
        pair.enqueue(answer, 1, packet(1000));
        assert_eq!(arrivals(&mut pair), [(1, answer + MS)]);
        // A long upload keeps the way back awake.
        for n in 1..=30 {
            pair.enqueue(answer + n * 500 * MS, 0, packet(1000));
        }
        arrivals(&mut pair);
        let later = answer + 15_500 * MS;
        pair.enqueue(later, 1, packet(1000));
        assert_eq!(arrivals(&mut pair), [(1, later + MS)]);
        // Where one direction only has to wait for a grant, the other's packets are none.
        let other = LinkConfig {
            radio: None,
            ..radio(1)
        };
        let mut pair = Pair::new([other, sleeping()]).unwrap();
        pair.enqueue(from, 0, packet(1000));
        pair.enqueue(from, 1, packet(1000));
        assert_eq!(arrivals(&mut pair), [(0, from + MS), (1, from + 101 * MS)]);
    }

    #[test]
    fn a_radio_is_of_both_directions_and_stays() {
        let without = LinkConfig::default;
        assert_eq!(
            Pair::<IpPacket>::new([radio(1), radio(2)]).unwrap_err(),
            ConfigError::RadioOfOne
        );
        assert_eq!(
            Link::<IpPacket>::new(radio(1)).unwrap_err(),
            ConfigError::RadioOfOne
        );
        assert_eq!(
            Pair::<IpPacket>::new([radio(17), radio(17)]).unwrap_err(),
            ConfigError::Radio
        );
        let mut pair = Pair::<IpPacket>::new([radio(1), radio(1)]).unwrap();
        for other in [radio(2), without()] {
            let refused = pair.reconfigure(0, 1, other);
            assert_eq!(refused, Err(ConfigError::RadioOfOne));
        }
        assert_eq!(pair.reconfigure(0, 1, radio(1)), Ok(()));
        let mut pair = Pair::<IpPacket>::new([without(), without()]).unwrap();
        let refused = pair.reconfigure(0, 0, radio(1));
        assert_eq!(refused, Err(ConfigError::RadioOfOne));
    }
}
