//! What tasks do instead of threads, polled by hand: no runtime is involved.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use sphinx_transport::asynchronous::{RecvStream, SendStream, Server, Session, connect};
use sphinx_transport::{DatagramOptions, Error, ErrorKind, LiveOptions, Options, Service};

use crate::support::*;

/// Wakes the thread that polls a future.
struct Bell {
    rung: AtomicBool,
    thread: Thread,
}

impl Bell {
    fn new() -> (Arc<Self>, Waker) {
        let bell = Arc::new(Self {
            rung: AtomicBool::new(false),
            thread: thread::current(),
        });
        (Arc::clone(&bell), bell.into())
    }

    /// Wake-ups of other bells are not for this one.
    fn wait(&self) {
        while !self.rung.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (bell, waker) = Bell::new();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => bell.wait(),
        }
    }
}

/// Polls futures now and then, and drops most of them.
struct Fickle(u64);

impl Fickle {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// What comes of `attempt` once one of its futures is ready. They are polled up to three times, some of these times
    /// before they have woken anybody, and then dropped.
    fn run<T>(&mut self, mut attempt: impl AsyncFnMut() -> T) -> T {
        loop {
            let (bell, waker) = Bell::new();
            let mut future = pin!(attempt());
            for _ in 0..self.below(4) {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(value) = polled {
                    return value;
                }
                if self.below(2) == 0 {
                    bell.wait();
                }
            }
        }
    }

    fn send(&mut self, session: &Session, mut data: &[u8]) {
        let mut stream = self.run(async || session.open_uni().await).unwrap();
        while !data.is_empty() {
            let len = (1 + self.below(100_000)).min(data.len());
            let written = self.run(async || stream.write(&data[..len]).await).unwrap();
            assert!((1..=len).contains(&written));
            data = &data[written..];
            if self.below(5) == 0 {
                self.run(async || stream.flush().await).unwrap();
            }
        }
        if self.below(2) == 0 {
            self.run(async || stream.finish().await).unwrap();
        }
        self.run(async || stream.wait_delivered().await).unwrap();
        assert_eq!(self.run(async || stream.stopped().await).unwrap(), None);
    }

    fn receive(&mut self, session: &Session, len: usize) -> Vec<u8> {
        let mut stream = self.run(async || session.accept_uni().await).unwrap();
        let mut received = Vec::new();
        while received.len() < len {
            let at = received.len();
            let some = (1 + self.below(200_000)).min(len - at);
            received.resize(at + some, 0);
            if self.below(2) == 0 {
                self.run(async || unordered(&mut stream, &mut received[at..]).await)
                    .unwrap();
            } else {
                let read = self.run(async || stream.read(&mut received[at..]).await);
                received.truncate(at + read.unwrap());
            }
        }
        let end = self.run(async || stream.read(&mut [0; 10]).await).unwrap();
        assert_eq!(end, 0, "there is more");
        received
    }
}

/// Reads into what was all zeros.
async fn unordered(stream: &mut RecvStream, into: &mut [u8]) -> Result<(), Error> {
    let len = into.len() as u64;
    let sink = |at: u64, piece: &[u8]| {
        let place = &mut into[at as usize..][..piece.len()];
        assert!(place.iter().all(|byte| *byte == 0), "twice at {at}");
        place.copy_from_slice(piece);
        Ok(())
    };
    stream.read_unordered(len, sink).await
}

/// However often and wherever tasks give up and begin again, every byte arrives once and in its place.
#[test]
fn futures_may_be_dropped_at_any_time() {
    bounded(|| {
        for seed in 0..6 {
            let pair = pair(link(0.03, 2 * seed), link(0.03, 2 * seed + 1));
            let ends = [pair.client, pair.server].map(Session::from);
            let [client, server] = &ends;
            let there = content(seed, 700_000 + 1001 * seed as usize);
            let back = content(seed + 100, 300_000);
            let fickle = |n| Fickle((seed << 3 | n) + 1);
            thread::scope(|scope| {
                scope.spawn(|| fickle(0).send(client, &there));
                scope.spawn(|| fickle(1).send(server, &back));
                scope.spawn(|| assert!(fickle(2).receive(server, there.len()) == there));
                scope.spawn(|| assert!(fickle(3).receive(client, back.len()) == back));
            });
        }
    });
}

/// Attempts at messages, datagrams and live messages.
impl Fickle {
    fn exchange_messages(&mut self, streams: (SendStream, RecvStream), seed: u64) {
        let (mut sender, mut receiver) = (streams.0.into_messages(), streams.1.into_messages());
        for number in 0..30 {
            let message = content(seed + number, self.below(60_000));
            // Whether an attempt has taken the message is known, so that it is sent once.
            self.run(async || match sender.is_sending() {
                true => sender.flush().await,
                false => sender.send(&message).await,
            })
            .unwrap();
            let mut buf = vec![0; 60_000];
            let len = match number % 2 {
                0 => {
                    let answer = self.run(async || receiver.recv(&mut buf).await).unwrap();
                    buf.truncate(answer.expect("an answer"));
                    buf.len()
                }
                _ => {
                    let answer = self.run(async || receiver.recv_vec().await).unwrap();
                    buf = answer.expect("an answer");
                    buf.len()
                }
            };
            assert!(len == message.len() && buf == message, "{number}");
        }
        let mut stream = block_on(sender.into_stream()).unwrap();
        self.run(async || stream.wait_delivered().await).unwrap();
        let end = self.run(async || receiver.recv_vec().await).unwrap();
        assert_eq!(end, None);
    }

    fn answer_messages(&mut self, session: &Session) {
        let streams = self.run(async || session.accept_bi().await).unwrap();
        let (mut sender, mut receiver) = (streams.0.into_messages(), streams.1.into_messages());
        while let Some(message) = self.run(async || receiver.recv_vec().await).unwrap() {
            self.run(async || poll_fn(|cx| sender.poll_send(cx, &message)).await)
                .unwrap();
            self.run(async || sender.flush().await).unwrap();
            assert!(!sender.is_sending());
        }
        let mut stream = block_on(sender.into_stream()).unwrap();
        self.run(async || stream.wait_delivered().await).unwrap();
    }

    /// Every second one by what is polled, whose place among those that wait stays when an attempt is given up.
    fn send_datagrams(&mut self, mut session: Session) {
        let options = DatagramOptions::default()
            .ordered()
            .repaired_within(ms(20_000));
        for number in 0..300_u32 {
            let data = [&number.to_be_bytes()[..], &vec![0; self.below(9000)]].concat();
            let sent = match number % 2 {
                0 => self.run(async || session.send_datagram_wait(&data, &options).await),
                _ => self.run(async || {
                    poll_fn(|cx| session.poll_send_datagram_wait(cx, &data, &options)).await
                }),
            };
            sent.unwrap();
        }
    }

    /// A third of them: in order, none twice.
    fn receive_datagrams(&mut self, mut session: Session) {
        let (mut buf, mut next) = (vec![0; 10_000], 0);
        for _ in 0..100 {
            let info = match self.below(2) {
                0 => self.run(async || session.recv_datagram(&mut buf).await),
                _ => {
                    self.run(async || poll_fn(|cx| session.poll_recv_datagram(cx, &mut buf)).await)
                }
            };
            let number = info.unwrap().number.expect("in order");
            assert_eq!(buf[..4], (number as u32).to_be_bytes());
            assert!(number >= next, "{number} after {next}");
            next = number + 1;
        }
    }

    fn receive_live(&mut self, mut session: Session, count: u64) {
        let accepted = match self.below(2) {
            0 => self.run(async || session.accept_live().await),
            _ => self.run(async || poll_fn(|cx| session.poll_accept_live(cx)).await),
        };
        let (mut receiver, mut seen, mut buf) = (accepted.unwrap(), 0, [0; 8]);
        while let Some(info) = self.run(async || receiver.recv(&mut buf).await).unwrap() {
            assert_eq!(info.number, u64::from_be_bytes(buf));
            seen += 1;
        }
        let missing = receiver.take_missing().into_iter();
        let missing: u64 = missing.map(|range| range.end - range.start).sum();
        assert_eq!(seen + missing, count);
    }
}

/// Messages are whole and once, datagrams in order and once, live messages here or known to be missing, whatever attempts are given up.
#[test]
fn calls_for_messages_and_datagrams_may_be_dropped_at_any_time() {
    bounded(|| {
        for seed in 20..23 {
            let pair = pair(link(0.03, 2 * seed), link(0.03, 2 * seed + 1));
            let ends = [pair.client, pair.server].map(Session::from);
            let [client, server] = &ends;
            let fickle = |n| Fickle((seed << 3 | n) + 1);
            thread::scope(|scope| {
                let streams = block_on(client.open_bi()).unwrap();
                scope.spawn(|| fickle(0).exchange_messages(streams, seed));
                scope.spawn(|| fickle(1).answer_messages(server));
                scope.spawn(|| fickle(2).send_datagrams(client.clone()));
                scope.spawn(|| fickle(3).receive_datagrams(server.clone()));
                scope.spawn(|| fickle(4).receive_live(client.clone(), 100));
                let latency = LiveOptions::default().latency(ms(20_000));
                let mut live = server.open_live(&latency).unwrap();
                for number in 0..100_u64 {
                    live.send(&number.to_be_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn sessions_of_tasks_begin_and_end() {
    bounded(|| {
        let options = Options::default();
        let server = Server::bind(LOCALHOST, Service::Application, &options).unwrap();
        let address = server.as_blocking().local_addr();
        let ticket = ticket(server.as_blocking(), address);
        let connecting = thread::spawn(move || {
            let options = Options::default();
            block_on(connect(&ticket, Service::Application, &options)).unwrap()
        });
        let accepted = Fickle(9).run(async || server.accept().await).unwrap();
        let client = connecting.join().unwrap();
        let copy = client.clone();
        let waiting = thread::spawn(move || block_on(copy.closed()));

        block_on(accepted.close(9, "the disk is full"));
        assert_eq!(block_on(client.closed()).kind(), ErrorKind::RemoteIo);
        assert_eq!(waiting.join().unwrap().kind(), ErrorKind::RemoteIo);
        assert_eq!(client.as_blocking().peer_code(), Some(9));
        let error = block_on(accepted.closed());
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        assert!(block_on(client.open_uni()).is_err());
        assert!(block_on(client.accept_uni()).is_err());
    });
}

#[test]
fn a_server_that_shuts_down_has_told_its_peers() {
    bounded(|| {
        let (listener, client, _server) = direct();
        let waiting = thread::spawn(move || block_on(Session::from(client).closed()));
        block_on(Server::from(listener).shut_down());
        assert_eq!(waiting.join().unwrap().kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn a_server_that_has_shut_down_has_left_its_address() {
    bounded(|| {
        let (options, mut address) = (Options::default(), LOCALHOST);
        for _ in 0..10 {
            let server = Server::bind(address, Service::Application, &options).unwrap();
            address = server.as_blocking().local_addr();
            block_on(server.shut_down());
        }
    });
}

#[test]
fn why_connecting_fails_is_told() {
    bounded(|| {
        let server = server();
        let deaf = std::net::UdpSocket::bind(LOCALHOST).unwrap();
        let nowhere = ticket(&server, deaf.local_addr().unwrap());
        let options = Options {
            connect_timeout: ms(200),
            ..Options::default()
        };
        let attempt = connect(&nowhere, Service::Application, &options);
        let error = block_on(attempt).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let nameless = server.ticket(&["nowhere.invalid".to_owned()]).unwrap();
        let attempt = connect(&nameless, Service::Application, &options);
        let error = block_on(attempt).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
}

/// A session whose streams are all open has another one for a task as soon as one of them has ended.
#[test]
fn a_task_waits_until_it_may_open_a_stream() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let mut open: Vec<_> = std::iter::from_fn(|| client.open_uni().ok()).collect();
        let (client, server) = (Session::from(client), Session::from(server));
        let waiting = {
            let client = client.clone();
            thread::spawn(move || block_on(client.open_uni()).map(drop))
        };
        open[0].finish().unwrap();
        let mut first = block_on(server.accept_uni()).unwrap();
        assert_eq!(block_on(first.read(&mut [0; 1])).unwrap(), 0);
        waiting.join().unwrap().unwrap();
    });
}

/// A thread writes and a task reads, and the other way round; and the stream changes hands in the middle.
#[test]
fn threads_and_tasks_share_a_session() {
    bounded(|| {
        let pair = pair(link(0.03, 1), link(0.03, 2));
        let data = content(1, 1_000_000);
        let half = data.len() / 2;
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = pair.client.open_uni().unwrap();
                stream.write_all(&data[..half]).unwrap();
                let mut stream = SendStream::from(stream);
                block_on(stream.write_all(&data[half..])).unwrap();
                block_on(stream.wait_delivered()).unwrap();
            });
            scope.spawn(|| {
                let client = Session::from(pair.client.clone());
                let mut stream = block_on(client.open_uni()).unwrap();
                block_on(stream.write_all(&data[..half])).unwrap();
                let mut stream = sphinx_transport::SendStream::from(stream);
                write_and_wait(&mut stream, &data[half..]).unwrap();
            });
            let read = |mut stream: sphinx_transport::RecvStream, blocks_first: bool| {
                let mut received = vec![0; data.len()];
                let mut filled = 0;
                while filled < data.len() {
                    let blocks = (filled < half) == blocks_first;
                    let rest = &mut received[filled..];
                    filled += if blocks {
                        stream.read(rest).unwrap()
                    } else {
                        let mut task = RecvStream::from(stream);
                        let read = block_on(task.read(rest)).unwrap();
                        stream = task.into();
                        read
                    };
                }
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
                assert!(received == data);
            };
            for blocks_first in [true, false] {
                let stream = pair.server.accept_uni().unwrap();
                scope.spawn(move || read(stream, blocks_first));
            }
        });
    });
}

/// What was begun out of order is gone on with before anything else is read.
#[test]
fn a_part_that_was_begun_is_read_to_its_end() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let mut sending = client.open_uni().unwrap();
        sending.write_all(b"part one").unwrap();
        sending.flush().unwrap();
        let mut stream = RecvStream::from(server.accept_uni().unwrap());
        let mut got = [0; 16];
        let begin = |stream: &mut RecvStream, got: &mut [u8]| {
            let mut future = pin!(unordered(stream, got));
            let mut cx = Context::from_waker(Waker::noop());
            future.as_mut().poll(&mut cx).is_pending()
        };
        assert!(begin(&mut stream, &mut got));
        let error = block_on(stream.read(&mut [0])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        let error = block_on(unordered(&mut stream, &mut [0; 15])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        sending.write_all(b"part two, and more").unwrap();
        sending.finish().unwrap();
        block_on(unordered(&mut stream, &mut got)).unwrap();
        assert_eq!(&got, b"part onepart two");
        // Nothing is skipped where nothing is asked for.
        block_on(unordered(&mut stream, &mut [])).unwrap();
        let mut rest = [0; 20];
        let mut filled = 0;
        while let read @ 1.. = block_on(stream.read(&mut rest[filled..])).unwrap() {
            filled += read;
        }
        assert_eq!(&rest[..filled], b", and more");
    });
}

/// A future that has not finished the stream leaves it unfinished: what has arrived must not look whole.
#[test]
fn a_stream_whose_task_gives_up_is_reset() {
    bounded(|| {
        let (_listener, client, server) = direct();
        let mut sending = SendStream::from(client.open_uni().unwrap());
        block_on(sending.write_all(b"half of it")).unwrap();
        block_on(sending.flush()).unwrap();
        let mut stream = RecvStream::from(server.accept_uni().unwrap());
        drop(sending.finish());
        drop(sending);
        let mut buf = [0; 100];
        let error = loop {
            match block_on(stream.read(&mut buf)) {
                Ok(read) => assert!(read > 0, "the stream looks whole"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::StreamReset);

        let mut sending = SendStream::from(client.open_uni().unwrap());
        block_on(sending.write_all(b"x")).unwrap();
        block_on(sending.flush()).unwrap();
        RecvStream::from(server.accept_uni().unwrap()).stop(7);
        assert_eq!(block_on(sending.stopped()).unwrap(), Some(7));
        let error = block_on(sending.write(b"y")).unwrap_err();
        assert_eq!(error.stream_code(), Some(7));
        assert!(block_on(sending.finish()).is_err() && block_on(sending.finish()).is_err());
    });
}
