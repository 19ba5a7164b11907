//! Randomness that the driver has given, kept until it is needed.

/// Values in stock: enough for all candidates for a new path at once, and for the next skipped packet numbers.
const STOCK: usize = 8;

/// Eight random bytes that nobody can guess, several times. Each is used once.
#[derive(Debug, Default)]
pub(crate) struct Stock(Vec<[u8; 8]>);

impl Stock {
    /// How many random values are to be supplied.
    pub(crate) fn wanted(&self) -> usize {
        STOCK - self.0.len()
    }

    /// Adds a value; what is beyond the wanted ones is dropped.
    pub(crate) fn add(&mut self, random: [u8; 8]) {
        if self.0.len() < STOCK {
            self.0.push(random);
        }
    }

    /// Takes a value out, if there is one.
    pub(crate) fn take(&mut self) -> Option<[u8; 8]> {
        self.0.pop()
    }
}
