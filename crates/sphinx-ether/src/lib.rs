//! Ethernet, IP and UDP headers around datagrams, for back ends that bypass the kernel.
//!
//! - [`Flow`]: the headers of what goes to one address, built once and completed for each packet;
//! - [`Datagram`]: what a received frame says, read by total functions;
//! - [`neighbours`]: ARP and neighbour discovery, for a card that the kernel does not have.
//!
//! Nothing here has a socket or a clock.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod flow;
pub mod neighbours;
mod read;

use std::net::IpAddr;

use etherparse::IpNumber;
use etherparse::checksum::u64_16bit_word;

pub use flow::Flow;
pub use read::{Checksum, Datagram, Rejected};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Checksums that a card sees to: it computes those of what is sent, or has found those of what was received right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The checksum of IPv4's header.
    pub ipv4: bool,
    /// The checksum of UDP.
    pub udp: bool,
}

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4_BYTES: usize = 20;
/// Bytes of an IPv6 header without extensions.
pub const IPV6_BYTES: usize = 40;
/// Bytes of a UDP header.
pub const UDP_BYTES: usize = 8;

/// The number of UDP among the protocols over IP.
const UDP: u8 = IpNumber::UDP.0;

/// The sum that UDP's checksum begins with: addresses, protocol, and the length of UDP's part.
fn pseudo_sum(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u64 {
    let mut sum = 0;
    for address in [source, destination] {
        sum = match address {
            IpAddr::V4(address) => u64_16bit_word::add_4bytes(sum, address.octets()),
            IpAddr::V6(address) => u64_16bit_word::add_slice(sum, &address.octets()),
        };
    }
    sum = u64_16bit_word::add_2bytes(sum, [0, protocol]);
    // No packet is longer than 16 bits say.
    u64_16bit_word::add_2bytes(sum, (len as u16).to_be_bytes())
}

/// Adds the words of 16 bits that bytes consist of to a sum. Words of 32 bits come to the same in the end, when the sum is folded, and eight sums that do not
/// depend on each other become vectors when they are compiled. No packet is long enough for one of them to overflow.
fn add_bytes(sum: u64, bytes: &[u8]) -> u64 {
    let number = |word: &[u8; 4]| u64::from(u32::from_ne_bytes(*word));
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut sums = [0; 8];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
            *sum += number(word);
        }
    }
    let (words, rest) = rest.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let behind: u64 = words.iter().chain([&last]).map(number).sum();
    // What was there may be any number: folded once it leaves room.
    let before = (sum >> 32) + (sum & 0xffff_ffff);
    before + sums.iter().sum::<u64>() + behind
}

/// The checksum that belongs to a sum, as it is written.
fn checksum(sum: u64) -> [u8; 2] {
    // The words were added in this machine's order, and so is the result.
    u64_16bit_word::ones_complement(sum).to_ne_bytes()
}

/// A sum as it is written where the rest is left to a card: itself, and not its complement.
fn partial_checksum(sum: u64) -> [u8; 2] {
    checksum(sum).map(|byte| !byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// As another implementation adds, whatever comes before, and where the end is.
        #[test]
        fn sums_are_right(
            sum: u64,
            bytes in prop::collection::vec(prop_oneof![Just(0xff), Just(0), any::<u8>()], 0..2000),
        ) {
            let expected = u64_16bit_word::add_slice(sum, &bytes);
            prop_assert_eq!(checksum(add_bytes(sum, &bytes)), checksum(expected));
        }
    }

    #[test]
    fn the_longest_sum_does_not_overflow() {
        for bytes in [vec![0xff; 1 << 16], vec![0; 1 << 16]] {
            let expected = u64_16bit_word::add_slice(u64::MAX, &bytes);
            assert_eq!(checksum(add_bytes(u64::MAX, &bytes)), checksum(expected));
        }
    }
}
