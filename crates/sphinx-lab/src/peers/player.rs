//! A player: fetches segments, keeps a buffer, and stalls when that is empty.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    Pattern, PeerError,
    http::{Client, fetch},
};
use crate::{
    numbers::VideoNumbers,
    video::{LADDER, Video},
};

/// Watches a video for as long as it says, or until it is `over`; the bytes fetched and how it was.
pub(super) fn play(
    video: &Video,
    client: &dyn Client,
    pattern: &Pattern,
    started: Instant,
    over: &AtomicBool,
) -> Result<(u64, VideoNumbers), PeerError> {
    let mut screen = Screen::default();
    let mut bytes = 0;
    let mut rungs = Vec::new();
    let end = started + video.watch;
    let result = (|| {
        let mut line = client.line()?;
        while Instant::now() < end {
            screen.watch(started.elapsed());
            let wait = (screen.level + video.segment).saturating_sub(video.buffer);
            if !wait.is_zero() {
                let left = end.saturating_duration_since(Instant::now());
                thread::sleep(wait.min(left));
                continue;
            }
            let rung = video.choose(screen.level);
            let path = format!("/segment/{}/{rung}", rungs.len());
            bytes += fetch(line.as_mut(), &path, pattern)?;
            rungs.push(rung);
            screen.watch(started.elapsed());
            screen.add(video.segment);
        }
        Ok(())
    })();
    match result {
        Ok(()) => {}
        // A segment under way at the end is of no use.
        Err(_) if over.load(Ordering::SeqCst) => {}
        Err(error) => return Err(error),
    }
    screen.watch(started.elapsed());
    let rates = rungs.iter().map(|&rung| LADDER[rung] as f64);
    let numbers = VideoNumbers {
        startup_seconds: screen.startup.map(|time| time.as_secs_f64()),
        stalls: screen.stalls,
        stall_seconds: screen.stalled.as_secs_f64(),
        segments: rungs.len() as u64,
        mean_mbit_s: rates.sum::<f64>() / rungs.len().max(1) as f64 / 1e6,
        switches: rungs.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64,
        levels: screen.levels,
    };
    Ok((bytes, numbers))
}

/// What the viewer sees. Playing begins, and goes on after a stall, with one segment.
#[derive(Debug, Default)]
struct Screen {
    now: Duration,
    level: Duration,
    playing: bool,
    startup: Option<Duration>,
    stalls: u64,
    stalled: Duration,
    /// Seconds and seconds buffered, whenever something changed.
    levels: Vec<(f64, f64)>,
}

impl Screen {
    /// Time goes on until `now`.
    fn watch(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        if self.playing && passed > self.level {
            self.now += self.level;
            self.level = Duration::ZERO;
            self.note();
            self.playing = false;
            self.stalls += 1;
        }
        if self.playing {
            self.level -= passed;
        } else if self.startup.is_some() {
            self.stalled += now.saturating_sub(self.now);
        }
        self.now = self.now.max(now);
        self.note();
    }

    /// A segment has arrived.
    fn add(&mut self, segment: Duration) {
        self.level += segment;
        self.playing = true;
        self.startup.get_or_insert(self.now);
        self.note();
    }

    fn note(&mut self) {
        let round = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
        self.levels.push((round(self.now), round(self.level)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_buffer_is_a_stall() {
        let second = Duration::from_secs;
        let mut screen = Screen::default();
        screen.watch(second(1));
        assert_eq!((screen.stalls, screen.stalled), (0, Duration::ZERO));
        screen.add(second(2));
        screen.watch(second(2));
        assert_eq!(screen.level, second(1));
        screen.watch(second(5));
        assert_eq!((screen.stalls, screen.stalled), (1, second(2)));
        screen.add(second(2));
        screen.watch(second(6));
        assert_eq!((screen.stalls, screen.stalled), (1, second(2)));
        assert_eq!(screen.startup, Some(second(1)));
        assert!(screen.levels.contains(&(3.0, 0.0)));
    }
}
