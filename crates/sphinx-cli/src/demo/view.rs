//! The line that moves while a phase runs.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::report::Reporter;
use crate::units::show_rate;

pub(super) struct View {
    bar: ProgressBar,
    title: String,
    started: Instant,
    last: (Instant, u64),
}

impl View {
    pub(super) fn new(reporter: &Reporter, title: String, time: Duration) -> Self {
        let length = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let bar = reporter.bar(length);
        let style = ProgressStyle::with_template("  {bar:24} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let now = Instant::now();
        Self {
            bar,
            title,
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
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.bar
            .set_position(elapsed.min(self.bar.length().unwrap_or(u64::MAX)));
        self.bar
            .set_message(format!("{}  {}", self.title, show_rate(rate)));
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
