//! Whether packets wait in front of the link after all, behind the agent's own queue: its rate is more than the link carries (§3).

use crate::{FlowKey, MS, Time, delay::Delay, table::Map};

/// Most flows whose echoes are measured.
const FLOWS_MAX: usize = 64;
/// Whether packets wait is judged once in so long.
const WINDOW_NS: Time = 2_000 * MS;
/// An echo that takes longer counts as lost.
const ECHO_NS_MAX: Time = 10_000 * MS;
/// The shortest time of a flow is the minimum of the last one to two periods of this length.
const BASE_WINDOW_NS: Time = 60_000 * MS;
/// A link in front of which packets wait delays all of them, by so much more than the shortest time, or by half of that.
const DELAY_NS_MIN: Time = 100 * MS;
/// A period with fewer echoes is not judged.
const ECHOES_MIN: u32 = 4;

/// The time between a packet's leaving the queue and the answer to it, of one flow.
#[derive(Debug)]
struct Echoes {
    /// The timestamp that is waited for, and when it left.
    open: Option<(u32, Time)>,
    base: [Time; 2],
    base_since: Time,
    /// How long answers wait on their own way, which is not the link's doing and is subtracted.
    way_back: Delay,
}

/// What is measured of the path beyond the queue.
#[derive(Debug, Default)]
pub(crate) struct Beyond {
    flows: Map<FlowKey, Echoes>,
    since: Time,
    echoes: u32,
    /// Some of the echoes of this window were in time.
    in_time: bool,
}

impl Beyond {
    /// A packet with a timestamp has left the queue.
    pub(crate) fn left(&mut self, now: Time, key: FlowKey, sent: u32) {
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&key) {
            let is_fresh = |it: &Echoes| now.saturating_sub(it.base_since) < BASE_WINDOW_NS;
            self.flows.retain(|_, it| is_fresh(it));
            if self.flows.len() >= FLOWS_MAX {
                return;
            }
        }
        let echoes = self.flows.entry(key).or_insert(Echoes {
            open: None,
            base: [Time::MAX; 2],
            base_since: now,
            way_back: Delay::default(),
        });
        let waits = |(_, at): &(u32, Time)| now.saturating_sub(*at) < ECHO_NS_MAX;
        echoes.open = Some(echoes.open.filter(waits).unwrap_or((sent, now)));
    }

    /// A packet with this timestamp has come from the link, and echoes another one.
    pub(crate) fn echoed(&mut self, now: Time, key: &FlowKey, (sent, echo): (u32, u32)) {
        let Some(echoes) = self.flows.get_mut(key) else {
            return;
        };
        let way_back = echoes.way_back.see(now, sent);
        let Some((_, at)) = echoes
            .open
            .take_if(|(sent, _)| echo.wrapping_sub(*sent) as i32 >= 0)
        else {
            return;
        };
        // Without knowing what the way back takes, nothing is known.
        let Some(way_back) = way_back else { return };
        let time = now.saturating_sub(at).saturating_sub(way_back);
        if now.saturating_sub(echoes.base_since) > BASE_WINDOW_NS {
            echoes.base = [time, echoes.base[0]];
            echoes.base_since = now;
        }
        echoes.base[0] = echoes.base[0].min(time);
        let base = echoes.base[0].min(echoes.base[1]);
        self.echoes += 1;
        self.in_time |= time <= base.saturating_add(DELAY_NS_MIN.max(base / 2));
    }

    /// Whether packets have waited behind the queue all the time for a while that has just ended.
    pub(crate) fn is_doubtful(&mut self, now: Time) -> bool {
        if now.saturating_sub(self.since) < WINDOW_NS {
            return false;
        }
        let is_doubtful = !self.in_time && self.echoes >= ECHOES_MIN;
        (self.since, self.echoes, self.in_time) = (now, 0, false);
        is_doubtful
    }
}
