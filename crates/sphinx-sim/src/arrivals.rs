//! What has arrived at an end, as the network's doing: blocks complete, whoever reads them and when.

use std::collections::{BTreeMap, BTreeSet};

use sphinx_driver::Queues;
use sphinx_proto::Nanos;

use crate::app::Local;

/// What of one stream has arrived.
#[derive(Debug, Default)]
struct Stream {
    seen: BTreeSet<u64>,
    /// Blocks complete and not in order yet: length, and whether the stream ends.
    early: BTreeMap<u64, (u64, u32, bool)>,
    next_block: u64,
    in_order: u64,
    ended: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    streams: BTreeMap<u16, Stream>,
    /// (arrival, stream, offset, length) of every complete block.
    pub(crate) blocks: Vec<(Nanos, u16, u64, u32)>,
    /// Bytes that have arrived in order, of all streams.
    pub(crate) bytes: u64,
}

impl Arrivals {
    /// Notes what has become complete since the last call.
    pub(crate) fn note(&mut self, now: Nanos, queues: &Queues<Local>) {
        for (id, block, chunk) in queues.arrived() {
            let stream = self.streams.entry(id).or_default();
            if !stream.seen.insert(block) {
                continue;
            }
            let (offset, len) = (chunk.offset(), chunk.data().len() as u32);
            self.blocks.push((now, id, offset, len));
            let place = (offset, len, chunk.end_of_stream());
            stream.early.insert(block, place);
            while let Some((offset, len, ends)) = stream.early.remove(&stream.next_block) {
                assert!(!stream.ended, "data behind the end of stream {id}");
                assert_eq!(offset, stream.in_order, "a gap in stream {id}");
                stream.next_block += 1;
                stream.in_order += u64::from(len);
                stream.ended = ends;
                self.bytes += u64::from(len);
            }
        }
    }

    /// Whether the stream has arrived to its end.
    pub(crate) fn has_ended(&self, stream: u16) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.ended)
    }
}
