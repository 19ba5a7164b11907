//! LT peeling on symbol numbers alone.

use alloc::vec::Vec;

/// Stands for "no edge".
const NONE: u32 = u32::MAX;

/// Repairs with at least two unknown symbols, waiting for them to become
/// known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peeler {
    /// For each symbol the latest edge to a row that contains it.
    heads: Vec<u32>,
    edges: Vec<Edge>,
    rows: Vec<WaitingRow>,
    /// Symbols that became known and were not yet struck out of the rows.
    queue: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    row: u32,
    /// The edge before it with the same symbol.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct WaitingRow {
    /// The caller's name for the row.
    id: u32,
    /// Members still unknown; 0 marks a row that has done its work.
    unknown: u16,
    /// XOR of the members still unknown: when one is left, that one.
    xor: u16,
}

impl Peeler {
    /// Forgets all rows.
    pub(crate) fn clear(&mut self) {
        self.heads.clear();
        self.edges.clear();
        self.rows.clear();
        self.queue.clear();
    }

    /// Whether there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Symbol numbers and rows held.
    pub(crate) fn size(&self) -> usize {
        self.edges.len() + self.rows.len()
    }

    /// Stores a row with its unknown symbols, two or more.
    pub(crate) fn add(&mut self, id: u32, unknown: impl Iterator<Item = u16>) {
        let row = self.rows.len() as u32;
        let mut waiting = WaitingRow {
            id,
            unknown: 0,
            xor: 0,
        };
        for symbol in unknown {
            let at = usize::from(symbol);
            if at >= self.heads.len() {
                self.heads.resize(at + 1, NONE);
            }
            let next = core::mem::replace(&mut self.heads[at], self.edges.len() as u32);
            self.edges.push(Edge { row, next });
            waiting.unknown += 1;
            waiting.xor ^= symbol;
        }
        self.rows.push(waiting);
    }

    /// Takes note that `symbol` is known now, and peels: `is_new` is called
    /// with row and symbol for every row of which one symbol remains, and says
    /// whether that symbol was unknown until then.
    pub(crate) fn learn(&mut self, symbol: u16, mut is_new: impl FnMut(u32, u16) -> bool) {
        self.queue.push(symbol);
        while let Some(symbol) = self.queue.pop() {
            let Some(head) = self.heads.get_mut(usize::from(symbol)) else {
                continue;
            };
            let mut edge = core::mem::replace(head, NONE);
            while edge != NONE {
                let Edge { row, next } = self.edges[edge as usize];
                edge = next;
                let row = &mut self.rows[row as usize];
                if row.unknown == 0 {
                    continue;
                }
                row.unknown -= 1;
                row.xor ^= symbol;
                if row.unknown == 1 {
                    row.unknown = 0;
                    if is_new(row.id, row.xor) {
                        self.queue.push(row.xor);
                    }
                }
            }
        }
    }
}
