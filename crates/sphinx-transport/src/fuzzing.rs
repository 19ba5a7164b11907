//! What the fuzz targets of this crate run (`docs/fuzzing.md`).

use std::sync::LazyLock;

use sphinx_driver::prefix_of;
use sphinx_fuzz::Input;
use sphinx_proto::wire::{ConnectionId, Header, OVERHEAD, PacketKind};
use sphinx_proto::{PacketNumber, PathId, Time};

use crate::control::{MAX_PARAMS_LEN, Params};
use crate::message::read_pieces;
use crate::ticket::Ticket;
use sphinx_driver::keys::{Arrival, Direction, ReplayWindow, SECRET_LEN, SealError, SessionSecret};

/// Text that is meant to be a ticket; and the same bytes behind a prefix and in front of a right
/// checksum, as a program that wants to do harm would write them.
pub fn ticket(data: &[u8]) {
    parse_ticket(&String::from_utf8_lossy(data));
    parse_ticket(&Ticket::text_of(data));
}

fn parse_ticket(text: &str) {
    let Ok(ticket) = text.parse::<Ticket>() else {
        return;
    };
    let shown = ticket.to_string();
    assert!(shown.len() <= 2048 && shown.eq_ignore_ascii_case(text.trim()));
    assert!((1..=16).contains(&ticket.addresses().len()));
    assert_eq!(shown.parse(), Ok(ticket));
}

/// Datagrams of anybody at the door of a server, some of them from its client; and who a client says it is.
///
/// # Panics
/// If what does not begin with a greeting is taken for one, or a client is let in that is not on the list.
pub fn greetings(data: &[u8]) {
    crate::control::fuzzing::greetings(data);
}

/// A parameters message.
pub fn parameters(data: &[u8]) {
    if let Ok(params) = Params::decode(data) {
        let message = params.encode();
        assert!(message.len() <= MAX_PARAMS_LEN);
        assert_eq!(Params::decode(&message), Ok(params));
        assert!(params.max_udp_payload >= 1200);
    }
}

/// A stream of messages, of which a first byte says how long they may be (up to 255 bytes) and a second one in what pieces they come.
///
/// # Panics
/// If a message is longer than it may be, if it matters how the bytes were cut, or if what was read is not what would be written.
pub fn messages(data: &[u8]) {
    let [most, piece, data @ ..] = data else {
        return;
    };
    let (most, piece) = (usize::from(*most), usize::from(*piece).max(1));
    let (messages, end) = read_pieces(data, most, piece);
    assert!(messages.iter().all(|message| message.len() <= most));
    let written: usize = messages.iter().map(Vec::len).sum();
    assert!(written + messages.len() <= data.len());
    let mut again = Vec::new();
    for message in &messages {
        again.extend(prefix_of(message.len()));
        again.extend(message);
    }
    assert_eq!(
        read_pieces(&again, most, usize::MAX),
        (messages.clone(), Ok(()))
    );
    assert_eq!(read_pieces(data, most, usize::MAX), (messages, end));
}

/// Datagrams that were never sealed, and sealed ones with any bits turned; then their numbers in the
/// replay window.
pub fn datagram(data: &[u8]) {
    static SECRET: LazyLock<SessionSecret> =
        LazyLock::new(|| SessionSecret::new(&[1; SECRET_LEN], &[2; SECRET_LEN]));
    let input = &mut Input::new(data);
    let mut opener = SECRET.opener(Direction::ClientToServer, PathId::FIRST);
    let mut sealer = SECRET.sealer(Direction::ClientToServer, PathId::FIRST);

    let mut invented = input.take(64).to_vec();
    if let Some(header) = opener.unprotect(&mut invented) {
        let number = PacketNumber::new(input.any());
        let opened = opener.open(&header, number, &mut invented, Time::ZERO, 0);
        assert!(opened.is_err(), "opened what nobody sealed");
    }

    let (mut replay, mut seen) = (ReplayWindow::default(), Vec::new());
    let mut number = PacketNumber::ZERO;
    while !input.is_empty() {
        let step = 1 + input.below(300);
        // Now and then further than the window is wide.
        let far = if step.is_multiple_of(8) { 300 } else { 1 };
        number = PacketNumber::new(number.get().saturating_add(step * far));
        let header = Header {
            kind: PacketKind::Symbol,
            phase: false,
            last_of_flight: false,
            cid: ConnectionId::new([9; 8]).expect("not zero"),
            packet_number: number.truncated(),
            block: input.number(4) as u32,
            code: 0,
            n: 1,
            row: 0,
        };
        let body_len = usize::from(input.byte());
        let mut datagram = vec![0; body_len + OVERHEAD];
        match sealer.seal(&header, number, &mut datagram) {
            // Nobody acknowledges anything, so there is no second epoch.
            Err(SealError::EpochExhausted) => return,
            sealed => sealed.expect("numbers rise"),
        }
        let (at, turned) = (input.below(datagram.len() as u64) as usize, input.byte());
        // Half of the datagrams are kept as they are.
        let turned = if turned & 1 == 0 { 0 } else { turned };
        datagram[at] ^= turned;
        let opened = opener.unprotect(&mut datagram).and_then(|header| {
            opener
                .open(&header, number, &mut datagram, Time::ZERO, 0)
                .ok()
                .map(|body| (header, body))
        });
        assert_eq!(opened.is_some(), turned == 0);
        let Some((opened, body)) = opened else {
            continue;
        };
        assert!(opened == header && datagram[body] == vec![0; body_len]);
        assert_eq!(replay.check(number), Arrival::New);
        replay.commit(number);
        seen.push(number);
        assert_eq!(replay.check(number), Arrival::Replay);
        assert_eq!(replay.expected(), number + 1);
        let again = seen.iter().find(|n| replay.check(**n) == Arrival::New);
        assert_eq!(again, None, "it would open twice");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sphinx_fuzz::replay;

    use super::*;

    #[test]
    fn corpora() {
        replay("tickets", ticket);
        replay("greetings", greetings);
        replay("parameters", parameters);
        replay("datagrams", datagram);
        replay("messages", messages);
    }

    proptest! {
        #[test]
        fn random(data in prop::collection::vec(any::<u8>(), 0..300)) {
            ticket(&data);
            greetings(&data);
            parameters(&data);
            datagram(&data);
            messages(&data);
        }
    }
}
