//! What the user and their scripts get to see: JSON events on standard output, everything for
//! people on standard error.

mod done;
mod figures;
mod files;
mod outlet;
mod paths;
mod progress;
mod stall;
mod writer;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};

pub(crate) use done::{BlockMs, BlockNumbers, Done, Punctuality};
pub(crate) use figures::{Figures, Role};
pub(crate) use paths::{Names, PathTeller, path_line, paths_of};
pub(crate) use progress::{Progress, Ticker};

use crate::failure::{Failure, Outcome, exit_code, kind_name, local_io};
use crate::signals::Stop;
use crate::text::{hex, printable};
use outlet::{OnFailure, Outlet, Room, Share, Unread};
use writer::{Item, Writer};

/// Version of the JSON events.
const EVENTS_VERSION: u32 = 1;
/// Time between two reports of progress, unless told otherwise.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How long the reader of a full pipe is waited for when the ticket is printed.
const TICKET_PATIENCE: Duration = Duration::from_secs(1);
/// How long a command whose thread also moves packets waits for its readers when it ends.
#[cfg(feature = "pep")]
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// Lines that are dropped at once if there is no room.
const NO_PATIENCE: Option<Duration> = Some(Duration::ZERO);

/// One JSON object under construction.
pub(crate) struct Event(Map<String, Value>);

impl Event {
    pub(crate) fn new(name: &str) -> Self {
        let mut fields = Map::new();
        fields.insert("v".to_owned(), json!(EVENTS_VERSION));
        fields.insert("event".to_owned(), json!(name));
        Self(fields)
    }

    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0.insert(field.to_owned(), value.into());
        self
    }

    /// A path: as text for people; the exact bytes too when it is not UTF-8.
    pub(crate) fn with_path(self, path: &[u8]) -> Self {
        let event = self.with("path", String::from_utf8_lossy(path));
        match std::str::from_utf8(path) {
            Ok(_) => event,
            Err(_) => event.with("path_hex", hex(path)),
        }
    }

    pub(crate) fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    fn into_line(self) -> String {
        self.into_value().to_string()
    }

    #[cfg(test)]
    pub(crate) fn get(&self, field: &str) -> &Value {
        self.0
            .get(field)
            .unwrap_or_else(|| panic!("no field {field}"))
    }
}

/// What the command line says about output.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// One JSON object per line on standard output.
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: u8,
    /// A line for each thing that is changed, without asking for more.
    pub(crate) changes: bool,
    /// Time between two reports of progress, where there is no terminal for a bar.
    pub(crate) progress_interval: Duration,
    /// How long a reader may take nothing before reporting goes on without; `None` where nobody else
    /// waits for what this process does, so that it waits for its readers as any program.
    pub(crate) patience: Option<Duration>,
}

impl Settings {
    /// Settings of a command that waits for its readers as any program does.
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self {
            json,
            quiet,
            verbose: 0,
            changes: false,
            progress_interval: PROGRESS_INTERVAL,
            patience: None,
        }
    }

    /// Settings of a command whose thread also moves packets: it waits for its readers for [`LAST_PATIENCE`] at most.
    #[cfg(feature = "pep")]
    pub(crate) fn beside_packets(json: bool, quiet: bool) -> Self {
        Self {
            patience: Some(LAST_PATIENCE),
            ..Self::new(json, quiet)
        }
    }
}

/// Where output goes. Clones write to the same place, for the same session.
#[derive(Clone)]
pub(crate) struct Reporter {
    inner: Arc<Inner>,
    session: Arc<SessionOutput>,
    /// See [`without_waiting`](Self::without_waiting).
    waits_never: bool,
}

struct Inner {
    settings: Settings,
    stop: Stop,
    /// Progress is drawn as bars.
    bars: bool,
    next_bar: AtomicU64,
    /// Where both outputs are one terminal, the same outlet as `stderr`.
    stdout: Outlet,
    stderr: Outlet,
    /// Lines other than progress that were dropped and not told of yet.
    lost: AtomicU64,
    /// A line that ends the run has been printed.
    ended: AtomicBool,
}

/// What one session has waiting at either output, and progress it has reported to nobody.
#[derive(Default)]
struct SessionOutput {
    stdout: Share,
    stderr: Share,
    progress_dropped: AtomicU64,
    skipped: Mutex<files::Skipped>,
}

impl Reporter {
    /// Starts no thread: the first line does that.
    pub(crate) fn new(settings: Settings, stop: Stop) -> Self {
        let terminal = io::stderr().is_terminal();
        let (stdout, stderr) = outlets(terminal && io::stdout().is_terminal(), &settings, &stop);
        let draws = terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let inner = Inner {
            bars: draws && !settings.json && !settings.quiet,
            settings,
            stop,
            next_bar: AtomicU64::new(0),
            stdout,
            stderr,
            lost: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        Self {
            inner: Arc::new(inner),
            session: Arc::default(),
            waits_never: false,
        }
    }

    /// A reporter that prints nothing.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn silent() -> Self {
        Self::new(Settings::new(false, true), Stop::default())
    }

    /// A reporter for another session with a share of the queue of its own: it waits only for its own reports.
    pub(crate) fn session(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            session: Arc::default(),
            waits_never: self.waits_never,
        }
    }

    /// For the same session, from where nobody may be waited for: a line that its share has no room for is lost, and told of as such.
    #[cfg(feature = "pep")]
    pub(crate) fn without_waiting(&self) -> Self {
        Self {
            waits_never: true,
            ..self.clone()
        }
    }

    pub(crate) fn json(&self) -> bool {
        self.inner.settings.json
    }

    /// A new progress bar, hidden where there is no terminal.
    pub(crate) fn bar(&self, template: &'static str) -> Bar {
        Bar {
            reporter: self.clone(),
            id: self.inner.next_bar.fetch_add(1, Ordering::Relaxed),
            template,
        }
    }

    /// One line for scripts; nothing without `--json`.
    pub(crate) fn event(&self, event: Event) {
        if self.json() {
            self.data(&event.into_line());
        }
    }

    /// The event that ends a session, with what it did not say before.
    pub(crate) fn done(&self, event: Event) {
        self.event(event.with("progress_dropped", self.progress_dropped()));
    }

    /// A line of data on standard output. A reader that has gone away is its own business: what
    /// this process does goes on.
    pub(crate) fn data(&self, line: &str) {
        self.say(Item::Data(line.to_owned()));
    }

    /// Waits until what was written to standard output has left, which `what` was part of.
    ///
    /// # Errors
    /// It cannot be written there.
    pub(crate) fn delivered(&self, what: &str) -> Outcome<()> {
        let Inner { stdout, stop, .. } = &*self.inner;
        let _ = stdout.flush(Some(TICKET_PATIENCE), stop);
        match stdout.failed() {
            Some(error) => Err(local_io(
                &format!("write {what} to"),
                "standard output",
                error,
            )),
            None => Ok(()),
        }
    }

    /// Nothing more comes on standard output: who reads it to its end need not wait for that of this
    /// process.
    pub(crate) fn end_data(&self) {
        self.say(Item::End);
    }

    /// A line for people; nothing with `--quiet`.
    pub(crate) fn note(&self, line: &str) {
        if !self.inner.settings.quiet {
            self.say(Item::Note(line.to_owned()));
        }
    }

    /// A line for people from a program that this one runs; with `--quiet` too.
    pub(crate) fn notice(&self, line: &str) {
        self.say(Item::Note(line.to_owned()));
    }

    /// Something the user should know although it is no failure: in both forms.
    pub(crate) fn warn(&self, line: &str) {
        self.event(Event::new("note").with("message", line));
        self.note(&format!("sphx: {line}"));
    }

    /// What the other end is waited for, before anything moves: in both forms.
    pub(crate) fn waiting(&self, what: &'static str, line: &str) {
        let event = Event::new("waiting").with("for", what);
        self.event(event.with("message", line));
        self.note(&format!("sphx: {line}"));
    }

    /// Asks whoever sits at the terminal; the line that they write.
    pub(crate) fn ask(&self, question: &str) -> io::Result<String> {
        self.say(Item::Note(question.to_owned()));
        let Inner { stderr, stop, .. } = &*self.inner;
        let _ = stderr.flush(None, stop);
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    }

    /// Reports how one transfer or the whole command failed; returns the exit code.
    pub(crate) fn error(&self, failure: &Failure, signal: Option<i32>, peer: Option<&str>) -> u8 {
        let code = exit_code(failure.kind, signal);
        let (message, hint) = (
            printable(failure.message.as_bytes()),
            printable(failure.hint.as_bytes()),
        );
        let event = error_event(failure, code);
        self.event(match peer {
            Some(peer) => event.with("peer", peer),
            None => event,
        });
        let mut text = match peer {
            Some(peer) => format!("sphx: {peer}: {message}"),
            None => format!("sphx: {message}"),
        };
        if !hint.is_empty() {
            text += &format!("\n  hint: {hint}");
        }
        self.say(Item::Note(text));
        code
    }

    /// Like [`error`](Self::error), for the failure that ends the command; only the first such line
    /// is printed, so that a forced exit and an orderly one do not both speak.
    pub(crate) fn end_with_error(&self, failure: &Failure, signal: Option<i32>) -> u8 {
        if self.inner.ended.swap(true, Ordering::SeqCst) {
            return exit_code(failure.kind, signal);
        }
        self.error(failure, signal, None)
    }

    /// Only the event of a failure that people have been told of already.
    pub(crate) fn error_event(&self, failure: &Failure) {
        self.event(error_event(failure, exit_code(failure.kind, None)));
    }

    /// Notes that the line that ends the command has been printed.
    pub(crate) fn ended(&self) {
        self.inner.ended.store(true, Ordering::SeqCst);
    }

    /// Lets the readers take what is left: while they do, but not for longer than the patience without,
    /// and a second in all after a signal.
    ///
    /// # Errors
    /// Standard output could not be written, for another reason than that nobody wants to read it.
    pub(crate) fn finish(&self) -> Outcome<()> {
        let Inner {
            stdout,
            stderr,
            settings,
            stop,
            ..
        } = &*self.inner;
        if stdout.flush(settings.patience, stop).is_err() {
            let line = "sphx: nobody reads standard output: the last reports are lost".to_owned();
            let _ = stderr.push(
                Item::Note(line),
                &self.session.stderr,
                Room::OfAll,
                NO_PATIENCE,
                stop,
            );
        }
        // If standard error cannot be written to, there is nowhere to report that.
        let _ = stderr.flush(settings.patience, stop);
        match stdout.failed() {
            Some(kind) if kind != io::ErrorKind::BrokenPipe => {
                Err(local_io("write to", "standard output", kind))
            }
            _ => Ok(()),
        }
    }

    /// Reports progress unless the reader is behind.
    fn progress(&self, item: Item) {
        if self.push(item, Room::WhenRead).is_err() {
            self.session
                .progress_dropped
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports of progress of this session that found their reader behind.
    fn progress_dropped(&self) -> u64 {
        self.session.progress_dropped.load(Ordering::Relaxed)
    }

    /// Queues a line that belongs to nothing that could wait for it.
    fn say(&self, item: Item) {
        let lost = self.inner.lost.swap(0, Ordering::Relaxed);
        let mut dropped = 0;
        if lost > 0 {
            let message = format!("{lost} lines were dropped because nobody read them");
            let event = Event::new("note").with("message", message.as_str());
            let told = match self.json() {
                true => Item::Data(event.into_line()),
                false => Item::Note(format!("sphx: {message}")),
            };
            dropped += self.push(told, Room::OfAll).map_or(lost, |()| 0);
        }
        dropped += self.push(item, Room::OfAll).map_or(1, |()| 0);
        self.inner.lost.fetch_add(dropped, Ordering::Relaxed);
    }

    fn push(&self, item: Item, room: Room) -> Result<(), Unread> {
        let Inner { settings, stop, .. } = &*self.inner;
        let (outlet, share) = match item {
            Item::Data(_) | Item::End => (&self.inner.stdout, &self.session.stdout),
            Item::Note(_) | Item::Bar { .. } | Item::Clear { .. } => {
                (&self.inner.stderr, &self.session.stderr)
            }
        };
        let (room, patience) = match self.waits_never {
            true => (Room::OfSession, NO_PATIENCE),
            false => (room, settings.patience),
        };
        outlet.push(item, share, room, patience, stop)?;
        match (settings.patience, room) {
            (None, Room::OfSession | Room::OfAll) => outlet.flush(None, stop),
            _ => Ok(()),
        }
    }
}

/// A progress bar; gone when dropped.
pub(crate) struct Bar {
    reporter: Reporter,
    id: u64,
    template: &'static str,
}

impl Bar {
    pub(crate) fn show(&self, length: u64, position: u64, message: String) {
        if self.reporter.inner.bars {
            let (id, template) = (self.id, self.template);
            self.reporter.progress(Item::Bar {
                id,
                template,
                length,
                position,
                message,
            });
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.reporter.inner.bars {
            self.reporter.say(Item::Clear { id: self.id });
        }
    }
}

/// Standard output and standard error. Where both are one terminal they are written by one thread, so
/// that lines neither meet a bar nor change their order.
fn outlets(one_terminal: bool, settings: &Settings, stop: &Stop) -> (Outlet, Outlet) {
    let outlet = |name, on_failure: OnFailure| {
        // The writer is made by the thread that uses it, on first use.
        let mut writer = None;
        let write = move |item| writer.get_or_insert_with(Writer::new).write(item);
        Outlet::new(name, write, on_failure)
    };
    // A failure of standard error can be reported nowhere.
    let stderr = outlet("stderr", Box::new(|_| {}));
    if one_terminal {
        return (stderr.clone(), stderr);
    }
    let (told, stop, goes_on) = (stderr.clone(), stop.clone(), settings.patience.is_some());
    let stdout = outlet(
        "stdout",
        Box::new(move |error| {
            let line = match (error.kind(), goes_on) {
                (io::ErrorKind::BrokenPipe, true) => {
                    "sphx: standard output is closed: going on without reports".to_owned()
                }
                // A closed pipe ends a pipeline as usual; other errors are reported when the command ends.
                _ => return,
            };
            let _ = told.push(
                Item::Note(line),
                &Share::default(),
                Room::OfAll,
                NO_PATIENCE,
                &stop,
            );
        }),
    );
    (stdout, stderr)
}

fn error_event(failure: &Failure, code: u8) -> Event {
    Event::new("error")
        .with("code", code)
        .with("kind", kind_name(failure.kind))
        .with("message", printable(failure.message.as_bytes()))
        .with("hint", printable(failure.hint.as_bytes()))
}

/// An error line on standard error, from where there is no reporter.
pub(crate) fn print_error(line: &str) {
    let _ = writeln!(io::stderr().lock(), "sphx: {line}");
}
