//! The receiving end of a stream.

use std::collections::VecDeque;
use std::sync::Arc;

use sphinx_net::PoolBuffer;
use sphinx_proto::Slot;

use crate::error::Error;
use crate::shared::Shared;

/// Data of one block, in stream order.
pub(crate) struct Chunk {
    pub(crate) memory: PoolBuffer,
    pub(crate) slot: Slot,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) end_of_stream: bool,
}

#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) chunks: VecDeque<Chunk>,
    /// Nobody reads the stream any more.
    pub(crate) abandoned: bool,
}

/// The receiving end of a peer's stream.
pub struct RecvStream {
    stream: u16,
    shared: Arc<Shared>,
    /// Data being read, from `from` up.
    chunk: Option<Chunk>,
    ended: bool,
}

impl RecvStream {
    pub(crate) fn new(stream: u16, shared: Arc<Shared>) -> Self {
        Self {
            stream,
            shared,
            chunk: None,
            ended: false,
        }
    }

    /// Waits for data and copies some of it into `buf`; 0 at the end of the stream.
    ///
    /// Data that has arrived is given out even after the session has ended.
    ///
    /// # Errors
    /// When the session ends before the stream.
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        loop {
            if self.ended {
                return Ok(0);
            }
            let mut chunk = match self.chunk.take() {
                Some(chunk) => chunk,
                None => {
                    let stream = self.stream;
                    self.shared
                        .wait(|inner| inner.incoming.get_mut(&stream)?.chunks.pop_front())?
                }
            };
            let len = (chunk.to - chunk.from).min(buf.len());
            buf[..len].copy_from_slice(&chunk.memory[chunk.from..][..len]);
            chunk.from += len;
            if chunk.from < chunk.to {
                self.chunk = Some(chunk);
                return Ok(len);
            }
            self.ended = chunk.end_of_stream;
            self.release(chunk);
            if len > 0 || buf.is_empty() {
                return Ok(len);
            }
        }
    }

    fn release(&self, chunk: Chunk) {
        let slot = chunk.slot;
        drop(chunk);
        self.shared.lock().released.push(slot);
        self.shared.wake();
    }
}

impl Drop for RecvStream {
    /// What the application does not want must not fill the window.
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner
            .released
            .extend(self.chunk.take().map(|chunk| chunk.slot));
        if let Some(incoming) = inner.incoming.get_mut(&self.stream) {
            incoming.abandoned = true;
            let chunks: Vec<Slot> = incoming.chunks.drain(..).map(|chunk| chunk.slot).collect();
            inner.released.extend(chunks);
        }
        self.shared.wake();
    }
}
