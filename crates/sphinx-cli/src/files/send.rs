//! The sending end of a transfer.

mod file;
mod likeness;
mod lookahead;
mod pieces;
mod refusals;
mod version;

use std::io;
use std::sync::Arc;

use file::Ended;
use likeness::Likeness;
use lookahead::Lookahead;
#[cfg(any(test, fuzzing))]
pub(super) use lookahead::source;
pub(super) use refusals::{Refusals, Unwanted};

use super::paths::Name;
use super::replies::{Answer, Replies};
use super::roots::Root;
use super::source::SourceKey;
use super::sync::Sync;
use super::walk::{Step, Walk};
use super::wire::{Announced, Entry, Totals, put_entry, put_preamble};
use super::{Transferred, Work};
use crate::channel::{Channel, Outgoing, reason};
use crate::failure::{Failure, Outcome, close_code, code, fail_hint, local_io, protocol};
use crate::report::{Progress, Reporter};
use sphinx_transport::{ErrorKind, Stats};

/// Bytes that are read from a file at a time.
const READ_BYTES: usize = 256 << 10;
/// Small records are gathered up to this before they go to the session.
const GATHER_BYTES: usize = 64 << 10;
/// Sent before the receiver has said that it wants the transfer, so that a far receiver costs no
/// round trip. Every receiver's window is larger.
pub(super) const UNASKED_BYTES_MAX: u64 = 1 << 20;

/// Sends `roots` on `channel`; returns when the receiver has everything in place.
///
/// The statistics are those of the whole session, but their time ends with the receiver's word that
/// everything is verified and in place.
pub(crate) fn send<C: Channel>(
    channel: &C,
    roots: &[Root],
    announced: Announced,
    key: &SourceKey,
    progress: &Progress,
    reporter: &Reporter,
) -> Outcome<(Transferred, Stats)> {
    let mut forward = channel.open_uni()?;
    let is_sync = roots.iter().any(|root| root.sync.is_some());
    let replies = Replies::listen(channel.clone(), reporter.clone(), is_sync)?;
    let sent = send_tree(
        &mut forward,
        roots,
        announced,
        key,
        Some(&replies),
        progress,
        reporter,
    );
    let sent = sent.and_then(|sent| {
        forward.wait_delivered()?;
        // Small transfers are sent before the receiver has agreed. They count as sent only once it has.
        replies.wait_ready(reporter).map(|()| sent)
    });
    let sent = match sent {
        Ok(sent) => sent,
        Err(failure) => return Err(explain(channel, &replies, failure)),
    };
    progress.hand_over();
    let reply = replies.wait();
    // The reply says that everything is in place: the transfer has taken until now.
    let elapsed = channel.stats().elapsed;
    match reply {
        Ok((counts, first_refused)) if counts.totals == sent.totals => {
            channel.close(code::DONE, "done");
            let transferred = Transferred {
                counts,
                work: sent.work,
                first_skip: sent.first_skip.or(first_refused),
                output: None,
            };
            let stats = Stats {
                elapsed,
                ..channel.stats()
            };
            Ok((transferred, stats))
        }
        Ok(_) => {
            let failure = protocol("the receiver confirms something else than was sent");
            channel.close(close_code(failure.kind), &failure.message);
            Err(failure)
        }
        Err(failure) => {
            channel.close(code::CANCELLED, "the receiver failed");
            Err(failure)
        }
    }
}

/// What ended the transfer early: a reason the receiver gave goes before the mere end of the
/// session, and a reason on this side is told to the receiver.
fn explain<C: Channel>(channel: &C, replies: &Replies, failure: Failure) -> Failure {
    let failure = reason(channel, failure);
    if let Some(Err(reason)) = replies.last(channel.peer_code().is_some()) {
        channel.close(code::CANCELLED, "the receiver failed");
        return reason;
    }
    // What waits to be sent is of no use any more: the close overtakes it.
    channel.close(close_code(failure.kind), &failure.message);
    failure
}

/// What has been sent.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) totals: Totals,
    work: Work,
    /// Why this end left something out, the first time.
    pub(super) first_skip: Option<Failure>,
}

/// Writes the whole tree and the end of the stream. Without `replies` nobody is waited for.
pub(super) fn send_tree(
    out: &mut impl Outgoing,
    roots: &[Root],
    announced: Announced,
    key: &SourceKey,
    replies: Option<&Replies>,
    progress: &Progress,
    reporter: &Reporter,
) -> Outcome<Sent> {
    let mut sender = Sender {
        out,
        key,
        replies,
        sync: roots.iter().find_map(|root| root.sync.clone()),
        unread: false,
        likeness: Likeness::default(),
        lookahead: Lookahead::new(roots),
        passed_on: 0,
        ready: replies.is_none(),
        gathered: Vec::with_capacity(2 * GATHER_BYTES),
        buffer: vec![0; READ_BYTES],
        walk: Walk::new(roots),
        totals: Totals::default(),
        first_skip: None,
        kept: None,
        work: Work::default(),
        progress,
        reporter,
    };
    put_preamble(&mut sender.gathered, announced);
    // Sent at once, since the receiver may have to ask a person first, and reading from a slow pipe may take long.
    sender.pass_on()?;
    sender.offer()?;
    while let Some(step) = sender.walk.next()? {
        sender.step(step)?;
        sender.hear();
    }
    if sender.sync.is_some() && !sender.unread {
        sender.record(&Entry::Delete)?;
    }
    let Totals { entries, bytes } = sender.totals;
    sender.record(&Entry::End { entries, bytes })?;
    sender.pass_on()?;
    sender.out.finish()?;
    Ok(Sent {
        totals: sender.totals,
        work: sender.work,
        first_skip: sender.first_skip,
    })
}

struct Sender<'a, O> {
    out: &'a mut O,
    key: &'a SourceKey,
    replies: Option<&'a Replies>,
    lookahead: Lookahead<'a>,
    /// How a tree is synchronized, if it is.
    sync: Option<Arc<Sync>>,
    /// Whether anything could not be read.
    unread: bool,
    likeness: Likeness,
    /// Bytes given to the session.
    passed_on: u64,
    /// Whether the receiver has agreed to the transfer.
    ready: bool,
    /// Records that wait to be passed on together.
    gathered: Vec<u8>,
    /// What is read from the file.
    buffer: Vec<u8>,
    walk: Walk<'a>,
    totals: Totals,
    first_skip: Option<Failure>,
    /// Files in a row that the receiver is still to be told to keep: the number of the first offer, and how many.
    kept: Option<(u64, u32)>,
    work: Work,
    progress: &'a Progress,
    reporter: &'a Reporter,
}

impl<O: Outgoing> Sender<'_, O> {
    fn step(&mut self, step: Step) -> Outcome<()> {
        match step {
            Step::DirectoryEnd {
                attributes,
                ids,
                xattrs,
            } => {
                if let Some(replies) = self.replies {
                    replies.leave();
                }
                self.tell_owner(ids)?;
                self.tell_xattrs(xattrs)?;
                return self.record(&Entry::DirectoryEnd { attributes });
            }
            Step::Directory { name, mode } => {
                self.entry(&Entry::Directory { name, mode })?;
            }
            Step::File { name, file, stat } => self.file(name, file, &stat)?,
            Step::Stream {
                name,
                input,
                attributes,
            } => self.stream(name, input, attributes)?,
            Step::Symlink {
                name,
                attributes,
                ids,
                target,
            } => {
                self.tell_owner(ids)?;
                self.entry(&Entry::Symlink {
                    name,
                    attributes,
                    target,
                })?;
            }
            Step::Failed(failure) => return Err(failure),
            Step::Skipped {
                name,
                failure,
                unread,
            } => {
                self.unread |= unread;
                let reason = failure.message.clone();
                self.skip(&name, failure);
                self.entry(&Entry::Skipped { name, reason })?;
            }
        }
        Ok(())
    }

    /// Sends a record that counts as an entry.
    fn entry(&mut self, entry: &Entry) -> Outcome<()> {
        self.count(matches!(entry, Entry::Directory { .. }));
        self.record(entry)
    }

    /// Counts an entry. Called before it is sent, so that a refusal never comes for an entry that is not counted.
    fn count(&mut self, is_directory: bool) {
        self.totals.entries += 1;
        if let Some(replies) = self.replies {
            replies.entry(is_directory);
        }
    }

    fn record(&mut self, entry: &Entry) -> Outcome<()> {
        self.tell_kept();
        put_entry(&mut self.gathered, entry);
        self.pass_on_if_full()
    }

    /// Something is left out at this end.
    fn skip(&mut self, name: &Name, failure: Failure) {
        self.reporter.skipped(&self.walk.path_of(name), &failure);
        self.first_skip.get_or_insert(failure);
    }

    /// Leaves out what the receiver has refused; whether that is the rest of the entry sent last.
    fn hear(&mut self) -> bool {
        let unwanted = self
            .replies
            .map_or_else(Unwanted::default, Replies::refused);
        if let Some(depth) = unwanted.depth {
            self.walk.leave_out(depth);
        }
        unwanted.last
    }

    /// Offers more of what comes next, if there is room for it and the receiver can answer; whether it did.
    fn offer(&mut self) -> Outcome<bool> {
        let Some(replies) = self.replies else {
            return Ok(false);
        };
        if !self.lookahead.has_room() {
            return Ok(false);
        }
        // Files that are kept are told of first: the receiver remembers only as many offers as may be ahead of what is sent.
        self.tell_kept();
        let offered = self.lookahead.top_up(self.key, &mut self.gathered);
        if offered {
            replies.expect_answers(self.lookahead.number());
            self.pass_on_if_full()?;
        }
        Ok(offered)
    }

    /// Sends the first `wanted` bytes of the buffer.
    fn data(&mut self, wanted: usize) -> Outcome<()> {
        if self.gathered.len() + wanted <= GATHER_BYTES {
            self.gathered.extend_from_slice(&self.buffer[..wanted]);
        } else {
            self.pass_on()?;
            self.wait_ready()?;
            self.out.write_all(&self.buffer[..wanted])?;
            self.passed_on += wanted as u64;
        }
        self.progress.add_bytes(wanted as u64);
        Ok(())
    }

    fn unreadable(&self, name: &Name, error: impl Into<io::Error>) -> Ended {
        Ended::Failed(local_io("read", &self.walk.source_of(name), error))
    }

    fn changed(&self, name: &Name) -> Ended {
        Ended::Failed(fail_hint(
            ErrorKind::LocalIo,
            format!(
                "{} changed while it was being sent",
                self.walk.source_of(name)
            ),
            "send it again when nothing writes to it",
        ))
    }

    /// Bytes that may be sent before the receiver has said anything.
    fn unasked(&self) -> u64 {
        UNASKED_BYTES_MAX.saturating_sub(self.passed_on + self.gathered.len() as u64)
    }

    /// Whether it is known what the receiver has of an offer.
    fn is_answered(&self, offer: u64) -> bool {
        self.replies
            .is_none_or(|replies| replies.is_answered(offer))
    }

    /// Waits for what the receiver has of an offer, and offers what there is room for before.
    fn answer(&mut self, offer: u64) -> Outcome<Option<Answer>> {
        let Some(replies) = self.replies else {
            return Ok(None);
        };
        while !replies.is_answered(offer) && self.offer()? {}
        if !replies.is_answered(offer) {
            // The offer may still be in the buffer of records that have not been passed to the session.
            self.pass_on()?;
        }
        replies.wait_answer(offer, self.reporter)
    }

    fn pass_on_if_full(&mut self) -> Outcome<()> {
        match self.gathered.len() >= GATHER_BYTES {
            true => self.pass_on(),
            false => Ok(()),
        }
    }

    fn pass_on(&mut self) -> Outcome<()> {
        self.tell_kept();
        self.wait_ready()?;
        self.out.write_all(&self.gathered)?;
        self.passed_on += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    /// Waits for the receiver's consent where that much has been sent without.
    fn wait_ready(&mut self) -> Outcome<()> {
        if !self.ready
            && self.passed_on >= UNASKED_BYTES_MAX
            && let Some(replies) = self.replies
        {
            replies.wait_ready(self.reporter)?;
            self.ready = true;
        }
        Ok(())
    }
}
