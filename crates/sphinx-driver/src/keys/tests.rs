use std::sync::Arc;

use proptest::prelude::*;
use sphinx_proto::wire::{ConnectionId, Header, OVERHEAD, PacketKind};
use sphinx_proto::{Nanos, Time};

use super::sealing::EPOCH_PACKETS;
use super::*;

const MS: u64 = 1_000_000;
const PTO: u64 = 30 * MS;

fn session() -> SessionSecret {
    let bytes: [u8; 64] = std::array::from_fn(|i| i as u8);
    let (exporter, ticket) = bytes.split_at(32);
    SessionSecret::new(
        ticket.try_into().expect("half"),
        exporter.try_into().expect("half"),
    )
}

fn cid() -> ConnectionId {
    ConnectionId::new([1, 2, 3, 4, 5, 6, 7, 8]).expect("not zero")
}

fn pair(epoch_packets: u64) -> (Sealer, Opener) {
    let session = session();
    (
        session
            .sealer(Direction::ClientToServer, PathId::FIRST)
            .with_epoch_packets(epoch_packets),
        session.opener(Direction::ClientToServer, PathId::FIRST),
    )
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("hexadecimal") as u8;
    text.as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn seal(sealer: &mut Sealer, number: u64, body: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; body.len() + OVERHEAD];
    let header = Header::control(cid(), PacketNumber::ZERO, false);
    sealer
        .seal_from(&header, PacketNumber::new(number), body, &mut datagram)
        .expect("sealed");
    datagram
}

fn open(
    opener: &mut Opener,
    number: u64,
    datagram: &[u8],
    now: Nanos,
) -> Result<Vec<u8>, OpenError> {
    let mut datagram = datagram.to_vec();
    let header = opener.unprotect(&mut datagram).ok_or(OpenError::Invalid)?;
    let number = PacketNumber::expand(header.packet_number, PacketNumber::new(number));
    let now = Time::from_nanos(now);
    let body = opener.open(&header, number, &mut datagram, now, PTO)?;
    Ok(datagram[body].to_vec())
}

/// However many there are, and whatever the last one is.
#[test]
fn headers_lose_their_protection_together_as_they_do_alone() {
    let (mut sealer, opener) = pair(EPOCH_PACKETS);
    let mut numbers = 0..;
    for (count, last) in [
        (1, 100),
        (31, 100),
        (32, 38),
        (32, 37),
        (33, 37),
        (70, 1),
        (3, 0),
        (0, 37),
    ] {
        let mut datagrams = Vec::new();
        for number in numbers.by_ref().take(count) {
            datagrams.extend(seal(&mut sealer, number, &[7; 62]));
        }
        datagrams.extend(0..last);
        let mut alone = datagrams.clone();
        for datagram in alone.chunks_mut(100) {
            opener.unprotect(datagram);
        }
        opener.unprotect_all(&mut datagrams, 100);
        assert!(datagrams == alone, "{count} {last}");
    }
}

/// Through epochs too.
#[test]
fn packets_that_are_sealed_by_the_run_are_as_those_that_are_sealed_alone() {
    let [(mut alone, _), (mut together, _)] = [pair(30), pair(30)];
    let body_len = 70;
    let bodies: Vec<u8> = (0..20 * body_len).map(|at| (at * at / 7) as u8).collect();
    let header = Header {
        kind: PacketKind::Symbol,
        n: 100,
        row: 17,
        ..Header::control(cid(), PacketNumber::ZERO, false)
    };
    for first in [3, 23, 43] {
        let mut datagrams = vec![0; 20 * (body_len + OVERHEAD)];
        let number = PacketNumber::new(first);
        for sealer in [&mut alone, &mut together] {
            sealer.acked(PacketNumber::new(3));
        }
        let sealed = together.seal_run(&header, number, (&bodies, body_len), &mut datagrams);
        let datagrams = datagrams.chunks(body_len + OVERHEAD);
        let mut expected = vec![0; body_len + OVERHEAD];
        for (at, (body, datagram)) in (0..).zip(bodies.chunks(body_len).zip(datagrams)) {
            let row = header.row + at;
            let header = Header { row, ..header };
            let number = number + u64::from(at);
            if let Err(error) = alone.seal_from(&header, number, body, &mut expected) {
                assert_eq!(sealed, Err(error));
                break;
            }
            assert!(sealed.is_err() || *datagram == expected, "{at}");
        }
        assert_eq!(
            (together.epoch(), sealed.is_ok()),
            (alone.epoch(), first < 43)
        );
    }
}

/// The vectors of `docs/protocol.md` §12.
mod vectors {
    use super::*;

    #[test]
    fn key_schedule() {
        let session = session();
        assert_eq!(
            session.0.as_slice(),
            hex("a27b86e7a70a029cba778d6f738d952696d6d8361b95103dd84ae9df6af063af")
        );
        assert_eq!(
            session.proof().as_slice(),
            hex("8e51a0a18d478426a7199b67d442fc18324144a206bfdd7885eb0ba55969ee8b")
        );
        for (direction, secret, hp, epochs) in [
            (
                Direction::ClientToServer,
                "4943ec5c5bd5c3e6afd8f3e0f2839ba1bb64b07c632f651f8e32fd310cf6021e",
                "df6dc14ac63d0e24dd48233ff1ccfd46",
                [
                    (
                        "68d4ab12fbac2dee6ca23a262923e408",
                        "2e131d10409a0631e42b9707",
                    ),
                    (
                        "437caed02d85e011f5df4fbadeec8374",
                        "34161370e34334b0505113f3",
                    ),
                ],
            ),
            (
                Direction::ServerToClient,
                "08a5a4eee13014def36f4577fbd85fad7b0297b5ca115bedc86fe031e56435a9",
                "6ced1156b497ff373af9c55c20bd50ac",
                [
                    (
                        "a796e3d2991d7abf690a7901cea1f264",
                        "731f04fe936b1d953438f381",
                    ),
                    (
                        "a955cedc0f2f483ff85d5b0fecd69278",
                        "548ebb36d14ad1768377c3cd",
                    ),
                ],
            ),
        ] {
            let mut of_epoch = session.epoch_zero(direction, PathId::FIRST);
            assert_eq!(of_epoch.as_slice(), hex(secret));
            assert_eq!(
                expand::<16>(&of_epoch, &[b"sphinx/2 hp"]).as_slice(),
                hex(hp)
            );
            for (key, iv) in epochs {
                assert_eq!(
                    expand::<16>(&of_epoch, &[b"sphinx/2 key"]).as_slice(),
                    hex(key)
                );
                assert_eq!(EpochKey::new(&of_epoch).iv.as_slice(), hex(iv));
                of_epoch = update(&of_epoch);
            }
        }
    }

    #[test]
    fn early_data() {
        let resume = session().resumption(cid());
        assert_eq!(
            resume.as_slice(),
            hex("7fdd925ae085c08f61015c8690ac6762d538c0651e458966cc17759de2de4012")
        );
        let greeting = hex("0102030405060708fd4f4d552aab8b66c2831b57");
        let early = EarlySecret::new(&resume, &greeting);
        let sealed = early.seal_parameters(cid(), &hex("03010701080102030405060708"));
        assert_eq!(
            sealed,
            hex("267642fb626216eb2d4dde879eaa5c12a1fb6b451dd6c1123c86b55b39")
        );
        for (direction, secret) in [
            (
                Direction::ClientToServer,
                "6f90de7de23d8809dd36cfe1fea6453fd453b05a56096dff99caf6ed44f5ed89",
            ),
            (
                Direction::ServerToClient,
                "993611353fda0c7d4b3fbd7b78b0090a7f667611a633fadbbc52148c07de7aea",
            ),
        ] {
            assert_eq!(early.secret(direction).as_slice(), hex(secret));
        }
    }

    #[test]
    fn header_protection() {
        let hp = HeaderKey::new(&session().epoch_zero(Direction::ClientToServer, PathId::FIRST));
        let sample = hex("50dedc9c208ab706e430dadca2a02ca5");
        assert_eq!(
            hp.mask(sample.try_into().expect("16 bytes")).as_slice(),
            hex("b375e66ec61b0394fdbe7a22c0e31e1c")
        );
    }

    #[test]
    fn symbol_packet() {
        let (mut sealer, mut opener) = pair(EPOCH_PACKETS);
        sealer.acked(PacketNumber::new(0));
        let header = Header {
            kind: PacketKind::Symbol,
            phase: true,
            last_of_flight: true,
            cid: cid(),
            packet_number: 99,
            block: 5,
            code: 1,
            n: 100,
            row: 7,
        };
        let number = PacketNumber::new(0x1_0000_0002);
        // The vector is of epoch 0; a jump this far would begin the next one.
        sealer.first = number;
        let body: Vec<u8> = (0..20).collect();
        let mut datagram = vec![0; body.len() + OVERHEAD];
        sealer
            .seal_from(&header, number, &body, &mut datagram)
            .expect("sealed");
        assert_eq!(
            datagram,
            hex(
                "b7010203040506070875e66ec41b0394f8ba1922c0e450dedc9c208ab706e430dadca2a02ca5\
                 499fe53951a9f74707ce5bd3e4818f8281eabec9"
            )
        );
        let opened_header = opener.unprotect(&mut datagram).expect("a header");
        assert_eq!(
            opened_header,
            Header {
                phase: false,
                packet_number: 2,
                ..header
            }
        );
        let range = opener
            .open(&opened_header, number, &mut datagram, Time::ZERO, PTO)
            .expect("opens");
        assert_eq!(datagram[range], body);
    }

    #[test]
    fn control_packet_of_epoch_one() {
        let (mut sealer, _) = pair(3);
        for number in 0..3 {
            seal(&mut sealer, number, b"x");
            sealer.acked(PacketNumber::new(number));
        }
        assert_eq!(
            seal(&mut sealer, 3, &[1]),
            hex(
                "ab01020304050607082bea9724a260cd7dea00ca0c59a8762fbe1fbcc3a5fc062b5e920addcf\
                 c3"
            )
        );
    }
}

#[test]
fn directions_paths_and_secrets_have_their_own_keys() {
    let session = session();
    let mut sealer = session.sealer(Direction::ClientToServer, PathId::FIRST);
    let datagram = seal(&mut sealer, 0, b"body");
    let other = SessionSecret::new(&[9; 32], &[1; 32]);
    for mut wrong in [
        session.opener(Direction::ServerToClient, PathId::FIRST),
        session.opener(Direction::ClientToServer, PathId::new(1)),
        session.opener(Direction::ClientToServer, PathId::new(1 << 24)),
        other.opener(Direction::ClientToServer, PathId::FIRST),
    ] {
        assert_eq!(open(&mut wrong, 0, &datagram, 0), Err(OpenError::Invalid));
    }
    let mut right = session.opener(Direction::ClientToServer.reverse().reverse(), PathId::FIRST);
    assert_eq!(open(&mut right, 0, &datagram, 0), Ok(b"body".to_vec()));
}

#[test]
fn a_nonce_has_the_whole_path_and_the_whole_number() {
    let key = EpochKey::new(&session().epoch_zero(Direction::ClientToServer, PathId::FIRST));
    let nonce = key.nonce(
        PathId::new(0x0102_0304),
        PacketNumber::new(0x0506_0708_090a_0b0c),
    );
    for (at, byte) in nonce.as_ref().iter().enumerate() {
        assert_eq!(byte ^ key.iv[at], at as u8 + 1);
    }
}

#[test]
fn only_the_right_proof_passes() {
    let session = session();
    let mut proof = *session.proof();
    assert!(session.verify_proof(&proof));
    proof[31] ^= 1;
    assert!(!session.verify_proof(&proof));
}

#[test]
fn any_flipped_bit_is_noticed() {
    let (mut sealer, mut opener) = pair(EPOCH_PACKETS);
    let datagram = seal(&mut sealer, 0, b"0123456789");
    // The connection id is authenticated too, not only the sealed part.
    for bit in 0..datagram.len() * 8 {
        let mut forged = datagram.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            open(&mut opener, 0, &forged, 0),
            Err(OpenError::Invalid),
            "bit {bit}"
        );
    }
    for len in 0..datagram.len() {
        assert_eq!(
            open(&mut opener, 0, &datagram[..len], 0),
            Err(OpenError::Invalid),
            "length {len}"
        );
    }
    assert_eq!(
        open(&mut opener, 0, &datagram, 0),
        Ok(b"0123456789".to_vec())
    );
}

#[test]
fn after_too_many_forgeries_nothing_opens() {
    let (mut sealer, opener) = pair(4);
    let mut opener = opener.with_failures_max(3);
    let [first, second, third] = [0, 1, 2].map(|number| seal(&mut sealer, number, b"body"));
    assert!(open(&mut opener, 0, &first, 0).is_ok());
    // With the last byte wrong, of either phase and so for either key.
    let forged = |packet: &[u8], phase| {
        let mut forged = packet.to_vec();
        forged[0] ^= phase;
        *forged.last_mut().expect("a tag") ^= 1;
        forged
    };
    for phase in [0, 8, 0] {
        let opened = open(&mut opener, 1, &forged(&second, phase), 0);
        assert_eq!(opened, Err(OpenError::Invalid));
    }
    assert!(open(&mut opener, 1, &second, 0).is_ok());
    for packet in [forged(&third, 0), third] {
        let opened = open(&mut opener, 2, &packet, 0);
        assert_eq!(opened, Err(OpenError::TooManyInvalid));
    }
}

#[test]
fn numbers_are_sealed_once() {
    let (mut sealer, _) = pair(EPOCH_PACKETS);
    let header = Header::control(cid(), PacketNumber::ZERO, false);
    let mut datagram = [0; OVERHEAD];
    assert_eq!(
        sealer.seal(&header, PacketNumber::new(5), &mut datagram),
        Ok(())
    );
    for number in [0, 4, 5, u64::MAX] {
        assert_eq!(
            sealer.seal(&header, PacketNumber::new(number), &mut datagram),
            Err(SealError::NumberUsed)
        );
    }
    assert_eq!(
        sealer.seal(&header, PacketNumber::new(6), &mut datagram[1..]),
        Err(SealError::BufferSize)
    );
    assert_eq!(
        sealer.seal_from(&header, PacketNumber::new(6), b"1", &mut datagram),
        Err(SealError::BufferSize)
    );
    assert_eq!(
        sealer.seal(&header, PacketNumber::new(6), &mut datagram),
        Ok(())
    );
}

#[test]
fn an_epoch_ends_only_after_an_acknowledgement() {
    let (mut sealer, _) = pair(4);
    for number in 0..4 {
        seal(&mut sealer, number, b"");
    }
    let header = Header::control(cid(), PacketNumber::ZERO, false);
    let mut datagram = [0; OVERHEAD];
    // Numbers never sent acknowledge nothing.
    sealer.acked(PacketNumber::new(4));
    assert_eq!(
        sealer.seal(&header, PacketNumber::new(4), &mut datagram),
        Err(SealError::EpochExhausted)
    );
    sealer.acked(PacketNumber::new(3));
    assert_eq!(
        sealer.seal(&header, PacketNumber::new(4), &mut datagram),
        Ok(())
    );
    assert_eq!((sealer.epoch(), sealer.phase()), (1, true));
    // An acknowledgement of an earlier epoch does not count.
    sealer.acked(PacketNumber::new(3));
    for number in 5..8 {
        seal(&mut sealer, number, b"");
    }
    assert_eq!(
        sealer.seal(&header, PacketNumber::new(8), &mut datagram),
        Err(SealError::EpochExhausted)
    );
}

#[test]
fn an_acknowledgement_is_wanted_once_a_quarter_of_an_epoch_is_used() {
    let (mut sealer, _) = pair(8);
    for epoch in 0..3 {
        let first = 8 * epoch;
        seal(&mut sealer, first, b"");
        assert!(!sealer.wants_answer());
        seal(&mut sealer, first + 1, b"");
        assert!(sealer.wants_answer());
        sealer.acked(PacketNumber::new(first));
        (first + 2..first + 8).for_each(|number| {
            seal(&mut sealer, number, b"");
            assert!(!sealer.wants_answer());
        });
    }
}

#[test]
fn the_previous_key_is_kept_for_three_ptos() {
    let (mut sealer, mut opener) = pair(4);
    let early: Vec<_> = (0..4).map(|n| seal(&mut sealer, n, b"old")).collect();
    sealer.acked(PacketNumber::new(0));
    let next = seal(&mut sealer, 4, b"new");

    assert!(open(&mut opener, 0, &early[0], 0).is_ok());
    assert!(open(&mut opener, 4, &next, 10 * MS).is_ok());
    assert_eq!(opener.epoch(), 1);
    assert!(open(&mut opener, 4, &early[1], 10 * MS + 3 * PTO).is_ok());
    assert_eq!(
        open(&mut opener, 4, &early[2], 10 * MS + 3 * PTO + 1),
        Err(OpenError::Invalid)
    );
}

#[test]
fn a_forged_phase_does_not_move_the_epoch() {
    let (mut sealer, mut opener) = pair(EPOCH_PACKETS);
    let first = seal(&mut sealer, 0, b"a");
    assert!(open(&mut opener, 0, &first, 0).is_ok());
    let mut second = seal(&mut sealer, 1, b"b");
    second[0] ^= 8;
    assert_eq!(open(&mut opener, 1, &second, 0), Err(OpenError::Invalid));
    assert_eq!(opener.epoch(), 0);
    second[0] ^= 8;
    assert!(open(&mut opener, 1, &second, 0).is_ok());
}

/// Whoever knows no key can have one opening tried for each packet, and no key derived (RFC 9001 §6.3).
#[test]
fn a_forgery_costs_one_opening_and_no_key() {
    let (mut sealer, mut opener) = pair(4);
    for number in 0..6 {
        let packet = seal(&mut sealer, number, b"body");
        sealer.acked(PacketNumber::new(number));
        assert!(open(&mut opener, number, &packet, 0).is_ok());
    }
    let (epoch, next) = (opener.epoch(), opener.next_secret.clone());
    for n in 0..1000u64 {
        let mut forged: Vec<u8> = (0..60).map(|i| (n * 31 + i * n) as u8).collect();
        forged[0] = 0x80 | (forged[0] & 0x3f);
        let _ = open(&mut opener, n % 9, &forged, MS * n);
        assert!(opener.failures <= n + 1);
    }
    assert!(opener.failures > 100, "some had a phase with a key");
    assert_eq!(opener.epoch(), epoch);
    assert_eq!(opener.next_secret, next);
}

/// Keys cost several times what opening a packet costs, and sessions share their thread.
#[test]
fn a_peer_that_keeps_flipping_the_phase_has_one_key_derived_a_millisecond() {
    let (mut sealer, mut opener) = pair(1);
    for number in 0..1000 {
        let packet = seal(&mut sealer, number, b"body");
        sealer.acked(PacketNumber::new(number));
        let _ = open(&mut opener, number, &packet, number * MS / 100);
    }
    assert!(opener.epoch() <= 11, "{} epochs in 10 ms", opener.epoch());
    // Nor is a packet opened twice.
    assert!(opener.failures + opener.epoch() <= 1000);
}

/// Its phase is that of the present epoch, but its key is forgotten.
#[test]
fn a_packet_two_epochs_late_does_not_open_and_does_no_harm() {
    let (mut sealer, mut opener) = pair(4);
    let mut late = Vec::new();
    for number in 0..16 {
        let datagram = seal(&mut sealer, number, b"body");
        sealer.acked(PacketNumber::new(number));
        if number % 4 == 1 {
            late.push((number, datagram));
            continue;
        }
        let now = number * MS;
        assert!(open(&mut opener, number, &datagram, now).is_ok());
        for (old, datagram) in &late {
            // Only the epoch before is still known.
            let known = number / 4 - old / 4 < 2;
            let opened = open(&mut opener, *old, datagram, now).is_ok();
            assert_eq!(opened, known, "{old} at {number}");
        }
    }
    assert_eq!((sealer.epoch(), opener.epoch()), (3, 3));
}

proptest! {
    /// Every packet opens, whatever the order within a distance shorter than an epoch, across at
    /// least three updates; an opener that has seen anything of an epoch acknowledges it.
    #[test]
    fn epochs_under_reordering_and_loss(
        delays in prop::collection::vec(prop_oneof![3 => 0u64..12, 1 => Just(u64::MAX)], 100),
    ) {
        const EPOCH: u64 = 16;
        let (mut sealer, mut opener) = pair(EPOCH);
        let mut window = ReplayWindow::default();
        let mut on_the_way: Vec<(u64, u64, Vec<u8>)> = Vec::new();
        for (number, delay) in delays.iter().enumerate() {
            let number = number as u64;
            // The link loses some, but never a whole epoch.
            let arrives = match *delay {
                u64::MAX if !number.is_multiple_of(EPOCH) => None,
                u64::MAX => Some(number),
                delay => Some(number + delay),
            };
            let datagram = seal(&mut sealer, number, &number.to_be_bytes());
            on_the_way.extend(arrives.map(|at| (at, number, datagram)));
            on_the_way.sort_by_key(|(at, number, _)| (*at, *number));
            while on_the_way.first().is_some_and(|(at, ..)| *at <= number) {
                let (at, number, datagram) = on_the_way.remove(0);
                prop_assert_eq!(window.check(PacketNumber::new(number)), Arrival::New);
                let body = open(&mut opener, window.expected().get(), &datagram, at * MS);
                prop_assert_eq!(body, Ok(number.to_be_bytes().to_vec()));
                window.commit(PacketNumber::new(number));
                prop_assert_eq!(window.check(PacketNumber::new(number)), Arrival::Replay);
                sealer.acked(PacketNumber::new(number));
            }
        }
        prop_assert!(opener.epoch() >= 3);
        prop_assert!(sealer.epoch() - opener.epoch() <= 1);
    }

    #[test]
    fn unprotecting_noise_is_total(noise in prop::collection::vec(any::<u8>(), 0..100)) {
        let (_, mut opener) = pair(EPOCH_PACKETS);
        prop_assert_eq!(open(&mut opener, 0, &noise, 0), Err(OpenError::Invalid));
    }
}

// ---- sealed and opened elsewhere ------------------------------------------------------------------

/// Whoever seals with a permit, and in whatever order, seals what the sealer would.
#[test]
fn permits_seal_the_same_packets_in_any_order_and_across_epochs() {
    const EPOCH: u64 = 3;
    let (mut inline, _) = pair(EPOCH);
    let (mut sealer, _) = pair(EPOCH);
    let header = Header::control(cid(), PacketNumber::ZERO, false);
    let mut elsewhere = Vec::new();
    let mut expected = Vec::new();
    for number in 0..10 {
        expected.push(seal(&mut inline, number, b"body"));
        let number = PacketNumber::new(number);
        let permit = sealer.permit(number).expect("a new number");
        elsewhere.push((number, permit, Arc::clone(sealer.key())));
        inline.acked(number);
        sealer.acked(number);
    }
    assert_eq!(sealer.epoch(), 3);
    for (number, permit, key) in elsewhere.into_iter().rev() {
        let mut datagram = vec![0; 4 + OVERHEAD];
        datagram[HEADER_LEN..][..4].copy_from_slice(b"body");
        key.seal(permit, &header, &mut datagram)
            .expect("of this key");
        assert_eq!(datagram, expected[number.get() as usize]);
    }
}

#[test]
fn a_permit_is_given_once_and_is_of_one_key() {
    let session = session();
    let (mut sealer, _) = pair(1);
    let first = sealer.permit(PacketNumber::ZERO).expect("new");
    let old = Arc::clone(sealer.key());
    let again = sealer.permit(PacketNumber::ZERO);
    assert_eq!(again.map(drop), Err(SealError::NumberUsed));
    sealer.acked(PacketNumber::ZERO);
    let second = sealer.permit(PacketNumber::new(1)).expect("new");
    let header = Header::control(cid(), PacketNumber::ZERO, false);
    let other_path = session.sealer(Direction::ClientToServer, PathId::new(1));
    let mut datagram = vec![7; OVERHEAD];
    for (key, permit) in [(&old, second), (other_path.key(), first)] {
        assert_eq!(
            key.seal(permit, &header, &mut datagram),
            Err(SealError::OtherKey)
        );
    }
    assert_eq!(datagram, [7; OVERHEAD]);
    let short = sealer.seal(&header, PacketNumber::new(2), &mut datagram[1..]);
    assert_eq!(short, Err(SealError::BufferSize));
    sealer.acked(PacketNumber::new(1));
    assert!(
        sealer.permit(PacketNumber::new(2)).is_ok(),
        "it was not used"
    );
}

/// Several packets of a new epoch may be on their way to being opened before the first one is noted.
#[test]
fn what_is_opened_elsewhere_moves_the_epoch_once() {
    let (mut sealer, mut opener) = pair(2);
    let mut packets: Vec<(u64, Vec<u8>)> = Vec::new();
    for number in 0..4 {
        packets.push((number, seal(&mut sealer, number, b"body")));
        sealer.acked(PacketNumber::new(number));
    }
    let open = |opener: &mut Opener, packets: &mut [(u64, Vec<u8>)]| {
        let chosen: Vec<_> = packets
            .iter_mut()
            .map(|(number, datagram)| {
                let header = opener.unprotect(datagram).expect("a packet");
                let number = PacketNumber::new(*number);
                let epoch = opener.choose(&header, number, Time::ZERO).expect("known");
                (number, epoch, Arc::clone(opener.key(epoch).expect("known")))
            })
            .collect();
        // The last one is done first.
        let mut opened = Vec::new();
        for ((_, datagram), (number, epoch, key)) in packets.iter_mut().zip(chosen).rev() {
            let body = key.open(number, datagram);
            assert_eq!(
                body.map(|body| datagram[body].to_vec()),
                Some(b"body".to_vec())
            );
            opened.push((number, epoch));
        }
        for (number, epoch) in opened.into_iter().rev() {
            let noted = opener.note(epoch, number, true, Time::ZERO, PTO);
            assert_eq!(noted, Ok(()));
        }
    };
    let (first, second) = packets.split_at_mut(2);
    open(&mut opener, first);
    assert_eq!(opener.epoch(), 0);
    open(&mut opener, second);
    assert_eq!(opener.epoch(), 1);
}

/// Keys of both ends of a connection that begins with what an earlier one has agreed on.
fn early_ends(greeting: &[u8]) -> (Keys, Keys) {
    let early = EarlySecret::new(&session().resumption(cid()), greeting);
    let directions = [Direction::ClientToServer, Direction::ServerToClient];
    directions.map(|direction| early.keys(direction)).into()
}

#[test]
fn what_the_client_says_early_opens_with_its_greeting_and_id_only() {
    let resumption = session().resumption(cid());
    let early = EarlySecret::new(&resumption, b"greeting");
    let sealed = early.seal_parameters(cid(), b"parameters");
    assert_eq!(sealed.len(), 10 + 16);
    let opened = early.open_parameters(cid(), &sealed);
    assert_eq!(opened.as_deref(), Some(&b"parameters"[..]));
    let other_cid = ConnectionId::new([9; 8]).expect("not zero");
    let others = [
        EarlySecret::new(&resumption, b"greetinG").open_parameters(cid(), &sealed),
        EarlySecret::new(&session().resumption(other_cid), b"greeting")
            .open_parameters(cid(), &sealed),
        early.open_parameters(other_cid, &sealed),
        early.open_parameters(cid(), &sealed[1..]),
        early.open_parameters(cid(), &[]),
    ];
    assert!(others.iter().all(Option::is_none));
}

#[test]
fn early_packets_open_at_once_and_with_another_greeting_never() {
    let (mut client, mut server) = early_ends(b"one");
    let (_, mut other) = early_ends(b"two");
    let packet = seal(&mut client.sealer, 0, b"early");
    assert!(open(&mut other.opener, 0, &packet, 0).is_err());
    assert_eq!(
        open(&mut server.opener, 0, &packet, 0),
        Ok(b"early".to_vec())
    );
    // The other direction has keys of its own.
    assert!(open(&mut client.opener, 0, &packet, 0).is_err());
    let answer = seal(&mut server.sealer, 0, b"heard");
    assert_eq!(
        open(&mut client.opener, 0, &answer, 0),
        Ok(b"heard".to_vec())
    );
}

/// The handshake's keys follow, whatever of the early epoch has come, and are not those of an epoch that follows by itself.
#[test]
fn the_handshakes_keys_follow_the_early_ones() {
    for early_comes in [true, false] {
        let (mut client, mut server) = early_ends(b"greeting");
        let early = seal(&mut client.sealer, 0, b"early");
        let late = seal(&mut client.sealer, 1, b"late");
        if early_comes {
            assert!(open(&mut server.opener, 0, &early, 0).is_ok());
        }
        client.confirm(&session(), Direction::ClientToServer);
        let packet = seal(&mut client.sealer, 2, b"proven");
        assert_eq!(server.opener.phase_of(&packet), Some(true));
        assert_eq!(server.opener.phase_of(&late), Some(false));
        // Nothing of the handshake opens before it is over, and trying costs nothing.
        assert_eq!(
            open(&mut server.opener, 2, &packet, 0),
            Err(OpenError::Invalid)
        );
        assert_eq!(server.opener.failures, 0);
        server.confirm(&session(), Direction::ServerToClient);
        assert_eq!(
            open(&mut server.opener, 2, &packet, MS),
            Ok(b"proven".to_vec())
        );
        assert_eq!(server.opener.epoch(), 1);
        // What is late of the early epoch opens for as long as that of any other.
        let mut late_in_time = |at| open(&mut server.opener, 1, &late, at);
        assert_eq!(late_in_time(MS + 3 * PTO), Ok(b"late".to_vec()));
        assert!(late_in_time(MS + 3 * PTO + 1).is_err());
        assert!(server.origin.is_some(), "other paths have keys");
    }
}

/// A session that knows the secret of the handshake, but not the early one, opens nothing: the header protection is the early one's.
#[test]
fn both_secrets_are_needed_behind_early_data() {
    let (mut client, _) = early_ends(b"greeting");
    client.confirm(&session(), Direction::ClientToServer);
    let packet = seal(&mut client.sealer, 5, b"proven");
    let mut plain = session().opener(Direction::ClientToServer, PathId::FIRST);
    assert!(open(&mut plain, 5, &packet, 0).is_err());
}
