//! Messages over a session: what of them must arrive, and when, differs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sphinx_transport::{
    DatagramCounts, DatagramOptions, ErrorKind, LiveOptions, LiveReceiver, LiveSender,
    MessageReceiver, MessageSender, Session,
};

use super::{Incoming, Outgoing};
use crate::failure::{Outcome, fail};

/// What carries messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// Bytes of a stream: all arrive, in order
    #[default]
    Stream,
    /// Messages on a stream: all arrive, whole and in order
    Message,
    /// Live messages: repaired as long as that is in time, dropped when late
    Live,
    /// Datagrams: with --deadline repaired within it, else not at all
    Datagram,
}

impl Mode {
    /// Whether messages may be missing in the end.
    pub(crate) fn is_lossy(self) -> bool {
        matches!(self, Self::Live | Self::Datagram)
    }
}

/// Messages towards the peer.
pub(crate) trait MessageOut: Send {
    fn send(&mut self, message: &[u8]) -> Outcome<()>;
    /// There are no more: waits until what became of each is known.
    fn finish(self: Box<Self>) -> Outcome<()>;
}

/// Messages from the peer.
pub(crate) trait MessageIn: Send {
    /// The length of the next one, in `buf`; `None` when no more come.
    fn recv(&mut self, buf: &mut [u8]) -> Outcome<Option<usize>>;
}

/// A stream as one message after another, of which the receiver knows the length.
pub(crate) struct OnStream<S>(pub(crate) S);

impl<S: Outgoing> MessageOut for OnStream<S> {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.0.write_all(message)?;
        self.0.flush()
    }

    fn finish(mut self: Box<Self>) -> Outcome<()> {
        self.0.finish()?;
        self.0.wait_delivered()
    }
}

impl<S: Incoming> MessageIn for OnStream<S> {
    /// Fills `buf`, but at the end of the stream.
    fn recv(&mut self, buf: &mut [u8]) -> Outcome<Option<usize>> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.0.read(&mut buf[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        Ok((filled > 0).then_some(filled))
    }
}

impl MessageOut for MessageSender {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        Ok(Self::send(self, message)?)
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        let mut stream = self.into_stream();
        stream.finish()?;
        Ok(stream.wait_delivered()?)
    }
}

impl MessageIn for MessageReceiver {
    fn recv(&mut self, buf: &mut [u8]) -> Outcome<Option<usize>> {
        Ok(Self::recv(self, buf)?)
    }
}

/// Time between two looks at what has become of the last messages.
const SENT_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long the message that says that there are no more may take.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// Marks the end of the messages; one byte, shorter than any message that is measured.
const END_MESSAGE: &[u8] = &[0];

/// Waits until it is known what became of all datagrams so far: the counts.
fn settled(session: &Session) -> Outcome<DatagramCounts> {
    loop {
        let counts = session.stats().datagrams;
        let known = counts.delivered + counts.expired + counts.evicted + counts.lost;
        if known == counts.sent {
            return Ok(counts);
        }
        if let Some(error) = session.wait_closed(SENT_POLL_INTERVAL) {
            return Err(error.into());
        }
    }
}

/// Live messages of one flow.
pub(crate) struct LiveOut {
    sender: LiveSender,
    session: Session,
}

impl LiveOut {
    pub(crate) fn new(session: &Session, deadline: Option<Duration>) -> Outcome<Self> {
        let options = LiveOptions::default();
        let options = deadline.map_or(options, |deadline| options.latency(deadline));
        Ok(Self {
            sender: session.open_live(&options)?,
            session: session.clone(),
        })
    }
}

impl MessageOut for LiveOut {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.sender.send(message)?;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        drop(self.sender);
        settled(&self.session).map(|_| ())
    }
}

impl MessageIn for LiveReceiver {
    fn recv(&mut self, buf: &mut [u8]) -> Outcome<Option<usize>> {
        Ok(Self::recv(self, buf)?.map(|info| info.len))
    }
}

/// Datagrams, and a last one that says that there are no more.
pub(crate) struct DatagramOut {
    session: Session,
    options: DatagramOptions,
}

impl DatagramOut {
    pub(crate) fn new(session: &Session, deadline: Option<Duration>) -> Self {
        let options = DatagramOptions::default();
        Self {
            session: session.clone(),
            options: deadline.map_or(options, |deadline| options.repaired_within(deadline)),
        }
    }
}

impl MessageOut for DatagramOut {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        Ok(self.session.send_datagram(message, &self.options)?)
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        let before = settled(&self.session)?;
        let end = DatagramOptions::default().repaired_within(END_PATIENCE);
        self.session.send_datagram(END_MESSAGE, &end)?;
        match settled(&self.session)?.delivered > before.delivered {
            true => Ok(()),
            false => Err(fail(
                ErrorKind::Stalled,
                "the end of the datagrams did not arrive within a minute",
            )),
        }
    }
}

pub(crate) struct DatagramIn(pub(crate) Session);

impl MessageIn for DatagramIn {
    fn recv(&mut self, buf: &mut [u8]) -> Outcome<Option<usize>> {
        let len = self.0.recv_datagram(buf)?.len;
        Ok((len > END_MESSAGE.len()).then_some(len))
    }
}
