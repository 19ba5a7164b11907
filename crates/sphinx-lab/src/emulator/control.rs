//! The Unix socket by which a running link is changed and watched.

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use super::{Answer, LinkError, LinkErrorKind, NAME, Request, SOCKET, State, place};

/// Longest request.
const REQUEST_BYTES_MAX: u64 = 1 << 16;
/// Longest answer.
const ANSWER_BYTES_MAX: u64 = 1 << 22;
/// Most connections at a time; further ones have to wait.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may say nothing, and a link may leave a request without an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers requests about a link.
pub(super) trait Answerer: Send + Sync {
    fn answer(&self, request: Request) -> Answer;
}

/// A socket that is being served.
#[derive(Debug)]
pub(super) struct Server {
    listener: Arc<UnixListener>,
}

impl Server {
    /// Serves a socket by threads of its own.
    pub(super) fn start(path: &Path, answerer: Arc<dyn Answerer>) -> io::Result<Server> {
        let listener = Arc::new(UnixListener::bind(path)?);
        let accepting = Arc::clone(&listener);
        let busy = Arc::new(AtomicUsize::new(0));
        let accept = move || {
            while let Ok((stream, _)) = accepting.accept() {
                while busy.load(Ordering::Acquire) >= CONNECTIONS_MAX {
                    thread::sleep(Duration::from_millis(10));
                }
                busy.fetch_add(1, Ordering::AcqRel);
                let guard = Guard(Arc::clone(&busy));
                let answerer = Arc::clone(&answerer);
                let serve = move || {
                    let _guard = guard;
                    // Fails if the other end has gone away, which then needs no answer.
                    let _ = serve(&stream, &*answerer);
                };
                // Without a thread the connection is closed, which its other end reports.
                let _ = thread::Builder::new().name("control".into()).spawn(serve);
            }
        };
        thread::Builder::new()
            .name("control".into())
            .spawn(accept)?;
        Ok(Server { listener })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ends `accept`. Fails only if the socket has been shut down already.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

/// Counts a connection as long as it lives.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(stream: &UnixStream, answerer: &dyn Answerer) -> io::Result<()> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let length = (&mut reader)
            .take(REQUEST_BYTES_MAX)
            .read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        let answer = parse(&line).map_or_else(
            |error| Answer::refused(&error),
            |request| answerer.answer(request),
        );
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        (&*stream).write_all(&text)?;
        if !line.ends_with(b"\n") {
            // What follows is the rest of a line that is too long.
            return stream.shutdown(Shutdown::Both);
        }
    }
}

/// Reads a request.
pub(super) fn parse(line: &[u8]) -> Result<Request, LinkError> {
    serde_json::from_slice(line)
        .map_err(|error| LinkError::usage(format!("not a request: {error}")))
}

/// Asks the running link of this name.
///
/// # Errors
///
/// There is no such link, it does not answer, or it refuses.
pub fn ask(name: &str, request: &Request) -> Result<State, LinkError> {
    // Commands that run at the ends of a link mean that link, unless they name another one.
    let inside = env::var_os(SOCKET).filter(|path| name == NAME && !path.is_empty());
    let path = match inside {
        Some(path) => PathBuf::from(path),
        None => place::socket(name)?,
    };
    let stream = UnixStream::connect(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => LinkError::new(
            LinkErrorKind::Local,
            format!("no link named '{name}' is running"),
            "start it with 'sphx lab link', as the same user; --name chooses among several",
        ),
        _ => LinkError::io("ask", path.to_string_lossy(), &error),
    })?;
    let answer = exchange(&stream, request)
        .map_err(|error| LinkError::io("hear from", path.to_string_lossy(), &error))?;
    match answer {
        Answer::State(state) => Ok(*state),
        Answer::Refused { message, local } => {
            let kind = match local {
                true => LinkErrorKind::Local,
                false => LinkErrorKind::Usage,
            };
            let hint = "the link goes on as it was";
            Err(LinkError::new(kind, message, hint))
        }
    }
}

fn exchange(mut stream: &UnixStream, request: &Request) -> io::Result<Answer> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut line = Vec::new();
    BufReader::new(stream)
        .take(ANSWER_BYTES_MAX)
        .read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Names of files that settings contain count from this process's directory, not from the link's.
pub(super) fn absolute(settings: &[String]) -> Vec<String> {
    let absolute = |text: &String| match text.split_once("=trace:") {
        Some((key, path)) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
            format!("{key}=trace:{}", path.display())
        }
        None => text.clone(),
    };
    settings.iter().map(absolute).collect()
}

impl Request {
    /// A change of settings; files they name count from this process's directory.
    pub fn set(settings: &[String]) -> Request {
        Request::Set {
            settings: absolute(settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Answerer for Echo {
        fn answer(&self, request: Request) -> Answer {
            Answer::Refused {
                message: format!("{request:?}"),
                local: true,
            }
        }
    }

    #[test]
    fn requests_are_answered_line_by_line() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.sock");
        let server = Server::start(&path, Arc::new(Echo)).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        for _ in 0..3 {
            let Answer::Refused { message, local } = exchange(&stream, &Request::Show).unwrap()
            else {
                panic!("a state");
            };
            assert_eq!((message.as_str(), local), ("Show", true));
        }
        (&stream).write_all(b"{\"command\":\"dance\"}\n").unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        assert!(
            line.contains("not a request") && line.contains("dance"),
            "{line}"
        );
        // A line that never ends is answered once, and the connection closed.
        let endless = vec![b'x'; REQUEST_BYTES_MAX as usize];
        (&stream).write_all(&endless).unwrap();
        let mut rest = String::new();
        BufReader::new(&stream).read_to_string(&mut rest).unwrap();
        assert_eq!(rest.matches("not a request").count(), 1);
        drop(server);
        // Nobody accepts any more: the connection is refused, or closed without an answer.
        let later = UnixStream::connect(&path);
        assert!(later.is_err() || exchange(&later.unwrap(), &Request::Show).is_err());
    }

    #[test]
    fn files_count_from_here() {
        let here = env::current_dir().unwrap();
        let settings = [
            "loss=2%".into(),
            "return.rate=trace:a/b".into(),
            "rate=trace:/c".into(),
        ];
        let wanted = [
            "loss=2%".to_owned(),
            format!("return.rate=trace:{}", here.join("a/b").display()),
            "rate=trace:/c".to_owned(),
        ];
        assert_eq!(absolute(&settings), wanted);
    }
}
