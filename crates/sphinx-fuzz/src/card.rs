//! Frames of an interface that the kernel does not see.

use std::net::IpAddr;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use sphinx_ether::{Datagram, Flow, Sums, neighbours};

use crate::Input;

/// Any bytes as a frame, and as what a frame carries.
pub fn frames(data: &[u8]) {
    if let Ok(datagram) = Datagram::read(data) {
        assert_as_others_read_it(data, &datagram);
        assert_is_written_back(data, &datagram);
    }
    // Whatever a card believes.
    let right = Sums {
        ipv4: true,
        udp: true,
    };
    let believed = Datagram::read_from_card(data, right);
    assert!(believed.is_ok() || Datagram::read(data).is_err());
    if let Some(heard) = neighbours::read(data) {
        // What is believed is about addresses of one family.
        match heard {
            neighbours::Heard::Request { target, from } => {
                assert_eq!(target.is_ipv4(), from.0.is_ipv4());
                let answer = neighbours::reply((target, [2; 6]), from).expect("of one family");
                let expected = neighbours::Heard::Reply {
                    ip: target,
                    mac: [2; 6],
                };
                assert_eq!(neighbours::read(&answer), Some(expected));
            }
            neighbours::Heard::Reply { ip, .. } => {
                assert!(neighbours::request((ip, [2; 6]), ip).is_some());
            }
            neighbours::Heard::ListenerQuery => {}
        }
    }
    any_flow(&mut Input::new(data));
}

/// Another implementation finds the same datagram in it.
fn assert_as_others_read_it(frame: &[u8], datagram: &Datagram) {
    let sliced = SlicedPacket::from_ethernet(frame).expect("a frame for others too");
    let Some(TransportSlice::Udp(udp)) = &sliced.transport else {
        panic!("no datagram for others: {datagram:?}");
    };
    let (source, destination): (IpAddr, IpAddr) = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
        Some(NetSlice::Ipv6(ip)) => (
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        ),
        other => panic!("no packet for others: {other:?}"),
    };
    assert_eq!(
        (datagram.remote.ip(), datagram.local.ip()),
        (source, destination)
    );
    assert_eq!(
        (datagram.remote.port(), datagram.local.port()),
        (udp.source_port(), udp.destination_port())
    );
    assert_eq!(&frame[datagram.payload.clone()], udp.payload());
}

/// Headers made for the same ends are read as the same, with a checksum that is right.
fn assert_is_written_back(frame: &[u8], datagram: &Datagram) {
    let flow = Flow::new(([2; 6], [4; 6]), datagram.local, datagram.remote).expect("of one family");
    let mut answer = vec![0; flow.header_bytes()];
    answer.extend(&frame[datagram.payload.clone()]);
    flow.complete(&mut answer, datagram.ecn);
    let read = Datagram::read(&answer).expect("what is written is read");
    assert_eq!(
        (read.local, read.remote, read.ecn),
        (datagram.remote, datagram.local, datagram.ecn)
    );
    assert_eq!(answer[read.payload], frame[datagram.payload.clone()]);
}

/// A datagram with any contents is read as it was; damaged in one place, at most as one that another implementation reads too.
fn any_flow(input: &mut Input<'_>) {
    let is_v4 = input.byte() & 1 == 0;
    let end = |host: u8, port| match is_v4 {
        true => ([192, 0, 2, host], port).into(),
        false => ([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(host)], port).into(),
    };
    let (local, remote) = (
        end(1, input.number(2) as u16),
        end(2, input.number(2) as u16),
    );
    let flow = Flow::new(([2; 6], [4; 6]), local, remote).expect("of one family");
    let (at, bit) = (input.number(2) as usize, input.byte() & 7);
    let payload = input.take(2000);
    let mut frame = vec![0; flow.header_bytes()];
    frame.extend(payload);
    flow.complete(&mut frame, 1);
    let whole = Datagram::read(&frame).expect("what is written is read");
    assert_eq!(&frame[whole.payload], payload);
    let at = at % frame.len();
    frame[at] ^= 1 << bit;
    if let Ok(read) = Datagram::read(&frame) {
        assert_as_others_read_it(&frame, &read);
    }
}
