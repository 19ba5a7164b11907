//! The line that moves while a phase runs.

use std::time::{Duration, Instant};

use crate::report::{Bar, Reporter};
use crate::units::show_rate;

pub(super) struct View {
    bar: Bar,
    title: String,
    time: Duration,
    started: Instant,
    last: (Instant, u64),
}

impl View {
    pub(super) fn new(reporter: &Reporter, title: String, time: Duration) -> Self {
        let now = Instant::now();
        Self {
            bar: reporter.bar("  {bar:24} {msg}"),
            title,
            time,
            started: now,
            last: (now, 0),
        }
    }

    /// Shows where the phase is and how fast bytes arrive.
    pub(super) fn show(&mut self, delivered_bytes: u64) {
        let now = Instant::now();
        let seconds = (now - self.last.0).as_secs_f64().max(1e-3);
        let rate = delivered_bytes.saturating_sub(self.last.1) as f64 * 8.0 / seconds;
        self.last = (now, delivered_bytes);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let elapsed = self.started.elapsed().min(self.time);
        let message = format!("{}  {}", self.title, show_rate(rate));
        self.bar.show(ms(self.time), ms(elapsed), message);
    }
}
