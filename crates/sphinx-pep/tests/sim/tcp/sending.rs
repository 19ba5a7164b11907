//! What a model TCP sends, and what it takes for lost.

use super::{Flight, MS, RTO_MAX, RTO_MIN, SCALE, Segment, State, Tcp, Time};

impl Tcp {
    pub(super) fn rto(&self) -> Time {
        let base = self
            .rtt
            .map_or(1000 * MS, |(srtt, var)| srtt + (4 * var).max(RTO_MIN));
        (base << self.backoff).min(RTO_MAX)
    }

    pub(super) fn arm(&mut self, now: Time) {
        self.timer = Some(now + self.rto());
    }

    pub(super) fn in_flight(&self) -> u64 {
        let flying = |flight: &&Flight| !flight.sacked && !flight.lost;
        self.flights
            .iter()
            .filter(flying)
            .map(|flight| flight.end - flight.start)
            .sum()
    }

    pub(super) fn send(&mut self, now: Time) {
        if self.state != State::Open {
            return;
        }
        let segment = self.settings.segment as u64;
        loop {
            let room = self.in_flight() < self.cwnd;
            let lost = self
                .flights
                .iter()
                .position(|flight| flight.lost && !flight.sacked);
            if let (true, Some(index)) = (room, lost) {
                let (start, end) = (self.flights[index].start, self.flights[index].end);
                self.flights.remove(index);
                self.emit(now, start, end, true);
                continue;
            }
            let (written, more) = self.settings.written(now);
            let last = match more {
                Some(_) => written as u64 + 1,
                None => self.end() + 1,
            };
            let limit = last.min(self.una + self.window);
            if !room || self.next >= limit {
                break;
            }
            let message = match self.settings.messages {
                Some((bytes, _)) => 1 + ((self.next - 1) / bytes as u64 + 1) * bytes as u64,
                None => u64::MAX,
            };
            let end = (self.next + segment).min(limit).min(message);
            self.emit(now, self.next, end, false);
        }
        if self.timer.is_none() && (!self.flights.is_empty() || self.next < self.end() + 1) {
            self.arm(now);
        }
    }

    /// Sends what is between two positions, SYN and FIN included.
    pub(super) fn emit(&mut self, now: Time, start: u64, end: u64, again: bool) {
        let data_end = self.end();
        let syn = start == 0;
        let mut segment = self.header(now);
        segment.syn = syn;
        segment.fin = end == data_end + 1;
        segment.sequence = self.settings.isn.wrapping_add(start as u32);
        if syn {
            segment.scale = Some(SCALE);
            // It counts without options, and segments here are as long with them.
            let options = if self.settings.timestamps { 12 } else { 0 };
            segment.mss = Some((self.settings.segment + options) as u16);
            segment.sack_permitted = self.settings.sack;
            segment.window = segment.window.max(1000);
        } else {
            let range = start as usize - 1..end.min(data_end) as usize - 1;
            segment.payload = self.settings.data[range].to_vec();
        }
        if again {
            self.resent.push((start, end));
        }
        self.flights.retain(|flight| flight.start != start);
        let place = self.flights.partition_point(|flight| flight.start < start);
        let flight = Flight {
            start,
            end,
            sent: now,
            again,
            sacked: false,
            lost: false,
        };
        self.flights.insert(place, flight);
        self.next = self.next.max(end);
        self.out
            .push(segment.packet(self.settings.local, self.settings.remote));
    }

    pub(super) fn receive_ack(&mut self, now: Time, segment: &Segment, ack: i64) {
        let scale = if segment.syn { 0 } else { self.peer_scale };
        let window = u64::from(segment.window) << scale;
        let same_window = window == self.window;
        if ack >= self.una as i64 {
            self.window = window;
        }
        if let [(left, right), ..] = segment.sack[..] {
            let at = |number: u32| {
                let behind = number
                    .wrapping_sub(self.settings.isn)
                    .wrapping_sub(ack as u32);
                ack + i64::from(behind as i32)
            };
            let (left, right) = (at(left), at(right));
            let own = |it: &(u64, u64)| (it.0 as i64) < right && left < it.1 as i64;
            if right <= ack && !self.resent.iter().any(own) {
                self.foreign_copies += 1;
            }
        }
        for &(left, right) in &segment.sack {
            for flight in &mut self.flights {
                let isn = self.settings.isn;
                let start = isn.wrapping_add(flight.start as u32).wrapping_sub(left) as i32;
                let end = isn.wrapping_add(flight.end as u32).wrapping_sub(right) as i32;
                if start >= 0 && end <= 0 && !flight.sacked {
                    (flight.sacked, flight.lost) = (true, false);
                    self.newest_delivered = self.newest_delivered.max(flight.sent);
                }
            }
        }
        if ack > self.una as i64 {
            self.advance(now, ack as u64);
        } else if ack == self.una as i64
            && segment.payload.is_empty()
            && same_window
            && !segment.fin
        {
            self.duplicates += 1;
        }
        self.find_losses();
    }

    pub(super) fn advance(&mut self, now: Time, ack: u64) {
        if self.state == State::Opening {
            self.state = State::Open;
        }
        let segment = self.settings.segment as u64;
        let is_acked = |flight: &&Flight| flight.end <= ack;
        // What waited for a repair tells nothing of the path (Karn).
        let repaired = self
            .flights
            .iter()
            .filter(is_acked)
            .any(|flight| flight.again);
        for flight in self.flights.iter().filter(is_acked) {
            if !repaired && !flight.sacked {
                let sample = now - flight.sent;
                self.rtt = Some(match self.rtt {
                    None => (sample, sample / 2),
                    Some((srtt, var)) => (
                        (7 * srtt + sample) / 8,
                        (3 * var + srtt.abs_diff(sample)) / 4,
                    ),
                });
            }
            if !flight.sacked {
                self.newest_delivered = self.newest_delivered.max(flight.sent);
            }
        }
        let acked = ack - self.una;
        self.una = ack;
        self.flights.retain(|flight| flight.end > ack);
        self.next = self.next.max(ack);
        (self.backoff, self.duplicates) = (0, 0);
        match self.recover {
            Some(recover) if ack < recover => {
                if !self.settings.sack {
                    // NewReno repairs the next hole.
                    if let Some(first) = self.flights.first_mut() {
                        first.lost = true;
                    }
                }
            }
            _ => {
                self.recover = None;
                let grows = match self.cwnd < self.threshold {
                    true => acked.min(segment),
                    false => (segment * acked.min(segment) / self.cwnd).max(1),
                };
                self.cwnd += grows;
            }
        }
        self.timer = None;
        if !self.flights.is_empty() {
            self.arm(now);
        }
    }

    pub(super) fn find_losses(&mut self) {
        let segment = self.settings.segment as u64;
        let mut any = false;
        if self.settings.sack {
            let mut behind = 0;
            let (rack, newest) = (self.settings.rack, self.newest_delivered);
            let reordering = self.rtt.map_or(MS, |(srtt, _)| srtt / 4);
            for flight in self.flights.iter_mut().rev() {
                if flight.sacked {
                    behind += flight.end - flight.start;
                    continue;
                }
                let by_count = behind >= 3 * segment && !flight.again;
                let by_time = rack && flight.sent + reordering < newest;
                if !flight.lost && (by_count || by_time) {
                    flight.lost = true;
                    any = true;
                }
            }
        } else if self.duplicates == 3
            && self.recover.is_none()
            && let Some(first) = self.flights.first_mut()
        {
            first.lost = true;
            any = true;
        }
        if any && self.recover.is_none() {
            self.recover = Some(self.next);
            self.threshold = (self.in_flight() / 2).max(2 * segment);
            self.cwnd = self.threshold;
        }
    }
}
