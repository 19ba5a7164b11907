//! A session from which no more is taken than may come.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sphinx_transport::{RecvStream, SendStream, Session, Stats};

use super::{Channel, Incoming, MessageIn, MessageOut, Mode, OnStream, Sink};
use crate::failure::{Failure, Outcome};

/// As much as comes in this time may come at once.
const BURST: Duration = Duration::from_millis(50);

/// A session whose streams are read at most at a rate, all together: the peer fills the window, and waits.
#[derive(Clone)]
pub(crate) struct Metered {
    session: Session,
    meter: Meter,
}

/// Cheap to clone.
#[derive(Clone)]
struct Meter {
    /// Bytes a second.
    rate: u64,
    /// When as many as possible may be read at once again.
    rested_at: Arc<Mutex<Instant>>,
}

pub(crate) struct MeteredIn {
    stream: RecvStream,
    meter: Meter,
}

impl Metered {
    pub(crate) fn new(session: &Session, rate: u64) -> Self {
        let (rate, rested_at) = (rate.max(1), Arc::new(Mutex::new(Instant::now())));
        Self {
            session: session.clone(),
            meter: Meter { rate, rested_at },
        }
    }
}

impl Meter {
    fn take(&self, bytes: usize) {
        let now = Instant::now();
        let taken = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        let mut rested_at = self
            .rested_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let at = (*rested_at).max(now) + taken;
        *rested_at = at;
        drop(rested_at);
        thread::sleep(at.saturating_duration_since(now + BURST));
    }
}

impl Incoming for MeteredIn {
    fn read(&mut self, buf: &mut [u8]) -> Outcome<usize> {
        let count = Incoming::read(&mut self.stream, buf)?;
        self.meter.take(count);
        Ok(count)
    }

    fn read_unordered(&mut self, len: u64, sink: &mut Sink<'_>) -> Outcome<()> {
        let mut metered = |at: u64, piece: &[u8]| {
            self.meter.take(piece.len());
            sink(at, piece)
        };
        Incoming::read_unordered(&mut self.stream, len, &mut metered)
    }
}

impl Channel for Metered {
    type Out = SendStream;
    type In = MeteredIn;

    fn open_uni(&self) -> Outcome<SendStream> {
        Channel::open_uni(&self.session)
    }
    fn accept_uni(&self) -> Outcome<MeteredIn> {
        Ok(MeteredIn {
            stream: Channel::accept_uni(&self.session)?,
            meter: self.meter.clone(),
        })
    }
    fn stats(&self) -> Stats {
        Channel::stats(&self.session)
    }
    fn close(&self, code: u64, reason: &str) {
        Channel::close(&self.session, code, reason);
    }
    fn peer_code(&self) -> Option<u64> {
        Channel::peer_code(&self.session)
    }
    fn send_messages(
        &self,
        mode: Mode,
        deadline: Option<Duration>,
    ) -> Outcome<Box<dyn MessageOut>> {
        self.session.send_messages(mode, deadline)
    }
    fn recv_messages(&self, mode: Mode) -> Outcome<Box<dyn MessageIn>> {
        match mode {
            Mode::Stream => Ok(Box::new(OnStream(self.accept_uni()?))),
            // What has a deadline does not wait: these come as fast as they are sent.
            _ => self.session.recv_messages(mode),
        }
    }
    fn wait_closed(&self, patience: Duration) -> Option<Failure> {
        Channel::wait_closed(&self.session, patience)
    }
}
