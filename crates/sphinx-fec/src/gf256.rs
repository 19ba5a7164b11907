//! The field GF(2^8) of bytes with the reduction polynomial
//! x^8 + x^4 + x^3 + x + 1 (0x11b), the one AES uses and the one the x86
//! GFNI instructions multiply in.
//!
//! Addition and subtraction are both XOR. 3 generates the multiplicative group.

const POLYNOMIAL: u16 = 0x11b;
const GENERATOR_ORDER: usize = 255;

/// Powers of the generator 3, doubled in length so that the sum of two
/// logarithms needs no reduction.
const EXP: [u8; 2 * GENERATOR_ORDER] = {
    let mut table = [0; 2 * GENERATOR_ORDER];
    let mut value: u16 = 1;
    let mut i = 0;
    while i < table.len() {
        table[i] = value as u8;
        value ^= value << 1;
        if value & 0x100 != 0 {
            value ^= POLYNOMIAL;
        }
        i += 1;
    }
    table
};

const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < GENERATOR_ORDER {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// Products of every coefficient with the sixteen low nibbles and the sixteen
/// high nibbles: `c * b == NIBBLES[c][b & 15] ^ NIBBLES[c][16 + (b >> 4)]`.
///
/// A byte shuffle looks up sixteen of these at once, which is how the vector
/// engines without a field instruction multiply.
pub(crate) static NIBBLES: [[u8; 32]; 256] = {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[c][nibble] = mul(c as u8, nibble as u8);
            table[c][16 + nibble] = mul(c as u8, (nibble as u8) << 4);
            nibble += 1;
        }
        c += 1;
    }
    table
};

/// The product `a * b`.
#[must_use]
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// The inverse of `a`, or 0 for `a == 0`, which has none.
#[must_use]
pub const fn inv(a: u8) -> u8 {
    if a == 0 {
        return 0;
    }
    EXP[GENERATOR_ORDER - LOG[a as usize] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication straight from the definition, one bit at a time.
    fn mul_by_shifting(a: u8, b: u8) -> u8 {
        let mut a = u16::from(a);
        let mut product = 0;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= a;
            }
            a <<= 1;
            if a & 0x100 != 0 {
                a ^= POLYNOMIAL;
            }
        }
        product as u8
    }

    #[test]
    fn multiplication_matches_the_definition() {
        // Miri takes one in fifty.
        for a in (0..=255).step_by(if cfg!(miri) { 50 } else { 1 }) {
            for b in 0..=255 {
                let product = mul(a, b);
                assert_eq!(product, mul_by_shifting(a, b));
                let row = &NIBBLES[a as usize];
                assert_eq!(
                    product,
                    row[(b & 15) as usize] ^ row[16 + (b >> 4) as usize]
                );
            }
        }
    }

    #[test]
    fn every_non_zero_element_has_an_inverse() {
        assert_eq!(inv(0), 0);
        for a in 1..=255 {
            assert_eq!(mul(a, inv(a)), 1);
        }
    }
}
