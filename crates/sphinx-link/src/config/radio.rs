//! A radio that either sends or receives.

use std::time::Duration;

use super::ConfigError;

/// Most hops of a radio.
const HOPS_MAX: u32 = 16;
/// The longest turnaround, and the longest slot.
const TIME_MAX: Duration = Duration::from_secs(1);

/// One channel for both directions of a link: a half-duplex radio whose two sides take turns, as those of packet radios and of Wi-Fi's distributed access do.
///
/// Before each packet, whoever has one waits for `turnaround` and for a random number of slots, up to 15. The side with the smaller number sends. With equal numbers
/// they collide: that try is lost, and the next number is from up to twice as many slots, 1023 at most.
///
/// Where there are several hops, all stations hear each other: a packet is sent once on each of them, one after the other, with a turnaround and a random number of slots for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Radio {
    /// From the end of one packet to the earliest beginning of the next: to change between receiving and sending, to ask, and to be answered; at most a second.
    pub turnaround: Duration,
    /// One slot of the backoff; at most a second.
    pub slot: Duration,
    /// How often a packet is sent on its way: 1 to 16.
    pub hops: u32,
}

impl Radio {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let is_short = [self.turnaround, self.slot]
            .iter()
            .all(|it| *it <= TIME_MAX);
        match is_short && (1..=HOPS_MAX).contains(&self.hops) {
            true => Ok(()),
            false => Err(ConfigError::Radio),
        }
    }
}
