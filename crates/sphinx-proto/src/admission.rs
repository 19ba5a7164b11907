//! Whether another block may be handed over, and of what shape.

use sphinx_fec::CodeId;

use crate::Nanos;
use crate::blocks::{block_symbols, symbol_reserve};
use crate::config::Config;
use crate::path::Path;
use crate::sender::Sender;
use crate::types::{BLOCK_OVERHEAD, Room, StreamId, Urgency, block_cost};
use crate::wire::OVERHEAD;

const MS: Nanos = 1_000_000;
/// Symbols of a full block: what the link carries in this time, as far as the code allows …
const BLOCK_TIME: Nanos = 10 * MS;
/// … and at least so many symbols.
const BLOCK_SYMBOLS_MIN: u64 = 32;
/// Full blocks that fit a window at least.
const BLOCKS_PER_WINDOW: u64 = 8;
/// … and of every stream.
const BLOCKS_PER_STREAM: u64 = 4;
/// Full blocks that fit a window where a path is slow, if they have so many symbols then.
const BLOCKS_OF_UNEVEN_PATHS: u64 = 24;
const UNEVEN_SYMBOLS_MIN: u64 = 4;
/// Smallest symbol of a block that is made to fit what is left of the window.
const PART_SYMBOL_MIN: u64 = 64;
/// Smallest send window.
const SEND_WINDOW_MIN: u64 = 512 * 1024;
/// Source data handed over ahead of sending: what the link carries in this time, at least 64 KiB.
const UNSENT_TIME: Nanos = 8 * MS;
const UNSENT_MIN: u64 = 64 * 1024;

/// What the paths in use carry together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// Largest UDP payload that each of them carries.
    pub(crate) mtu: u16,
    /// IP bytes per second.
    pub(crate) rate: u64,
    /// What may be on its way, bytes.
    pub(crate) cwnd: u64,
    /// The highest loss rate.
    pub(crate) plr: f64,
    /// One of them is slow: it carries blocks of its own.
    pub(crate) is_uneven: bool,
}

impl Capacity {
    /// The capacity of one path.
    pub(crate) fn of(path: &Path) -> Self {
        Self {
            mtu: path.mtu(),
            rate: path.cc().pacing_rate(),
            cwnd: path.cc().cwnd(),
            plr: path.monitor().plr(),
            is_uneven: false,
        }
    }
}

/// The limits of what this end has on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission {
    code: Option<CodeId>,
    send_window: u64,
}

impl Admission {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            code: config.code,
            send_window: config.send_window,
        }
    }

    /// Memory for blocks on their way, from now on.
    pub(crate) fn set_send_window(&mut self, bytes: u64) {
        self.send_window = bytes;
    }

    /// Source symbols and symbol size of a full block at present, where so many streams have something to send.
    pub(crate) fn block_shape(
        &self,
        sender: &Sender,
        capacity: Capacity,
        streams: u64,
    ) -> (u16, u16) {
        let symbol_len = capacity.mtu - OVERHEAD as u16 - symbol_reserve(self.code);
        let most_symbols = block_symbols(self.code);
        let per_block = bytes_in(capacity.rate, BLOCK_TIME) / u64::from(symbol_len);
        // Small windows hold several blocks, so that one can be sent while another is repaired; and several of
        // every stream.
        let window = sender.streams().window().min(self.send_window);
        let streams = streams.max(sender.streams().holders());
        let most_of = |blocks: u64| {
            let most = (window / blocks).saturating_sub(BLOCK_OVERHEAD);
            most / u64::from(symbol_len)
        };
        let blocks = BLOCKS_PER_WINDOW.max(BLOCKS_PER_STREAM * streams);
        let mut most = most_of(blocks);
        if capacity.is_uneven {
            // Each path has blocks of its own under way, and what they hold until they are whole is not for others.
            most = most.min(most_of(BLOCKS_OF_UNEVEN_PATHS).max(UNEVEN_SYMBOLS_MIN));
        }
        let mut n = per_block
            .clamp(BLOCK_SYMBOLS_MIN, u64::from(most_symbols))
            .min(most)
            .max(1) as u16;
        // What streams that nobody reads leave of the window is for the blocks of the others.
        let is_waited_for = !sender.waiting().is_empty() && sender.streams().holders() <= 1;
        let is_alone = is_waited_for || sender.streams().is_one();
        while n > 1 && !is_alone && sender.streams().common_left() < 2 * block_cost(n, symbol_len) {
            n /= 2;
        }
        (n, symbol_len)
    }

    /// Whether a block of this stream may be handed over: window, credit, the stream's share of it and the amount
    /// of unsent data decide.
    pub(crate) fn room_for(
        &self,
        sender: &Sender,
        capacity: Capacity,
        (stream, urgency): (StreamId, Urgency),
        (n, symbol_len): (u16, u16),
    ) -> Room {
        let most = sender.streams().most(stream);
        let (fits, shape) = if block_cost(n, symbol_len) <= most {
            (Room::Whole, (n, symbol_len))
        } else {
            match part(most, symbol_len).filter(|_| sender.streams().held(stream) == 0) {
                Some((n, symbol_len)) => (Room::Part(n, symbol_len), (n, symbol_len)),
                None => return Room::HeldUp,
            }
        };
        if self.can_open(sender, capacity, urgency, shape) {
            fits
        } else {
            Room::Later
        }
    }

    /// Whether a block of this stream may be handed over that may wait until the peer has room for it, if so many bytes may.
    ///
    /// A stream that is alone fills these whatever its share of the window is; of others each has what its share has room for, so
    /// that one that is not read does not hold them up.
    pub(crate) fn room_ahead(
        &self,
        sender: &Sender,
        stream: StreamId,
        (n, symbol_len): (u16, u16),
        bytes: u64,
    ) -> Room {
        let cost = block_cost(n, symbol_len);
        let (streams, waiting) = (sender.streams(), sender.waiting());
        let (held, its) = (streams.held(stream), waiting.cost_of(stream));
        let others_hold = streams.holders() > u64::from(held > 0);
        let is_alone = !others_hold && waiting.are_only_of(stream);
        if !is_alone && cost > streams.share_left(stream, its) {
            let part = part(streams.share_left(stream, its), symbol_len);
            return match part.filter(|_| held == 0 && its == 0) {
                Some((n, symbol_len)) => Room::Part(n, symbol_len),
                None => Room::HeldUp,
            };
        }
        if waiting.bytes() >= bytes && (is_alone || its > 0) {
            let first = waiting.iter().next();
            let is_held = sender.blocks().unsent_before(Urgency::LEAST) == 0
                && first.is_some_and(|block| !sender.has_room_for(block, u64::MAX));
            return if is_held { Room::HeldUp } else { Room::Later };
        }
        let all = sender.blocks().open_cost() + waiting.cost();
        match sender.blocks().has_room() && (all == 0 || all + cost <= self.send_window) {
            true => Room::Whole,
            false => Room::Later,
        }
    }

    /// What may be on its way beside what is: bytes.
    pub(crate) fn room_left(&self, sender: &Sender, capacity: Capacity) -> u64 {
        match sender.blocks().open_cost() {
            0 => u64::MAX,
            open => self.send_window(capacity).saturating_sub(open),
        }
    }

    /// Bytes that are handed over ahead of sending.
    pub(crate) fn ahead(&self, capacity: Capacity) -> u64 {
        bytes_in(capacity.rate, UNSENT_TIME).max(UNSENT_MIN)
    }

    /// Whether some stream's block may be handed over. What is less urgent does not stand in its way: it would wait behind it.
    pub(crate) fn can_open(
        &self,
        sender: &Sender,
        capacity: Capacity,
        urgency: Urgency,
        (n, symbol_len): (u16, u16),
    ) -> bool {
        let cost = block_cost(n, symbol_len);
        let ahead = self.ahead(capacity);
        let blocks = sender.blocks();
        let open = blocks.open_cost_before(urgency);
        // One block may go in any case; the next ones must fit the memory, which all on their way share.
        let has_memory = || blocks.open_cost() + cost <= self.send_window;
        sender.streams().has_credit(cost)
            && blocks.has_room()
            && blocks.unsent_before(urgency) < ahead
            && (open == 0 || open + cost <= self.send_window(capacity) && has_memory())
    }

    /// BDP × (2 + ln(symbols in flight) / ln(1/p)): enough for the rounds of repair that the
    /// unluckiest symbol in flight is expected to need.
    fn send_window(&self, capacity: Capacity) -> u64 {
        let cwnd = capacity.cwnd;
        let symbols = (cwnd / 1500).max(2) as f64;
        let plr = capacity.plr.clamp(1e-6, 0.9);
        let rounds = 2.0 + symbols.ln() / (1.0 / plr).ln();
        let window = (cwnd as f64 * rounds) as u64;
        window.max(SEND_WINDOW_MIN).min(self.send_window)
    }
}

/// The largest shape that costs at most `most`, with symbols of at most this size.
fn part(most: u64, symbol_len: u16) -> Option<(u16, u16)> {
    let bytes = most.checked_sub(BLOCK_OVERHEAD)?;
    let n = bytes / u64::from(symbol_len);
    if n > 0 {
        return Some((n.min(u64::from(u16::MAX)) as u16, symbol_len));
    }
    // Some codes need an even size.
    let symbol_len = bytes as u16 & !1;
    (bytes >= PART_SYMBOL_MIN).then_some((1, symbol_len))
}

fn bytes_in(rate: u64, span: Nanos) -> u64 {
    (u128::from(rate) * u128::from(span) / 1_000_000_000).min(u128::from(u64::MAX)) as u64
}
