//! What the session, its control socket and its log share.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sphinx_link::{
    LinkConfig, Record,
    front::{Direction, End, LinkThread, Side},
    settings::LinkSettings,
};

use super::{
    Answer, LinkError, Plan, Request, State, control::Answerer, log::Log, plan::Files,
    session::Event,
};

/// Records that are kept between two looks at them.
pub(crate) const RECORDS_MAX: usize = 1 << 17;
/// Between two looks at what the link has recorded.
const RECORDS_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// After the programs have ended, counters and records are complete once this has passed.
const SETTLE: Duration = Duration::from_millis(5);

/// The link, and what was set up for it, when a session starts.
pub(super) struct Ground {
    /// Left and right, unless the link joins interfaces.
    pub(super) ends: Option<[End; 2]>,
    pub(super) link: LinkThread,
    pub(super) warnings: Vec<String>,
}

pub(super) struct Shared {
    link: RwLock<LinkThread>,
    /// Left and right, unless the link joins interfaces.
    ends: Option<[End; 2]>,
    warnings: Vec<String>,
    started: Instant,
    /// The parts of the state that never change; the others are filled in.
    base: State,
    changing: Mutex<Changing>,
    events: Sender<Event>,
    logger: Mutex<Option<JoinHandle<()>>>,
    ended: AtomicBool,
}

struct Changing {
    settings: LinkSettings,
    /// What they describe, with files as they were when they were set.
    configs: [LinkConfig; 2],
    log: Option<Log>,
    /// Records that the link had no room for, as far as the log tells.
    missed: u64,
    faults: Vec<String>,
}

impl Shared {
    pub(super) fn new(
        plan: &Plan,
        ground: Ground,
        log: Option<Log>,
        events: Sender<Event>,
    ) -> Result<Arc<Shared>, LinkError> {
        let Ground {
            ends,
            link,
            warnings,
        } = ground;
        let [left, right] = match (&ends, &plan.interfaces) {
            (Some(ends), _) => ends.each_ref().map(addresses),
            (None, Some(names)) => names.clone().map(|name| vec![name]),
            (None, None) => [vec![], vec![]],
        };
        let base = State::of(&plan.name, [left, right]);
        let has_log = log.is_some();
        let shared = Arc::new(Shared {
            started: Instant::now(),
            base,
            changing: Mutex::new(Changing {
                settings: plan.settings.clone(),
                configs: plan.configs.clone(),
                log,
                missed: 0,
                faults: Vec::new(),
            }),
            link: RwLock::new(link),
            ends,
            warnings,
            events,
            logger: Mutex::new(None),
            ended: AtomicBool::new(false),
        });
        if has_log {
            let state = shared.state();
            let started = shared.link().started();
            shared.write(|log| log.start(started, &state));
            let logging = Arc::clone(&shared);
            let thread = thread::Builder::new()
                .name("log".into())
                .spawn(move || logging.keep_log())
                .map_err(|error| LinkError::io("start", "a thread", &error))?;
            *lock(&shared.logger) = Some(thread);
        }
        Ok(shared)
    }

    fn link(&self) -> RwLockReadGuard<'_, LinkThread> {
        self.link.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the ends, unless the link joins interfaces.
    pub(super) fn end_of(&self, side: Side) -> Option<&End> {
        self.ends.as_ref().map(|ends| &ends[side as usize])
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// What programs at the ends find in their environment.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        let names = [("SPHX_LEFT", "SPHX_LEFT6"), ("SPHX_RIGHT", "SPHX_RIGHT6")];
        for (end, (ipv4, ipv6)) in self.ends.iter().flatten().zip(names) {
            variables.push((ipv4, end.ipv4().to_string()));
            variables.extend(end.ipv6().map(|address| (ipv6, address.to_string())));
        }
        variables
    }

    pub(super) fn state(&self) -> State {
        let counters = self.link().counters();
        let changing = lock(&self.changing);
        let mut state = State {
            seconds: self.started.elapsed().as_secs_f64(),
            faults: changing.faults.clone(),
            ..self.base.clone()
        };
        state.count(
            [&changing.settings.forward, &changing.settings.back],
            &counters,
        );
        state
    }

    pub(super) fn add_fault(&self, text: &str) {
        lock(&self.changing).faults.push(text.to_owned());
    }

    /// Ends the link and its log. To be called once, after the programs have ended.
    pub(super) fn end(&self) -> io::Result<()> {
        thread::sleep(SETTLE);
        self.ended.store(true, Ordering::Release);
        let logger = lock(&self.logger).take();
        if let Some(logger) = logger {
            // The errors of its thread have been reported as events.
            let _ = logger.join();
        }
        self.log_records();
        let state = self.state();
        self.write(|log| log.end(&state).and_then(|()| log.flush()));
        let mut link = self.link.write().unwrap_or_else(PoisonError::into_inner);
        link.halt()
    }

    fn keep_log(&self) {
        while !self.ended.load(Ordering::Acquire) {
            thread::sleep(RECORDS_POLL_INTERVAL);
            self.log_records();
        }
    }

    fn log_records(&self) {
        let mut records: Vec<Record> = Vec::new();
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            records.clear();
            self.link().take_records(direction, &mut records);
            self.write(|log| log.records(None, direction, &records));
        }
        let missed = self.link().counters().records_missed;
        let before = std::mem::replace(&mut lock(&self.changing).missed, missed);
        if missed > before {
            self.write(|log| log.missed(missed - before));
        }
        self.write(Log::flush);
    }

    /// Writes to the log, if there is one. If that fails, there is none any more, and the link goes on.
    fn write(&self, action: impl FnOnce(&mut Log) -> io::Result<()>) {
        let mut changing = lock(&self.changing);
        let Some(log) = &mut changing.log else {
            return;
        };
        if let Err(error) = action(log) {
            changing.log = None;
            let error = LinkError::io("write", "the log", &error);
            let hint = if error.hint.is_empty() { "" } else { "; " };
            let text = format!("{}: it has ended{hint}{}", error.message, error.hint);
            // Cannot fail: the session waits for the log to end.
            let _ = self.events.send(Event::Fault(text));
        }
    }

    /// Changes all of these settings, or none.
    fn set(&self, texts: &[String]) -> Result<(), LinkError> {
        let mut changes = LinkSettings::default();
        for text in texts {
            // A model sets only what it names. On a running link all else would stay as it has been set before, so the link would not
            // become like the model.
            if text.trim_start().starts_with("like=") {
                let message = "a link that runs cannot become like another one";
                return Err(LinkError::usage(format!(
                    "{message}: set what is to change"
                )));
            }
            changes.set_text(text)?;
        }
        // On a copy at first: nobody else shall have to wait while files are read, one of which may be a pipe.
        let files = Files::default();
        let read = |path: &str| files.read(path);
        let mut configs = lock(&self.changing).configs.clone();
        changes.change(&mut configs, &read)?;

        let mut changing = lock(&self.changing);
        let mut configs = changing.configs.clone();
        changes.change(&mut configs, &read)?;
        let directions = [Direction::LeftToRight, Direction::RightToLeft];
        for (direction, config) in directions.into_iter().zip(configs.clone()) {
            let config = LinkConfig {
                records: if changing.log.is_some() {
                    RECORDS_MAX
                } else {
                    0
                },
                ..config
            };
            self.link()
                .reconfigure(direction, config)
                .map_err(|error| LinkError::usage(error.to_string()))?;
        }
        changing.configs = configs;
        for text in texts {
            changing.settings.set_text(text)?;
        }
        drop(changing);
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.write(|log| log.set(now, texts));
        Ok(())
    }
}

impl Answerer for Shared {
    fn answer(&self, request: Request) -> Answer {
        let done = match &request {
            Request::Set { settings } => self.set(settings),
            Request::Show => Ok(()),
        };
        match done {
            Ok(()) => Answer::State(Box::new(self.state())),
            Err(error) => Answer::refused(&error),
        }
    }
}

fn addresses(end: &End) -> Vec<String> {
    let ipv4 = end.ipv4().to_string();
    let ipv6 = end.ipv6().map(|address| address.to_string());
    [ipv4].into_iter().chain(ipv6).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change leaves the value valid, so a thread that panicked while it had the lock does no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
