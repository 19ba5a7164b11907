//! The part of HTTP/1.1 that players and browsers need here: GET, Content-Length, connections that
//! stay open. Over kernel TCP as it is; other transports carry the same requests.
//!
//! `/segment/INDEX/RUNG` is a segment of a [`Video`](crate::video::Video), `/object/PAGE/NUMBER` an
//! object of a [`Web`](crate::web::Web) page. Bodies are the task's [`Pattern`] from its beginning.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sphinx_netdev::usage::cpu_time;

use super::{
    PEER_TIMEOUT, Pattern, PeerError, PeerTask, browser, player,
    socket::{listen, socket},
    tried,
};
use crate::Workload;

/// Longest line of a header.
const LINE_BYTES_MAX: u64 = 4096;
/// Most lines of a header.
const LINES_MAX: usize = 100;
/// Bytes per read of a body.
const READ_BYTES: usize = 64 << 10;

/// What carries a client's requests.
pub trait Client: Sync {
    /// One more line on which requests can be made, one after the other.
    ///
    /// # Errors
    ///
    /// Whatever prevents that.
    fn line(&self) -> Result<Box<dyn Line + '_>, PeerError>;

    /// Ends everything; requests under way fail.
    fn stop(&self);
}

/// Requests one after the other.
pub trait Line: Send {
    /// Makes a request; what comes back begins with the status line.
    ///
    /// # Errors
    ///
    /// Those of writing.
    fn ask(&mut self, request: &[u8]) -> io::Result<Box<dyn BufRead + '_>>;
}

/// The request for a path.
fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n").into_bytes()
}

/// Fetches a path and checks what comes; the bytes of the body.
pub(super) fn fetch(line: &mut dyn Line, path: &str, pattern: &Pattern) -> Result<u64, PeerError> {
    let mut reader = tried("request", line.ask(&request(path)))?;
    let status = tried("response", head(&mut reader))?;
    if !status.first.starts_with("HTTP/1.1 200 ") {
        return Err(PeerError::Impossible("status of a response"));
    }
    let length = status
        .length
        .ok_or(PeerError::Impossible("length of a response"))?;
    let (mut at, mut buffer) = (0, vec![0; READ_BYTES]);
    while at < length {
        let most = usize::try_from(length - at).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        let read = match reader.read(&mut buffer[..most]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => tried("response", result)?,
        };
        if read == 0 {
            return Err(PeerError::Closed(at));
        }
        if !pattern.matches(at, &buffer[..read]) {
            return Err(PeerError::Corrupt(at));
        }
        at += read as u64;
    }
    Ok(length)
}

/// The first line of a request or response, and the length of its body.
struct Head {
    first: String,
    length: Option<u64>,
}

fn head(reader: &mut dyn BufRead) -> io::Result<Head> {
    let first = line(reader)?;
    let mut length = None;
    for _ in 0..LINES_MAX {
        let line = line(reader)?;
        if line.is_empty() {
            return Ok(Head { first, length });
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok();
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn line(reader: &mut dyn BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = String::from_utf8_lossy(&line);
    Ok(line.trim_end().to_owned())
}

/// Answers one request; false when the client has nothing more to ask.
///
/// # Errors
///
/// Those of reading and writing, and `InvalidData` for what is not a request.
pub fn answer(
    reader: &mut dyn BufRead,
    writer: &mut dyn Write,
    server: &Server,
) -> io::Result<bool> {
    if reader.fill_buf()?.is_empty() {
        return Ok(false);
    }
    let head = head(reader)?;
    let path = head.first.split(' ').nth(1).unwrap_or_default();
    let Some(length) = server.length(path) else {
        writer.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(true);
    };
    write!(
        writer,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
    )?;
    let mut at = 0;
    while at < length {
        let piece = server.pattern.piece(at, length - at);
        writer.write_all(piece)?;
        at += piece.len() as u64;
    }
    writer.flush()?;
    server.bytes.fetch_add(length, Ordering::Relaxed);
    Ok(true)
}

/// What there is to ask for.
pub struct Server {
    workload: Workload,
    pattern: Pattern,
    bytes: AtomicU64,
}

impl Server {
    /// The objects of a task.
    pub fn new(task: &PeerTask) -> Server {
        Server {
            workload: task.workload.clone(),
            pattern: Pattern::new(task.seed),
            bytes: AtomicU64::new(0),
        }
    }

    /// The length of an object, if there is such a one.
    fn length(&self, path: &str) -> Option<u64> {
        let mut words = path.strip_prefix('/')?.split('/');
        let kind = words.next()?;
        let (first, second) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        match (&self.workload, kind) {
            (Workload::Video(video), "segment") => {
                let rung = usize::try_from(second).ok()?;
                Some(video.segment_bytes(first, rung))
            }
            (Workload::Web(web), "object") => Some(web.object_bytes(first, second)),
            _ => None,
        }
    }

    /// The server's last word.
    pub fn done(&self) -> Value {
        json!({
            "v": 1,
            "event": "done",
            "role": "sender",
            "bytes": self.bytes.load(Ordering::Relaxed),
            "cpu_seconds": cpu_time().as_secs_f64(),
        })
    }
}

/// Plays or browses, cuts off at the limit, and says what came of it.
///
/// # Errors
///
/// [`PeerError`], except for what the cut-off brings about.
pub fn use_client(task: &PeerTask, client: &dyn Client) -> Result<Value, PeerError> {
    let started = Instant::now();
    let pattern = Pattern::new(task.seed);
    let over = AtomicBool::new(false);
    let (finished, wait) = mpsc::channel::<()>();
    let (bytes, field, numbers) = thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            if wait.recv_timeout(task.limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                over.store(true, Ordering::SeqCst);
                client.stop();
            }
        });
        let result = match &task.workload {
            Workload::Video(video) => player::play(video, client, &pattern, started, over)
                .map(|(bytes, numbers)| (bytes, "video", json!(numbers))),
            Workload::Web(web) => browser::browse(web, client, &pattern, over)
                .map(|(bytes, numbers)| (bytes, "web", json!(numbers))),
            _ => Err(PeerError::Cannot("ask for this")),
        };
        drop(finished);
        result
    })?;
    let mut done = json!({
        "v": 1,
        "event": "done",
        "role": "receiver",
        "bytes": bytes,
        "seconds": started.elapsed().as_secs_f64(),
        "complete": !over.load(Ordering::SeqCst),
        "cpu_seconds": cpu_time().as_secs_f64(),
    });
    done[field] = numbers;
    Ok(done)
}

/// Answers requests over kernel TCP until the client has closed all its connections.
///
/// # Errors
///
/// [`PeerError`].
pub(super) fn serve_tcp(
    task: &PeerTask,
    listening: &dyn Fn(SocketAddr),
) -> Result<Value, PeerError> {
    let (listener, address) = listen(task, 64)?;
    listening(address);
    let server = Server::new(task);
    let open = AtomicU64::new(0);
    thread::scope(|scope| {
        loop {
            match listener.accept() {
                Ok((socket, _)) => {
                    // After the first connection `accept` gives up soon, so that the loop notices when nobody is connected any more.
                    tried("accept", listener.set_read_timeout(Some(CLOSING)))?;
                    open.fetch_add(1, Ordering::SeqCst);
                    let (server, open) = (&server, &open);
                    scope.spawn(move || {
                        // Fails if the client has gone away, which then needs no answer.
                        let _ = serve_connection(TcpStream::from(socket), task, server);
                        open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
                Err(error) if is_temporary(&error) => {
                    if open.load(Ordering::SeqCst) == 0 {
                        return Ok(());
                    }
                }
                Err(error) => return tried("accept", Err(error)),
            }
        }
    })?;
    Ok(server.done())
}

/// Between two looks at whether the client has gone.
const CLOSING: Duration = Duration::from_millis(200);

fn serve_connection(stream: TcpStream, task: &PeerTask, server: &Server) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(task.limit + PEER_TIMEOUT))?;
    stream.set_write_timeout(Some(task.limit + PEER_TIMEOUT))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = io::BufWriter::with_capacity(READ_BYTES, stream);
    while answer(&mut reader, &mut writer, server)? {}
    Ok(())
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

/// Connections of kernel TCP.
pub(super) struct TcpClient<'a> {
    task: &'a PeerTask,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl<'a> TcpClient<'a> {
    pub(super) fn new(task: &'a PeerTask) -> TcpClient<'a> {
        TcpClient {
            task,
            connections: Arc::default(),
        }
    }
}

impl Client for TcpClient<'_> {
    fn line(&self) -> Result<Box<dyn Line + '_>, PeerError> {
        let socket = socket(self.task)?;
        let address = self.task.address.into();
        tried("connect", socket.connect_timeout(&address, self.task.limit))?;
        tried("connect", socket.set_tcp_nodelay(true))?;
        let stream = TcpStream::from(socket);
        let clone = || stream.try_clone();
        let (kept, reader) = (tried("connect", clone())?, tried("connect", clone())?);
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(kept);
        Ok(Box::new(TcpLine {
            stream,
            reader: BufReader::with_capacity(READ_BYTES, reader),
        }))
    }

    fn stop(&self) {
        let connections = self.connections.lock();
        for stream in connections.unwrap_or_else(PoisonError::into_inner).iter() {
            // Fails if the connection is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

struct TcpLine {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Line for TcpLine {
    fn ask(&mut self, request: &[u8]) -> io::Result<Box<dyn BufRead + '_>> {
        self.stream.write_all(request)?;
        Ok(Box::new(&mut self.reader))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::task, *};
    use crate::{
        video::{Quality, Video},
        web::Web,
    };

    /// Both ends over loopback.
    fn exchange(workload: Workload) -> Value {
        let mut server = task(workload);
        server.limit = Duration::from_secs(60);
        thread::scope(|scope| {
            let (ready, address) = mpsc::channel();
            let listening = move |at| ready.send(at).unwrap();
            let server = &server;
            scope.spawn(move || serve_tcp(server, &listening).unwrap());
            let mut client = server.clone();
            client.address = address.recv().unwrap();
            use_client(&client, &TcpClient::new(&client)).unwrap()
        })
    }

    #[test]
    fn pages_arrive() {
        let web = Web {
            pages: 2,
            objects: 20,
            seed: 3,
        };
        let done = exchange(Workload::Web(web));
        assert_eq!(
            (&done["bytes"], &done["complete"]),
            (&json!(web.bytes()), &json!(true))
        );
        assert_eq!(done["web"]["pages"], 2);
        assert!(done["web"]["page_ms_mean"].as_f64().unwrap() > 0.0);
    }

    /// The limit passes before the first page: there is no time of a page, not one of 0 ms.
    #[test]
    fn no_page_is_no_number() {
        let web = Web {
            pages: 2,
            objects: 20,
            seed: 3,
        };
        // The system takes the connection, and nobody answers.
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = task(Workload::Web(web));
        client.address = listener.local_addr().unwrap();
        client.limit = Duration::from_millis(50);
        let done = use_client(&client, &TcpClient::new(&client)).unwrap();
        assert_eq!(
            (&done["complete"], &done["web"]),
            (&json!(false), &Value::Null)
        );
    }

    /// Its segments are so long that also on a busy machine the next one is there before one has been watched.
    #[test]
    fn a_video_plays() {
        let video = Video {
            watch: Duration::from_secs(1),
            segment: Duration::from_secs(30),
            buffer: Duration::from_secs(300),
            quality: Quality::Fixed(0),
            seed: 1,
        };
        let done = exchange(Workload::Video(video));
        let numbers = &done["video"];
        assert_eq!(
            (&numbers["stalls"], &done["complete"]),
            (&json!(0), &json!(true)),
            "{done}"
        );
        assert!(numbers["segments"].as_u64().unwrap() >= 1, "{done}");
        assert!(numbers["levels"].as_array().unwrap().len() > 2);
    }

    #[test]
    fn only_what_exists_is_answered() {
        let web = Web {
            pages: 1,
            objects: 1,
            seed: 3,
        };
        let server = Server::new(&task(Workload::Web(web)));
        for (request, expected) in [
            ("GET /object/0/0 HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK"),
            ("GET /segment/0/0 HTTP/1.1\r\n\r\n", "HTTP/1.1 404"),
            ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404"),
        ] {
            let mut out = Vec::new();
            assert!(answer(&mut request.as_bytes(), &mut out, &server).unwrap());
            assert!(out.starts_with(expected.as_bytes()), "{request}");
        }
        assert!(!answer(&mut &b""[..], &mut Vec::new(), &server).unwrap());
        assert!(answer(&mut &b"GET /obj"[..], &mut Vec::new(), &server).is_err());
    }
}
