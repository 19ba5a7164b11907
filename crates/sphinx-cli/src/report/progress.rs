//! Progress while something runs: a bar on a terminal, now and then a line elsewhere, events for scripts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::stall::{Look, StallWatch};
use super::writer::Item;
use super::{Bar, Event, Figures, Reporter};
use crate::units::{show_duration, show_percent, show_rate, show_size};

const BAR_INTERVAL: Duration = Duration::from_millis(200);
/// How often it is looked whether the transfer stalls.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// What a transfer has done so far; written by the thread that transfers.
pub(crate) struct Progress {
    born: Instant,
    /// Since when it has been reading from, or writing to the disk: nanoseconds after its birth; 0 if it has not.
    at_disk: AtomicU64,
    bytes: AtomicU64,
    /// Bytes that need not be sent.
    unsent: AtomicU64,
    /// What the sender announced; 0 when unknown.
    bytes_total: AtomicU64,
    files: AtomicU64,
    /// The other end has everything that it wanted, and has yet to say that it is in place.
    handed_over: AtomicBool,
    name: Mutex<String>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            at_disk: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
            files: AtomicU64::new(0),
            handed_over: AtomicBool::new(false),
            name: Mutex::default(),
        }
    }
}

impl Progress {
    /// Does something that waits for the disk.
    pub(crate) fn at_disk<T>(&self, work: impl FnOnce() -> T) -> T {
        let now = u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.at_disk.store(now.max(1), Ordering::Relaxed);
        let done = work();
        self.at_disk.store(0, Ordering::Relaxed);
        done
    }

    /// How long it has been waiting for the disk.
    fn time_at_disk(&self) -> Option<Duration> {
        match self.at_disk.load(Ordering::Relaxed) {
            0 => None,
            since => Some(
                self.born
                    .elapsed()
                    .saturating_sub(Duration::from_nanos(since)),
            ),
        }
    }

    pub(crate) fn expect_bytes(&self, total: u64) {
        self.bytes_total.store(total, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that are there already, or nothing but a hole: no stream carries them.
    pub(crate) fn pass_over(&self, bytes: u64) {
        self.unsent.fetch_add(bytes, Ordering::Relaxed);
        self.add_bytes(bytes);
    }

    pub(crate) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    /// For a sender: everything has arrived, and only the verdict of the receiver is missing.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// What is being transferred now, in printable form.
    pub(crate) fn set_name(&self, name: String) {
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn total(&self) -> Option<u64> {
        match self.bytes_total.load(Ordering::Relaxed) {
            0 => None,
            total => Some(total),
        }
    }

    fn name(&self) -> String {
        self.name
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Shows a [`Progress`] until dropped.
pub(crate) struct Ticker {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(
        reporter: &Reporter,
        progress: Arc<Progress>,
        peer: Option<String>,
        figures: impl Fn() -> Figures + Send + 'static,
    ) -> Self {
        let (stop, stopped) = mpsc::channel();
        let interval = match reporter.inner.bars {
            true => BAR_INTERVAL,
            false => reporter.inner.settings.progress_interval,
        };
        let reporter = reporter.clone();
        let body = move || {
            let mut view = View::new(reporter, progress, peer);
            let mut due = Instant::now() + interval;
            loop {
                let wait = due.saturating_duration_since(Instant::now());
                if stopped.recv_timeout(wait.min(LOOK_INTERVAL)) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                let figures = figures();
                view.look(&figures);
                let now = Instant::now();
                if now >= due {
                    view.tick(&figures);
                    due = now + interval;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("progress".to_owned())
            .spawn(body)
            .ok();
        Self {
            stop: Some(stop),
            thread,
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the display must not fail the transfer.
            let _ = thread.join();
        }
    }
}

struct View {
    reporter: Reporter,
    progress: Arc<Progress>,
    peer: Option<String>,
    bar: Bar,
    stalls: StallWatch,
    /// When the last tick was, at how many bytes in the streams, and at how many that need not be sent.
    last: (Instant, u64, u64),
    /// Smoothed over a few ticks.
    pace: Option<Pace>,
}

/// Rates in bits per second.
#[derive(Clone, Copy)]
struct Pace {
    /// Rate of the bytes that the streams carry.
    rate: f64,
    /// What this end gets through with, the bytes that need not be sent included: it tells how long the rest takes.
    through: f64,
}

impl Pace {
    /// The moving average, in which a new value has a weight of a fifth.
    fn smoothed(self, new: Self) -> Self {
        let smooth = |before: f64, new: f64| before * 0.8 + new * 0.2;
        Self {
            rate: smooth(self.rate, new.rate),
            through: smooth(self.through, new.through),
        }
    }
}

impl View {
    fn new(reporter: Reporter, progress: Arc<Progress>, peer: Option<String>) -> Self {
        Self {
            bar: reporter.bar("{bar:10} {wide_msg}"),
            reporter,
            progress,
            peer,
            stalls: StallWatch::new(Instant::now()),
            last: (Instant::now(), 0, 0),
            pace: None,
        }
    }

    fn look(&mut self, figures: &Figures) {
        let bytes = self.progress.bytes();
        let look = Look {
            now: Instant::now(),
            at_disk: self.progress.time_at_disk(),
            bytes,
            unfinished: self.progress.total().is_some_and(|total| bytes < total),
            handed_over: self.progress.handed_over.load(Ordering::Relaxed),
            figures,
        };
        self.stalls
            .look(&look, self.peer.as_deref(), &self.reporter);
    }

    fn tick(&mut self, figures: &Figures) {
        let (now, carried) = (Instant::now(), figures.stream_bytes());
        let bytes = self.progress.bytes();
        let unsent = self.progress.unsent.load(Ordering::Relaxed);
        let seconds = (now - self.last.0).as_secs_f64().max(1e-3);
        let bits = |now: u64, before: u64| now.saturating_sub(before) as f64 * 8.0 / seconds;
        let rate = bits(carried, self.last.1);
        let through = rate + bits(unsent, self.last.2);
        self.last = (now, carried, unsent);
        let pace = Pace { rate, through };
        let smooth = self.pace.map_or(pace, |before| before.smoothed(pace));
        self.pace = Some(smooth);
        let total = self.progress.total();
        let reporter = &self.reporter;
        if reporter.json() {
            let event = self.event(bytes, total, rate, figures);
            reporter.progress(Item::Data(event.into_line()));
        } else if reporter.inner.bars {
            let message = self.message(bytes, total, smooth, figures);
            let length = total.unwrap_or(0);
            self.bar.show(length, bytes.min(length), message);
        } else if !reporter.inner.settings.quiet {
            let since = show_duration(figures.stats.elapsed);
            let message = self.message(bytes, total, smooth, figures);
            let mut line = format!("{since}: {message}");
            if let Some(peer) = &self.peer {
                line += &format!(" ({peer})");
            }
            reporter.progress(Item::Note(line));
        }
    }

    fn event(&self, bytes: u64, total: Option<u64>, rate: f64, figures: &Figures) -> Event {
        let (losses, losses_return) = (figures.losses(), figures.losses_return());
        let event = Event::new("progress")
            .with("bytes", bytes)
            .with("bytes_total", total)
            .with("files", self.progress.files.load(Ordering::Relaxed))
            .with("seconds", figures.stats.elapsed.as_secs_f64())
            .with("goodput_mbit_s", rate / 1e6)
            .with("plr", losses.map(|losses| losses.recent))
            .with("plr_return", losses_return.map(|losses| losses.recent))
            .with("burst", losses.map(|losses| losses.burst))
            .with("redundancy", figures.redundancy())
            .with("rtt_ms", figures.rtt_ms())
            .with(
                "pacing_mbit_s",
                figures.pacing_bits().map(|bits| bits / 1e6),
            )
            .with("progress_dropped", self.reporter.progress_dropped());
        match &self.peer {
            Some(peer) => event.with("peer", Value::from(peer.as_str())),
            None => event,
        }
    }

    /// For people: how much, how fast, how long still.
    fn message(&self, bytes: u64, total: Option<u64>, pace: Pace, figures: &Figures) -> String {
        let mut message = match total {
            // What was announced may turn out to be less than what there is.
            Some(total) => format!(
                "{:.0} %, {}",
                (bytes as f64 / total as f64 * 100.0).min(100.0).floor(),
                show_part(bytes, total)
            ),
            None => show_size(bytes),
        };
        message += &format!(", {}", show_rate(pace.rate));
        if let Some(left) = total
            .and_then(|total| total.checked_sub(bytes))
            .filter(|n| *n > 0)
            && pace.through > 1.0
        {
            // A stalled transfer has no end in sight; a day is far enough to show.
            let seconds = (left as f64 * 8.0 / pace.through).min(86_400.0);
            message += &format!(", {} left", show_duration(Duration::from_secs_f64(seconds)));
        }
        if let Some(losses) = figures.losses() {
            message += &format!(", loss {}", show_percent(losses.recent));
        }
        if let Some(redundancy) = figures.redundancy() {
            message += &format!(", redundancy {}", show_percent(redundancy));
        }
        let name = self.progress.name();
        if !name.is_empty() {
            message += &format!(", {name}");
        }
        message
    }
}

/// "57.0 of 60.0 MiB": a line has 80 columns.
fn show_part(bytes: u64, total: u64) -> String {
    let (part, whole) = (show_size(bytes), show_size(total));
    match (part.split_once(' '), whole.split_once(' ')) {
        (Some((number, unit)), Some((_, whole_unit))) if unit == whole_unit => {
            format!("{number} of {whole}")
        }
        _ => format!("{part} of {whole}"),
    }
}

#[cfg(test)]
mod tests {
    use sphinx_transport::Stats;

    use super::*;
    use crate::report::Role;

    #[test]
    fn a_ticker_stops_when_dropped() {
        let progress = Arc::new(Progress::default());
        progress.expect_bytes(10);
        let reporter = Reporter::silent();
        let ticker = Ticker::start(&reporter, progress.clone(), None, || {
            Figures::new(Role::Sender, Stats::default())
        });
        progress.add_bytes(5);
        drop(ticker);
        assert_eq!(Arc::strong_count(&progress), 1);
        assert_eq!(progress.bytes(), 5);
    }

    #[test]
    fn parts_are_short() {
        assert_eq!(show_part(59_768_832, 62_914_560), "57.0 of 60.0 MiB");
        assert_eq!(show_part(1000, 62_914_560), "1000 B of 60.0 MiB");
    }

    #[test]
    fn people_read_how_much_is_done_and_left() {
        let view = View::new(Reporter::silent(), Arc::default(), None);
        let stats = Figures::new(Role::Sender, Stats::default());
        let of_streams = |rate: f64| Pace {
            rate,
            through: rate,
        };
        let line = view.message(1_048_576, Some(4_194_304), of_streams(8_388_608.0), &stats);
        assert!(
            line.starts_with("25 %, 1.00 of 4.00 MiB, 8.39 Mbit/s, 3.00 s left"),
            "{line}"
        );
        // A sender that has announced less than it sends is shown at 100 %.
        let still = of_streams(0.0);
        let line = view.message(3, Some(2), still, &stats);
        assert!(line.starts_with("100 %, "), "{line}");
        let line = view.message(3, None, still, &stats);
        assert!(line.starts_with("3 B, "), "{line}");
    }

    #[test]
    fn what_need_not_be_sent_takes_no_time_of_the_link() {
        let progress = Arc::new(Progress::default());
        progress.expect_bytes(4 << 30);
        let mut view = View::new(Reporter::silent(), progress.clone(), None);
        let second_ago = Instant::now().checked_sub(Duration::from_secs(1));
        view.last.0 = second_ago.expect("the machine has run for a second");
        progress.pass_over(1 << 30);
        assert_eq!(progress.bytes(), 1 << 30);
        // Less goes over the link in this second than is passed over.
        let stats = Stats {
            bytes_delivered: 125_000,
            ..Stats::default()
        };
        let figures = Figures::new(Role::Sender, stats);
        view.tick(&figures);
        let pace = view.pace.expect("there was a tick");
        let line = view.message(progress.bytes(), Some(4 << 30), pace, &figures);
        assert!(pace.rate <= 1e6 && line.contains(" s left"), "{line}");
    }

    #[test]
    fn events_carry_what_people_see() {
        let progress = Arc::new(Progress::default());
        let view = View::new(Reporter::silent(), progress, Some("[::1]:7".to_owned()));
        let figures = Figures::new(Role::Receiver, Stats::default());
        let event = view.event(5, Some(10), 8e6, &figures);
        assert_eq!(event.get("goodput_mbit_s"), &Value::from(8.0));
        assert_eq!(event.get("bytes_total"), &Value::from(10));
        // What is not known is not 0.
        for field in ["plr", "plr_return", "redundancy", "rtt_ms", "pacing_mbit_s"] {
            assert_eq!(event.get(field), &Value::Null, "{field}");
        }
        assert_eq!(event.get("peer"), &Value::from("[::1]:7"));
    }
}
