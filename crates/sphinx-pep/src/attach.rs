//! An agent in the traffic of this machine, whatever the way that packets come.

use std::{
    fmt, fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fd::{BorrowedFd, OwnedFd},
    io::Errno,
};
/// Lets the calling thread be served before others, as packets wait for it. Needs `CAP_SYS_NICE`; what a thread has
/// got so stays with it when that right is gone.
pub use sphinx_netdev::tun::serve_in_time;
/// Connections of this machine.
pub use sphinx_netdev::{
    cgroup::OwnGroup,
    nfqueue::{Cgroup, Own},
};
use sphinx_netdev::{ethernet::index_and_is_port, nfqueue::Selection};

use crate::{
    Agent, Config, FlowReport, MS, Place, Time,
    acks::MarkPost,
    eln::{LossReport, Post},
    handoff::Courier,
    queue,
    returning::Returning,
    tun,
};

/// How long what is on its way to the agent may take to come, once nothing new is led there.
const DRAIN_NS: Time = 250 * MS;
/// The longest time between two signs of life.
pub(crate) const ALIVE_NS: Time = 50 * MS;

/// A way for packets to come to an agent and to leave: TUN devices, or the packet filter's queue.
pub(crate) trait Port: fmt::Debug + Send {
    /// Files that are readable when packets have come.
    fn inputs(&self) -> Vec<BorrowedFd<'_>>;

    /// Hands over what an input has, up to a batch, and sends what the agent lets out. Fails if nothing
    /// comes from there any more.
    fn serve(
        &mut self,
        input: usize,
        agent: &mut Agent,
        now: &dyn Fn() -> Time,
    ) -> io::Result<Served>;

    /// Sends what the agent lets out by time.
    fn send(&mut self, agent: &mut Agent);

    /// Whether packets have passed without the agent, as somebody has removed what leads them here. They are led here again. Fails if they can be no
    /// more.
    fn look(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// Removes the rules that lead packets here.
    fn withdraw(&mut self) -> io::Result<()>;

    /// Packets that the kernel did not take back.
    fn refused(&self) -> u64;
}

/// How far [`Port::serve`] has emptied an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) packets: usize,
    /// Whether the input was empty afterwards.
    pub(crate) emptied: bool,
}

/// What [`Attachment::run`] tells of.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The agent is served, at this time of its. It comes at least every 50 ms.
    Alive(Time),
    /// A flow has ended.
    Ended(Box<FlowReport>),
    /// This was reported to a mobile host, for the first time or again.
    Reported(LossReport),
    /// The agent has become too late, or is in time again ([`Agent::handle_lag`]).
    Overload(bool),
    /// Somebody had removed rules or routes that lead packets here; they are there again.
    Restored,
    /// The rate of the agent's own queue is probably more than the link carries ([`Agent::rate_doubted`]), for the first time or again.
    RateDoubted,
}

/// Ends [`Attachment::run`] from another thread, or has it look up.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Stop>);

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    look: AtomicBool,
    wake: OwnedFd,
}

impl Stopper {
    /// Lets [`Attachment::run`] return soon.
    pub fn stop(&self) {
        self.0.asked.store(true, Ordering::Release);
        self.ring();
    }

    /// Lets [`Notice::Alive`] come soon.
    pub fn look(&self) {
        self.0.look.store(true, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        // It fails only when 2^64 - 2 wake-ups are pending already.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }
}

/// Packets of this machine are led to an agent as long as this lives.
#[derive(Debug)]
pub struct Attachment {
    port: Box<dyn Port>,
    post: Option<Post>,
    courier: Option<Courier>,
    marks: Option<MarkPost>,
    stop: Stopper,
}

impl Attachment {
    /// Leads the routed TCP traffic of these interfaces of the calling thread's namespace here, by rules
    /// that lead to TUN devices: those at which packets from fixed hosts arrive, and the one for mobile
    /// hosts. What rules a killed process left is replaced, and rules that somebody removes are added again.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such interface, `ResourceBusy` if an agent runs already,
    /// `PermissionDenied` without `CAP_NET_ADMIN`; `InvalidInput` if one of them is a port of a bridge, or if addresses are translated here.
    pub fn tun(wired: &[String], wireless: &str) -> io::Result<Attachment> {
        let interfaces = wired.iter().map(String::as_str).chain([wireless]);
        check(interfaces)?;
        // Where nobody can ask, there is no such agent either.
        if queue::is_open().unwrap_or(false) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Attachment::new(Box::new(tun::Devices::open(wired, wireless)?))
    }

    /// Leads the TCP traffic of an interface of the calling thread's namespace here, by the packet filter's
    /// queue, whether it is routed or this machine's own. At a base station, what comes in by it is from mobile
    /// hosts and what goes out by it is for them; on a mobile host it is the other way round. Of a port of a bridge, what that forwards
    /// is led here.
    ///
    /// # Errors
    ///
    /// As [`tun`](Attachment::tun); others where the kernel has no such queues (nf_tables with its queue or
    /// NFQUEUE, Linux 5.12), or where a bridge does not show its packets to the packet filter.
    pub fn nfqueue(wireless: &str, place: Place) -> io::Result<Attachment> {
        check([wireless].into_iter())?;
        if tun::is_open()? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Attachment::new(Box::new(queue::Filtered::of_interface(wireless, place)?))
    }

    /// Leads connections of this machine here, in the calling thread's namespace, by the packet filter's queue: of their packets the small
    /// ones, which are all that thin streams have. What this machine sends comes from [`Side::Fixed`](crate::Side::Fixed).
    ///
    /// # Errors
    ///
    /// As [`nfqueue`](Attachment::nfqueue).
    pub fn own(own: Own) -> io::Result<Attachment> {
        if tun::is_open()? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let selection = Selection::Own(own);
        Attachment::new(Box::new(queue::Filtered::open(&selection, Place::Base)?))
    }

    fn new(port: Box<dyn Port>) -> io::Result<Attachment> {
        let stop = Stopper(Arc::new(Stop {
            asked: AtomicBool::new(false),
            look: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        }));
        Ok(Attachment {
            port,
            post: None,
            courier: None,
            marks: None,
            stop,
        })
    }

    /// With reports of losses, which the agent sends or gets by this.
    pub fn with_post(self, post: Post) -> Attachment {
        let post = Some(post);
        Attachment { post, ..self }
    }

    /// With flows that go from one agent to another.
    pub fn with_courier(self, courier: Courier) -> Attachment {
        let courier = Some(courier);
        Attachment { courier, ..self }
    }

    /// With marks of flows whose acknowledgements wait, which the agent sends or gets by this.
    pub fn with_marks(self, marks: MarkPost) -> Attachment {
        let marks = Some(marks);
        Attachment { marks, ..self }
    }

    /// What ends [`run`](Attachment::run).
    pub fn stopper(&self) -> Stopper {
        self.stop.clone()
    }

    /// Reports of losses that could not be sent, or that were forged or old.
    pub fn reports_refused(&self) -> u64 {
        self.post.as_ref().map_or(0, Post::refused)
    }

    /// Messages on flows, for and from other agents, that could not be sent; that were forged or old.
    pub fn handovers_refused(&self) -> u64 {
        self.courier.as_ref().map_or(0, Courier::refused)
    }

    /// Marks that could not be sent, or that were forged or old.
    pub fn marks_refused(&self) -> u64 {
        self.marks.as_ref().map_or(0, MarkPost::refused)
    }

    /// Serves the agent until told to stop, and tells `notice` what happens, which may change its
    /// settings. What waits in the agent's own queues goes then, no more packets are led here, and those that are on their way are served; so too before an
    /// error of what leads packets here is told.
    ///
    /// # Errors
    ///
    /// Those of waiting, of removing the rules, and of devices that somebody has removed.
    pub fn run(
        &mut self,
        agent: &mut Agent,
        mut notice: impl FnMut(&mut Agent, Notice),
    ) -> io::Result<()> {
        // Where that is not allowed, packets wait a little longer.
        let _ = serve_in_time();
        let start = Instant::now();
        let now = || Time::try_from(start.elapsed().as_nanos()).unwrap_or(Time::MAX);
        let inputs = self.port.inputs().len();
        // When each input was last known to be empty: what comes from it has not waited for longer.
        let mut empty = vec![now(); inputs];
        let (mut until, mut alive, mut overloaded) = (None, None, false);
        let mut doubted = agent.rate_doubted();
        // The settings until then, and why it ends.
        let (mut before, mut result) = (None, Ok(()));
        loop {
            let stops = result.is_err() || self.stop.0.asked.load(Ordering::Acquire);
            if until.is_none() && stops {
                before = Some(agent.config().clone());
                self.let_all_go(agent, now());
                self.port.withdraw()?;
                until = Some(now() + DRAIN_NS);
            }
            let mut idle = true;
            for (input, empty) in empty.iter_mut().enumerate() {
                agent.handle_waiting(*empty);
                let served = self.port.serve(input, agent, &now)?;
                let at = now();
                // If every input was emptied, the loop sleeps until a packet comes.
                idle &= served.emptied;
                if served.packets > 0 {
                    agent.handle_lag(at, at.saturating_sub(*empty));
                }
                if served.emptied {
                    *empty = at;
                }
            }
            if agent.next_timeout().is_some_and(|at| at <= now()) {
                agent.handle_timeout(now());
            }
            if let Some(post) = &mut self.post {
                for report in post.serve(agent, &now) {
                    notice(agent, Notice::Reported(report));
                }
            }
            if let Some(marks) = &mut self.marks {
                marks.serve(agent, &now);
            }
            while let Some(report) = agent.poll_ended() {
                notice(agent, Notice::Ended(Box::new(report)));
            }
            if overloaded != agent.is_overloaded() {
                overloaded = !overloaded;
                notice(agent, Notice::Overload(overloaded));
            }
            if doubted < agent.rate_doubted() {
                doubted = agent.rate_doubted();
                notice(agent, Notice::RateDoubted);
            }
            let at = now();
            let asked = self.stop.0.look.swap(false, Ordering::AcqRel);
            if asked || alive.is_none_or(|next| next <= at) {
                if until.is_none() {
                    match self.port.look() {
                        Ok(false) => {}
                        Ok(true) => {
                            agent.handle_unseen(at);
                            notice(agent, Notice::Restored);
                        }
                        Err(error) => {
                            result = Err(error);
                            continue;
                        }
                    }
                }
                notice(agent, Notice::Alive(at));
                alive = Some(at + ALIVE_NS);
            }
            if let Some(courier) = &mut self.courier {
                idle &= !courier.serve(agent, &now);
            }
            self.port.send(agent);
            agent.handle_refused(self.port.refused());
            if until.is_some_and(|until| until <= at) {
                // Whoever reports what the agent has done says by which settings.
                before
                    .into_iter()
                    .for_each(|config| agent.reconfigure(at, config));
                return result;
            }
            if idle {
                let timers = agent.next_timeout().into_iter().chain(until).chain(alive);
                let due = timers.min().unwrap_or(at).max(at);
                // What has been done since `at` has taken time too.
                self.sleep(due.saturating_sub(now()))?;
                // Whoever is late with a timer is as late with packets.
                let woken = now();
                let late = woken.saturating_sub(due);
                agent.handle_lag(woken, late);
                empty.fill(woken - late);
            }
        }
    }

    /// Lets go what waits in the agent's own queues: once other packets take another way, they are no bound any more, and at the end what they hold would be lost.
    fn let_all_go(&mut self, agent: &mut Agent, now: Time) {
        let config = Config {
            radio: None,
            ack_filter: None,
            ack_cc: None,
            returning: Returning::Pass,
            pace: false,
            ..agent.config().clone()
        };
        agent.reconfigure(now, config);
        self.port.send(agent);
    }

    fn sleep(&self, timeout: Time) -> io::Result<()> {
        let timeout = Timespec::try_from(Duration::from_nanos(timeout)).ok();
        let inputs = self.port.inputs();
        let files = inputs
            .into_iter()
            .chain(self.post.as_ref().map(Post::input))
            .chain(self.courier.as_ref().map(Courier::input))
            .chain(self.marks.as_ref().map(MarkPost::input))
            .chain([rustix::fd::AsFd::as_fd(&self.stop.0.wake)]);
        let mut files: Vec<PollFd<'_>> = files
            .map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN))
            .collect();
        match poll(&mut files, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_rung = |wake: &PollFd<'_>| !wake.revents().is_empty();
        if files.last().is_some_and(has_rung) {
            // However often it was rung, one reading empties the counter.
            let _ = rustix::io::read(&self.stop.0.wake, &mut [0; 8]);
        }
        Ok(())
    }
}

/// Removes what a process that was killed has left in the calling thread's namespace, and leads nowhere.
///
/// # Errors
///
/// `PermissionDenied` without `CAP_NET_ADMIN`.
pub fn clean() -> io::Result<()> {
    tun::remove_rules()
}

/// Whether traffic that the calling thread's namespace routes may be led through devices ([`Attachment::tun`]) without anybody noticing: it routes, no rule of
/// the packet filter sees packets on their way there, and this interface is no port of a bridge.
pub fn suits_devices(wireless: &str) -> bool {
    forwards() && !tun::is_seen() && !is_port(wireless)
}

/// Whether the calling thread's namespace routes packets of others.
pub(crate) fn forwards() -> bool {
    let is_on = |path: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/{path}"));
        text.is_ok_and(|text| text.trim() == "1")
    };
    is_on("ipv4/ip_forward") || is_on("ipv6/conf/all/forwarding")
}

/// Whether an interface is there, and a port of a bridge.
pub fn is_port(name: &str) -> bool {
    index_and_is_port(name).is_ok_and(|it| it.1)
}

/// The interfaces of the calling thread's namespace except loopback.
///
/// # Errors
///
/// Those of reading a file in `/proc`.
pub fn interfaces() -> io::Result<Vec<String>> {
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = text.lines().filter_map(|line| line.split_once(':'));
    let names = names.map(|(name, _)| name.trim().to_owned());
    Ok(names.filter(|name| name != "lo").collect())
}

/// What is said of an interface at which no agent can be.
pub(crate) fn missing(name: &str) -> String {
    match name {
        "lo" => "lo leads to no other machine".to_owned(),
        name => format!("there is no interface {name}"),
    }
}

/// Whether all these interfaces exist.
fn check<'a>(names: impl Iterator<Item = &'a str>) -> io::Result<()> {
    let known = interfaces()?;
    for name in names {
        if !known.iter().any(|other| other == name) {
            let message = missing(name);
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
    }
    Ok(())
}
