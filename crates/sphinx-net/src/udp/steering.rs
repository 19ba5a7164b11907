//! Which of several sockets of one port a datagram goes to: a keyed hash of its connection id says so, to the kernel as to us.
//!
//! The hash is HalfSipHash-1-3, which the kernel itself hashes with where outsiders must not choose what collides. It is written once, for
//! [`Machine`]s: numbers, and instructions of the classic packet filter, which need no privilege.

use std::fmt;

use libc::sock_filter;

/// Most sockets of a group.
const SHARDS_MAX: usize = 1 << 16;
/// Bytes of an id that are hashed: all of those that we make, and as many of a client's first one.
const ID_BYTES: usize = 8;
/// Where an id begins: behind the first byte, …
const ID_AT: usize = 1;
/// … and in QUIC's long headers behind version and length (RFC 8999). Their first byte is 0xc0 or more, as no other datagram's is.
const LONG_ID_AT: usize = 6;
const LONG: u8 = 0b11;
const LONG_SHIFT: u32 = 6;

// What the hash begins with, and what marks its end.
const V2_BEGIN: u32 = 0x6c79_6765;
const V3_BEGIN: u32 = 0x7465_6462;
const LAST_WORD: u32 = (ID_BYTES as u32) << 24;
const END_MARK: u32 = 0xff;

/// Words that the hash works on: its state, and what is hashed.
#[derive(Clone, Copy)]
enum Word {
    V0,
    V1,
    V2,
    V3,
    First,
    Second,
}

use Word::{First, Second, V0, V1, V2, V3};

const STATE: usize = 4;
const WORDS: usize = 6;

/// Something that computes with 32-bit words.
trait Machine {
    fn set(&mut self, word: Word, value: u32);
    fn add(&mut self, to: Word, other: Word);
    fn xor(&mut self, to: Word, other: Word);
    fn xor_constant(&mut self, to: Word, value: u32);
    fn rotate_left(&mut self, word: Word, bits: u32);
}

/// Hashes the two words; the hash is V1 ^ V3.
fn hash(machine: &mut impl Machine, [k0, k1]: [u32; 2]) {
    let begin = [(V0, k0), (V1, k1), (V2, k0 ^ V2_BEGIN), (V3, k1 ^ V3_BEGIN)];
    for (word, value) in begin {
        machine.set(word, value);
    }
    for word in [First, Second] {
        machine.xor(V3, word);
        round(machine);
        machine.xor(V0, word);
    }
    machine.xor_constant(V3, LAST_WORD);
    round(machine);
    machine.xor_constant(V0, LAST_WORD);
    machine.xor_constant(V2, END_MARK);
    for _ in 0..3 {
        round(machine);
    }
}

fn round(machine: &mut impl Machine) {
    let mut step = |a, b, bits, also| {
        machine.add(a, b);
        machine.rotate_left(b, bits);
        machine.xor(b, a);
        if also {
            machine.rotate_left(a, 16);
        }
    };
    step(V0, V1, 5, true);
    step(V2, V3, 8, false);
    step(V0, V3, 7, false);
    step(V2, V1, 13, true);
}

/// A machine that computes with the numbers themselves.
struct Numbers([u32; WORDS]);

impl Machine for Numbers {
    fn set(&mut self, word: Word, value: u32) {
        self.0[word as usize] = value;
    }

    fn add(&mut self, to: Word, other: Word) {
        self.0[to as usize] = self.0[to as usize].wrapping_add(self.0[other as usize]);
    }

    fn xor(&mut self, to: Word, other: Word) {
        self.0[to as usize] ^= self.0[other as usize];
    }

    fn xor_constant(&mut self, to: Word, value: u32) {
        self.0[to as usize] ^= value;
    }

    fn rotate_left(&mut self, word: Word, bits: u32) {
        self.0[word as usize] = self.0[word as usize].rotate_left(bits);
    }
}

/// Instructions that do it: with an accumulator, an index register and words of memory.
struct Program(Vec<sock_filter>);

impl Program {
    fn op(&mut self, code: u32, k: u32) {
        self.jump(code, k, 0, 0);
    }

    fn jump(&mut self, code: u32, k: u32, jt: u8, jf: u8) {
        let code = code as u16;
        self.0.push(sock_filter { code, jt, jf, k });
    }

    fn load(&mut self, word: Word) {
        self.op(libc::BPF_LD | libc::BPF_MEM, word as u32);
    }

    fn load_index(&mut self, word: Word) {
        self.op(libc::BPF_LDX | libc::BPF_MEM, word as u32);
    }

    fn store(&mut self, word: Word) {
        self.op(libc::BPF_ST, word as u32);
    }

    fn compute(&mut self, code: u32, k: u32) {
        self.op(libc::BPF_ALU | code | libc::BPF_K, k);
    }

    fn compute_with_index(&mut self, code: u32) {
        self.op(libc::BPF_ALU | code | libc::BPF_X, 0);
    }
}

impl Machine for Program {
    fn set(&mut self, word: Word, value: u32) {
        self.op(libc::BPF_LD | libc::BPF_IMM, value);
        self.store(word);
    }

    fn add(&mut self, to: Word, other: Word) {
        self.load(to);
        self.load_index(other);
        self.compute_with_index(libc::BPF_ADD);
        self.store(to);
    }

    fn xor(&mut self, to: Word, other: Word) {
        self.load(to);
        self.load_index(other);
        self.compute_with_index(libc::BPF_XOR);
        self.store(to);
    }

    fn xor_constant(&mut self, to: Word, value: u32) {
        self.load(to);
        self.compute(libc::BPF_XOR, value);
        self.store(to);
    }

    fn rotate_left(&mut self, word: Word, bits: u32) {
        self.load(word);
        self.compute(libc::BPF_LSH, bits);
        self.op(libc::BPF_MISC | libc::BPF_TAX, 0);
        self.load(word);
        self.compute(libc::BPF_RSH, u32::BITS - bits);
        self.compute_with_index(libc::BPF_OR);
        self.store(word);
    }
}

/// Says which of several sockets of one port a datagram goes to (`docs/protocol.md` §10.3). Who has not the key cannot tell, not even whether two
/// ids lead to the same one.
#[derive(Clone)]
pub struct Steering {
    key: [u32; 2],
    shards: u32,
}

impl Steering {
    /// Length of a key in bytes.
    pub const KEY_LEN: usize = 8;

    /// For so many sockets, at least 1 and at most 65 536, with a key that nobody else knows.
    #[must_use]
    pub fn new(key: [u8; Self::KEY_LEN], shards: usize) -> Self {
        let shards = shards.clamp(1, SHARDS_MAX) as u32;
        Self {
            key: words(key),
            shards,
        }
    }

    /// Number of sockets.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards as usize
    }

    /// Where datagrams with this connection id go; of a longer one its first eight bytes count.
    #[must_use]
    pub fn of_id(&self, id: [u8; ID_BYTES]) -> usize {
        let [first, second] = words(id);
        let mut numbers = Numbers([0; WORDS]);
        numbers.0[STATE..].copy_from_slice(&[first, second]);
        hash(&mut numbers, self.key);
        let hash = numbers.0[V1 as usize] ^ numbers.0[V3 as usize];
        (hash % self.shards) as usize
    }

    /// Where this datagram goes. One that has no id goes to the first socket.
    #[must_use]
    pub fn of_datagram(&self, datagram: &[u8]) -> usize {
        let is_long = datagram
            .first()
            .is_some_and(|byte| byte >> LONG_SHIFT == LONG);
        let at = if is_long { LONG_ID_AT } else { ID_AT };
        let id = datagram.get(at..).and_then(<[u8]>::first_chunk);
        id.map_or(0, |id| self.of_id(*id))
    }

    /// The same as a classic program, which gets to see the datagram and answers with a socket's place in its group.
    pub(super) fn program(&self) -> Vec<sock_filter> {
        let mut program = Program(Vec::new());
        program.op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0);
        program.compute(libc::BPF_RSH, LONG_SHIFT);
        // A jump says how many instructions it skips. Loading behind the end of the datagram ends the program with result 0.
        program.jump(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            LONG.into(),
            0,
            2,
        );
        program.op(libc::BPF_LDX | libc::BPF_IMM, LONG_ID_AT as u32);
        program.op(libc::BPF_JMP | libc::BPF_JA, 1);
        program.op(libc::BPF_LDX | libc::BPF_IMM, ID_AT as u32);
        for (word, at) in [(First, 0), (Second, 4)] {
            program.op(libc::BPF_LD | libc::BPF_W | libc::BPF_IND, at);
            program.store(word);
        }
        hash(&mut program, self.key);
        program.load(V1);
        program.load_index(V3);
        program.compute_with_index(libc::BPF_XOR);
        program.compute(libc::BPF_MOD, self.shards);
        program.op(libc::BPF_RET | libc::BPF_A, 0);
        program.0
    }
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering")
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

/// As the packet filter loads them.
fn words([a, b, c, d, e, f, g, h]: [u8; 8]) -> [u32; 2] {
    [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the kernel's tests (`siphash_kunit.c`, 32 bits): the bytes 0 to 7 with the key 0 to 7, as words with the least byte first.
    #[test]
    fn vector() {
        let key = [0x0302_0100, 0x0706_0504];
        let mut numbers = Numbers([0; WORDS]);
        numbers.0[STATE..].copy_from_slice(&key);
        hash(&mut numbers, key);
        assert_eq!(numbers.0[V1 as usize] ^ numbers.0[V3 as usize], 0x5779_99b1);
    }

    #[test]
    fn every_socket_gets_its_share_whatever_ids_look_like() {
        let steering = Steering::new(*b"a secret", 5);
        let mut shares = [0; 5];
        for number in 0..10_000_u64 {
            shares[steering.of_id(number.to_be_bytes())] += 1;
        }
        assert!(
            shares.iter().all(|share| (1850..2150).contains(share)),
            "{shares:?}"
        );
    }

    #[test]
    fn ids_are_found_in_all_datagrams_and_what_has_none_goes_to_the_first_socket() {
        let steering = Steering::new([7; 8], 1000);
        let shard = steering.of_id(*b"01234567");
        assert_ne!(shard, 0);
        let short = [&[0x40][..], b"01234567"].concat();
        let data = [&[0x80][..], b"01234567 and more"].concat();
        let long = [&[0xc3, 0, 0, 0, 1, 20][..], b"0123456789"].concat();
        for datagram in [&short, &data, &long] {
            assert_eq!(steering.of_datagram(datagram), shard);
        }
        for cut in 0..9 {
            assert_eq!(steering.of_datagram(&short[..cut]), 0);
        }
        for cut in 0..14 {
            assert_eq!(steering.of_datagram(&long[..cut]), 0);
        }
        assert_eq!(Steering::new([7; 8], 0).shards(), 1);
        assert!(!format!("{steering:?}").contains("key"));
    }

    /// The kernel takes 4096 instructions, and no more than the socket's memory for options holds (20 kB).
    #[test]
    fn the_program_is_short() {
        let program = Steering::new([7; 8], 2).program();
        assert!(program.len() < 600, "{}", program.len());
    }
}
