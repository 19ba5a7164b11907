//! Limits of one client: how many of something there are, and how fast bytes may come.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::grant::Limits;

/// Time whose bytes, at the rate, may come at once after a quiet time.
const BURST: Duration = Duration::from_millis(50);

/// How many of something there are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

/// Some of what is counted: dropping it subtracts them again.
#[derive(Debug)]
pub(crate) struct Counted(Count, usize);

impl Count {
    /// Counts one more, if there are fewer than `most`.
    pub(crate) fn enter(&self, most: usize) -> Option<Counted> {
        self.add(1, most)
    }

    /// So many more, if that makes no more than `most`.
    pub(crate) fn add(&self, more: usize, most: usize) -> Option<Counted> {
        let added = |now: usize| now.checked_add(more).filter(|sum| *sum <= most);
        let entered = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, added);
        entered.ok().map(|_| Counted(self.clone(), more))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// The streams that a client has, and the flows of datagrams among them.
#[derive(Debug, Default)]
pub(crate) struct Places {
    streams: Count,
    flows: Count,
}

/// A place among them; by default one that does not count.
#[derive(Debug, Default)]
pub(crate) struct Place {
    _stream: Option<Counted>,
    _flow: Option<Counted>,
}

impl Places {
    /// A place for one more stream, which may be one of a flow.
    ///
    /// # Errors
    /// The limit that is reached, as its setting is called.
    pub(crate) fn enter(&self, limits: &Limits, is_flow: bool) -> Result<Place, &'static str> {
        let stream = self.streams.enter(limits.streams).ok_or("streams")?;
        let flow = match is_flow {
            true => Some(self.flows.enter(limits.flows).ok_or("flows")?),
            false => None,
        };
        Ok(Place {
            _stream: Some(stream),
            _flow: flow,
        })
    }
}

/// A rate in bytes a second, or none.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    rate: Option<u64>,
    /// When all bytes so far would have come at the rate: from then on [`BURST`] may come at once again.
    rested_at: Mutex<Option<Instant>>,
}

impl Throttle {
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self {
            rate,
            rested_at: Mutex::default(),
        }
    }

    /// Bytes have come: when more may; `None`: now.
    pub(crate) fn take(&self, bytes: usize) -> Option<Instant> {
        let rate = self.rate?;
        let now = Instant::now();
        let mut rested_at = self
            .rested_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let at = rested_at.map_or(now, |at| at.max(now)) + time_of(bytes, rate);
        *rested_at = Some(at);
        (at > now + BURST).then(|| at - BURST)
    }

    /// Whether a datagram may pass; one that may not is lost, as in the queue of a slow link.
    pub(crate) fn passes(&self, bytes: usize) -> bool {
        let Some(rate) = self.rate else {
            return true;
        };
        let now = Instant::now();
        let mut rested_at = self
            .rested_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = rested_at.map_or(now, |at| at.max(now));
        let passes = before <= now + BURST;
        if passes {
            *rested_at = Some(before + time_of(bytes, rate));
        }
        passes
    }
}

fn time_of(bytes: usize, rate: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_may_be() {
        let count = Count::default();
        let first = count.enter(2).unwrap();
        let second = count.enter(2).unwrap();
        assert!(count.enter(2).is_none() && count.enter(1).is_none());
        drop(first);
        assert!(count.enter(1).is_none());
        let third = count.enter(2).unwrap();
        drop((second, third));
        let fourth = count.enter(1).unwrap();
        assert!(count.add(3, 3).is_none() && count.add(2, 3).is_some());
        drop(fourth);
        assert!(count.add(3, 3).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept() {
        let throttle = Throttle::new(Some(1_000_000));
        let began = Instant::now();
        for _ in 0..100 {
            if let Some(at) = throttle.take(10_000) {
                tokio::time::sleep_until(at).await;
            }
        }
        let took = began.elapsed();
        assert!(
            (Duration::from_millis(950)..=Duration::from_millis(1000)).contains(&took),
            "{took:?}"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        let passed = (0..100).filter(|_| throttle.passes(10_000)).count();
        assert_eq!(passed, 6);
        assert!(Throttle::default().take(usize::MAX).is_none());
    }
}
