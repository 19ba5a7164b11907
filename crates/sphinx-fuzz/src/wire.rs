//! The parsers of packets and blocks.

use sphinx_proto::wire::{
    ConnectionId, FRAGMENT_PREFIX_LEN, Fragment, Frame, FrameIter, HEADER_LEN, Header,
    PREAMBLE_LEN, PacketKind, Preamble, WireError, expand_packet_number, is_data_plane,
};

use crate::Input;

/// A packet header, both ways, and its number at full length.
pub fn header(data: &[u8]) {
    let input = &mut Input::new(data);
    let truncated = input.number(4) as u32;
    let expected = input.any();
    expansion(truncated, expected);
    if let Some(bytes) = data.first_chunk::<HEADER_LEN>() {
        if let Some(header) = Header::decode(bytes) {
            assert_eq!(header.encode(), *bytes);
            assert!(is_data_plane(bytes));
            assert_eq!(ConnectionId::of_datagram(bytes), Some(header.cid));
        }
        assert!((1..=1024).contains(&Header::decode(bytes).map_or(1, |header| header.n)));
    }
    assert!(!is_data_plane(data) || ConnectionId::of_datagram(data).is_some() || data.len() < 9);
    any_fields(&mut Input::new(data));
}

/// The number has the low bits of the wire, and none with these bits is nearer to the expected one.
fn expansion(truncated: u32, expected: u64) {
    let number = expand_packet_number(truncated, expected);
    assert_eq!(number as u32, truncated);
    // Packet numbers end long before the last window of 64 bits.
    if expected < u64::MAX - (3 << 32) {
        let nearest = number.abs_diff(expected);
        let neighbours = [number.checked_sub(1 << 32), number.checked_add(1 << 32)];
        for neighbour in neighbours.into_iter().flatten() {
            assert!(nearest <= neighbour.abs_diff(expected));
        }
    }
}

/// Any header that can be written is read back.
fn any_fields(input: &mut Input<'_>) {
    let kind = input.pick(&[
        PacketKind::Symbol,
        PacketKind::Fragment,
        PacketKind::Control,
    ]);
    let flags = input.byte();
    let Some(cid) = ConnectionId::new(input.number(8).to_be_bytes()) else {
        return;
    };
    let header = Header {
        kind,
        phase: flags & 1 == 1,
        last_of_flight: flags & 2 == 2,
        cid,
        packet_number: input.number(4) as u32,
        block: input.number(4) as u32,
        stream: input.number(2) as u16,
        code: input.byte() & 0x3f,
        n: input.below(1024) as u16 + 1,
        row: input.number(3) as u32,
    };
    assert_eq!(Header::decode(&header.encode()), Some(header));
}

/// The frames of a control packet: what is read is written and read again.
pub fn frames(data: &[u8]) {
    let mut frames = Vec::new();
    let mut error = None;
    for frame in FrameIter::new(data) {
        assert!(error.is_none(), "a frame behind an error");
        match frame {
            Ok(frame) => {
                check_lists(&frame);
                frames.push(frame);
            }
            Err(wrong) => error = Some(wrong),
        }
    }
    assert!(frames.len() + usize::from(error.is_some()) <= data.len());
    let mut written = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut written));
    // A deficit too large for its type is cut; nothing else is written at greater length.
    assert!(written.len() <= data.len());
    let again: Result<Vec<Frame<'_>>, WireError> = FrameIter::new(&written).collect();
    assert_eq!(again, Ok(frames));
}

/// What the specification says of ranges, which whoever takes the frame relies on.
fn check_lists(frame: &Frame<'_>) {
    match frame {
        Frame::Sack(sack) | Frame::PathSack { sack, .. } => {
            assert!(!sack.ranges.is_empty());
            assert!(sack.ranges.iter().all(|(low, high)| low <= high));
            let falls = |pair: &[(u64, u64)]| pair[1].1 + 1 < pair[0].0;
            assert!(sack.ranges.windows(2).all(falls));
        }
        Frame::Blocks(blocks) => {
            assert!(blocks.complete.iter().all(|(low, high)| low <= high));
            assert!(blocks.complete.first().is_none_or(|c| c.0 > blocks.base));
            let rises = |pair: &[(u64, u64)]| pair[0].1 + 1 < pair[1].0;
            assert!(blocks.complete.windows(2).all(rises));
            assert!(blocks.deficits.iter().all(|d| d.0 >= blocks.base));
        }
        Frame::Close { reason, .. } => assert!(reason.len() <= 256),
        _ => {}
    }
}

/// The first bytes of a block.
pub fn preamble(data: &[u8]) {
    match Preamble::decode(data) {
        Ok(preamble) => {
            assert_eq!(preamble.encode(), data[..PREAMBLE_LEN]);
            assert!(PREAMBLE_LEN + preamble.len as usize <= data.len());
        }
        Err(error) => assert_eq!(
            error == WireError::Truncated,
            data.len() < PREAMBLE_LEN,
            "{error}"
        ),
    }
}

/// A part of a symbol.
pub fn fragment(data: &[u8]) {
    if let Some((fragment, part)) = Fragment::split(data) {
        assert_eq!(fragment.encode(), data[..FRAGMENT_PREFIX_LEN]);
        assert_eq!(part, &data[FRAGMENT_PREFIX_LEN..]);
        let range = fragment.range();
        assert!(range.len() == part.len() && range.end <= usize::from(fragment.symbol_len));
        assert!(fragment.index < fragment.count && !part.is_empty());
    }
}
