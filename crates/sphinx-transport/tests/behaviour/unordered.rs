//! Messages in no order.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;

use sphinx_transport::{ErrorKind, MAX_MESSAGE, asynchronous};

use crate::support::{bounded, content, link, pair, wait_until};

#[test]
fn a_message_comes_as_soon_as_it_is_whole() {
    bounded(|| {
        let pair = pair(link(0.0, 1), link(0.0, 2));
        let mut messages = pair.server.receive_messages();
        // A message whose end is missing holds up nobody.
        let (long, half) = (content(1, 1_000_000), 500_000);
        let mut slow = pair.client.open_uni().unwrap();
        slow.write_all(&long[..half]).unwrap();
        slow.flush().unwrap();
        for number in 0..50 {
            let message = content(number, 1 + 300 * number as usize);
            let mut stream = pair.client.send_message(&message).unwrap();
            assert!(messages.recv().unwrap() == message, "{number}");
            stream.wait_delivered().unwrap();
        }
        // One that is given up never comes.
        let mut given_up = pair.client.open_uni().unwrap();
        given_up.write_all(&[1; 5000]).unwrap();
        given_up.flush().unwrap();
        given_up.reset(7);
        slow.write_all(&long[half..]).unwrap();
        slow.finish().unwrap();
        assert!(messages.recv().unwrap() == long);
        pair.client.send_message(&[]).unwrap();
        assert_eq!(messages.recv().unwrap(), []);
        pair.client.close(0, "done");
        assert!(messages.recv().is_err());
    });
}

#[test]
fn many_senders_and_more_than_is_kept() {
    bounded(|| {
        let pair = pair(link(0.01, 3), link(0.01, 4));
        // 48 MB side by side.
        let writers: Vec<_> = (0..12)
            .map(|number| {
                let client = pair.client.clone();
                thread::spawn(move || {
                    let mut stream = client.send_message(&vec![number; 4_000_000]).unwrap();
                    stream.wait_delivered().unwrap();
                })
            })
            .collect();
        let mut messages = pair.server.receive_messages();
        let mut seen = [false; 12];
        for _ in 0..12 {
            let message = messages.recv().unwrap();
            let number = usize::from(message[0]);
            assert!(message.iter().all(|byte| usize::from(*byte) == number));
            assert_eq!(message.len(), 4_000_000);
            assert!(!std::mem::replace(&mut seen[number], true));
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

#[test]
fn what_is_too_long_is_refused_alone() {
    bounded(|| {
        let pair = pair(link(0.0, 5), link(0.0, 6));
        let error = pair.client.send_message(&vec![0; MAX_MESSAGE + 1]);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Usage);
        let mut messages = pair.server.receive_messages().at_most(1000);
        pair.client.send_message(&[1; 1001]).unwrap();
        let error = messages.recv().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("1000"), "{error}");
        pair.client.send_message(&[2; 1000]).unwrap();
        assert_eq!(messages.recv().unwrap(), [2; 1000]);
    });
}

#[test]
fn tasks_may_give_up_waiting() {
    bounded(|| {
        let pair = pair(link(0.0, 7), link(0.0, 8));
        let mut messages = asynchronous::UnorderedReceiver::from(pair.server.receive_messages());
        let mut cx = Context::from_waker(Waker::noop());
        for number in 0..20_u8 {
            // Looks a few times while the message is on its way.
            assert!(pin!(messages.recv()).poll(&mut cx).is_pending());
            pair.client.send_message(&vec![number; 100_000]).unwrap();
            let mut got = None;
            wait_until("a message", || {
                match messages.poll_recv(&mut cx) {
                    std::task::Poll::Ready(message) => got = Some(message.unwrap()),
                    std::task::Poll::Pending => {}
                }
                got.is_some()
            });
            assert!(got.unwrap() == vec![number; 100_000]);
        }
    });
}
