//! Numbers in the headers of IP and TCP.

/// The protocol ICMP.
pub const ICMP: u8 = 1;
/// The protocol TCP.
pub const TCP: u8 = 6;
/// The protocol UDP.
pub const UDP: u8 = 17;
/// The protocol ICMPv6.
pub const ICMP_V6: u8 = 58;

/// TCP's flag of the last segment of a stream.
pub const FIN: u8 = 1;
/// TCP's flag of the first segment of a stream.
pub const SYN: u8 = 1 << 1;
/// TCP's flag that breaks or refuses a connection.
pub const RST: u8 = 1 << 2;
/// TCP's flag that asks for delivery at once.
pub const PSH: u8 = 1 << 3;
/// TCP's flag of segments with an acknowledgment number.
pub const ACK: u8 = 1 << 4;
/// TCP's flag of segments with an urgent pointer.
pub const URG: u8 = 1 << 5;
/// TCP's flag that answers a congestion mark (RFC 3168).
pub const ECE: u8 = 1 << 6;
/// TCP's flag that says that the window has been reduced for a congestion mark (RFC 3168).
pub const CWR: u8 = 1 << 7;
