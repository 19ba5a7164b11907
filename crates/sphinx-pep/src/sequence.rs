//! Sequence numbers.

/// Adds to 32-bit sequence numbers, so that positions of a stream never wrap and are never negative.
const FIRST_EPOCH: u64 = 1 << 32;

/// The position of a stream's first sequence number.
pub(crate) fn first(sequence: u32) -> u64 {
    FIRST_EPOCH + u64::from(sequence)
}

/// The position with this sequence number that is nearest to `reference` (serial arithmetic,
/// RFC 1982).
pub(crate) fn nearest(reference: u64, sequence: u32) -> u64 {
    let distance = sequence.wrapping_sub(reference as u32) as i32;
    reference.saturating_add_signed(i64::from(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_on_where_sequence_numbers_wrap() {
        let start = first(u32::MAX - 9);
        assert_eq!(nearest(start, u32::MAX), start + 9);
        assert_eq!(nearest(start, 5), start + 15);
        assert_eq!(nearest(start + 15, u32::MAX - 9), start);
        assert_eq!(nearest(first(0), u32::MAX), first(0) - 1);
    }
}
