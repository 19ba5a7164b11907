//! `sphx lab peer`: one end of a contestant of the lab, which starts it. The ends that need a Sphinx
//! session are here: requests and answers, each on a stream of its own.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use clap::Parser;
use sphinx_lab::peers::{
    self, Peer, PeerError, PeerTask, Role,
    http::{self, Client, Line},
};
use sphinx_transport::{
    Options, Profile, RecvStream, SendStream, Server, Service, Session, Ticket, connect,
};

use crate::args::{CommonArgs, engine};

/// How long an end waits for the other one.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read or written at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// Runs one end; its exit code.
pub(super) fn peer(peer: &Peer) -> u8 {
    let more = |role, task: &PeerTask| match role {
        Role::SphinxServer => serve(task),
        Role::SphinxClient => ask(task),
        _ => Err(PeerError::Cannot("play this role")),
    };
    match peers::watch_standard_input() {
        Ok(()) if peers::run(peer, more) => 0,
        _ => 1,
    }
}

/// The engine's options of a contestant.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct EngineLine {
    #[command(flatten)]
    common: CommonArgs,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = engine::PAPER_DEFAULT, value_parser = engine::paper)]
    paper: Option<Box<sphinx_transport::Paper>>,
}

fn options(task: &PeerTask) -> Result<Options, PeerError> {
    let line = refused("options", EngineLine::try_parse_from(&task.options))?;
    // Latency: somebody waits for every answer.
    let mut options = refused("options", line.common.options(Profile::Latency))?;
    options.paper = line.paper.as_deref().copied();
    Ok(options)
}

fn refused<T, E: ToString>(what: &'static str, result: Result<T, E>) -> Result<T, PeerError> {
    result.map_err(|error| PeerError::Refused {
        what,
        reason: error.to_string(),
    })
}

/// Where the server leaves its ticket.
fn ticket_file(task: &PeerTask) -> PathBuf {
    let directory = task.directory.as_deref().unwrap_or(".".as_ref());
    directory.join("ticket")
}

/// Answers requests until the client closes the session.
fn serve(task: &PeerTask) -> Result<serde_json::Value, PeerError> {
    let server = refused(
        "listen",
        Server::bind(task.address, Service::Application, &options(task)?),
    )?;
    let host = task.address.ip().to_string();
    let ticket = refused("ticket", server.ticket(&[host]))?;
    refused("ticket", fs::write(ticket_file(task), ticket.to_string()))?;
    peers::listening(server.local_addr());
    let session = refused("accept", server.accept(Some(task.limit + PEER_TIMEOUT)))?
        .ok_or(PeerError::Cannot("wait any longer for a client"))?;
    let objects = http::Server::new(task);
    thread::scope(|scope| {
        // Answers are opened in the order of the requests, which is how the client tells them apart.
        while let Ok(request) = session.accept_uni() {
            let Ok(answer) = session.open_uni() else {
                break;
            };
            let objects = &objects;
            scope.spawn(move || {
                let mut reader = BufReader::new(Reading(request));
                let mut writer = io::BufWriter::with_capacity(BUFFER_BYTES, Writing(answer));
                // A client that has gone away needs no answer.
                let _ = http::answer(&mut reader, &mut writer, objects);
                if let Ok(Writing(mut answer)) = writer.into_inner() {
                    let _ = answer.finish();
                }
            });
        }
    });
    Ok(objects.done())
}

/// Makes the requests of a task.
fn ask(task: &PeerTask) -> Result<serde_json::Value, PeerError> {
    let text = refused("ticket", fs::read_to_string(ticket_file(task)))?;
    let ticket: Ticket = refused("ticket", text.trim().parse())?;
    let client = StreamClient {
        ticket,
        options: options(task)?,
        connected: Mutex::new(None),
    };
    let done = http::use_client(task, &client);
    client.stop();
    done
}

/// One session, made with the first request.
struct StreamClient {
    ticket: Ticket,
    options: Options,
    connected: Mutex<Option<Arc<Exchange>>>,
}

/// A session and who waits for its next answers.
struct Exchange {
    session: Session,
    /// Who waits for an answer, in the order of the requests.
    waiting: Mutex<VecDeque<mpsc::Sender<RecvStream>>>,
}

impl Exchange {
    /// Opens a stream for a request; its answer comes by the channel.
    fn open(&self) -> io::Result<(SendStream, mpsc::Receiver<RecvStream>)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = self.session.open_uni().map_err(io::Error::other)?;
        let (sender, answer) = mpsc::channel();
        waiting.push_back(sender);
        Ok((stream, answer))
    }

    fn hand_out(&self) {
        while let Ok(stream) = self.session.accept_uni() {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(who) = waiting.pop_front() {
                // It fails where nobody waits for this answer any more.
                let _ = who.send(stream);
            }
        }
        // Those who wait learn that nothing comes.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.clear();
    }
}

impl Client for StreamClient {
    fn line(&self) -> Result<Box<dyn Line + '_>, PeerError> {
        let mut connected = self
            .connected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let exchange = match &*connected {
            Some(exchange) => Arc::clone(exchange),
            None => {
                let session = connect(&self.ticket, Service::Application, &self.options);
                let exchange = Arc::new(Exchange {
                    session: refused("connect", session)?,
                    waiting: Mutex::default(),
                });
                let hand_out = Arc::clone(&exchange);
                let builder = thread::Builder::new().name("answers".into());
                refused("thread", builder.spawn(move || hand_out.hand_out()))?;
                Arc::clone(connected.insert(exchange))
            }
        };
        Ok(Box::new(StreamLine(exchange)))
    }

    fn stop(&self) {
        let connected = self.connected.lock();
        if let Some(exchange) = &*connected.unwrap_or_else(PoisonError::into_inner) {
            exchange.session.close(0, "done");
        }
    }
}

struct StreamLine(Arc<Exchange>);

impl Line for StreamLine {
    fn ask(&mut self, request: &[u8]) -> io::Result<Box<dyn BufRead + '_>> {
        let (mut stream, answer) = self.0.open()?;
        stream.write_all(request).map_err(io::Error::other)?;
        stream.finish().map_err(io::Error::other)?;
        let answer = answer
            .recv()
            .map_err(|_| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        Ok(Box::new(BufReader::with_capacity(
            BUFFER_BYTES,
            Reading(answer),
        )))
    }
}

/// A stream as the standard library reads.
struct Reading(RecvStream);

impl Read for Reading {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(io::Error::other)
    }
}

/// A stream as the standard library writes.
struct Writing(SendStream);

impl Write for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(io::Error::other)
    }
}
