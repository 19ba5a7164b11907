//! A running link with the programs at its ends.

use std::{
    io,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid},
};
use sphinx_link::{
    LinkConfig, Time,
    front::{Front, FrontConfig, FrontError, Observer, Side, Stage, join},
};
use sphinx_netdev::pidns::PidNamespace;

use super::{
    LinkError, LinkErrorKind, Plan, SOCKET, State,
    control::Server,
    log::Log,
    pcap,
    place::Place,
    plan::Program,
    ready::somebody_listens,
    shared::{Ground, RECORDS_MAX, Shared},
};

/// How long the left program waits for the right one to listen.
const READY: Duration = Duration::from_secs(1);
/// Time between two looks at whether the right program listens, and at which programs have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long programs get to end by themselves after Ctrl-C, and once more after SIGTERM: well below the
/// time after which the command leaves in any case, so that it removes its files on a busy machine too.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// A running link. When this is dropped, everything that it started has ended.
pub struct Session {
    plan: Plan,
    shared: Arc<Shared>,
    /// Where the programs run, if there are any.
    processes: Option<PidNamespace>,
    /// Programs that have been started and not been waited for.
    programs: [Option<Child>; 2],
    ended: [Option<ExitStatus>; 2],
    sender: Sender<Event>,
    events: Receiver<Event>,
    capture: Option<JoinHandle<()>>,
    server: Option<Server>,
    place: Place,
}

/// An event that a session waits for.
pub(super) enum Event {
    /// A program has ended.
    Ended(Side),
    /// Something beside the link has failed; the link goes on.
    Fault(String),
    /// The session was asked to end.
    Stop,
    /// The link has ended, whatever the reason.
    LinkEnded,
}

/// Is in the link's thread, and tells when that has ended.
struct Watcher {
    capture: Option<pcap::Capture>,
    events: Sender<Event>,
}

impl Observer for Watcher {
    fn start(&mut self, started: SystemTime) {
        if let Some(capture) = &mut self.capture {
            capture.start(started);
        }
    }

    fn packet(&mut self, side: Side, at: Time, packet: &[u8]) {
        if let Some(capture) = &mut self.capture {
            capture.packet(side, at, packet);
        }
    }

    fn pause(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.pause();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Fails if the session has ended, which then need not know.
        let _ = self.events.send(Event::LinkEnded);
    }
}

/// Ends a session from elsewhere.
#[derive(Clone)]
pub struct Stopper(Sender<Event>);

impl Stopper {
    /// Lets [`Session::run`] end the programs and return.
    pub fn stop(&self) {
        // Fails if the session has ended, which is what was asked for.
        let _ = self.0.send(Event::Stop);
    }
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// How the left program ended, if there was one.
    pub left: Option<ExitStatus>,
    /// How the right program ended.
    pub right: Option<ExitStatus>,
    /// The link at its end.
    pub state: State,
}

impl Ended {
    /// What the program that matters, the left one unless there is only a right one, ended with:
    /// its code, or 128 and the number of the signal.
    pub fn exit_code(&self) -> u8 {
        self.left.or(self.right).map_or(0, exit_code)
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Says how a program ended.
pub(crate) fn describe(status: ExitStatus) -> String {
    status.to_string().replace("exit status: ", "exit code ")
}

impl Session {
    /// Starts the link, without the programs, with something in front of it if the plan has [agents](Plan::agents). `directory` is what [`directory`](super::directory) has
    /// told before this process had entered a user namespace; `init` is the command of this program
    /// that calls [`serve_as_init`](sphinx_netdev::pidns::serve_as_init).
    ///
    /// # Errors
    ///
    /// A name that is taken, files that cannot be created, no rights to namespaces or TUN devices.
    /// Nothing remains of what had been created.
    pub fn start(
        plan: Plan,
        stage: Option<Box<dyn Stage>>,
        directory: &Path,
        mut init: Command,
    ) -> Result<Session, LinkError> {
        let place = Place::claim(directory, &plan.name)?;
        let log = plan.log.as_deref().map(Log::create).transpose()?;
        let files = plan.pcap.as_deref().map(pcap::Files::create).transpose()?;
        let processes = match plan.left.is_some() || plan.right.is_some() {
            true => Some(PidNamespace::start(&mut init).map_err(|error| {
                let message = format!("no namespace for the programs: {error}");
                LinkError::new(LinkErrorKind::Local, message, "")
            })?),
            false => None,
        };
        let (sender, events) = mpsc::channel();
        let faults = sender.clone();
        let fault = move |text| {
            let _ = faults.send(Event::Fault(text));
        };
        let (capturing, capture) = match files {
            None => (None, None),
            Some(files) => {
                let (capture, thread) = files
                    .start(fault)
                    .map_err(|error| LinkError::io("start", "a thread", &error))?;
                (Some(capture), Some(thread))
            }
        };
        let watcher = Watcher {
            capture: capturing,
            events: sender.clone(),
        };
        let observer: Option<Box<dyn Observer>> = Some(Box::new(watcher));
        let [forward, back] = plan.configs.clone().map(|config| LinkConfig {
            records: if log.is_some() { RECORDS_MAX } else { 0 },
            ..config
        });
        let ground = match &plan.interfaces {
            Some([left, right]) => Ground {
                ends: None,
                link: join([left, right], [forward, back], observer).map_err(joining)?,
                warnings: Vec::new(),
            },
            None => {
                let config = FrontConfig {
                    left_to_right: forward,
                    right_to_left: back,
                    mtu: plan.interface_mtu,
                    ..FrontConfig::default()
                };
                let front = Front::start_with(config, observer, stage)?;
                let warnings = front.warnings().to_vec();
                let (left, right, link) = front.into_parts();
                Ground {
                    ends: Some([left, right]),
                    link,
                    warnings,
                }
            }
        };
        let shared = Shared::new(&plan, ground, log, sender.clone())?;
        let server =
            Server::start(place.socket(), Arc::<Shared>::clone(&shared)).map_err(|error| {
                LinkError::io("listen on", place.socket().to_string_lossy(), &error)
            })?;
        Ok(Session {
            plan,
            shared,
            processes,
            programs: [None, None],
            ended: [None, None],
            sender,
            events,
            capture,
            server: Some(server),
            place,
        })
    }

    /// The link's settings and counters at present.
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// What is not as it should be but not essential, in words.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.shared.warnings();
        let foreign = |processes: &PidNamespace| !processes.has_own_proc();
        if self.processes.as_ref().is_some_and(foreign) {
            let text = "/proc shows the processes of the whole machine: ps and pkill see others";
            warnings.push(text.into());
        }
        warnings
    }

    /// A handle to end it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.sender.clone())
    }

    /// Runs the programs until the left one has ended (without a left one, the right one; without
    /// any, until somebody stops it), or the link. Then it ends what is left of them and the link.
    /// `notice` gets what happens meanwhile, in words.
    ///
    /// # Errors
    ///
    /// A program that cannot be started; a link that ended before its time.
    pub fn run(mut self, notice: &mut dyn FnMut(&str)) -> Result<Ended, LinkError> {
        let started = self.start_programs(notice);
        let stopped = match started {
            Ok(Next::Wait) => self.wait(notice),
            Ok(Next::End) => true,
            Err(_) => false,
        };
        self.end_programs(stopped, notice);
        // Connections may stay open for longer; they find a link that has ended.
        self.server = None;
        let result = self.shared.end();
        if let Some(capture) = self.capture.take() {
            // The errors of its thread have been reported as events.
            let _ = capture.join();
        }
        for event in self.events.try_iter() {
            if let Event::Fault(text) = event {
                self.shared.add_fault(&text);
                notice(&text);
            }
        }
        started?;
        result.map_err(|error| {
            let kind = match error.kind() {
                // An interface is gone.
                io::ErrorKind::NotFound => LinkErrorKind::Local,
                _ => LinkErrorKind::Other,
            };
            LinkError::new(kind, format!("the link ended: {error}"), "")
        })?;
        let [left, right] = self.ended;
        Ok(Ended {
            left,
            right,
            state: self.shared.state(),
        })
    }

    fn start_programs(&mut self, notice: &mut dyn FnMut(&str)) -> Result<Next, LinkError> {
        self.start_program(Side::Right)?;
        if self.plan.left.is_some() && self.plan.right.is_some() {
            let deadline = Instant::now() + READY;
            while self.programs[Side::Right as usize].is_some()
                && Instant::now() < deadline
                && !self
                    .shared
                    .end_of(Side::Right)
                    .is_some_and(somebody_listens)
            {
                if self.next(POLL_INTERVAL, notice) == Next::End {
                    return Ok(Next::End);
                }
            }
        }
        self.start_program(Side::Left)?;
        Ok(Next::Wait)
    }

    fn start_program(&mut self, side: Side) -> Result<(), LinkError> {
        let other = match side {
            Side::Left => &self.plan.right,
            Side::Right => &self.plan.left,
        };
        let program = match side {
            Side::Left => &self.plan.left,
            Side::Right => &self.plan.right,
        };
        let (Some(program), Some(processes)) = (program, &self.processes) else {
            return Ok(());
        };
        let (mut command, name) = command(program);
        for (key, value) in self.shared.environment() {
            command.env(key, value);
        }
        command.env(SOCKET, self.place.socket());
        // The terminal belongs to the left one.
        if side == Side::Right && other.is_some() {
            command.stdin(Stdio::null());
        }
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => LinkError::new(
                LinkErrorKind::Local,
                format!(
                    "there is no command '{name}' for the {} end",
                    side_name(side)
                ),
                "check its name, and whether it is installed",
            ),
            _ => LinkError::io("start", &name, &error),
        };
        if self.plan.output_is_taken {
            use std::os::fd::AsFd;
            let error = io::stderr().as_fd().try_clone_to_owned();
            command.stdout(error.map_err(refused)?);
        }
        let Some(end) = self.shared.end_of(side) else {
            return Ok(());
        };
        let child = processes.spawn(end.namespace(), &mut command);
        let child = child.map_err(refused)?;
        let pid = Pid::from_child(&child);
        self.programs[side as usize] = Some(child);
        let sender = self.sender.clone();
        let watch = move || {
            // Leaves the child to be waited for, so that its number stays its own until then.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
            let _ = sender.send(Event::Ended(side));
        };
        thread::Builder::new()
            .name("program".into())
            .spawn(watch)
            .map_err(refused)?;
        Ok(())
    }

    /// Waits until the program that matters has ended, or somebody wants it to end, or the link has; false in
    /// the first case.
    fn wait(&mut self, notice: &mut dyn FnMut(&str)) -> bool {
        loop {
            match self.principal() {
                Some(side) if self.programs[side as usize].is_none() => return false,
                _ => {}
            }
            if self.next(Duration::MAX, notice) == Next::End {
                return true;
            }
        }
    }

    /// The side of the program whose end ends the session.
    fn principal(&self) -> Option<Side> {
        match (&self.plan.left, &self.plan.right) {
            (Some(_), _) => Some(Side::Left),
            (None, Some(_)) => Some(Side::Right),
            (None, None) => None,
        }
    }

    /// Takes note of the next event, if there is one within this time.
    fn next(&mut self, time: Duration, notice: &mut dyn FnMut(&str)) -> Next {
        let event = match time {
            Duration::MAX => self
                .events
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            _ => self.events.recv_timeout(time),
        };
        match event {
            Ok(Event::Ended(side)) => {
                if let Some(mut child) = self.programs[side as usize].take() {
                    let status = child.wait().ok();
                    self.ended[side as usize] = status;
                    if self.principal() != Some(side)
                        && let Some(status) = status
                    {
                        let name = side_name(side);
                        notice(&format!(
                            "the {name} command has ended: {}",
                            describe(status)
                        ));
                    }
                }
                Next::Wait
            }
            Ok(Event::Fault(text)) => {
                self.shared.add_fault(&text);
                notice(&text);
                Next::Wait
            }
            Ok(Event::Stop | Event::LinkEnded) => Next::End,
            Err(_) => Next::Wait,
        }
    }

    /// Ends what still runs: asks first, then kills every process of the namespace.
    fn end_programs(&mut self, stopped: bool, notice: &mut dyn FnMut(&str)) {
        if stopped {
            // If it was Ctrl-C, the programs have got the signal too, and may be ending.
            self.wait_for_all(STOP_TIMEOUT, notice);
        }
        for child in self.programs.iter().flatten() {
            // Fails if the program has just ended.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        self.wait_for_all(STOP_TIMEOUT, &mut |_| {});
        let Some(mut processes) = self.processes.take() else {
            return;
        };
        processes.kill();
        self.wait_for_all(Duration::MAX, &mut |_| {});
        // Best effort: all processes have been killed.
        let _ = processes.wait();
    }

    fn wait_for_all(&mut self, time: Duration, notice: &mut dyn FnMut(&str)) {
        let deadline = Instant::now().checked_add(time);
        while self.programs.iter().any(Option::is_some) {
            let until = |at: Instant| at.saturating_duration_since(Instant::now());
            let left = deadline.map_or(POLL_INTERVAL, until);
            if left.is_zero() {
                return;
            }
            // The result is ignored: the session is stopping already.
            self.next(left, notice);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Does nothing after `run`, which has ended them.
        self.end_programs(false, &mut |_| {});
    }
}

/// Why interfaces that exist cannot be joined.
fn joining(error: FrontError) -> LinkError {
    let of_interfaces = matches!(error, FrontError::System(_));
    let mut error = LinkError::from(error);
    if of_interfaces {
        error.hint = "interfaces have to exist and to be up ('ip link'), and need root".into();
    }
    error
}

/// Whether a session goes on after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Wait,
    End,
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Left => "left",
        Side::Right => "right",
    }
}

/// The command of a program, and its name for messages.
fn command(program: &Program) -> (Command, String) {
    match program {
        Program::Script(text) => {
            let mut command = Command::new("/bin/sh");
            command.arg("-c").arg(text);
            (command, "/bin/sh".into())
        }
        Program::Words(words) => {
            let name = words.first().cloned().unwrap_or_default();
            let mut command = Command::new(&name);
            command.args(words.iter().skip(1));
            (command, name.to_string_lossy().into_owned())
        }
    }
}
