//! Models of those who wait for what the peer sends, or for room to answer.

use sphinx_net::PacketRx;

use super::*;
use crate::datagram::DatagramOptions;

/// The other end: nothing happens there while a model runs.
struct Peer {
    session: Session,
    engine: Engine,
}

impl Peer {
    fn new() -> Self {
        let meeting = Meeting::of(Role::Server);
        Self {
            session: meeting.session(),
            engine: Engine::new(meeting),
        }
    }

    /// The packets that leave now.
    fn packets(&mut self) -> Vec<Vec<u8>> {
        self.engine.turn();
        let rx = self.engine.other.rx();
        let count = rx.recv().unwrap();
        let mut packets = Vec::new();
        for index in 0..count {
            let mut received = rx.received(index).unwrap();
            packets.extend(received.segments().map(|packet| packet.to_vec()));
        }
        packets
    }
}

/// What the peer sends, worked out before the model: its threads are not to be mixed with those of the model.
fn packets_of(send: fn(&mut Peer) -> Vec<Vec<u8>>) -> VecDeque<Vec<u8>> {
    let packets = Arc::<std::sync::Mutex<Vec<_>>>::default();
    let result = Arc::clone(&packets);
    in_every_order(move || {
        let builder = thread::Builder::new().stack_size(STACK);
        let run = move || send(&mut Peer::new());
        *result.lock().unwrap() = builder.spawn(run).unwrap().join().unwrap();
    });
    let packets = std::mem::take(&mut *packets.lock().unwrap());
    assert!(!packets.is_empty());
    packets.into()
}

impl Meeting {
    fn hearing(packets: &VecDeque<Vec<u8>>) -> Self {
        Self {
            arriving: packets.clone(),
            ..Self::new()
        }
    }

    /// Runs the engine until all of these have had what they wait for.
    fn run(self, waiting: impl IntoIterator<Item = JoinHandle<()>>) {
        let is_over = Arc::new(AtomicBool::new(false));
        let waker = self.waker.clone();
        let engine = self.engine({
            let is_over = Arc::clone(&is_over);
            move |_| is_over.load(Ordering::Acquire)
        });
        for thread in waiting {
            thread.join().unwrap();
        }
        is_over.store(true, Ordering::Release);
        waker.wake();
        engine.join().unwrap();
    }

    /// The first stream of the peer.
    fn stream(&self) -> RecvStream {
        let stream = StreamId::new(Role::Server, 0);
        RecvStream::new(stream, Arc::clone(&self.shared))
    }
}

/// Two blocks of a stream, the second one first.
fn two_blocks() -> VecDeque<Vec<u8>> {
    packets_of(|peer| {
        let mut stream = peer.session.open_uni().unwrap();
        stream.write_all(b"a").unwrap();
        stream.flush().unwrap();
        let first = peer.packets();
        stream.write_all(b"b").unwrap();
        stream.finish().unwrap();
        [peer.packets(), first].concat()
    })
}

/// Takes the two bytes in the order in which they come.
#[derive(Default)]
struct Taken(Vec<(u64, Vec<u8>)>);

impl Taken {
    fn take(&mut self, at: u64, data: &[u8]) -> Result<(), Error> {
        self.0.push((at, data.to_vec()));
        Ok(())
    }

    fn check(mut self) {
        self.0.sort();
        assert_eq!(self.0, [(0, b"a".to_vec()), (1, b"b".to_vec())]);
    }
}

#[test]
fn a_thread_that_reads_what_comes_is_woken_for_each_block() {
    let packets = two_blocks();
    in_every_order(move || {
        let meeting = Meeting::hearing(&packets);
        let mut stream = meeting.stream();
        let reader = thread::spawn(move || {
            let mut taken = Taken::default();
            let sink = |at, data: &[u8]| taken.take(at, data);
            stream.read_unordered(2, sink).unwrap();
            taken.check();
        });
        meeting.run([reader]);
    });
}

#[test]
fn a_task_that_reads_what_comes_is_woken_for_each_block() {
    let packets = two_blocks();
    in_every_order(move || {
        let meeting = Meeting::hearing(&packets);
        let mut stream = meeting.stream();
        let reader = thread::spawn(move || {
            let mut taken = Taken::default();
            let mut sink = |at, data: &[u8]| taken.take(at, data);
            block_on(|cx| stream.poll_read_unordered(cx, 2, &mut sink)).unwrap();
            taken.check();
        });
        meeting.run([reader]);
    });
}

/// Of two messages the one that began first is whole last.
#[test]
fn whoever_takes_messages_as_they_are_whole_hears_of_every_stream() {
    let packets = packets_of(|peer| {
        let session = peer.session.clone();
        let mut first = session.open_uni().unwrap();
        first.write_all(b"first").unwrap();
        first.flush().unwrap();
        let mut packets = peer.packets();
        let _second = session.send_message(b"second").unwrap();
        packets.extend(peer.packets());
        first.finish().unwrap();
        packets.extend(peer.packets());
        packets
    });
    in_every_order(move || {
        let meeting = Meeting::hearing(&packets);
        let mut messages = meeting.session().receive_messages();
        let reader = thread::spawn(move || {
            for message in ["second", "first"] {
                let taken = block_on(|cx| messages.poll_recv(cx)).unwrap();
                assert_eq!(taken, message.as_bytes());
            }
        });
        meeting.run([reader]);
    });
}

#[test]
fn a_thread_and_a_task_have_a_datagram_each() {
    let packets = packets_of(|peer| {
        let mut packets = Vec::new();
        for _ in 0..2 {
            let options = DatagramOptions::default();
            peer.session.send_datagram(b"x", &options).unwrap();
            packets.extend(peer.packets());
        }
        packets
    });
    in_every_order(move || {
        let meeting = Meeting::hearing(&packets);
        let session = meeting.session();
        let thread = thread::spawn({
            let session = session.clone();
            move || assert_eq!(session.recv_datagram(&mut [0; 10]).unwrap().len, 1)
        });
        let task = thread::spawn(move || {
            let mut waiter = session.datagram_waiter();
            let info = block_on(|cx| session.poll_recv_datagram(&mut waiter, cx, &mut [0; 10]));
            assert_eq!(info.unwrap().len, 1);
        });
        meeting.run([thread, task]);
    });
}

#[test]
fn whoever_receives_live_messages_hears_of_the_flow_of_each_and_of_the_end() {
    let packets = packets_of(|peer| {
        let session = peer.session.clone();
        let mut live = session.open_live(&crate::LiveOptions::default()).unwrap();
        live.send(b"x").unwrap();
        let mut packets = peer.packets();
        drop(live);
        packets.extend(peer.packets());
        packets
    });
    in_every_order(move || {
        let meeting = Meeting::hearing(&packets);
        let session = meeting.session();
        let receiver = thread::spawn(move || {
            let mut waiter = session.live_waiter();
            let mut live = block_on(|cx| session.poll_accept_live(&mut waiter, cx)).unwrap();
            let mut buf = [0; 10];
            let info = block_on(|cx| live.poll_recv(cx, &mut buf)).unwrap();
            assert_eq!(info.map(|info| info.len), Some(1));
            assert_eq!(live.recv(&mut buf).unwrap(), None);
        });
        meeting.run([receiver]);
    });
}

/// All that wait are out of date when the engine looks.
#[test]
fn whoever_waits_for_room_for_a_datagram_is_told() {
    in_every_order(|| {
        let meeting = Meeting {
            begins: Time::ZERO + SOON,
            ..Meeting::new()
        };
        let session = meeting.session();
        let data = vec![0; MAX_DATAGRAM];
        let brief = DatagramOptions::default().expiry(Duration::from_millis(1));
        while session.shared.lock().queues.has_datagram_room(data.len()) {
            session.send_datagram(&data, &brief).unwrap();
        }
        let sender = thread::spawn(move || {
            let options = DatagramOptions::default();
            session.send_datagram_wait(&data, &options).unwrap();
        });
        meeting.run([sender]);
    });
}
