//! What is written is read; what is not is refused.

use super::*;
use crate::files::chunks::{Chunk, Chunks};
use crate::files::digest::{Checkpoint, ContentDigest, LEAF_BYTES};
use crate::files::offers::{OFFER_NANOSECONDS, Offer, Offered, Series};
use crate::files::owners::Owner;
use crate::files::paths::Name;
use crate::files::reader::Reader;
use crate::files::source::{Seal, Sealed, SourceId};
use crate::files::wire::{
    Announced, Attributes, Change, Counts, DATA, DIRECTORY, END, Entry, FILE, HOLE, KEPT, OFFER,
    Piece, Reply, Totals, put_entry, put_piece, put_preamble, put_reply,
};
use crate::files::xattrs::{XattrError, Xattrs};

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).expect("a valid name")
}

fn reader(bytes: &[u8], piece: usize) -> Reader<Arrived<'_>> {
    Reader::new(Arrived { bytes, piece }, 64)
}

/// Attributes of these names, with values of so many bytes.
fn xattrs(list: &[(&str, usize)]) -> Result<Xattrs, XattrError> {
    let mut xattrs = Xattrs::default();
    for (name, bytes) in list {
        xattrs.add(name.as_bytes().to_vec(), vec![7; *bytes])?;
    }
    Ok(xattrs)
}

fn checkpoint() -> Checkpoint {
    let mut digest = ContentDigest::default();
    digest.data(&vec![1; 3 * LEAF_BYTES as usize]);
    digest.checkpoint().expect("between two leaves")
}

#[test]
fn records() {
    let attributes = Attributes {
        mode: 0o4755,
        mtime_s: -5,
        mtime_ns: 999_999_999,
    };
    let entries = [
        Entry::Directory {
            name: name(b"a"),
            mode: 0o7777,
        },
        Entry::File {
            name: name(&[b'x'; 200]),
            attributes,
            size: u64::MAX,
            source: SourceId::from_bytes([7; 16]),
        },
        Entry::Offer(Offer {
            shared: 300,
            rest: b"a/b".to_vec(),
            size: u64::MAX,
            later_s: i64::MIN,
            mtime_ns: 5,
            mode: Some(0o7777),
            source: SourceId::from_bytes([7; 16]),
        }),
        Entry::Offer(Offer {
            shared: 0,
            rest: Vec::new(),
            size: 127,
            later_s: -64,
            mtime_ns: 0,
            mode: None,
            source: None,
        }),
        Entry::Ask,
        Entry::Kept {
            first: 1 << 40,
            count: 7,
        },
        Entry::Stream {
            name: name(b"s"),
            attributes,
        },
        Entry::Symlink {
            name: name(b"l"),
            attributes,
            target: b"caf\xe9".to_vec(),
        },
        Entry::Skipped {
            name: name(b"secret"),
            reason: "cannot read it".to_owned(),
        },
        Entry::HardLink {
            name: name(b"h"),
            path: b"a/b".to_vec(),
        },
        Entry::Owner(Owner {
            uid: 1000,
            gid: u32::MAX,
            user: b"somebody".to_vec(),
            group: Vec::new(),
        }),
        Entry::Xattrs(xattrs(&[("user.a", 0), ("user.b", 65_535)]).unwrap()),
        Entry::DirectoryEnd { attributes },
        Entry::End {
            entries: 3,
            bytes: 7,
        },
    ];
    for bytes in [Some(9), None] {
        let announced = Announced {
            entries: 4,
            bytes,
            source: SourceId::from_bytes([1; 16]),
        };
        let mut written = Vec::new();
        put_preamble(&mut written, announced);
        (entries.iter()).for_each(|entry| put_entry(&mut written, entry));
        let mut reader = reader(&written, 3);
        assert_eq!(reader.preamble().unwrap(), announced);
        for entry in &entries {
            assert_eq!(&reader.entry().unwrap(), entry);
        }
        assert!(reader.expect_end().is_ok());
    }
}

#[test]
fn extended_attributes_are_bounded_and_those_that_users_give() {
    use XattrError::{Name, TooMuch};
    assert!(xattrs(&[("user.a", 65_535)]).is_ok());
    assert_eq!(xattrs(&[("user.a", 65_536)]), Err(TooMuch));
    let names = ["user.a", "user.b", "user.c", "user.d", "user.e"];
    assert_eq!(xattrs(&names.map(|name| (name, 60_000))), Err(TooMuch));
    let many: Vec<String> = (10..75).map(|n| format!("user.{n}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), 0)).collect();
    assert!(xattrs(&many[..64]).is_ok());
    assert_eq!(xattrs(&many), Err(TooMuch));
    // None that means something to the kernel, and each once.
    for wrong in ["", "user.", "security.capability", "trusted.a", "user.\0"] {
        assert_eq!(xattrs(&[(wrong, 1)]), Err(Name), "{wrong:?}");
    }
    assert_eq!(xattrs(&[("user.b", 1), ("user.a", 1)]), Err(Name));
    assert_eq!(xattrs(&[("user.a", 1), ("user.a", 1)]), Err(Name));
}

#[test]
fn pieces() {
    let contents: Vec<u8> = (0..100).collect();
    let more = [
        Piece::Hole { bytes: 1 << 40 },
        Piece::Checkpoint {
            seal: Seal([3; 32]),
        },
        Piece::Reuse { until: 1 << 41 },
        Piece::Same,
        Piece::Abort {
            reason: "gone".to_owned(),
        },
        Piece::End { digest: [9; 32] },
    ];
    let mut bytes = Vec::new();
    put_piece(&mut bytes, &Piece::Data { bytes: 100 });
    bytes.extend(&contents);
    more.iter().for_each(|piece| put_piece(&mut bytes, piece));
    for piece in [1, 9, 64, 200] {
        for in_order in [false, true] {
            let mut reader = reader(&bytes, piece);
            assert_eq!(reader.piece().unwrap(), Piece::Data { bytes: 100 });
            let mut read = vec![0xff; 100];
            let mut end = 0;
            let mut store = |place: u64, data: &[u8]| {
                assert!(!in_order || place == end);
                end = place + data.len() as u64;
                read[place as usize..][..data.len()].copy_from_slice(data);
                Ok(())
            };
            match in_order {
                true => reader.data_in_order(100, &mut store).unwrap(),
                false => reader.data(100, &mut store).unwrap(),
            }
            assert_eq!(read, contents);
            for piece in &more {
                assert_eq!(&reader.piece().unwrap(), piece);
            }
        }
    }
    for in_order in [false, true] {
        let mut short = reader(&bytes[..50], 9);
        short.piece().unwrap();
        let ended = match in_order {
            true => short.data_in_order(100, &mut |_, _| Ok(())),
            false => short.data(100, &mut |_, _| Ok(())),
        };
        assert!(ended.is_err());
    }
}

#[test]
fn replies() {
    let counts = Counts {
        totals: Totals {
            entries: 1,
            bytes: 2,
        },
        files: 3,
        bytes: 4,
        files_present: 5,
        skipped: 6,
    };
    let replies = [
        Reply::Ready,
        Reply::Part {
            offer: 1,
            sealed: Sealed {
                checkpoint: checkpoint(),
                seal: Seal([4; 32]),
            },
        },
        Reply::Present { first: 2, count: 1 },
        Reply::Answered { offer: 3 },
        Reply::Chunks {
            offer: 4,
            chunks: Chunks {
                mean_log2: 16,
                list: vec![
                    Chunk {
                        bytes: 1 << 18,
                        hash: [5; 16],
                    };
                    3
                ],
            },
        },
        Reply::Digest {
            offer: 5,
            digest: [6; 32],
        },
        Reply::Changed {
            change: Change::Deleted,
            path: b"a/b".to_vec(),
        },
        Reply::Skipped {
            entry: 7,
            path: b"a/caf\xe9".to_vec(),
            reason: "it exists".to_owned(),
        },
        Reply::Done(counts),
        Reply::Failed {
            code: 10,
            message: "x".repeat(1024),
        },
    ];
    let mut bytes = Vec::new();
    replies
        .iter()
        .for_each(|reply| put_reply(&mut bytes, reply));
    let mut reader = reader(&bytes, 5);
    for reply in &replies {
        // Messages are shown shortened.
        match (reader.reply().unwrap(), reply) {
            (Reply::Failed { code, message }, Reply::Failed { code: sent, .. }) => {
                assert!(code == *sent && message.starts_with("xxx"));
            }
            (read, sent) => assert_eq!(&read, sent),
        }
    }
    // What is too long is cut at a character.
    bytes.clear();
    let message = "ü".repeat(1000);
    put_reply(&mut bytes, &Reply::Failed { code: 9, message });
    assert!(bytes.len() <= 4 + 1024);
}

#[test]
fn refused() {
    let absolute = [&[FILE, 0, 4][..], b"/etc"].concat();
    for bytes in [
        &absolute[..],
        &[0x77],
        &[DIRECTORY, 0xff, 0xff],
        &[DIRECTORY, 0, 1, b'a', 0xff, 0xff],
        &[END, 0],
        // What means nothing, numbers longer than they need to be and too large, paths that are too long.
        &[OFFER, 8, 0, 1, b'a', 0, 0],
        &[OFFER, OFFER_NANOSECONDS, 0, 1, b'a', 0, 0, 0, 0, 0, 0],
        &[OFFER, 0, 0x80, 0, 1, b'a', 0, 0],
        &[
            OFFER, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2, 0, 0, 0,
        ],
        &[OFFER, 0, 0, 0xff, 0xff, 1],
        &[KEPT, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        &[],
    ] {
        assert_eq!(
            reader(bytes, 9).entry().unwrap_err().kind,
            ErrorKind::Protocol
        );
    }
    for bytes in [
        &[DATA, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &[DATA, 1],
        &[HOLE, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert_eq!(
            reader(bytes, 9).piece().unwrap_err().kind,
            ErrorKind::Protocol
        );
    }
    let older = b"SPHXFIL\x01----------------";
    assert!(reader(older, 9).preamble().is_err());
    assert!(reader(b"more", 9).expect_end().is_err());
}

proptest! {
    #[test]
    fn total(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece in 1_usize..40) {
        let _ = reader(&bytes, piece).preamble();
        let _ = reader(&bytes, piece).entry();
        let _ = reader(&bytes, piece).piece();
        let _ = reader(&bytes, piece).reply();
    }
}

/// A path of few letters, so that neighbours have something in common.
fn paths() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'/'), any::<u8>()], 1..40)
}

proptest! {
    #[test]
    fn what_is_offered_comes_out(
        files in proptest::collection::vec((paths(), any::<u64>(), any::<i64>(), 0..1_000_000_000_u32, 0..0o10000_u16, any::<bool>()), 1..9),
    ) {
        let (mut near, mut far) = (Series::default(), Series::default());
        for (path, size, mtime_s, mtime_ns, mode, has_source) in files {
            let attributes = Attributes { mode, mtime_s, mtime_ns };
            let source = SourceId::from_bytes([u8::from(has_source); 16]);
            let offered = Offered { path, size, attributes, source };
            let mut bytes = Vec::new();
            put_entry(&mut bytes, &Entry::Offer(near.offer(&offered)));
            let Ok(Entry::Offer(offer)) = reader(&bytes, 7).entry() else { panic!("no offer") };
            prop_assert_eq!(far.next(&offer), Ok(offered));
        }
    }
}

#[test]
fn an_offer_is_as_long_as_what_is_new() {
    let mut series = Series::default();
    let mut lengths = Vec::new();
    for (path, mode) in [
        ("directory/file1", 0o644),
        ("directory/file2", 0o644),
        ("directory/file3", 0o600),
    ] {
        let offered = Offered {
            path: path.into(),
            size: 100,
            attributes: Attributes {
                mode,
                mtime_s: 1_700_000_000,
                mtime_ns: 0,
            },
            source: None,
        };
        let mut bytes = Vec::new();
        put_entry(&mut bytes, &Entry::Offer(series.offer(&offered)));
        lengths.push(bytes.len());
    }
    assert_eq!(lengths, [27, 7, 9]);
}

#[test]
fn an_offer_shares_no_more_than_there_is() {
    let offer = |shared, rest: &[u8]| Offer {
        shared,
        rest: rest.to_vec(),
        size: 0,
        later_s: 0,
        mtime_ns: 0,
        mode: None,
        source: None,
    };
    let mut series = Series::default();
    assert!(series.next(&offer(1, b"")).is_err());
    assert_eq!(series.next(&offer(0, b"abc")).unwrap().path, b"abc");
    assert_eq!(series.next(&offer(2, b"d")).unwrap().path, b"abd");
    for shared in [4, u64::MAX] {
        assert!(series.next(&offer(shared, b"")).is_err());
    }
    assert!(series.next(&offer(3, &[b'x'; 4094])).is_err());
}
