//! How packets are handed to a session, by what is known of its path.

use std::time::Duration;

use sphinx_transport::{DatagramOptions, Urgency};

use super::MTU;
use super::fq_codel::Departure;
use super::packet::{self, MTU_MIN};
use crate::datagrams::PACKET_FLOWS;

/// Bytes that a datagram in order has in front beyond those of one without order.
const ORDER_BYTES: usize = 17;
/// Bytes that are handed to the session ahead of their turn: what leaves in so many seconds, and at least so many.
const AHEAD_TIME: f64 = 0.002;
const AHEAD_BYTES: f64 = 4096.0;
/// The same for bytes that the session itself cuts and codes ahead.
const SESSION_TIME: f64 = 0.008;
const SESSION_BYTES: f64 = 65_536.0;
/// Bytes that leave for each byte of a packet: headers and repair count too.
const WIRE_SHARE: f64 = 1.5;
/// How long repair in answer to a loss takes: so many round trips, and so much more.
const ANSWER: f64 = 1.5;
const ANSWER_TIME: Duration = Duration::from_millis(10);
/// Share of packets that may stay lost so that a connection still fills the path, and share that the last repair in answer to a loss leaves lost.
const LOST: f64 = 1e-5;
const LAST_LOST: f64 = 2e-3;
/// Fewest and most repairs in answer to a loss that are waited for.
const ANSWERS: (f64, f64) = (1.0, 6.0);
/// How long a packet is of use at most, however slow the path is.
const LIFE_MAX: Duration = Duration::from_secs(3);
/// From this round trip on, waiting for repair in answer to losses costs a connection more than repair ahead of them.
const TOGETHER_RTT: Duration = Duration::from_millis(25);
/// Flows that send little go before others, inside the session too.
const SPARSE: u8 = 2;

/// What is known of a path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    /// Largest packet that is not cut.
    pub(super) mtu: usize,
    /// Bytes that are handed to the session ahead of their turn.
    pub(super) ahead: usize,
    pub(super) rtt: Duration,
    /// How long a packet is of use, without the time that its own bytes take.
    life: Duration,
    /// IP bytes per second.
    rate: f64,
}

/// How a packet is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    pub(super) flow: u64,
    pub(super) urgency: Urgency,
    pub(super) life: Duration,
    /// The packet is delivered after those of its flow that were sent before it.
    pub(super) ordered: bool,
    /// Repair is sent ahead for all of these, since each loss would hold up the rest of a flow.
    pub(super) together: bool,
}

impl Path {
    /// Of a session whose datagrams of `unfragmented` bytes are not cut, which sends `pacing_rate` bytes per second, and loses the share `plr`.
    pub(super) fn new(unfragmented: usize, rtt: Duration, plr: f64, pacing_rate: u64) -> Self {
        let rate = (pacing_rate as f64).max(1000.0);
        Self {
            mtu: unfragmented.saturating_sub(ORDER_BYTES).clamp(MTU_MIN, MTU),
            ahead: (rate * AHEAD_TIME).max(AHEAD_BYTES) as usize,
            rtt,
            life: life(rtt, plr, rate),
            rate,
        }
    }

    /// How a packet is sent that has left its queue, if flows are numbered from `first` on.
    pub(super) fn manner(&self, first: u64, departure: &Departure) -> Manner {
        let own = Duration::from_secs_f64(departure.packet.len() as f64 * WIRE_SHARE / self.rate);
        let ordered = !packet::is_echo(&departure.packet);
        Manner {
            flow: first + 2 * (departure.queue as u64 % PACKET_FLOWS),
            urgency: match departure.is_sparse {
                true => Urgency::new(SPARSE),
                false => Urgency::default(),
            },
            life: (self.life + own).min(LIFE_MAX),
            ordered,
            together: ordered && self.rtt >= TOGETHER_RTT,
        }
    }
}

impl Manner {
    /// The options for sending the datagram; its order is chosen apart.
    pub(super) fn options(self) -> DatagramOptions {
        let options = DatagramOptions::default()
            .flow(self.flow)
            .urgency(self.urgency);
        match self.together {
            true => options.repaired_together_within(self.life),
            false => options.repaired_within(self.life),
        }
    }
}

/// How long a packet is of use after it was handed over: until it leaves and arrives, and as many answers to losses as leave a connection that little is
/// lost of. Later ones of its flow wait as long for it.
fn life(rtt: Duration, plr: f64, rate: f64) -> Duration {
    let answers = match plr > 0.0 {
        // All answers but the last leave this share lost, of which the last one leaves `LAST_LOST`.
        true => ((LOST / LAST_LOST).ln() / plr.min(0.9).ln()).ceil(),
        false => ANSWERS.0,
    };
    let answers = answers.clamp(ANSWERS.0, ANSWERS.1);
    let waiting = (rate * AHEAD_TIME).max(AHEAD_BYTES) + (rate * SESSION_TIME).max(SESSION_BYTES);
    let leaves = Duration::from_secs_f64(waiting * WIRE_SHARE / rate).min(LIFE_MAX);
    rtt / 2 + leaves + (rtt.mul_f64(ANSWER) + ANSWER_TIME).mul_f64(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_grows_with_the_round_trip_and_with_losses() {
        let ms = Duration::from_millis;
        let of = |rtt, plr| life(ms(rtt), plr, 25e6) - Duration::from_secs_f64(0.015);
        assert_eq!(of(10, 0.0), ms(5 + 25));
        assert_eq!(of(10, 0.06), ms(5 + 2 * 25));
        assert_eq!(of(100, 0.06), ms(50 + 2 * 160));
        assert_eq!(of(100, 0.2), ms(50 + 4 * 160));
        assert!(of(100, 1.0) == ms(50 + 6 * 160));
    }
}
