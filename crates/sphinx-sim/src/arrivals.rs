//! What has arrived at an end, as the network's doing: pieces of streams, whoever reads them and when.

use std::collections::BTreeMap;

use sphinx_driver::Queues;
use sphinx_proto::Nanos;

use crate::app::Local;

/// What of one stream has arrived.
#[derive(Debug, Default)]
struct Stream {
    /// Pieces that are not in order yet, by offset: length, and whether the stream ends.
    early: BTreeMap<u64, (u32, bool)>,
    in_order: u64,
    ended: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Streams by their index.
    streams: BTreeMap<u64, Stream>,
    /// (arrival, index of the stream, offset, length) of every piece.
    pub(crate) pieces: Vec<(Nanos, u64, u64, u32)>,
    /// Bytes that have arrived in order, of all streams.
    pub(crate) bytes: u64,
}

impl Arrivals {
    /// Notes what has arrived since the last call.
    pub(crate) fn note(&mut self, now: Nanos, queues: &Queues<Local>) {
        for (id, chunk) in queues.arrived() {
            let stream = self.streams.entry(id.index()).or_default();
            let (offset, len) = (chunk.offset(), chunk.data().len() as u32);
            let place = (len, chunk.end_of_stream());
            let is_known = offset < stream.in_order || stream.ended;
            if is_known || stream.early.insert(offset, place).is_some() {
                continue;
            }
            self.pieces.push((now, id.index(), offset, len));
            while let Some((len, ends)) = stream.early.remove(&stream.in_order) {
                stream.in_order += u64::from(len);
                stream.ended = ends;
                self.bytes += u64::from(len);
                if ends {
                    assert!(
                        stream.early.is_empty(),
                        "data behind the end of stream {id}"
                    );
                }
            }
        }
    }

    /// Whether the stream has arrived to its end.
    pub(crate) fn has_ended(&self, index: u64) -> bool {
        let stream = self.streams.get(&index);
        stream.is_some_and(|stream| stream.ended)
    }
}
