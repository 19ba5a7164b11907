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
    /// The channel has carried everything until then.
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

    /// Changes a direction under way; see [`Link::reconfigure`]. The radio stays as it is.
    ///
    /// # Errors
    ///
    /// Any [`ConfigError`] of [`LinkConfig::validate`]; the link is then unchanged.
    pub fn reconfigure(
        &mut self,
        now: Time,
        direction: usize,
        mut config: LinkConfig,
    ) -> Result<(), ConfigError> {
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
        let wanted = || links().filter_map(Link::waiting_since).min();
        sent.or_else(|| Some(wanted()?.max(self.free)))
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
                let since = self.links[direction].waiting_since();
                since.is_some_and(|since| since <= at)
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
