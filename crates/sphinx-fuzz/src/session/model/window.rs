//! The window for what the session receives, as the protocol has it (`docs/protocol.md` §7.1).

use sphinx_proto::WindowNumber;

/// Sizes of a receive window so far, and those that the peer may keep to.
pub(super) struct RxWindow {
    /// Sizes by their number.
    sizes: Vec<u64>,
    /// The size before, while the peer has not said that it has heard of a smaller one; and the credit that it then kept within.
    before: Option<u64>,
    kept: u64,
}

impl RxWindow {
    pub(super) fn new(size: u64) -> Self {
        Self {
            sizes: vec![size],
            before: None,
            kept: 0,
        }
    }

    fn number(&self) -> WindowNumber {
        WindowNumber::new(self.sizes.len() as u64 - 1)
    }

    pub(super) fn size(&self) -> u64 {
        *self.sizes.last().expect("the first one")
    }

    pub(super) fn first(&self) -> u64 {
        self.sizes[0]
    }

    pub(super) fn largest(&self) -> u64 {
        *self.sizes.iter().max().expect("the first one")
    }

    /// Whether the peer has to agree before it changes again.
    pub(super) fn is_shrinking(&self) -> bool {
        self.before.is_some()
    }

    pub(super) fn resize(&mut self, size: u64) {
        assert!(!self.is_shrinking() && size != self.size());
        self.before = (size < self.size()).then(|| self.size());
        self.sizes.push(size);
    }

    /// The largest sum of costs that the peer may reach where so much has been taken.
    pub(super) fn limit(&self, released: u64) -> u64 {
        self.kept.max(released + self.before.unwrap_or(self.size()))
    }

    /// The session tells a window.
    pub(super) fn told(&self, number: WindowNumber, size: u64) {
        assert_eq!(self.sizes.get(number.get() as usize), Some(&size));
    }

    /// The peer has heard of a smaller window and keeps within this credit. Whether it may, where so much has arrived for certain, and
    /// so much has been taken.
    pub(super) fn heard_shrunk(
        &mut self,
        number: WindowNumber,
        credit: u64,
        (opened, released): (u64, u64),
    ) -> bool {
        if !self.is_shrinking() || number != self.number() {
            return true;
        }
        // More may have been told since.
        let told = released + self.size();
        let is_possible = credit <= self.limit(released) && opened <= credit.max(told);
        if is_possible {
            (self.before, self.kept) = (None, credit);
        }
        is_possible
    }

    /// The number of the window, and of one that is not the newest.
    pub(super) fn numbers(&self) -> [WindowNumber; 2] {
        let number = self.number();
        [number, WindowNumber::new(number.get() ^ 1)]
    }
}
