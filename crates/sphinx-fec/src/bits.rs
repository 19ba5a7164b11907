//! Sets of symbols as bit maps: bit `i % 64` of word `i / 64` is symbol `i`.

/// Words that a map of `n` symbols needs.
#[must_use]
pub fn words(n: usize) -> usize {
    n.div_ceil(64)
}

/// Whether symbol `i` is in the map; symbols behind its end are not.
#[must_use]
pub fn contains(map: &[u64], i: usize) -> bool {
    map.get(i / 64)
        .is_some_and(|word| word >> (i % 64) & 1 == 1)
}

/// Puts symbol `i` into the map.
///
/// # Panics
/// If the map has no room for symbol `i`.
pub fn insert(map: &mut [u64], i: usize) {
    map[i / 64] |= 1 << (i % 64);
}

/// Takes symbol `i` out of the map.
///
/// # Panics
/// If the map has no room for symbol `i`.
pub fn remove(map: &mut [u64], i: usize) {
    map[i / 64] &= !(1 << (i % 64));
}

/// Those of the symbols `0..n` that are not in the map, in order.
pub fn absent(map: &[u64], n: usize) -> impl Iterator<Item = usize> + '_ {
    (0..words(n)).flat_map(move |word| {
        let mut open = !map.get(word).copied().unwrap_or(0);
        if (word + 1) * 64 > n {
            open &= (1 << (n % 64)) - 1;
        }
        core::iter::from_fn(move || {
            let bit = open.trailing_zeros() as usize;
            (bit < 64).then(|| {
                open &= open - 1;
                word * 64 + bit
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn absent_lists_the_holes() {
        for n in [1, 63, 64, 65, 128, 130] {
            let mut map = vec![0; words(n)];
            assert_eq!(
                absent(&map, n).collect::<Vec<_>>(),
                (0..n).collect::<Vec<_>>()
            );
            insert(&mut map, n - 1);
            assert!(contains(&map, n - 1) && !contains(&map, n));
            assert_eq!(
                absent(&map, n).collect::<Vec<_>>(),
                (0..n - 1).collect::<Vec<_>>()
            );
        }
        assert_eq!(absent(&[], 3).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
