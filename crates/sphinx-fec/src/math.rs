//! The two functions that rows depend on, from operations that every
//! processor rounds alike: both ends must get the same bits.

/// The natural logarithm of a positive number, to within a few units of the
/// last place.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m − 1) / (m + 1)), and the argument is below 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut series = 0.0;
    let mut k = 23;
    while k > 0 {
        series = series * square + 1.0 / f64::from(k);
        k -= 2;
    }
    2.0 * s * series + exponent as f64 * core::f64::consts::LN_2
}

/// The square root of a number that is not negative, by Newton's method.
pub(crate) fn sqrt(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // Half the exponent is a guess within a factor of two.
    let mut root = f64::from_bits((x.to_bits() >> 1) + (511 << 52) + (1 << 51));
    for _ in 0..6 {
        root = 0.5 * (root + x / root);
    }
    root
}

#[cfg(test)]
mod tests {
    #[test]
    fn logarithms_and_roots() {
        for i in (1..200_000_u32).step_by(if cfg!(miri) { 997 } else { 1 }) {
            let x = f64::from(i) / 37.0;
            let error = (super::ln(x) - x.ln()).abs();
            assert!(error <= 4e-15 * (1.0 + x.ln().abs()), "ln {x}: {error}");
            let error = (super::sqrt(x) - x.sqrt()).abs();
            assert!(error <= 4e-16 * x.sqrt(), "sqrt {x}: {error}");
        }
        assert_eq!(super::sqrt(0.0), 0.0);
    }
}
