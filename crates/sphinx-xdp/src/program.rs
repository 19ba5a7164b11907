//! The XDP program: packets of our port go to the socket of their queue, all others where they would go without it.
//!
//! It is some dozens of instructions, written here one by one, so that neither a compiler for BPF nor a loader is needed. Only what frames can be
//! read from is taken: no fragments, no options, no extension headers, no VLAN tags, nothing longer than the interface's packets (which the kernel joins).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::bpf::XDP_HAS_FRAGS;

/// What the program writes in front of a packet: when it arrived, by the kernel's monotonic clock, in nanoseconds, and a mark, 8 bytes each.
pub(crate) const STAMP_BYTES: usize = 16;
/// Not negative, so that it is the same in 64 bits.
pub(crate) const STAMP_MARK: i32 = 0x5350_4858;

/// Addresses of an interface that are looked for; packets to others go by the kernel's socket.
const ADDRESSES_MAX: usize = 64;
/// What a program answers for packets that the kernel is to have (`XDP_PASS`).
const PASS: i32 = 2;

// Helpers of the kernel.
const KTIME_GET_NS: i32 = 5;
const REDIRECT_MAP: i32 = 51;
const XDP_ADJUST_META: i32 = 54;
const XDP_GET_BUFF_LEN: i32 = 188;

// Operations.
const LOAD_WORD: u8 = 0x61;
const LOAD_HALF: u8 = 0x69;
const LOAD_BYTE: u8 = 0x71;
const LOAD_IMMEDIATE: u8 = 0x18;
const STORE_DOUBLE: u8 = 0x7b;
const MOVE: u8 = 0xbf;
const MOVE_IMMEDIATE: u8 = 0xb7;
const ADD_IMMEDIATE: u8 = 0x07;
const AND_IMMEDIATE: u8 = 0x57;
const JUMP: u8 = 0x05;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_IF_LESS: u8 = 0xad;
const JUMP_IF_GREATER_IMMEDIATE: u8 = 0x25;
/// Of the lower 32 bits.
const JUMP_IF_EQUAL_IMMEDIATE: u8 = 0x16;
const JUMP_IF_NOT_EQUAL_IMMEDIATE: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Fields of `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const DATA_META: i16 = 8;
const QUEUE: i16 = 16;

/// A place to jump to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Pass,
    Redirect,
    /// Redirect without the time of arrival.
    Untimed,
    V6,
    /// The next address of a list.
    Next(usize),
}

/// Instructions, and the jumps whose distance is not known yet.
#[derive(Default)]
struct Assembler {
    code: Vec<[u8; 8]>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn op(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        // Two bit fields, which the compiler of the kernel lays out from the lower or the upper end.
        let registers = if cfg!(target_endian = "big") {
            destination << 4 | source
        } else {
            source << 4 | destination
        };
        let mut fields = [0; 8];
        fields[0] = code;
        fields[1] = registers;
        fields[2..4].copy_from_slice(&offset.to_ne_bytes());
        fields[4..].copy_from_slice(&immediate.to_ne_bytes());
        self.code.push(fields);
    }

    fn jump(&mut self, code: u8, destination: u8, source: u8, immediate: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.op(code, destination, source, 0, immediate);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn finish(mut self) -> Vec<[u8; 8]> {
        for (at, to) in &self.jumps {
            let found = self.labels.iter().find(|(label, _)| label == to);
            let (_, target) = found.expect("every label has a place");
            let distance = *target as i64 - *at as i64 - 1;
            let distance = i16::try_from(distance).expect("the program is short");
            self.code[*at][2..4].copy_from_slice(&distance.to_ne_bytes());
        }
        self.code
    }
}

/// A number as the packet's bytes are when they are loaded.
fn half(bytes: [u8; 2]) -> i32 {
    i32::from(u16::from_ne_bytes(bytes))
}

fn word(bytes: &[u8]) -> i32 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| i32::from_ne_bytes(*bytes))
}

/// The program for what goes to this port of one of these addresses, in frames of at most `frame_max` bytes, and `flags` to load it with.
/// `knows_frags`: the kernel knows packets of several fragments.
pub(crate) fn assemble(
    map: BorrowedFd<'_>,
    addresses: &[IpAddr],
    local: SocketAddr,
    frame_max: usize,
    knows_frags: bool,
) -> (Vec<[u8; 8]>, u32) {
    let port = half(local.port().to_be_bytes());
    // The verifier takes no larger offsets into packets, and there are no larger packets.
    let frame_max = frame_max.min(usize::from(u16::MAX) - 1) as i32;
    let mut a = Assembler::default();
    a.op(MOVE, 6, 1, 0, 0);
    if knows_frags {
        a.op(CALL, 0, 0, 0, XDP_GET_BUFF_LEN);
        a.jump(JUMP_IF_GREATER_IMMEDIATE, 0, 0, frame_max, Label::Pass);
    }
    a.op(LOAD_WORD, 2, 6, DATA, 0);
    a.op(LOAD_WORD, 3, 6, DATA_END, 0);
    if !knows_frags {
        a.op(MOVE, 4, 2, 0, 0);
        a.op(ADD_IMMEDIATE, 4, 0, 0, frame_max);
        a.jump(JUMP_IF_LESS, 4, 3, 0, Label::Pass);
    }
    // IPv4: Ethernet 14, IP 20, UDP 8.
    a.op(MOVE, 4, 2, 0, 0);
    a.op(ADD_IMMEDIATE, 4, 0, 0, 42);
    a.jump(JUMP_IF_GREATER, 4, 3, 0, Label::Pass);
    a.op(LOAD_HALF, 5, 2, 12, 0);
    a.jump(JUMP_IF_EQUAL_IMMEDIATE, 5, 0, half([0x86, 0xdd]), Label::V6);
    a.jump(
        JUMP_IF_NOT_EQUAL_IMMEDIATE,
        5,
        0,
        half([0x08, 0x00]),
        Label::Pass,
    );
    a.op(LOAD_BYTE, 5, 2, 14, 0);
    a.jump(JUMP_IF_NOT_EQUAL_IMMEDIATE, 5, 0, 0x45, Label::Pass);
    a.op(LOAD_BYTE, 5, 2, 23, 0);
    a.jump(
        JUMP_IF_NOT_EQUAL_IMMEDIATE,
        5,
        0,
        libc::IPPROTO_UDP,
        Label::Pass,
    );
    a.op(LOAD_HALF, 5, 2, 20, 0);
    a.op(AND_IMMEDIATE, 5, 0, 0, half([0x3f, 0xff]));
    a.jump(JUMP_IF_NOT_EQUAL_IMMEDIATE, 5, 0, 0, Label::Pass);
    a.op(LOAD_HALF, 5, 2, 36, 0);
    a.jump(JUMP_IF_NOT_EQUAL_IMMEDIATE, 5, 0, port, Label::Pass);
    a.op(LOAD_WORD, 5, 2, 30, 0);
    for address in addresses.iter().take(ADDRESSES_MAX) {
        if let IpAddr::V4(address) = address {
            a.jump(
                JUMP_IF_EQUAL_IMMEDIATE,
                5,
                0,
                word(&address.octets()),
                Label::Redirect,
            );
        }
    }
    a.jump(JUMP, 0, 0, 0, Label::Pass);
    a.label(Label::V6);
    // IPv6: Ethernet 14, IP 40, UDP 8.
    a.op(MOVE, 4, 2, 0, 0);
    a.op(ADD_IMMEDIATE, 4, 0, 0, 62);
    a.jump(JUMP_IF_GREATER, 4, 3, 0, Label::Pass);
    a.op(LOAD_BYTE, 5, 2, 20, 0);
    a.jump(
        JUMP_IF_NOT_EQUAL_IMMEDIATE,
        5,
        0,
        libc::IPPROTO_UDP,
        Label::Pass,
    );
    a.op(LOAD_HALF, 5, 2, 56, 0);
    a.jump(JUMP_IF_NOT_EQUAL_IMMEDIATE, 5, 0, port, Label::Pass);
    for (register, at) in [(5, 38), (0, 42), (1, 46), (4, 50)] {
        a.op(LOAD_WORD, register, 2, at, 0);
    }
    for (index, address) in addresses.iter().take(ADDRESSES_MAX).enumerate() {
        if let IpAddr::V6(address) = address {
            let octets = address.octets();
            for (register, at) in [(5, 0), (0, 4), (1, 8)] {
                let part = word(&octets[at..]);
                a.jump(
                    JUMP_IF_NOT_EQUAL_IMMEDIATE,
                    register,
                    0,
                    part,
                    Label::Next(index),
                );
            }
            a.jump(
                JUMP_IF_EQUAL_IMMEDIATE,
                4,
                0,
                word(&octets[12..]),
                Label::Redirect,
            );
            a.label(Label::Next(index));
        }
    }
    a.label(Label::Pass);
    a.op(MOVE_IMMEDIATE, 0, 0, 0, PASS);
    a.op(EXIT, 0, 0, 0, 0);
    a.label(Label::Redirect);
    // Where the driver has room in front of the packet, the time goes there, and the mark that it does.
    a.op(CALL, 0, 0, 0, KTIME_GET_NS);
    a.op(MOVE, 7, 0, 0, 0);
    a.op(MOVE, 1, 6, 0, 0);
    a.op(MOVE_IMMEDIATE, 2, 0, 0, -(STAMP_BYTES as i32));
    a.op(CALL, 0, 0, 0, XDP_ADJUST_META);
    a.jump(JUMP_IF_NOT_EQUAL_IMMEDIATE, 0, 0, 0, Label::Untimed);
    a.op(LOAD_WORD, 1, 6, DATA_META, 0);
    a.op(LOAD_WORD, 2, 6, DATA, 0);
    a.op(MOVE, 3, 1, 0, 0);
    a.op(ADD_IMMEDIATE, 3, 0, 0, STAMP_BYTES as i32);
    a.jump(JUMP_IF_GREATER, 3, 2, 0, Label::Untimed);
    a.op(STORE_DOUBLE, 1, 7, 0, 0);
    a.op(MOVE_IMMEDIATE, 4, 0, 0, STAMP_MARK);
    a.op(STORE_DOUBLE, 1, 4, 8, 0);
    a.label(Label::Untimed);
    a.op(LOAD_WORD, 2, 6, QUEUE, 0);
    // The map's address, of which the kernel is told the descriptor. Two words long.
    a.op(LOAD_IMMEDIATE, 1, 1, 0, map.as_raw_fd());
    a.op(0, 0, 0, 0, 0);
    // What becomes of packets of queues that have no socket.
    a.op(MOVE_IMMEDIATE, 3, 0, 0, PASS);
    a.op(CALL, 0, 0, 0, REDIRECT_MAP);
    a.op(EXIT, 0, 0, 0, 0);
    let flags = if knows_frags { XDP_HAS_FRAGS } else { 0 };
    (a.finish(), flags)
}
