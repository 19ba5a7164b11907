//! What Sphinx is to reach. That depends on the machine too, so that wishes are no claims, and nothing fails with them.

use super::{Check, Sheet};

/// A goal at one place, such as a link or a transfer.
pub(super) struct Wish {
    pub(super) place: String,
    /// The check, whose claim is the goal in words.
    pub(super) check: Check,
}

impl Sheet {
    /// A table of wishes.
    pub(super) fn wishes(&mut self, of: &str, wishes: impl IntoIterator<Item = Wish>) {
        self.paragraph(
            "What Sphinx is to reach. A wish is met if the near end of the interval is within it:",
        );
        let header = [of, "wish", "measured", "that it is met"];
        let row = |wish: Wish| {
            let Check {
                claim,
                measured,
                verdict,
            } = wish.check;
            vec![wish.place, claim, measured, verdict.words().to_owned()]
        };
        let rows: Vec<_> = wishes.into_iter().map(row).collect();
        self.summary(&header.map(str::to_owned), &rows);
    }
}
