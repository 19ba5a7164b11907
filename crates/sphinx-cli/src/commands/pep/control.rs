//! Requests to an agent that runs, and its answers.
//!
//! `sphx pep show` asks at a Unix socket without a name on disk: it belongs to the network namespace, as the
//! agent does, and goes with the process. Prometheus asks by HTTP (`--metrics`). Both are served by threads of
//! their own; the loop that packets pass answers between them.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde_json::{Value, json};
use sphinx_pep::attach::Stopper;
use sphinx_pep::{Agent, Config, FlowReport, Status, Time};

use super::handoff::Change;
use super::settings;
use super::stage::{self, Ways};
use crate::commands::asked::{Asked, accepted};

/// Name of the Unix socket, in the abstract namespace.
const SOCKET: &[u8] = b"sphx-pep";
/// Most flows that are told of at once: the agent serves no packets while their numbers are copied.
const FLOWS_MAX: usize = 1000;
/// Flows whose numbers are added up at once, for the same reason: there may be thirty thousand.
const STEP: usize = 500;
/// Longest request.
const REQUEST_BYTES_MAX: u64 = 8192;
/// Most connections that ask for numbers at once: of more, the oldest ends.
const SCRAPES_MAX: usize = 16;
/// How long a client, and the agent's answer, are waited for at most.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a name is tried for that another program has.
const NAME_PAUSE: Duration = Duration::from_secs(1);

/// A request, which the loop that serves packets answers.
struct Request {
    command: Command,
    reply: SyncSender<Answer>,
}

enum Command {
    /// Tell the totals.
    Status,
    /// Tell the totals, and the flows that were used last.
    Flows,
    /// Go on with other settings: words with tabs between them.
    Set(String),
    /// A mobile host goes or comes.
    Handoff(Change),
}

/// A request that is carried out, and whose answer waits for the sum of all flows.
struct Pending {
    reply: SyncSender<Answer>,
    settings: Value,
    wants_flows: bool,
    concerned: Option<usize>,
    refusal: Option<String>,
}

struct Answer {
    status: Status,
    settings: Value,
    flows: Vec<FlowReport>,
    /// Of [`Command::Handoff`]: how many flows the mobile host has.
    concerned: Option<usize>,
    /// Why the command cannot be carried out.
    refusal: Option<String>,
}

/// Requests as they arrive in the loop that serves packets.
pub(super) struct Requests {
    arriving: Receiver<Request>,
    ways: Ways,
    /// Lets [`answer`](Requests::answer) be called again soon.
    bell: Stopper,
    pending: Vec<Pending>,
}

impl Requests {
    /// Carries out what was asked for, and answers a few turns of the loop later, in which all flows are added up.
    pub(super) fn answer(&mut self, agent: &mut Agent, now: Time) {
        if self.pending.is_empty() {
            let arriving = self.arriving.try_iter();
            self.pending = arriving.map(|it| self.carry_out(it, agent, now)).collect();
        }
        if self.pending.is_empty() {
            return;
        }
        let Some(status) = agent.status_in_steps(STEP) else {
            return self.bell.look();
        };
        for it in self.pending.drain(..) {
            let flows = match it.wants_flows {
                true => agent.newest_flows(FLOWS_MAX),
                false => Vec::new(),
            };
            let answer = Answer {
                status: status.clone(),
                settings: it.settings,
                flows,
                concerned: it.concerned,
                refusal: it.refusal,
            };
            // Whoever asked may have gone.
            let _ = it.reply.try_send(answer);
        }
    }

    /// Does what was asked for, but for the sum of all flows.
    fn carry_out(&self, request: Request, agent: &mut Agent, now: Time) -> Pending {
        let Request { command, reply } = request;
        let wants_flows = matches!(command, Command::Flows);
        let (mut refusal, mut concerned) = (None, None);
        match command {
            Command::Status | Command::Flows => {}
            Command::Set(words) => match self.changed(agent, &words) {
                Ok(config) => agent.reconfigure(now, config),
                Err(why) => refusal = Some(why),
            },
            Command::Handoff(change) => match change.follow(agent, now, self.ways.moves) {
                Ok(flows) => concerned = Some(flows),
                Err(why) => refusal = Some(why),
            },
        }
        Pending {
            reply,
            settings: settings::shown(agent.config()),
            wants_flows,
            concerned,
            refusal,
        }
    }

    fn changed(&self, agent: &Agent, words: &str) -> Result<Config, String> {
        let config = settings::changed(agent.config(), words.split('\t'))?;
        stage::check_ways(&config, self.ways)?;
        // An agent that could tell and hear marks may do without them for a while.
        if !self.ways.marks {
            stage::check_marks(&config, false)?;
        }
        Ok(config)
    }
}

/// Sends requests to the loop that serves packets.
#[derive(Clone)]
struct Requester {
    sender: Sender<Request>,
    /// Wakes the loop, which then looks for requests at once.
    bell: Stopper,
}

impl Requester {
    /// Waits for the answer, for [`REQUEST_TIMEOUT`] at most.
    fn ask(&self, command: Command) -> io::Result<Answer> {
        let (reply, answer) = mpsc::sync_channel(1);
        let request = Request { command, reply };
        self.sender
            .send(request)
            .map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.bell.look();
        answer
            .recv_timeout(REQUEST_TIMEOUT)
            .map_err(|_| io::ErrorKind::TimedOut.into())
    }
}

/// What [`listen`] has opened.
pub(super) struct Listening {
    pub(super) requests: Requests,
    /// The address for Prometheus.
    pub(super) metrics: Option<SocketAddr>,
    /// Whether the socket has its name. Any user may take a name: if another program has this one, the socket gets it once it is free.
    pub(super) is_named: bool,
}

/// Takes requests from now on, also at an address for Prometheus. `bell` wakes the loop that will answer, and
/// `ways` says by which sockets its agent talks to other agents.
///
/// # Errors
///
/// `AddrInUse` if somebody else listens at the address.
pub(super) fn listen(
    metrics: Option<SocketAddr>,
    bell: Stopper,
    ways: Ways,
) -> io::Result<Listening> {
    let (sender, arriving) = mpsc::channel();
    let requests = Requests {
        arriving,
        ways,
        bell: bell.clone(),
        pending: Vec::new(),
    };
    let requester = Requester { sender, bell };
    let bind = || UnixListener::bind_addr(&UnixAddr::from_abstract_name(SOCKET)?);
    let named = match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
        bound => Some(bound?),
    };
    let is_named = named.is_some();
    let mut address = None;
    if let Some(metrics) = metrics {
        let listener = TcpListener::bind(metrics)?;
        address = Some(listener.local_addr()?);
        let requester = requester.clone();
        start("metrics", move || serve_metrics(&listener, &requester))?;
    }
    start("questions", move || {
        let own = named.unwrap_or_else(|| {
            loop {
                thread::sleep(NAME_PAUSE);
                if let Ok(own) = bind() {
                    break own;
                }
            }
        });
        for stream in accepted(own.incoming()) {
            // Whoever does not wait for the answer has no use for it.
            let _ = serve_connection(&stream, &requester);
        }
    })?;
    Ok(Listening {
        requests,
        metrics: address,
        is_named,
    })
}

/// Answers each connection by a thread of its own: one that asks nothing keeps nobody waiting.
fn serve_metrics(listener: &TcpListener, requester: &Requester) {
    let mut open: VecDeque<Weak<TcpStream>> = VecDeque::new();
    for stream in accepted(listener.incoming()) {
        open.retain(|stream| stream.strong_count() > 0);
        if open.len() >= SCRAPES_MAX
            && let Some(oldest) = open.pop_front().and_then(|it| it.upgrade())
        {
            // The connection may have ended by itself.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let stream = Arc::new(stream);
        open.push_back(Arc::downgrade(&stream));
        let requester = requester.clone();
        // If there can be no more threads, the connection is closed.
        let _ = start("scrape", move || {
            // Whoever does not wait for the answer has no use for it.
            let _ = scrape(&stream, &requester);
        });
    }
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(body).map(drop)
}

/// Answers one connection: one line is asked, one line of JSON is the answer.
fn serve_connection(stream: &UnixStream, requester: &Requester) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    // What connections a machine has is told to root and to the agent's own user only.
    let user = socket_peercred(stream)?.uid;
    if !user.is_root() && user != geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let line = line.trim_end();
    let (command, flows) = match line.strip_prefix("set ") {
        Some(words) => (Command::Set(words.to_owned()), false),
        None if line == "status" => (Command::Status, false),
        None if line == "flows" => (Command::Flows, true),
        None => {
            let change = line.strip_prefix("handoff ").and_then(Change::read);
            (
                Command::Handoff(change.ok_or(io::ErrorKind::InvalidInput)?),
                false,
            )
        }
    };
    let answer = requester.ask(command)?;
    let mut value = json!(answer.status);
    value["settings"] = answer.settings;
    if flows {
        value["newest_flows"] = json!(answer.flows);
    }
    if let Some(concerned) = answer.concerned {
        value["flows_concerned"] = concerned.into();
    }
    if let Some(refusal) = answer.refusal {
        value["refusal"] = refusal.into();
    }
    let mut stream = stream;
    writeln!(stream, "{value}")
}

/// Reads the head of a request; whoever sends it has [`REQUEST_TIMEOUT`] for all of it.
fn head(mut stream: &TcpStream) -> io::Result<String> {
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.ends_with(b"\r\n\r\n") && head.len() < REQUEST_BYTES_MAX as usize {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            length => head.extend(&part[..length]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Answers one request of HTTP.
fn scrape(stream: &TcpStream, requester: &Requester) -> io::Result<()> {
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let request = head(stream)?;
    let mut words = request.split(' ');
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => (
            "200 OK",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            requester.ask(Command::Status)?.status.openmetrics(),
        ),
        _ => (
            "404 Not Found",
            "text/plain; charset=utf-8",
            "there is /metrics\n".to_owned(),
        ),
    };
    let length = body.len();
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// Asks the agent of this network namespace.
///
/// # Errors
///
/// Those of [`Asked`]: `ConnectionRefused` if there is none; `UnexpectedEof` if it does not answer this user.
pub(super) fn ask(question: &str) -> io::Result<Value> {
    Asked::connect(SOCKET)?.answer(question)
}
