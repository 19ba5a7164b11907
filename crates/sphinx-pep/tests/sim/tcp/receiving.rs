//! What a model TCP receives, and how it answers.

use super::{DELAYED_ACK, Segment, State, Tcp, Time};

impl Tcp {
    pub(super) fn acknowledge(&mut self, now: Time) {
        let mut segment = self.header(now);
        segment.sequence = self.settings.isn.wrapping_add(self.next as u32);
        if self.settings.sack {
            let most = if self.settings.timestamps { 3 } else { 4 };
            let mut blocks: Vec<(u64, u64)> = self.duplicate.take().into_iter().collect();
            for &start in self.recent.iter().rev() {
                let Some(block) = self.block(start) else {
                    continue;
                };
                if !blocks.contains(&block) && blocks.len() < most {
                    blocks.push(block);
                }
            }
            let number = |position: u64| self.peer_isn.wrapping_add(position as u32);
            segment.sack = blocks
                .into_iter()
                .map(|(a, b)| (number(a), number(b)))
                .collect();
        }
        self.out
            .push(segment.packet(self.settings.local, self.settings.remote));
    }

    /// The block of waiting data that contains a position.
    pub(super) fn block(&self, position: u64) -> Option<(u64, u64)> {
        let mut block: Option<(u64, u64)> = None;
        for (start, data) in &self.behind {
            let end = start + data.len() as u64;
            block = match block {
                Some((first, last)) if last >= *start => Some((first, last.max(end))),
                Some((first, last)) if first <= position && position < last => {
                    return Some((first, last));
                }
                _ => Some((*start, end)),
            };
        }
        block.filter(|(first, last)| *first <= position && position < *last)
    }

    pub(super) fn read_all(&mut self, now: Time) {
        if !self.reads(now) || self.state != State::Open {
            return;
        }
        self.read = self.received.len();
        if self.told_window < 2 * self.settings.segment as u64 && self.expected > 0 {
            // Tells that the window has opened.
            let room = self.settings.buffer as u64;
            if room > self.told_window {
                self.acknowledge(now);
            }
        }
    }

    pub(super) fn receive_data(&mut self, now: Time, segment: &Segment, start: i64, length: i64) {
        let expected = self.expected as i64;
        if start + length <= expected {
            if start > 0 {
                self.duplicate = Some((start as u64, (start + length) as u64));
            }
            return self.acknowledge(now);
        }
        let skip = (expected - start).max(0);
        let from = (start + skip) as u64;
        if skip > 0 && start > 0 {
            // A part of it was there (RFC 2883, as Linux does it).
            self.duplicate = Some((start as u64, self.expected));
        } else if let Some((_, end)) = self.block(from) {
            self.duplicate = Some((from, end.min((start + length) as u64)));
        }
        let limit = self.expected + self.told_window.max(1) + 1;
        if from >= limit {
            return self.acknowledge(now);
        }
        let bytes = segment.payload.get(skip as usize..).unwrap_or(&[]).to_vec();
        if segment.fin {
            self.fin = Some((start + length - 1) as u64);
        }
        if !bytes.is_empty() {
            let longer = self
                .behind
                .get(&from)
                .is_none_or(|old| old.len() < bytes.len());
            if longer {
                self.behind.insert(from, bytes);
            }
            self.recent.retain(|it| *it != from);
            self.recent.push(from);
        }
        let before = self.expected;
        while let Some((start, bytes)) = self.behind.pop_first() {
            if start > self.expected {
                self.behind.insert(start, bytes);
                break;
            }
            let skip = (self.expected - start) as usize;
            if let Some(new) = bytes.get(skip..) {
                self.received.extend(new);
                self.expected += new.len() as u64;
            }
        }
        if self.fin == Some(self.expected) {
            self.expected += 1;
        }
        let behind = &self.behind;
        self.recent.retain(|start| behind.contains_key(start));
        self.unacknowledged += 1;
        let at_once = self.expected == before || !self.behind.is_empty() || segment.fin;
        if at_once || self.unacknowledged >= 2 {
            self.acknowledge(now);
        } else {
            self.ack_at.get_or_insert(now + DELAYED_ACK);
        }
    }
}
