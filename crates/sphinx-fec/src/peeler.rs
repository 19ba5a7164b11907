//! LT peeling on symbol numbers alone.

/// Repairs with at least two unknown symbols, waiting for them to become
/// known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peeler {
    /// The unknown symbols of all rows at the time they were added.
    members: Vec<u16>,
    rows: Vec<WaitingRow>,
    /// Symbols that became known and were not yet struck out of the rows.
    queue: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
struct WaitingRow {
    /// The caller's name for the row.
    id: u32,
    /// End of its members; they start where those of the row before end.
    end: u32,
    /// Members still unknown; 0 marks a row that has done its work.
    unknown: u16,
    /// XOR of the members still unknown: when one is left, that one.
    xor: u16,
}

impl Peeler {
    pub(crate) fn clear(&mut self) {
        self.members.clear();
        self.rows.clear();
        self.queue.clear();
    }

    /// Symbol numbers and rows held, in units of symbol numbers.
    pub(crate) fn size(&self) -> usize {
        self.members.len() + self.rows.len()
    }

    /// Stores a row with its unknown symbols, two or more.
    pub(crate) fn add(&mut self, id: u32, unknown: impl Iterator<Item = u16>) {
        let start = self.members.len();
        self.members.extend(unknown);
        let members = &self.members[start..];
        self.rows.push(WaitingRow {
            id,
            end: self.members.len() as u32,
            unknown: members.len() as u16,
            xor: members.iter().fold(0, |xor, i| xor ^ i),
        });
    }

    /// Takes note that `symbol` is known now, and peels: `is_new` is called
    /// with row and symbol for every row of which one symbol remains, and says
    /// whether that symbol was unknown until then.
    pub(crate) fn learn(&mut self, symbol: u16, mut is_new: impl FnMut(u32, u16) -> bool) {
        self.queue.push(symbol);
        while let Some(symbol) = self.queue.pop() {
            let mut start = 0;
            for row in &mut self.rows {
                let end = row.end as usize;
                let members = &self.members[start..end];
                start = end;
                if row.unknown == 0 || !members.contains(&symbol) {
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
