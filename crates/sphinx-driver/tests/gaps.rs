//! What a peer may have kept of streams of which it leaves out bytes, where the window does not hold what came behind them.

use sphinx_driver::{
    BufferPool, Driver, EndReason, Inline, Origin, PacketProtection, Queues, Workshop,
};
use sphinx_proto::wire::{
    ConnectionId, Frame, HEADER_LEN, Header, OVERHEAD, PacketKind, Reset, Segment, VARINT_MAX,
};
use sphinx_proto::{Config, ConnectionIds, PacketNumber, Role, Session, StreamId, Time, Tuple};
use sphinx_sim::{Local, Plain};

const WINDOW: u64 = 400_000;
/// Twice the blocks that may be ahead of the first incomplete one, and what two windows have room for.
const MOST: u64 = (1 << 15) + 2 * (WINDOW / 256);

/// What becomes of the stream at the end that receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// Its sender gives it up, and goes on all the same.
    GivenUp,
    /// The application wants no more of it.
    LetGo,
    /// The application takes what comes, in whatever order.
    AsItComes,
}

fn cid(byte: u8) -> ConnectionId {
    ConnectionId::new([byte; 8]).expect("not zero")
}

fn stream() -> StreamId {
    StreamId::new(Role::Client, 0)
}

struct Receiver {
    driver: Driver<Plain, Inline>,
    workshop: Workshop,
    queues: Queues<Local>,
    packets: u64,
    blocks: u64,
}

impl Receiver {
    fn new() -> Self {
        let tuple = Tuple {
            remote: ([10, 0, 0, 1], 1).into(),
            local_ip: None,
        };
        let ids = ConnectionIds {
            local: cid(1),
            peer: cid(2),
        };
        let mut config = Config::new(Role::Server, tuple, ids);
        (config.recv_window, config.recv_credit) = (WINDOW, WINDOW);
        let streams = config.recv_streams;
        let session = Session::new(config, Time::ZERO);
        Self {
            driver: Driver::new(session, Plain::default(), Inline, false),
            workshop: Workshop::new(BufferPool::new(1 << 20)),
            queues: Queues::new(Role::Server, streams),
            packets: 0,
            blocks: 0,
        }
    }

    /// A packet arrives, and what is in it.
    fn receives(&mut self, header: &Header, body: &[u8]) {
        let number = PacketNumber::new(self.packets);
        self.packets += 1;
        let mut datagram = vec![0; body.len() + OVERHEAD];
        datagram[HEADER_LEN..][..body.len()].copy_from_slice(body);
        let sealed = Plain::default().seal(header, number, &mut datagram);
        sealed.expect("a number of its own");
        let origin = Origin {
            received_at: Time::ZERO,
            tuple: self.driver.core().tuple(),
            ecn: 0,
        };
        let (driver, workshop) = (&mut self.driver, &mut self.workshop);
        driver.handle_datagram(Time::ZERO, origin, &mut datagram, workshop);
        driver.exchange(Time::ZERO, &mut self.queues, workshop.pool());
    }

    /// A byte of the stream does, in a block of its own.
    fn receives_byte(&mut self, offset: u64) {
        let mut block = Vec::new();
        let segment = Segment {
            stream: stream(),
            offset,
            len: 1,
            end_of_stream: false,
        };
        segment.encode(&mut block);
        block.push(7);
        let header = Header {
            kind: PacketKind::Symbol,
            block: self.blocks as u32,
            ..Header::control(cid(1), PacketNumber::ZERO, false)
        };
        self.blocks += 1;
        self.receives(&header, &block);
    }

    fn hears(&mut self, frame: &Frame<'_>) {
        let mut body = Vec::new();
        frame.encode(&mut body);
        let header = Header::control(cid(1), PacketNumber::ZERO, false);
        self.receives(&header, &body);
    }
}

/// Every other byte of a stream arrives: how many did before the session ended, if it has.
fn leave_gaps(reader: Reader) -> (Option<u64>, Receiver) {
    let mut receiver = Receiver::new();
    if reader == Reader::GivenUp {
        receiver.hears(&Frame::Reset(Reset {
            stream: stream(),
            code: 0,
            cost: VARINT_MAX,
            blocks: Vec::new(),
        }));
    }
    for number in 0..2 * MOST {
        receiver.receives_byte(2 * number + 1);
        match reader {
            Reader::LetGo if number == 0 => {
                assert_eq!(receiver.queues.accept_uni(), Some(stream()));
                receiver.queues.abandon(stream(), None, 0);
            }
            Reader::AsItComes => {
                let taken = receiver.queues.incoming(stream()).take_before(u64::MAX);
                let taken = taken.into_iter().map(|chunk| chunk.into_taken());
                taken.for_each(|taken| receiver.queues.release(taken));
            }
            Reader::GivenUp | Reader::LetGo => {}
        }
        if let Some(end) = receiver.driver.poll_end() {
            assert_eq!(end, EndReason::Violation("too many gaps in streams"));
            return (Some(number), receiver);
        }
    }
    (None, receiver)
}

#[test]
fn gaps_without_end_end_the_session() {
    for reader in [Reader::LetGo, Reader::AsItComes] {
        let (ended, receiver) = leave_gaps(reader);
        assert_eq!(ended, Some(MOST), "{reader:?}");
        assert_eq!(receiver.driver.pieces_ahead() as u64, MOST + 1);
    }
}

#[test]
fn of_a_stream_that_is_given_up_no_order_is_kept() {
    let (ended, receiver) = leave_gaps(Reader::GivenUp);
    assert_eq!((ended, receiver.driver.pieces_ahead()), (None, 0));
    assert_eq!(receiver.driver.counters().bytes_received, 2 * MOST);
}
