//! How long bytes wait at their receiver for being in order.

use sphinx_driver::PacketProtection;
use sphinx_proto::Nanos;

use crate::pair::Pair;

/// No more of what arrives is framing.
const FRAMING_MAX: f64 = 0.02;

/// At a time, what had arrived of use at the server and what was in order, bytes.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Nanos,
    arrived: u64,
    in_order: u64,
}

/// What the server of a pair held over time, of one stream that is read in order.
#[derive(Debug, Default)]
pub struct Held {
    marks: Vec<Mark>,
}

/// How long bytes waited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waits {
    /// The mean: what is held on the average over what becomes ready in a second (Little's law).
    pub mean_ms: f64,
    /// 99 of 100 bytes waited no longer, if those that came first are the first to be ready. That is the least that it can be: what overtakes
    /// others leaves them longer waits.
    pub p99_ms: f64,
}

impl Held {
    /// To be called after every step, from when on it is wanted.
    pub fn note<P: PacketProtection>(&mut self, pair: &Pair<P>) {
        let server = pair.server();
        let arrived = server.session().stats().symbol_bytes_received;
        self.add(pair.now, arrived, server.bytes_received);
    }

    fn add(&mut self, at: Nanos, arrived: u64, in_order: u64) {
        let mark = Mark {
            at,
            arrived,
            in_order,
        };
        match self.marks.last_mut() {
            Some(last) if last.at == at => *last = mark,
            Some(last) if last.arrived == arrived && last.in_order == in_order => {}
            _ => self.marks.push(mark),
        }
    }

    /// Symbols hold more than the stream's bytes: what for each of these. It adds up, where what is held does not: it is the slope of what has
    /// arrived beyond what is in order, once a start is over.
    fn framing(&self) -> f64 {
        let steady = &self.marks[self.marks.len() / 4..];
        let points = steady.iter().map(|mark| {
            let beyond = mark.arrived as f64 - mark.in_order as f64;
            (mark.in_order as f64, beyond)
        });
        let count = steady.len().max(1) as f64;
        let (x, y) = points
            .clone()
            .fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        let (x, y) = (x / count, y / count);
        let (mut with, mut own) = (0.0, 0.0);
        for point in points {
            with += (point.0 - x) * (point.1 - y);
            own += (point.0 - x) * (point.0 - x);
        }
        if own > 0.0 {
            (with / own).clamp(0.0, FRAMING_MAX)
        } else {
            0.0
        }
    }

    /// How long bytes waited that became ready between the first mark and the last.
    pub fn waits(&self) -> Waits {
        let framed = 1.0 + self.framing();
        let arrived = |mark: &Mark| (mark.arrived as f64 / framed) as u64;
        let (mut byte_times, mut waits) = (0.0, Vec::new());
        // The mark with which the next byte came.
        let mut came = 0;
        for two in self.marks.windows(2) {
            let [from, to] = [two[0], two[1]];
            let held = arrived(&from).saturating_sub(from.in_order);
            byte_times += held as f64 * (to.at - from.at) as f64;
            let mut ready = from.in_order;
            while ready < to.in_order {
                while self.marks[came].at < to.at && arrived(&self.marks[came]) <= ready {
                    came += 1;
                }
                let mark = &self.marks[came];
                let upto = match mark.at < to.at {
                    true => arrived(mark).min(to.in_order),
                    false => to.in_order,
                };
                waits.push((to.at - mark.at, upto - ready));
                ready = upto;
            }
        }
        let bytes: u64 = waits.iter().map(|wait| wait.1).sum();
        waits.sort_unstable();
        let mut longer = bytes - bytes / 100;
        let p99 = waits.iter().find(|(_, ready)| {
            let is_it = longer <= *ready;
            longer = longer.saturating_sub(*ready);
            is_it
        });
        Waits {
            mean_ms: byte_times / bytes.max(1) as f64 / 1e6,
            p99_ms: p99.map_or(0.0, |wait| wait.0 as f64 / 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MS;

    /// A hundred bytes a millisecond, of which each waits five; and one in a hundred symbols is for names.
    #[test]
    fn waits_are_those_of_the_curves() {
        let mut held = Held::default();
        for ms in 0..1000_u64 {
            let in_order = 100 * ms.saturating_sub(5);
            held.add(ms * MS, 101 * ms, in_order);
        }
        let waits = held.waits();
        assert!((4.9..=5.1).contains(&waits.mean_ms), "{waits:?}");
        assert!((4.0..=6.0).contains(&waits.p99_ms), "{waits:?}");
    }

    #[test]
    fn what_is_in_order_at_once_does_not_wait() {
        let mut held = Held::default();
        for ms in 0..1000_u64 {
            held.add(ms * MS, 101 * ms, 100 * ms);
        }
        assert!(held.waits().mean_ms < 0.05 && held.waits().p99_ms <= 1.0);
        assert_eq!(Held::default().waits(), Waits::default());
    }

    /// All that comes in 100 ms is ready at their end.
    #[test]
    fn what_is_held_up_waits_half_as_long_on_the_average() {
        let mut held = Held::default();
        for ms in 0..10_000_u64 {
            held.add(ms * MS, 100 * ms, 100 * (ms / 100 * 100));
        }
        let waits = held.waits();
        assert!((49.0..51.0).contains(&waits.mean_ms), "{waits:?}");
        assert!((98.0..=100.0).contains(&waits.p99_ms), "{waits:?}");
    }
}
