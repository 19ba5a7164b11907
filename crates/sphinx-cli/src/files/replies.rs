//! What the receiver says, listened to beside the sending thread, so that a receiver that fails early
//! stops the sender early.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::chunks::Chunks;
use super::reader::Reader;
use super::send::{Refusals, Unwanted};
use super::source::Sealed;
use super::wire::{Counts, Reply, VERDICT_REFUSED};
use crate::channel::Channel;
use crate::failure::{Failure, Outcome, code, fail, kind_of_peer_code, local_io, protocol};
use crate::report::Reporter;
use sphinx_transport::ErrorKind;

const BUFFER_BYTES: usize = 4096;
/// The user is told if the other end has to be waited for longer than this.
const WAIT_NOTICE_DELAY: Duration = Duration::from_secs(2);

/// Hashes in answers that wait for their files' turn.
const HASHES_HELD_MAX: usize = 1 << 19;

/// Listens until the receiver has said its last word.
pub(super) struct Replies {
    heard: Arc<Heard>,
    thread: thread::JoinHandle<()>,
}

#[derive(Default)]
struct Heard {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ready: bool,
    refusals: Refusals,
    first_skip: Option<Failure>,
    /// Offers made so far.
    offered: u64,
    /// The last offer up to which the receiver has answered everything.
    answered: u64,
    /// Answers that have come and nobody has taken yet, by the number of the offer.
    answers: BTreeMap<u64, Answer>,
    /// Hashes in `answers`, all together.
    hashes: usize,
    last: Option<Outcome<Counts>>,
}

/// What the receiver has of a file that was offered.
pub(super) enum Answer {
    Part(Sealed),
    /// It has a file of the same size and time.
    Present,
    /// It has another version of the file, made of these chunks.
    Chunks(Chunks),
    /// It has a file of the same size, with this digest.
    Digest([u8; 32]),
}

impl Answer {
    /// How many hashes it holds: they make up nearly all of its length.
    fn hashes(&self) -> usize {
        match self {
            Self::Part(sealed) => sealed.checkpoint.subtrees(),
            Self::Chunks(chunks) => chunks.list.len(),
            Self::Present | Self::Digest(_) => 1,
        }
    }
}

impl State {
    fn present(&mut self, first: u64, count: u32) -> Outcome<()> {
        // The receiver may answer only what was offered.
        let last = first.checked_add(u64::from(count) - 1);
        if last.is_none_or(|last| last > self.offered) {
            return Err(protocol("an answer to what was not offered"));
        }
        (first..first + u64::from(count)).try_for_each(|offer| self.answer(offer, Answer::Present))
    }

    fn answer(&mut self, offer: u64, answer: Answer) -> Outcome<()> {
        let last = self.answers.last_key_value().map_or(0, |(last, _)| *last);
        let last = last.max(self.answered);
        if offer <= last || offer > self.offered {
            return Err(protocol("an answer to what was not offered"));
        }
        // Beyond the limit the answer is dropped: then the whole file is sent.
        let hashes = self.hashes + answer.hashes();
        if hashes <= HASHES_HELD_MAX {
            self.hashes = hashes;
            self.answers.insert(offer, answer);
        }
        Ok(())
    }

    fn answered(&mut self, offer: u64) -> Outcome<()> {
        if offer < self.answered || offer > self.offered {
            return Err(protocol("an answer to what was not offered"));
        }
        self.answered = offer;
        Ok(())
    }
}

impl Heard {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replies {
    pub(super) fn listen<C: Channel>(
        channel: C,
        reporter: Reporter,
        is_sync: bool,
    ) -> Outcome<Self> {
        let heard = Arc::new(Heard::default());
        let slot = heard.clone();
        let body = move || {
            let last = hear(&channel, &slot, &reporter, is_sync);
            let failed = last.is_err();
            slot.lock().last = Some(last);
            slot.changed.notify_all();
            if failed {
                // Wakes the sending thread if the window keeps it waiting.
                channel.close(code::CANCELLED, "the receiver failed");
            }
        };
        let thread = thread::Builder::new()
            .name("replies".to_owned())
            .spawn(body)
            .map_err(|error| local_io("start", "a thread", error))?;
        Ok(Self { heard, thread })
    }

    /// Waits until the receiver wants the transfer.
    pub(super) fn wait_ready(&self, reporter: &Reporter) -> Outcome<()> {
        let note = "waiting for the other end to accept the transfer";
        self.wait_until(reporter, ("consent", note), |state| state.ready)
            .map(drop)
    }

    /// Notes how many offers have been made, all of which will be answered.
    pub(super) fn expect_answers(&self, offered: u64) {
        self.heard.lock().offered = offered;
    }

    pub(super) fn is_answered(&self, offer: u64) -> bool {
        self.heard.lock().answered >= offer
    }

    /// Waits until it is known what the receiver has of an offer. Nothing is kept of it, nor of those before.
    pub(super) fn wait_answer(&self, offer: u64, reporter: &Reporter) -> Outcome<Option<Answer>> {
        let note = "waiting for the other end to say what it has already";
        let told = ("answers", note);
        let mut state = self.wait_until(reporter, told, |state| state.answered >= offer)?;
        let mut answers = std::mem::take(&mut state.answers);
        state.answers = answers.split_off(&(offer + 1));
        state.hashes -= answers.values().map(Answer::hashes).sum::<usize>();
        Ok(answers.remove(&offer))
    }

    /// Waits for something that the receiver says, or for its last word.
    fn wait_until(
        &self,
        reporter: &Reporter,
        (what, note): (&'static str, &str),
        is_so: impl Fn(&State) -> bool,
    ) -> Outcome<MutexGuard<'_, State>> {
        let mut state = self.heard.lock();
        let mut told = false;
        loop {
            match &state.last {
                _ if is_so(&state) => return Ok(state),
                Some(Err(failure)) => return Err(failure.clone()),
                Some(Ok(_)) => return Ok(state),
                None => {}
            }
            let waited = self.heard.changed.wait_timeout(state, WAIT_NOTICE_DELAY);
            let (guard, wait) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if wait.timed_out() && !told && !is_so(&state) {
                told = true;
                reporter.waiting(what, note);
            }
        }
    }

    /// One more entry is sent, before the receiver can have heard of it.
    pub(super) fn entry(&self, is_directory: bool) {
        self.heard.lock().refusals.entry(is_directory);
    }

    /// The innermost directory ends.
    pub(super) fn leave(&self) {
        self.heard.lock().refusals.leave();
    }

    /// What the receiver leaves out, directories once.
    pub(super) fn refused(&self) -> Unwanted {
        self.heard.lock().refusals.take()
    }

    /// The verdict of the receiver, if it has come. If `is_over`, nothing more arrives, but the verdict may still have to be read: this waits for it.
    pub(super) fn last(&self, is_over: bool) -> Option<Outcome<Counts>> {
        let mut state = self.heard.lock();
        while is_over && state.last.is_none() && !self.thread.is_finished() {
            let waited = self.heard.changed.wait_timeout(state, WAIT_NOTICE_DELAY);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.last.clone()
    }

    /// Waits for the last word; with it comes the first entry that the receiver left out.
    pub(super) fn wait(self) -> Outcome<(Counts, Option<Failure>)> {
        // A panic there leaves the slot empty.
        let _ = self.thread.join();
        let mut state = self.heard.lock();
        let first_skip = state.first_skip.take();
        match state.last.take() {
            Some(last) => last.map(|counts| (counts, first_skip)),
            None => Err(fail(
                ErrorKind::Other,
                "the receiver's replies were not read",
            )),
        }
    }
}

fn hear<C: Channel>(
    channel: &C,
    heard: &Heard,
    reporter: &Reporter,
    is_sync: bool,
) -> Outcome<Counts> {
    let mut reader = Reader::new(channel.accept_uni()?, BUFFER_BYTES);
    loop {
        match reader.reply()? {
            Reply::Ready => {
                heard.lock().ready = true;
                heard.changed.notify_all();
            }
            Reply::Skipped {
                entry,
                path,
                reason,
            } => {
                let message = format!("at the other end: {reason}");
                let failure = fail(ErrorKind::RemoteIo, message);
                heard.lock().refusals.refuse(entry)?;
                reporter.skipped(&path, &failure);
                let mut state = heard.lock();
                state.first_skip.get_or_insert(failure);
            }
            Reply::Part { offer, sealed } => heard.lock().answer(offer, Answer::Part(sealed))?,
            Reply::Present { first, count } => heard.lock().present(first, count)?,
            Reply::Chunks { .. } | Reply::Digest { .. } | Reply::Changed { .. } if !is_sync => {
                return Err(protocol("a reply that only synchronizing has"));
            }
            Reply::Chunks { offer, chunks } => {
                heard.lock().answer(offer, Answer::Chunks(chunks))?;
            }
            Reply::Digest { offer, digest } => {
                heard.lock().answer(offer, Answer::Digest(digest))?;
            }
            Reply::Changed { change, path } => reporter.changed(change, &path)?,
            Reply::Answered { offer } => {
                heard.lock().answered(offer)?;
                heard.changed.notify_all();
            }
            Reply::Done(counts) => {
                // Reads to the end of the stream, so that the receiver is not told to stop. The counts are valid even if this fails.
                let _ = reader.expect_end();
                return Ok(counts);
            }
            Reply::Failed { code, message } => {
                let message = format!("at the other end: {message}");
                return Err(match code {
                    VERDICT_REFUSED => fail(ErrorKind::RemoteIo, message).refused(),
                    code => fail(kind_of_peer_code(u64::from(code)), message),
                });
            }
        }
    }
}
