//! Captures of both ends.

use std::{
    borrow::Cow,
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use pcap_file::{
    DataLink, Endianness, PcapError, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use sphinx_link::{
    Time,
    front::{Observer, Side},
};

use super::LinkError;

/// Packets that are handed to the writer at once, in bytes; fewer only while it has nothing to do.
const BATCH_BYTES: usize = 1 << 18;
/// Batches that may wait for the disk; what does not fit is missing in the capture.
const BATCHES_MAX: usize = 256;
const SNAP_LENGTH: u32 = 65_535;
/// In front of every packet in a batch: side (1 byte), time (8), length (4).
const HEADER: usize = 13;

/// The part in the link's thread: it copies packets and never waits.
pub(super) struct Capture {
    /// Time 0 of the link in nanoseconds of Unix time.
    origin: Time,
    batch: Vec<u8>,
    accounts: Arc<Accounts>,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
}

/// What the writer and the part in the link's thread know of each other.
#[derive(Default)]
struct Accounts {
    /// Batches that have been handed over and not been written.
    waiting: AtomicUsize,
    /// Packets for which there was no room, and of which nobody has been told.
    missed: AtomicU64,
}

impl Accounts {
    fn tell_of_missed(&self, fault: &mut impl FnMut(String)) {
        let missed = self.missed.swap(0, Ordering::AcqRel);
        if missed > 0 {
            fault(format!(
                "the capture lacks {missed} packets: the disk is too slow"
            ));
        }
    }
}

/// The files, before there is a link.
pub(super) struct Files([PcapWriter<BufWriter<File>>; 2]);

impl Files {
    /// Creates `left.pcap` and `right.pcap` in a directory, which is created too.
    pub(super) fn create(directory: &Path) -> Result<Files, LinkError> {
        fs::create_dir_all(directory).map_err(|error| {
            LinkError::io("create the directory", directory.to_string_lossy(), &error)
        })?;
        let create = |name: &str| {
            let path = directory.join(name);
            let header = PcapHeader {
                ts_resolution: TsResolution::NanoSecond,
                endianness: Endianness::native(),
                datalink: DataLink::RAW,
                snaplen: SNAP_LENGTH,
                ..PcapHeader::default()
            };
            let file = File::create(&path)
                .map_err(|error| LinkError::io("create", path.to_string_lossy(), &error))?;
            PcapWriter::with_header(BufWriter::new(file), header)
                .map_err(|error| LinkError::io("write", path.to_string_lossy(), &io_error(error)))
        };
        Ok(Files([create("left.pcap")?, create("right.pcap")?]))
    }

    /// Starts writing. The thread ends when the capture is dropped; its result is what went wrong.
    pub(super) fn start(
        self,
        mut fault: impl FnMut(String) + Send + 'static,
    ) -> std::io::Result<(Capture, JoinHandle<()>)> {
        let (full, batches) = sync_channel::<Vec<u8>>(BATCHES_MAX);
        let (give_back, empty) = sync_channel::<Vec<u8>>(BATCHES_MAX);
        let Files(mut writers) = self;
        let accounts = Arc::new(Accounts::default());
        let write = {
            let accounts = Arc::clone(&accounts);
            move || {
                for batch in batches {
                    accounts.tell_of_missed(&mut fault);
                    if let Err(error) = write_batch(&mut writers, &batch) {
                        // The link goes on without a capture.
                        return fault(format!("the capture has ended: {error}"));
                    }
                    accounts.waiting.fetch_sub(1, Ordering::AcqRel);
                    // Given back to be filled again. Fails if the link has ended, or has enough of them.
                    let _ = give_back.try_send(batch);
                }
                // What has been missed since the last one was taken.
                accounts.tell_of_missed(&mut fault);
                for writer in writers {
                    if let Err(error) = writer.into_writer().flush() {
                        fault(format!("the capture is incomplete: {error}"));
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("pcap".into()).spawn(write)?;
        let capture = Capture {
            origin: 0,
            batch: Vec::new(),
            accounts,
            full,
            empty,
        };
        Ok((capture, thread))
    }
}

impl Observer for Capture {
    fn start(&mut self, started: SystemTime) {
        let origin = started.duration_since(SystemTime::UNIX_EPOCH);
        self.origin = Time::try_from(origin.unwrap_or_default().as_nanos()).unwrap_or(Time::MAX);
    }

    fn packet(&mut self, side: Side, at: Time, packet: &[u8]) {
        let length = packet.len().min(SNAP_LENGTH as usize);
        self.batch.push(side as u8);
        self.batch
            .extend(self.origin.saturating_add(at).to_ne_bytes());
        self.batch.extend((length as u32).to_ne_bytes());
        self.batch.extend(&packet[..length]);
        if self.batch.len() >= BATCH_BYTES {
            self.hand_over();
        }
    }

    fn pause(&mut self) {
        // Behind others, more can come together: what waits is then bounded in bytes, however slow the link is.
        if self.accounts.waiting.load(Ordering::Acquire) == 0 {
            self.hand_over();
        }
    }
}

impl Capture {
    fn hand_over(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut next = self.empty.try_recv().unwrap_or_default();
        next.clear();
        let batch = std::mem::replace(&mut self.batch, next);
        self.accounts.waiting.fetch_add(1, Ordering::AcqRel);
        match self.full.try_send(batch) {
            Ok(()) => {}
            Err(TrySendError::Full(batch)) => {
                self.accounts.waiting.fetch_sub(1, Ordering::AcqRel);
                let missed = packets(&batch).count() as u64;
                self.accounts.missed.fetch_add(missed, Ordering::AcqRel);
            }
            // The writer has reported why it ended.
            Err(TrySendError::Disconnected(_)) => {}
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.hand_over();
    }
}

/// The packets of a batch: side, time, IP packet.
fn packets(mut batch: &[u8]) -> impl Iterator<Item = (u8, Time, &[u8])> {
    std::iter::from_fn(move || {
        let (header, rest) = batch.split_first_chunk::<HEADER>()?;
        let (at, length) = header[1..].split_first_chunk::<8>()?;
        let length = u32::from_ne_bytes(length.try_into().ok()?);
        let (packet, rest) = rest.split_at_checked(length as usize)?;
        batch = rest;
        Some((header[0], Time::from_ne_bytes(*at), packet))
    })
}

fn write_batch(
    writers: &mut [PcapWriter<BufWriter<File>>; 2],
    batch: &[u8],
) -> std::io::Result<()> {
    for (side, at, packet) in packets(batch) {
        let packet = PcapPacket {
            timestamp: Duration::from_nanos(at),
            orig_len: packet.len() as u32,
            data: Cow::Borrowed(packet),
        };
        writers[usize::from(side != 0)]
            .write_packet(&packet)
            .map_err(io_error)?;
    }
    Ok(())
}

fn io_error(error: PcapError) -> std::io::Error {
    match error {
        PcapError::IoError(error) => error,
        error => std::io::Error::other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::{io, os::fd::OwnedFd};

    use pcap_file::pcap::PcapReader;
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn packets_are_written_with_their_times() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::create(&root.path().join("caps")).unwrap();
        let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let (mut capture, thread) = files.start(|fault| panic!("{fault}")).unwrap();
        capture.start(started);
        for n in 0..1000_u64 {
            capture.packet(Side::Left, n, &[0x45; 700]);
            if n % 100 == 0 {
                capture.packet(Side::Right, n + 5, b"E");
                capture.pause();
            }
        }
        capture.pause();
        drop(capture);
        thread.join().unwrap();
        for (name, count, offset) in [("left.pcap", 1000, 999), ("right.pcap", 10, 905)] {
            let file = File::open(root.path().join("caps").join(name)).unwrap();
            let mut reader = PcapReader::new(file).unwrap();
            assert_eq!(reader.header().datalink, DataLink::RAW);
            let mut times = Vec::new();
            while let Some(packet) = reader.next_packet() {
                times.push(packet.unwrap().timestamp);
            }
            let last = Duration::new(1_700_000_000, offset);
            assert_eq!((times.len(), times.last()), (count, Some(&last)));
        }
    }

    /// A capture whose writer waits, for as long as nobody reads from the pipe, and the faults that it has told of at its end.
    fn held_up() -> (Capture, io::PipeReader, Receiver<String>) {
        let (pipe, left) = io::pipe().unwrap();
        let right = File::options().write(true).open("/dev/null").unwrap();
        let writers = [File::from(OwnedFd::from(left)), right].map(|file| {
            let writer = BufWriter::new(file);
            PcapWriter::with_header(writer, PcapHeader::default()).unwrap()
        });
        let (sender, faults) = std::sync::mpsc::channel();
        let files = Files(writers);
        let (capture, _) = files
            .start(move |fault| sender.send(fault).unwrap())
            .unwrap();
        (capture, pipe, faults)
    }

    fn count(pipe: io::PipeReader) -> u64 {
        let mut reader = PcapReader::new(pipe).unwrap();
        let mut count = 0;
        while let Some(packet) = reader.next_packet() {
            packet.unwrap();
            count += 1;
        }
        count
    }

    #[test]
    fn a_slow_link_can_be_captured_however_long_the_disk_takes() {
        let (mut capture, pipe, faults) = held_up();
        for _ in 0..4 * BATCHES_MAX {
            capture.packet(Side::Left, 1, &[0x45; 700]);
            capture.pause();
        }
        drop(capture);
        assert_eq!(count(pipe), 4 * BATCHES_MAX as u64);
        assert_eq!(faults.iter().collect::<Vec<_>>(), [] as [&str; 0]);
    }

    #[test]
    fn what_is_missing_at_the_end_is_told_once() {
        let (mut capture, pipe, faults) = held_up();
        let of_a_batch = BATCH_BYTES / 60_000 + 1;
        let packets = (BATCHES_MAX + 20) * of_a_batch;
        for number in 1..=packets {
            capture.packet(Side::Left, 1, &[0x45; 60_000]);
            if number == of_a_batch {
                // The first batch is being written, and does not fit into the pipe.
                poll(&mut [PollFd::new(&pipe, PollFlags::IN)], None).unwrap();
            }
        }
        capture.pause();
        drop(capture);
        let missed = packets as u64 - count(pipe);
        assert!(missed > 0);
        let words = format!("the capture lacks {missed} packets: the disk is too slow");
        assert_eq!(faults.iter().collect::<Vec<_>>(), [words]);
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_link() {
        let full = || {
            let file = File::options().write(true).open("/dev/full").unwrap();
            PcapWriter::with_header(BufWriter::new(file), PcapHeader::default()).unwrap()
        };
        let (sender, faults) = std::sync::mpsc::channel();
        let (mut capture, thread) = Files([full(), full()])
            .start(move |fault| sender.send(fault).unwrap())
            .unwrap();
        for _ in 0..100 {
            capture.packet(Side::Left, 1, &[0; 1500]);
            capture.pause();
        }
        drop(capture);
        thread.join().unwrap();
        let fault = faults.recv().unwrap();
        assert!(fault.contains("No space left"), "{fault}");
    }
}
