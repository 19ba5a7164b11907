//! The sending end of a transfer against a hostile receiver.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use sphinx_fuzz::Input;
use tempfile::TempDir;

use super::QUIET;
use crate::channel::{Channel, Incoming, Outgoing};
use crate::failure::Outcome;
use crate::files::chunks::{CHUNKS_MAX, Chunk, Chunks};
use crate::files::digest::{Checkpoint, ContentDigest, LEAF_BYTES};
use crate::files::offers::{Offered, Series};
use crate::files::reader::Reader;
use crate::files::roots::{self, Root};
use crate::files::send::{UNASKED_BYTES_MAX, send, source};
use crate::files::source::{Seal, Sealed, SourceKey};
use crate::files::wire::{Change, Counts, Entry, Piece, Reply, Totals, put_reply};
use crate::files::{Sync, SyncRequest};
use crate::report::Progress;
use crate::testing::{End, Out, pair};

/// A receiver that says late that it wants the transfer says so before its sender waits for it.
const READY_AT_BYTES: u64 = UNASKED_BYTES_MAX / 2;
/// What a link that leads out points to.
const SECRET: &[u8] = b"nobody has asked for this";

thread_local! {
    /// What is sent stays as it is, as files can be gone on with only after some milliseconds.
    static TREE: Tree = Tree::grow().expect("a writable temporary directory");
}

/// What is sent, and what lies beside it.
struct Tree {
    root: TempDir,
    key: SourceKey,
    /// The contents of the files, by path at the other end.
    files: BTreeMap<Vec<u8>, Contents>,
    /// The chunks of the only file that is large enough for them.
    chunks: Chunks,
}

/// What is in a file: data, and holes around it.
struct Contents {
    size: u64,
    at: u64,
    data: Vec<u8>,
}

impl Contents {
    fn has(&self, at: u64, bytes: &[u8]) -> bool {
        let (end, data_end) = (at + bytes.len() as u64, self.at + self.data.len() as u64);
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let (first, last) = (at.max(self.at), end.min(data_end));
        if first >= last {
            return is_zero(bytes);
        }
        let (before, rest) = bytes.split_at((first - at) as usize);
        let (there, after) = rest.split_at((last - first) as usize);
        let data = &self.data[(first - self.at) as usize..][..there.len()];
        is_zero(before) && is_zero(after) && there == data
    }

    fn is_hole(&self, at: u64, bytes: u64) -> bool {
        at + bytes <= self.at || self.at + self.data.len() as u64 <= at
    }
}

impl Tree {
    fn grow() -> std::io::Result<Self> {
        let root = tempfile::tempdir()?;
        let mut files = BTreeMap::new();
        fs::create_dir_all(root.path().join("tree/dir"))?;
        fs::write(root.path().join("secret"), SECRET)?;
        let noise = |bytes: u64| -> Vec<u8> { (0..bytes).map(|n| ((n * n) >> 7) as u8).collect() };
        for (path, size, at, data) in [
            ("large", 4 * LEAF_BYTES + 5, 0, 4 * LEAF_BYTES + 5),
            ("tree/dir/chunks", 140_000, 0, 140_000),
            ("tree/dir/small", 2000, 0, 2000),
            ("tree/empty", 0, 0, 0),
            ("tree/sparse", 5 * LEAF_BYTES, LEAF_BYTES, 9000),
            ("tree/tiny", 3, 0, 3),
        ] {
            let file = fs::File::create(root.path().join(path))?;
            let data = noise(data);
            file.set_len(size)?;
            file.write_all_at(&data, at)?;
            files.insert(path.into(), Contents { size, at, data });
        }
        fs::hard_link(root.path().join("tree/tiny"), root.path().join("tree/twin"))?;
        let tiny = noise(3);
        files.insert(
            b"tree/twin".to_vec(),
            Contents {
                size: 3,
                at: 0,
                data: tiny,
            },
        );
        symlink("tiny", root.path().join("tree/link"))?;
        symlink("../secret", root.path().join("tree/out"))?;
        let key = SourceKey::of(1);
        let large = rustix::fs::stat(root.path().join("large"))?;
        while source(&key, &large).is_none() {
            thread::yield_now();
        }
        let file = fs::File::open(root.path().join("tree/dir/chunks"))?;
        let chunks = Chunks::of(&file, file.metadata()?.len())?;
        Ok(Self {
            root,
            key,
            files,
            chunks: chunks.expect("they are few"),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }
}

/// What a receiver says, right or wrong, and whenever it likes: a sender reads and sends what it is to, once.
pub fn receivers(data: &[u8]) {
    TREE.with(|tree| run(tree, &mut Input::new(data)));
}

fn run(tree: &Tree, input: &mut Input<'_>) {
    let rules = input.byte();
    let sync = (rules & 64 != 0).then(|| SyncRequest {
        contents: rules & 1 != 0,
        delete: rules & 2 != 0,
        dry_run: rules & 4 != 0,
        checksum: rules & 8 != 0,
        whole: rules & 16 != 0,
        ..SyncRequest::default()
    });
    let roots = match &sync {
        Some(asked) => {
            let sync = Arc::new(Sync::new(asked.clone()).expect("no filter is wrong"));
            roots::synchronized(tree.path("tree"), b"tree".to_vec(), sync)
        }
        // Four megabytes take their time.
        None if rules & 15 == 15 => roots::roots(vec![tree.path("large"), tree.path("tree")], None),
        None => roots::roots(vec![tree.path("tree")], None),
    };
    let roots: Vec<Root> = roots.expect("all of it can be read");
    let announced = roots::announce(&roots).expect("all of it can be read");
    let (near, far) = pair();
    let told = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut receiver = Receiver::new(tree, sync, far.clone(), input);
            // The receiver ends at the latest when the session does.
            if receiver.run().is_err() {
                assert!(far.is_over(), "what is sent cannot be read");
            }
            let _ = receiver.out.finish();
            receiver.told
        });
        let progress = Progress::default();
        let sent = send(&near, &roots, announced, &tree.key, &progress, &QUIET);
        near.close(0, "");
        let told = receiver.join().expect("a sender keeps to the protocol");
        (sent, told)
    });
    // Nothing counts as done that the other end has not confirmed.
    let (sent, told) = told;
    if let Ok((transferred, _)) = sent {
        assert!(told.anything || told.done.contains(&key_of(transferred.counts.totals)));
    }
}

fn key_of(totals: Totals) -> (u64, u64) {
    (totals.entries, totals.bytes)
}

/// What has been said, as far as the sender may do something about it.
#[derive(Default)]
struct Told {
    /// Offers that are there, by size and time, or with their true digests.
    present: BTreeSet<u64>,
    /// Where parts end that the sender has sealed, by path.
    parts: BTreeSet<(Vec<u8>, u64)>,
    /// Bytes of the file that the receiver claims to have in chunks.
    chunk_bytes: u64,
    refused: bool,
    /// Whether bytes were sent at random, so that what they say is not known.
    anything: bool,
    done: BTreeSet<(u64, u64)>,
}

impl Told {
    fn is_present(&self, offer: u64) -> bool {
        self.anything || self.present.contains(&offer)
    }
}

/// A receiver that reads what comes as it should, and says anything.
struct Receiver<'a, 'i> {
    tree: &'a Tree,
    sync: Option<SyncRequest>,
    far: End,
    out: Out,
    input: &'a mut Input<'i>,
    /// Whether the receiver has ended its replies.
    ended: bool,
    is_ready: bool,
    series: Series,
    offers: Vec<Offered>,
    answered: u64,
    told: Told,
    totals: Totals,
    /// Bytes of data that came in files, all together.
    data_bytes: u64,
    /// The path of the directory that is open.
    path: Vec<Vec<u8>>,
    /// The paths of files that have come.
    come: BTreeSet<Vec<u8>>,
}

impl<'a, 'i> Receiver<'a, 'i> {
    fn new(tree: &'a Tree, sync: Option<SyncRequest>, far: End, input: &'a mut Input<'i>) -> Self {
        Self {
            tree,
            sync,
            out: far.open_uni().expect("nobody has closed it"),
            far,
            input,
            ended: false,
            is_ready: false,
            series: Series::default(),
            offers: Vec::new(),
            answered: 0,
            told: Told::default(),
            totals: Totals::default(),
            data_bytes: 0,
            path: Vec::new(),
            come: BTreeSet::new(),
        }
    }

    fn run(&mut self) -> Outcome<()> {
        let mut reader = Reader::new(self.far.accept_uni()?, 64 << 10);
        reader.preamble()?;
        if !self.input.rarely(4) {
            self.ready()?;
        }
        loop {
            self.say_something()?;
            let entry = reader.entry()?;
            if entry.counts() {
                self.totals.entries += 1;
            }
            match entry {
                Entry::Directory { name, .. } => {
                    // Its name means nothing where the contents of the directory go.
                    let is_top = self.path.is_empty();
                    assert!(!is_top || name.as_bytes() == b"tree");
                    self.path.push(name.as_bytes().to_vec());
                }
                Entry::DirectoryEnd { .. } => {
                    self.path.pop().expect("one is open");
                }
                Entry::File { name, size, .. } => {
                    self.file(&mut reader, name.as_bytes(), size)?;
                }
                Entry::Symlink { name, target, .. } => match name.as_bytes() {
                    b"link" => assert_eq!(target, b"tiny"),
                    b"out" => assert!(self.sync.is_some() && target == b"../secret"),
                    other => panic!("a link {other:?}"),
                },
                Entry::HardLink { name, path } => {
                    assert!(self.sync.is_some() && self.come.contains(&self.below(&path)));
                    assert_eq!(name.as_bytes(), b"twin");
                }
                Entry::Skipped { name, .. } => assert_eq!(name.as_bytes(), b"out"),
                Entry::Owner(_) | Entry::Xattrs(_) | Entry::Delete => {
                    assert!(self.sync.is_some());
                }
                Entry::Offer(offer) => {
                    let offered = self.series.next(&offer)?;
                    assert!(self.contents(&offered.path).is_some());
                    self.offers.push(offered);
                }
                Entry::Ask => self.answer()?,
                Entry::Kept { first, count } => {
                    for offer in first..first + u64::from(count) {
                        self.totals.entries += 1;
                        self.keep(offer);
                    }
                }
                Entry::End { entries, bytes } => {
                    assert_eq!((entries, bytes), key_of(self.totals));
                    assert!(self.path.is_empty());
                    return self.last_word();
                }
                Entry::Stream { .. } => panic!("there is no pipe"),
            }
        }
    }

    /// A path as it is in the tree.
    fn below(&self, path: &[u8]) -> Vec<u8> {
        let contents = self.sync.as_ref().is_some_and(|sync| sync.contents);
        match contents {
            true => [b"tree/", path].concat(),
            false => path.to_vec(),
        }
    }

    fn contents(&self, path: &[u8]) -> Option<&'a Contents> {
        self.tree.files.get(&self.below(path))
    }

    /// A file that is as it was said to be.
    fn keep(&mut self, offer: u64) {
        let offered = &self.offers[offer as usize - 1];
        assert!(self.sync.is_some() && self.told.is_present(offer));
        let (path, size) = (self.below(&offered.path), offered.size);
        assert!(self.come.insert(path), "kept twice");
        self.totals.bytes += size;
    }

    fn file(&mut self, reader: &mut Reader<impl Incoming>, name: &[u8], size: u64) -> Outcome<()> {
        let mut path = self.path.clone();
        path.push(name.to_vec());
        let path = path.join(&b'/');
        let tree = self.tree;
        let contents = tree.files.get(&path).expect("a file of the tree");
        assert_eq!(size, contents.size);
        let trial = self.sync.as_ref().is_some_and(|sync| sync.dry_run);
        let (mut at, mut copied) = (0, 0);
        let mut digest = ContentDigest::default();
        let mut is_compared = true;
        loop {
            self.say_something()?;
            let piece = reader.piece()?;
            assert!(!trial || matches!(piece, Piece::Trial | Piece::Abort { .. }));
            match piece {
                Piece::Data { bytes } => {
                    assert!(at + bytes <= size);
                    let mut read = 0;
                    reader.data_in_order(bytes, &mut |_, data| {
                        assert!(contents.has(at + read, data));
                        digest.data(data);
                        read += data.len() as u64;
                        self.data_bytes += data.len() as u64;
                        match self.data_bytes >= READY_AT_BYTES {
                            true => self.ready(),
                            false => Ok(()),
                        }
                    })?;
                    at += bytes;
                }
                Piece::Hole { bytes } => {
                    assert!(at + bytes <= size && contents.is_hole(at, bytes));
                    digest.hole(at, bytes);
                    at += bytes;
                }
                Piece::Copy { from, bytes } => {
                    copied += bytes;
                    let there = self.told.chunk_bytes;
                    let is_there = copied <= there && from + bytes <= there;
                    assert!(at + bytes <= size && (is_there || self.told.anything));
                    at += bytes;
                    is_compared = false;
                }
                Piece::Reuse { until } => {
                    assert!(self.told.parts.contains(&(path.clone(), until)));
                    assert!(at <= until && until <= size);
                    at = until;
                    is_compared = false;
                }
                Piece::Same => {
                    let offered = self.offers.iter().position(|offered| offered.path == path);
                    let offer = offered.expect("it was offered") as u64 + 1;
                    assert!(self.told.is_present(offer));
                    at = size;
                    is_compared = false;
                }
                Piece::Checkpoint { .. } => assert!(digest.checkpoint().is_some() || !is_compared),
                Piece::End { digest: said } => {
                    assert_eq!(at, size);
                    assert!(!is_compared || said == digest.finish());
                    break;
                }
                Piece::Trial => {
                    assert!(trial);
                    break;
                }
                Piece::Abort { .. } => {
                    assert!(
                        self.told.refused || self.told.anything,
                        "nobody has refused it"
                    );
                    return Ok(());
                }
            }
        }
        self.totals.bytes += size;
        assert!(self.come.insert(path), "sent twice");
        Ok(())
    }

    fn say(&mut self, reply: &Reply) -> Outcome<()> {
        if self.ended {
            return Ok(());
        }
        let mut bytes = Vec::new();
        put_reply(&mut bytes, reply);
        self.out.write_all(&bytes)
    }

    fn ready(&mut self) -> Outcome<()> {
        match std::mem::replace(&mut self.is_ready, true) {
            true => Ok(()),
            false => self.say(&Reply::Ready),
        }
    }

    /// Whoever has asked waits: the answer comes, or nothing more at all.
    fn answer(&mut self) -> Outcome<()> {
        for _ in 0..self.input.below(5) {
            self.say_something()?;
        }
        match self.input.rarely(32) {
            true => self.end(),
            false => self.say(&Reply::Answered {
                offer: self.offers.len() as u64,
            }),
        }
    }

    fn last_word(&mut self) -> Outcome<()> {
        let mut totals = self.totals;
        if self.input.rarely(4) {
            totals.bytes = self.input.any();
        }
        self.done(totals)
    }

    fn done(&mut self, totals: Totals) -> Outcome<()> {
        self.told.done.insert(key_of(totals));
        let counts = Counts {
            totals,
            files: self.input.any(),
            bytes: self.input.any(),
            files_present: self.input.any(),
            skipped: self.input.any(),
        };
        self.say(&Reply::Done(counts))
    }

    /// Nothing more comes.
    fn end(&mut self) -> Outcome<()> {
        self.ended = true;
        self.out.finish()
    }

    /// Sends one reply, if there is input left for it.
    fn say_something(&mut self) -> Outcome<()> {
        let kind = self.input.byte();
        if self.ended {
            return Ok(());
        }
        match kind {
            0..0x80 => Ok(()),
            0x80..0x90 => self.refuse(),
            0x90..0xa8 => self.present(),
            0xa8..0xb8 => self.part(),
            0xb8..0xd0 => self.chunks(),
            0xd0..0xe0 => self.digest(),
            0xe0..0xe8 => {
                let change = self.input.pick(&[Change::Made, Change::Deleted]);
                let len = usize::from(self.input.byte());
                let path = self.input.take(len).to_vec();
                self.say(&Reply::Changed { change, path })
            }
            0xe8..0xf0 => {
                let offer = self.offer();
                self.say(&Reply::Answered { offer })
            }
            0xf0..0xf4 => self.ready(),
            0xf4..0xf6 => {
                let code = self.input.byte();
                let message = "x".repeat(usize::from(code));
                self.say(&Reply::Failed { code, message })?;
                self.end()
            }
            0xf6 | 0xf7 => {
                let entries = self.totals.entries;
                let bytes = self.input.any();
                self.done(Totals { entries, bytes })?;
                self.end()
            }
            0xf8 | 0xf9 => self.end(),
            0xfa => {
                let code = u64::from(self.input.byte());
                self.far.close(code, "it is closed");
                self.end()
            }
            _ => {
                let len = usize::from(self.input.byte());
                let raw = self.input.take(len).to_vec();
                self.told.anything = true;
                self.out.write_all(&raw)?;
                self.end()
            }
        }
    }

    /// The number of an offer, or of none.
    fn offer(&mut self) -> u64 {
        let last = self.offers.len() as u64;
        match self.input.byte() {
            byte @ 0..0xf0 => self.answered.wrapping_add(u64::from(byte & 7)),
            0xf0..0xf8 => last,
            _ => self.input.any(),
        }
    }

    fn offered(&self, offer: u64) -> Option<&Offered> {
        let at = usize::try_from(offer.checked_sub(1)?).ok()?;
        self.offers.get(at)
    }

    fn refuse(&mut self) -> Outcome<()> {
        let entry = match self.input.byte() {
            back @ 0..0xf8 => self.totals.entries.saturating_sub(u64::from(back & 7)),
            _ => self.input.any(),
        };
        self.told.refused = true;
        self.say(&Reply::Skipped {
            entry,
            path: b"tree/\x1b[2J".to_vec(),
            reason: "no".to_owned(),
        })
    }

    fn present(&mut self) -> Outcome<()> {
        let first = self.offer();
        let count = match self.input.byte() {
            byte @ 0..0xf0 => 1 + u32::from(byte & 3),
            _ => (self.input.number(4) as u32).max(1),
        };
        let last = first
            .saturating_add(u64::from(count))
            .min(first.saturating_add(64));
        self.told.present.extend(first..last);
        self.answered = first.saturating_add(u64::from(count));
        self.say(&Reply::Present { first, count })
    }

    /// A part that the sender has sealed, of this file or another, or one that it has not.
    fn part(&mut self) -> Outcome<()> {
        let offer = self.offer();
        let data = (2 + self.input.below(4)) * LEAF_BYTES;
        let hole_bytes = match self.input.byte() {
            byte @ 0..0x80 => u64::from(byte & 3) * LEAF_BYTES,
            byte @ 0x80..0xf0 => u64::from(byte),
            _ => self.input.any(),
        };
        let subtrees = (data / LEAF_BYTES - 1).count_ones() as usize + 1;
        let encoded = [
            &data.to_be_bytes()[..],
            &hole_bytes.to_be_bytes(),
            &[u8::from(hole_bytes > 0); 32],
            &vec![7; 32 * subtrees],
        ];
        let Some(checkpoint) = Checkpoint::decode(&encoded.concat()) else {
            return Ok(());
        };
        let whose = match self.input.rarely(8) {
            true => self.offer(),
            false => offer,
        };
        let is_forged = self.input.rarely(8);
        let whose = self.offered(whose).filter(|_| !is_forged);
        let sealed = match whose.and_then(|offered| Some((offered, offered.source?))) {
            Some((offered, source)) => {
                let path = self.below(&offered.path);
                let seal = self.tree.key.seal(source, &checkpoint);
                self.told.parts.insert((path, checkpoint.offset()));
                Sealed { checkpoint, seal }
            }
            None => Sealed {
                checkpoint,
                seal: Seal([3; 32]),
            },
        };
        self.answered = offer;
        self.say(&Reply::Part { offer, sealed })
    }

    /// The chunks of a file of the tree, some of them wrong; or any.
    fn chunks(&mut self) -> Outcome<()> {
        let offer = self.offer();
        let mut chunks = self.tree.chunks.clone();
        for _ in 0..self.input.below(4) {
            let at = self.input.below(chunks.list.len() as u64) as usize;
            match self.input.byte() {
                0..0x40 => drop(chunks.list.remove(at)),
                0x40..0x80 => chunks.list.push(chunks.list[at]),
                0x80..0xc0 => chunks.list[at].bytes ^= 1 << self.input.below(18),
                0xc0..0xf8 => chunks.list[at].hash[0] ^= 1,
                0xf8..0xfc => chunks.mean_log2 = 14 + self.input.below(10) as u8,
                _ => {
                    let chunk = Chunk {
                        bytes: self.input.number(4) as u32,
                        hash: [0; 16],
                    };
                    chunks.list = vec![chunk; self.input.below(CHUNKS_MAX as u64 / 64) as usize];
                }
            }
            if chunks.list.is_empty() {
                break;
            }
        }
        self.told.chunk_bytes = self.told.chunk_bytes.max(chunks.bytes());
        self.answered = offer;
        self.say(&Reply::Chunks { offer, chunks })
    }

    fn digest(&mut self) -> Outcome<()> {
        let offer = self.offer();
        let contents = self
            .offered(offer)
            .and_then(|offered| self.contents(&offered.path));
        let contents = contents.filter(|contents| contents.at == 0);
        let digest = match contents {
            Some(contents) if !self.input.rarely(4) => {
                self.told.present.insert(offer);
                blake3::hash(&contents.data).into()
            }
            _ => [1; 32],
        };
        self.answered = offer;
        self.say(&Reply::Digest { offer, digest })
    }
}
