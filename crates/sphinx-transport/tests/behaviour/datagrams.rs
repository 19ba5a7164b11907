//! Datagrams, live messages and messages on streams.

use std::collections::BTreeSet;

use sphinx_transport::{DatagramOptions, ErrorKind, LiveOptions, MAX_MESSAGE};

use crate::support::{bounded, link, ms, pair, wait_until};

#[test]
fn datagrams_cross_a_link_that_loses() {
    bounded(|| {
        let pair = pair(link(0.1, 1), link(0.1, 2));
        let options = DatagramOptions::default()
            .flow(7)
            .repaired_within(ms(10_000));
        let sizes = [0, 1, 1000, 5000, 65_507];
        let client = pair.client.clone();
        let writer = std::thread::spawn(move || {
            for (number, len) in (0..200).zip(sizes.into_iter().cycle()) {
                let data = vec![number as u8; len];
                client.send_datagram_wait(&data, &options).unwrap();
            }
        });
        let mut buf = vec![0; 70_000];
        for _ in 0..200 {
            let info = pair.server.recv_datagram(&mut buf).unwrap();
            assert!(sizes.contains(&info.len) && (info.flow, info.number) == (7, None));
            let data = &buf[..info.len];
            assert!(data.iter().all(|byte| *byte == data[0]));
        }
        writer.join().unwrap();
        let is_known = || pair.client.stats().datagrams.delivered == 200;
        wait_until("all delivered", is_known);
        assert_eq!(pair.server.stats().datagrams.received, 200);
    });
}

#[test]
fn a_buffer_that_is_too_small_leaves_the_datagram() {
    bounded(|| {
        let pair = pair(link(0.0, 3), link(0.0, 4));
        let ordered = DatagramOptions::default().ordered().expiry(ms(5000));
        pair.client.send_datagram(&[1; 100], &ordered).unwrap();
        let mut buf = [0; 100];
        let error = pair.server.recv_datagram(&mut buf[..99]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("100"), "{error}");
        let info = pair.server.recv_datagram(&mut buf).unwrap();
        assert_eq!((info.len, info.number), (100, Some(0)));
        let most = pair.client.max_unfragmented();
        assert!((1100..1460).contains(&most), "{most}");
        let error = pair
            .client
            .send_datagram(&[0; 65_508], &ordered)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        pair.server.close(0, "done");
        wait_until("closed", || pair.client.closed().is_some());
        assert!(pair.client.send_datagram(&[1], &ordered).is_err());
        assert!(pair.client.recv_datagram(&mut buf).is_err());
    });
}

#[test]
fn live_messages_come_or_are_reported() {
    bounded(|| {
        let pair = pair(link(0.2, 5), link(0.2, 6));
        let options = LiveOptions::default().latency(ms(2000));
        let mut sender = pair.client.open_live(&options).unwrap();
        for number in 0..300_u32 {
            assert_eq!(
                sender.send(&number.to_be_bytes()).unwrap(),
                u64::from(number)
            );
        }
        let mut receiver = pair.server.accept_live().unwrap();
        drop(sender);
        let mut buf = [0; 4];
        let (mut seen, mut missing) = (BTreeSet::new(), 0);
        while let Some(info) = receiver.recv(&mut buf).unwrap() {
            assert_eq!(u64::from(u32::from_be_bytes(buf)), info.number);
            assert!(seen.insert(info.number), "twice");
        }
        for range in receiver.take_missing() {
            missing += range.end - range.start;
        }
        assert_eq!(seen.len() as u64 + missing, 300);
    });
}

/// Either end says how long messages are of use; and the receiver, when it wants no more.
#[test]
fn a_receiver_sets_the_latency_and_stops() {
    bounded(|| {
        let pair = pair(link(0.05, 7), link(0.05, 8));
        let mut sender = pair.client.open_live(&LiveOptions::default()).unwrap();
        assert_eq!(sender.latency(), ms(120));
        sender.send_expiring(b"one", ms(5000)).unwrap();
        let mut receiver = pair.server.accept_live().unwrap();
        receiver.set_latency(ms(250));
        wait_until("heard", || sender.latency() == ms(250));
        sender.set_latency(ms(80));
        assert_eq!(sender.latency(), ms(80));
        drop(receiver);
        let mut refused = None;
        wait_until("stopped", || {
            refused = sender.send(b"two").err();
            refused.is_some()
        });
        assert_eq!(
            refused.map(|error| error.kind()),
            Some(ErrorKind::StreamStopped)
        );
    });
}

#[test]
fn messages_are_whole_and_in_order() {
    bounded(|| {
        let pair = pair(link(0.02, 9), link(0.02, 10));
        let sizes = [3, 0, 70_000, 1, 2_000_000, 63, 64, 16_383, 16_384];
        let client = pair.client.clone();
        let writer = std::thread::spawn(move || {
            let mut messages = client.open_uni().unwrap().into_messages();
            let error = messages.send(&vec![0; MAX_MESSAGE + 1]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            for (number, len) in sizes.into_iter().enumerate() {
                messages.send(&vec![number as u8; len]).unwrap();
            }
            let mut stream = messages.into_stream();
            stream.finish().unwrap();
            stream.wait_delivered().unwrap();
        });
        let mut messages = pair.server.accept_uni().unwrap().into_messages();
        let error = messages.recv(&mut [0; 2]).unwrap_err();
        assert!(error.to_string().contains("message of 3"), "{error}");
        assert_eq!(messages.next_len(), Some(3));
        for (number, len) in sizes.into_iter().enumerate() {
            let message = messages.recv_vec().unwrap().expect("another one");
            assert_eq!(message.len(), len);
            assert!(message.iter().all(|byte| *byte == number as u8));
        }
        assert_eq!(messages.recv_vec().unwrap(), None);
        writer.join().unwrap();
    });
}

#[test]
fn messages_that_are_too_long_or_cut_off_are_errors() {
    bounded(|| {
        let pair = pair(link(0.0, 11), link(0.0, 12));
        let mut long = pair.client.open_uni().unwrap().into_messages();
        long.send(&[0; 2000]).unwrap();
        let mut short = pair.client.open_uni().unwrap();
        short.write_all(&[0x47, 0xd0, 1, 2, 3]).unwrap();
        short.finish().unwrap();
        let mut long = pair
            .server
            .accept_uni()
            .unwrap()
            .into_messages()
            .at_most(1999);
        let mut short = pair.server.accept_uni().unwrap().into_messages();
        for _ in 0..2 {
            let kind = |error: sphinx_transport::Error| error.kind();
            let too_long = long.recv_vec().map_err(kind);
            assert_eq!(too_long, Err(ErrorKind::Protocol));
            let cut_off = short.recv_vec().map_err(kind);
            assert_eq!(cut_off, Err(ErrorKind::Protocol));
        }
    });
}
