//! Packet erasure codes and their SIMD arithmetic: semi-random LT, RLC over GF(2^8), and the mathematics that choose their parameters.
