//! The parsers of packets and blocks.

use sphinx_proto::wire::{
    BUNDLE_MAX, Bundle, ConnectionId, DatagramIter, FRAGMENT_PREFIX_LEN, Fragment, Frame,
    FrameIter, HEADER_LEN, Header, MAX_BLOCK_RANGES, MAX_DEFICITS, MAX_NAMED, MAX_SACK_RANGES,
    MAX_TAKEN, PacketKind, Rider, Segment, SegmentIter, VARINT_MAX, WireError, is_data_plane,
    put_varint, varint_len,
};
use sphinx_proto::{PacketNumber, Role, StreamId};

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
    let number = PacketNumber::expand(truncated, PacketNumber::new(expected));
    assert_eq!(number.truncated(), truncated);
    let number = number.get();
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
        PacketKind::Bundle,
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
            let falls = |pair: &[(PacketNumber, PacketNumber)]| pair[1].1 + 1 < pair[0].0;
            assert!(sack.ranges.windows(2).all(falls));
            assert!(sack.ranges.len() <= MAX_SACK_RANGES);
        }
        Frame::Blocks(blocks) => {
            check_rising(blocks.base, &blocks.complete, |id| id.get());
            assert!(blocks.deficits.iter().all(|d| d.0 >= blocks.base));
            assert!(blocks.deficits.len() <= MAX_DEFICITS);
        }
        Frame::Streams(streams) => {
            assert!(streams.kind <= 3);
            check_rising(streams.base, &streams.ended, |index| index);
            assert!(streams.taken.first().is_none_or(|t| t.0 >= streams.base));
            let rises = |pair: &[(u64, u64)]| pair[0].0 < pair[1].0;
            assert!(streams.taken.windows(2).all(rises));
            assert!(streams.taken.len() <= MAX_TAKEN);
        }
        Frame::Close { reason, .. } => assert!(reason.len() <= 256),
        Frame::PaperBlocks(sack) => check_rising(sack.base, &sack.decoded, |id| id.get()),
        Frame::PaperSymbols(sack) => {
            let named = &sack.unrecovered;
            assert!(sack.upto <= sack.latest.block && named.len() <= MAX_NAMED);
            assert!(named.iter().all(|named| named.block < sack.upto));
            assert!(named.windows(2).all(|pair| pair[0].block < pair[1].block));
        }
        _ => {}
    }
}

/// Ranges above a base, rising, disjoint and not adjacent.
fn check_rising<T: Copy>(base: T, ranges: &[(T, T)], number: impl Fn(T) -> u64) {
    let ranges = ranges
        .iter()
        .map(|(low, high)| (number(*low), number(*high)));
    let (base, ranges) = (number(base), ranges.collect::<Vec<_>>());
    assert!(ranges.iter().all(|(low, high)| low <= high));
    assert!(ranges.first().is_none_or(|range| range.0 > base));
    let rises = |pair: &[(u64, u64)]| pair[0].1 + 1 < pair[1].0;
    assert!(ranges.windows(2).all(rises));
    assert!(ranges.len() <= MAX_BLOCK_RANGES);
}

/// A whole block.
pub fn segments(data: &[u8]) {
    let mut segments = Vec::new();
    let mut error = None;
    for segment in SegmentIter::new(data) {
        assert!(error.is_none(), "a segment behind an error");
        match segment {
            Ok((segment, at)) => segments.push((segment, at)),
            Err(wrong) => error = Some(wrong),
        }
    }
    // Each lies behind the one before, with room for its header, and inside the block.
    let mut end = 0;
    for (segment, at) in &segments {
        assert!(end + 4 <= at.start && at.end <= data.len());
        assert_eq!(at.len(), segment.len as usize);
        assert!(segment.len > 0 || segment.end_of_stream);
        assert!(segment.end() <= VARINT_MAX);
        assert_eq!(data[end] == 2, segment.end_of_stream);
        end = at.end;
    }
    // What follows is padding, or what is wrong.
    let is_over = data.get(end).is_none_or(|kind| *kind == 0);
    assert_eq!(error.is_none(), is_over);
    if error == Some(WireError::Truncated) {
        // Whatever else is wrong, more bytes cannot mend what is read before.
        let longer: Vec<_> = [data, &[0; 16]].concat();
        let again: Vec<_> = SegmentIter::new(&longer).flatten().collect();
        assert_eq!(again[..segments.len()], segments);
    }
    let mut written = Vec::new();
    for (segment, at) in &segments {
        let begin = written.len();
        segment.encode(&mut written);
        let header_len = Segment::header_len(segment.stream, segment.offset);
        assert_eq!(written.len() - begin, header_len);
        written.extend_from_slice(&data[at.clone()]);
    }
    written.extend_from_slice(&[0; 3][..data.len() % 4]);
    let again: Result<Vec<_>, WireError> = SegmentIter::new(&written).collect();
    let again = again.expect("as it was written");
    assert_eq!(again.len(), segments.len());
    for ((segment, at), (before, from)) in again.into_iter().zip(segments) {
        assert_eq!(segment, before);
        assert_eq!(written[at], data[from]);
    }
    any_segment(&mut Input::new(data));
    datagrams(data);
}

/// Datagrams are read back as they were written, each inside the block and behind the one before.
fn datagrams(data: &[u8]) {
    let all: Vec<_> = DatagramIter::new(data)
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    let (mut end, mut written) = (0, Vec::new());
    for (datagram, at) in &all {
        assert!(end + 3 <= at.start && at.end <= data.len());
        assert_eq!(at.len(), datagram.len);
        end = at.end;
        let begin = written.len();
        datagram.encode(&mut written);
        assert_eq!(written.len() - begin, datagram.header_len());
        written.extend_from_slice(&data[at.clone()]);
    }
    let again = DatagramIter::new(&written).into_iter().flatten().flatten();
    assert!(
        again
            .map(|(datagram, _)| datagram)
            .eq(all.iter().map(|(datagram, _)| *datagram))
    );
}

/// Any segment that can be written is read back, and none that cannot be is.
fn any_segment(input: &mut Input<'_>) {
    let opener = input.pick(&[Role::Client, Role::Server]);
    let index = input.any();
    let (uni, bi) = (StreamId::new(opener, index), StreamId::bi(opener, index));
    for stream in [uni, bi] {
        assert_eq!(StreamId::from_wire(stream.to_wire()), Ok(stream));
        assert_eq!(stream.opener(), opener);
        assert_eq!(stream.index(), index.min(StreamId::INDEX_MAX));
        assert!(stream.has_sender(opener));
        assert_eq!(stream.has_sender(opener.other()), stream.is_bi());
    }
    assert!(bi.is_bi() && !uni.is_bi());
    let id = input.any();
    if let Ok(stream) = StreamId::from_wire(id) {
        assert_eq!(stream.to_wire(), id);
        let (opener, index) = (stream.opener(), stream.index());
        let again = match stream.is_bi() {
            true => StreamId::bi(opener, index),
            false => StreamId::new(opener, index),
        };
        assert_eq!(again, stream);
    }
    let stream = if id & 1 == 0 { uni } else { bi };
    let segment = Segment {
        stream,
        offset: input.any().min(VARINT_MAX),
        len: input.below(300) as u32,
        end_of_stream: input.rarely(2),
    };
    let mut block = Vec::new();
    segment.encode(&mut block);
    let data_at = block.len();
    block.resize(data_at + segment.len as usize, 7);
    let is_possible = segment.end() <= VARINT_MAX && (segment.len > 0 || segment.end_of_stream);
    let data = data_at..block.len();
    let read = SegmentIter::new(&block).next();
    assert_eq!(read == Some(Ok((segment, data))), is_possible);
    if is_possible && segment.len > 0 {
        let cut = SegmentIter::new(&block[..block.len() - 1]).next();
        assert_eq!(cut, Some(Err(WireError::Truncated)));
    }
    // A length may take fewer bytes than this end gives it.
    let mut short = vec![1 + u8::from(segment.end_of_stream)];
    for value in [stream.to_wire(), segment.offset, u64::from(segment.len)] {
        put_varint(&mut short, value);
    }
    let saved = 4 - varint_len(u64::from(segment.len));
    assert_eq!(short.len() + saved, data_at);
    short.resize(short.len() + segment.len as usize, 7);
    let read = SegmentIter::new(&short).next();
    let read = read.and_then(Result::ok).map(|(segment, _)| segment);
    assert_eq!(read, is_possible.then_some(segment));
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

/// The symbols of a bundle: what is read is written again, if lengths are as short as may be.
pub fn bundle(data: &[u8]) {
    let input = &mut Input::new(data);
    let Some(cid) = ConnectionId::new([1; 8]) else {
        return;
    };
    let header = Header {
        kind: PacketKind::Bundle,
        block: input.number(4) as u32,
        ..Header::control(cid, PacketNumber::ZERO, false)
    };
    let body = input.take(usize::MAX);
    let Ok(symbols) = Bundle::split(&header, body) else {
        return;
    };
    let Some(((main, place), riders)) = symbols.split_first() else {
        panic!("a bundle of nothing");
    };
    assert_eq!((main.kind, main.block), (PacketKind::Symbol, header.block));
    assert!((1..=usize::from(BUNDLE_MAX)).contains(&riders.len()));
    let mut written = Vec::new();
    put_varint(&mut written, place.len() as u64);
    written.extend_from_slice(&body[place.clone()]);
    for (of, at) in riders {
        assert_eq!(Header::decode(&of.encode()), Some(*of));
        let rider = Rider {
            distance: header.block.wrapping_sub(of.block),
            code: of.code,
            n: of.n,
            row: of.row,
            symbol_len: at.len() as u16,
        };
        rider.encode_prefix(&mut written);
        written.extend_from_slice(&body[at.clone()]);
    }
    assert!(written.len() <= body.len());
    let again = Bundle::split(&header, &written).expect("it is one");
    let headers = |symbols: &[(Header, _)]| symbols.iter().map(|(of, _)| *of).collect::<Vec<_>>();
    assert_eq!(headers(&again), headers(&symbols));
}
