//! Questions to a command that runs, at a Unix socket without a name on disk: one line is asked, one line of JSON is the answer. Anybody of the network
//! namespace may have taken the name, and say what they like for as long as they like.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Uid, geteuid};
use serde_json::Value;

/// Longest answer: what an agent says of a thousand flows is half of it.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// For how long all of an answer is waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed `accept`: until then, files may have been closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections of a listener that goes on whatever fails: one that has gone again, or more than the process may have, which is so for a while.
pub(super) fn accepted<T>(
    incoming: impl Iterator<Item = io::Result<T>>,
) -> impl Iterator<Item = T> {
    let resting = incoming.inspect(|accepted| {
        if accepted.is_err() {
            thread::sleep(ACCEPT_PAUSE);
        }
    });
    resting.flatten()
}

/// A connection to the process that listens at a name.
pub(super) struct Asked {
    stream: UnixStream,
    user: Uid,
}

impl Asked {
    /// Only this user's are asked, by root anybody's, as these would answer.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody listens; `PermissionDenied` if it is another user.
    pub(super) fn connect(name: &[u8]) -> io::Result<Self> {
        // Non-blocking: a listener that accepts nobody is not waited for.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        let user = socket_peercred(&stream)?.uid;
        if user != geteuid() && !geteuid().is_root() {
            let why = "it is another user's";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Self { stream, user })
    }

    /// The user whose process listens there.
    pub(super) fn user(&self) -> Uid {
        self.user
    }

    /// What is said to a question of one line.
    ///
    /// # Errors
    /// `TimedOut` if the answer does not end in time, `InvalidData` if it is too long; `UnexpectedEof` if it is none.
    pub(super) fn answer(mut self, question: &str) -> io::Result<Value> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        self.stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        writeln!(self.stream, "{question}").map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => late(),
            _ => error,
        })?;
        let (mut answer, mut part) = (Vec::new(), vec![0; 1 << 16]);
        while !answer.ends_with(b"\n") {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut part) {
                Ok(0) => break,
                Ok(length) => answer.extend_from_slice(&part[..length]),
                Err(error) if is_interruption(&error) => {}
                Err(error) => return Err(error),
            }
            if answer.len() > ANSWER_BYTES_MAX {
                let why = "the answer is longer than any";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        serde_json::from_slice(&answer).map_err(|_| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Whether there is more to come, or the time is over.
fn is_interruption(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn late() -> io::Error {
    let why = format!("no whole answer within {} s", ANSWER_TIMEOUT.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_can_take_nobody_rests_and_goes_on() {
        let began = Instant::now();
        let failed = || Err(io::Error::from(rustix::io::Errno::MFILE));
        let incoming = [Ok(1), failed(), failed(), Ok(2)];
        assert!(accepted(incoming.into_iter()).eq([1, 2]));
        assert!(began.elapsed() >= 2 * ACCEPT_PAUSE);
    }
}
