//! Which engines there are, and what tells them apart but their arithmetic.

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2Gfni,
    #[cfg(target_arch = "x86_64")]
    Avx512Gfni,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// From the simplest to the fastest.
pub(super) const KINDS: &[Kind] = &[
    Kind::Scalar,
    #[cfg(target_arch = "x86_64")]
    Kind::Ssse3,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx512,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2Gfni,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx512Gfni,
    #[cfg(target_arch = "aarch64")]
    Kind::Neon,
];

/// Whether the processor has all of these features: asked at run time with the
/// standard library, otherwise what the build was told.
#[cfg(target_arch = "x86_64")]
macro_rules! has {
    ($($feature:tt),+) => {{
        #[cfg(feature = "std")]
        let has = $(std::arch::is_x86_feature_detected!($feature))&&+;
        #[cfg(not(feature = "std"))]
        let has = $(cfg!(target_feature = $feature))&&+;
        has
    }};
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => "ssse3",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Gfni => "avx2-gfni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Gfni => "avx512-gfni",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
        }
    }

    /// Whether it may be chosen by itself. AVX-512 without GFNI is there for whoever asks for it by name: processors that would choose it have
    /// not been measured, and some of them lower their clock for it. (Its tests run on those with GFNI.)
    pub(super) fn may_be_chosen(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => false,
            _ => true,
        }
    }

    pub(super) fn is_supported(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => has!("ssse3"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => has!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => has!("avx2", "avx512f", "avx512bw"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Gfni => has!("avx2", "gfni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Gfni => has!("avx2", "gfni", "avx512f", "avx512bw"),
            // Part of every 64-bit ARM processor.
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
        }
    }

    /// Rows computed together, at most 4: the more, the less often source bytes
    /// are loaded, until the registers do not hold their sums any more.
    pub(super) fn rows_at_once(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => 2,
            _ => 4,
        }
    }

    /// Bytes in a register; stretches should be of at least this length.
    pub(super) fn lane(self) -> usize {
        match self {
            Self::Scalar => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => 16,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx2Gfni => 32,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Gfni => 64,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => 16,
        }
    }

    /// Whether source bytes have to be prepared for multiplications, so that a
    /// stage for them can pay.
    pub(super) fn has_stage(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 | Self::Avx2 | Self::Avx512 => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            _ => false,
        }
    }

    /// Coefficients are kept for the kernels as multiples of this number: where
    /// they are broadcast, in each of four bytes.
    pub(super) fn packing(self) -> u32 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Gfni | Self::Avx512Gfni => 0x0101_0101,
            _ => 1,
        }
    }
}
