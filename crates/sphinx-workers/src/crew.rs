//! Threads, and the rings between them and the distributor.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::cpus::pin;
use crate::sync::atomic::AtomicU64;
use crate::sync::mpsc;
use crate::sync::ring::{Consumer, Producer, PushError, RingBuffer};
use crate::sync::thread::{self, JoinHandle};

/// Workers of a crew at most.
pub const WORKERS_MAX: usize = 64;
/// Tasks that a worker has at most: handed over, under way, or done and not taken back.
const TASKS_MAX: usize = 16;

/// What a worker can do.
pub trait Job: Send + 'static {
    /// What it needs, of which each worker has its own. Made anew after a panic.
    type Tools;

    /// About how much there is to do, in whatever unit.
    fn size(&self) -> u64;

    /// Does it. A job that has panicked comes back as any other.
    fn run(&mut self, tools: &mut Self::Tools);
}

/// The workers of one endpoint. Dropping it ends them, each after the task that it is at.
pub struct Crew<T: Job> {
    state: Arc<Mutex<State<T>>>,
}

/// One of those that share a crew: what it hands over comes back to it. Dropping it forgets what it is waiting for.
pub struct Member<T: Job> {
    key: u64,
    state: Arc<Mutex<State<T>>>,
}

/// Of the distributor alone, but for the rings' other ends: the lock is never waited for.
struct State<T: Job> {
    hands: Vec<Hand<T>>,
    /// What has come back and was not taken, by member.
    returned: HashMap<u64, VecDeque<T>>,
    /// Members that something has come back to since they were last asked for.
    fresh: Vec<u64>,
}

/// The distributor's side of a worker.
struct Hand<T> {
    tasks: Producer<Parcel<T>>,
    done: Consumer<Parcel<T>>,
    /// Size of all tasks that were handed over.
    given: u64,
    /// Tasks that have not been taken back.
    out: usize,
    progress: Arc<Progress>,
    thread: JoinHandle<()>,
}

/// What a worker says about itself: in cache lines that only it writes.
#[derive(Default)]
#[repr(align(128))]
struct Progress {
    /// Size of all tasks that it has done.
    done: AtomicU64,
    busy_ns: AtomicU64,
}

/// A descriptor: what goes through the rings.
struct Parcel<T> {
    member: u64,
    task: Box<T>,
}

impl<T: Job> Crew<T> {
    /// Starts so many workers, each with tools from `tools`, bound to the processors of `cpus` in turn if there are any. `wake` is called by
    /// a worker after it has done a task.
    ///
    /// # Errors
    /// When a thread cannot be started, or not on its processor.
    pub fn start(
        workers: usize,
        cpus: &[usize],
        tools: impl Fn() -> T::Tools + Clone + Send + 'static,
        wake: impl Fn() + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let state = State {
            hands: Vec::new(),
            returned: HashMap::new(),
            fresh: Vec::new(),
        };
        // If one cannot be started, those before it are ended.
        let crew = Self {
            state: Arc::new(Mutex::new(state)),
        };
        let mut cpus = cpus.iter().copied().cycle();
        for number in 0..workers.min(WORKERS_MAX) {
            let (tools, wake) = (tools.clone(), wake.clone());
            let hand = Hand::start(number, cpus.next(), tools, wake)?;
            lock(&crew.state).hands.push(hand);
        }
        Ok(crew)
    }

    /// Another one that shares the crew, with a key of its own.
    pub fn join(&self, key: u64) -> Member<T> {
        lock(&self.state).returned.insert(key, VecDeque::new());
        Member {
            key,
            state: Arc::clone(&self.state),
        }
    }

    /// Adds the keys of the members that something has come back to since the last call.
    pub fn collect(&self, members: &mut Vec<u64>) {
        let mut state = lock(&self.state);
        state.fetch();
        members.append(&mut state.fresh);
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        lock(&self.state).hands.len()
    }

    /// Time for which they have been busy, all together, nanoseconds.
    pub fn busy_ns(&self) -> u64 {
        let state = lock(&self.state);
        let progress = state.hands.iter().map(|hand| &hand.progress);
        progress
            .map(|its| its.busy_ns.load(Ordering::Relaxed))
            .sum()
    }
}

impl<T: Job> Drop for Crew<T> {
    fn drop(&mut self) {
        let hands = std::mem::take(&mut lock(&self.state).hands);
        let threads: Vec<_> = hands
            .into_iter()
            // Its ends of the rings are gone before the worker looks.
            .map(|Hand { thread, .. }| thread)
            .collect();
        for thread in &threads {
            thread.thread().unpark();
        }
        for thread in threads {
            // An error would be a panic, which the thread catches itself.
            let _ = thread.join();
        }
    }
}

impl<T: Job> Member<T> {
    /// Hands a task over, to this worker or to the one with the least to do: to which one.
    ///
    /// # Errors
    /// The task, if that one has as many as it may have.
    pub fn hand_over(&self, task: T, owner: Option<usize>) -> Result<usize, T> {
        lock(&self.state).hand_over(self.key, task, owner)
    }

    /// A task that is done.
    pub fn take_done(&self) -> Option<T> {
        let mut state = lock(&self.state);
        let returned = state.returned.get_mut(&self.key)?;
        if let Some(task) = returned.pop_front() {
            return Some(task);
        }
        state.fetch();
        state.returned.get_mut(&self.key)?.pop_front()
    }
}

impl<T: Job> Drop for Member<T> {
    fn drop(&mut self) {
        lock(&self.state).returned.remove(&self.key);
    }
}

/// A thread that panics leaves nothing half changed.
fn lock<T: Job>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Job> State<T> {
    fn hand_over(&mut self, member: u64, task: T, owner: Option<usize>) -> Result<usize, T> {
        let least = || {
            let hands = self.hands.iter().enumerate();
            let least = hands.min_by_key(|(_, hand)| hand.load());
            least.map(|(number, _)| number)
        };
        let Some(number) = owner.or_else(least) else {
            return Err(task);
        };
        match self.hands.get_mut(number) {
            Some(hand) => hand.push(member, task).map(|()| number),
            None => Err(task),
        }
    }

    /// Sorts what has come back by member.
    fn fetch(&mut self) {
        for hand in &mut self.hands {
            while let Ok(Parcel { member, task }) = hand.done.pop() {
                hand.out -= 1;
                // The member that gave the task may be gone.
                if let Some(returned) = self.returned.get_mut(&member) {
                    if returned.is_empty() {
                        self.fresh.push(member);
                    }
                    returned.push_back(*task);
                }
            }
        }
    }
}

impl<T: Job> Hand<T> {
    fn start(
        number: usize,
        cpu: Option<usize>,
        tools: impl Fn() -> T::Tools + Send + 'static,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (tasks, worker_tasks) = RingBuffer::new(TASKS_MAX);
        let (worker_done, done) = RingBuffer::new(TASKS_MAX);
        let progress = Arc::new(Progress::default());
        let its_progress = Arc::clone(&progress);
        let (began, pinned) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(format!("sphinx-worker-{number}"))
            .spawn(move || {
                let is_pinned = cpu.map_or(Ok(()), pin);
                let can_begin = is_pinned.is_ok();
                // Whoever has started it waits for this.
                let _ = began.send(is_pinned);
                if can_begin {
                    work(worker_tasks, worker_done, &its_progress, tools, wake);
                }
            })?;
        pinned.recv().map_err(io::Error::other)??;
        Ok(Self {
            tasks,
            done,
            given: 0,
            out: 0,
            progress,
            thread,
        })
    }

    /// Size of the tasks that the worker has not done yet.
    fn load(&self) -> u64 {
        self.given - self.progress.done.load(Ordering::Relaxed)
    }

    fn push(&mut self, member: u64, task: T) -> Result<(), T> {
        // So many fit into the ring of those that are done, too: the worker never waits.
        if self.out == TASKS_MAX {
            return Err(task);
        }
        let size = task.size();
        let task = Box::new(task);
        match self.tasks.push(Parcel { member, task }) {
            Ok(()) => {
                self.given += size;
                self.out += 1;
                self.thread.thread().unpark();
                Ok(())
            }
            Err(PushError::Full(parcel)) => Err(*parcel.task),
        }
    }
}

/// What a worker does until the distributor is gone.
fn work<T: Job>(
    mut tasks: Consumer<Parcel<T>>,
    mut done: Producer<Parcel<T>>,
    progress: &Progress,
    make_tools: impl Fn() -> T::Tools,
    wake: impl Fn(),
) {
    let mut tools = make_tools();
    loop {
        let Ok(mut parcel) = tasks.pop() else {
            if tasks.is_abandoned() {
                return;
            }
            // A task that was pushed since has left a token: this returns at once then.
            thread::park();
            continue;
        };
        let (begun, size) = (Instant::now(), parcel.task.size());
        let task = &mut parcel.task;
        let ran = catch_unwind(AssertUnwindSafe(|| task.run(&mut tools)));
        if let Err(panic) = ran {
            discard(panic);
            // What it had in its hands may be half changed: the worker begins anew.
            tools = make_tools();
        }
        let busy_ns = begun.elapsed().as_nanos() as u64;
        progress.busy_ns.fetch_add(busy_ns, Ordering::Relaxed);
        progress.done.fetch_add(size, Ordering::Relaxed);
        let pushed = done.push(parcel);
        debug_assert!(pushed.is_ok(), "more tasks than a worker has");
        wake();
    }
}

/// The panic has been printed. Dropping what it carried must not panic again.
fn discard(panic: Box<dyn Any + Send>) {
    std::mem::forget(panic);
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc::{Receiver, Sender};
    use std::time::Duration;

    use super::*;

    /// Longer than any machine stands still.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A job of these tests.
    enum Play {
        /// Says which worker's tools it was done with.
        Count {
            number: u64,
            done_by: Option<u64>,
        },
        /// Begins, says so, and ends when it is told to.
        Wait(Sender<()>, Receiver<()>),
        Panic,
    }

    impl Job for Play {
        type Tools = u64;

        fn size(&self) -> u64 {
            1
        }

        fn run(&mut self, tools: &mut u64) {
            match self {
                Self::Count { done_by, .. } => *done_by = Some(*tools),
                Self::Wait(begun, end) => {
                    begun.send(()).expect("the test waits");
                    end.recv_timeout(PATIENCE).expect("the test says so");
                }
                Self::Panic => panic!("as the test wants it"),
            }
        }
    }

    /// A crew whose tools are numbered, and what its workers ring.
    fn crew(workers: usize) -> (Crew<Play>, Receiver<()>) {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let (ring, rung) = mpsc::channel();
        let tools = || MADE.fetch_add(1, Ordering::Relaxed);
        let crew = Crew::start(workers, &[], tools, move || {
            // The test may be over.
            let _ = ring.send(());
        });
        (crew.expect("threads"), rung)
    }

    fn count(number: u64) -> Play {
        let done_by = None;
        Play::Count { number, done_by }
    }

    /// The next task of a member, which sleeps until a worker rings.
    fn next(member: &Member<Play>, rung: &Receiver<()>) -> Play {
        loop {
            if let Some(task) = member.take_done() {
                return task;
            }
            rung.recv_timeout(PATIENCE).expect("a worker rings");
        }
    }

    fn waiting() -> (Play, Receiver<()>, Sender<()>) {
        let ((begun, has_begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
        (Play::Wait(begun, ends), has_begun, end)
    }

    #[test]
    fn everything_comes_back_once_to_whom_it_is_of() {
        // Miri takes its time.
        const EACH: u64 = if cfg!(miri) { 100 } else { 20_000 };
        let (crew, rung) = crew(3);
        let members = [crew.join(7), crew.join(8)];
        let (mut handed, mut here) = ([0; 2], [const { BTreeSet::new() }; 2]);
        while here.iter().any(|here| here.len() < EACH as usize) {
            for (at, member) in members.iter().enumerate() {
                while handed[at] < EACH && member.hand_over(count(handed[at]), None).is_ok() {
                    handed[at] += 1;
                }
            }
            // A full ring is no reason to spin: a worker rings for each task.
            rung.recv_timeout(PATIENCE).expect("a worker rings");
            let mut keys = Vec::new();
            crew.collect(&mut keys);
            for key in keys {
                let at = key as usize - 7;
                while let Some(task) = members[at].take_done() {
                    let Play::Count { number, done_by } = task else {
                        panic!("another task");
                    };
                    assert!(done_by.is_some() && here[at].insert(number));
                }
            }
        }
        assert_eq!(handed, [EACH; 2]);
        assert!(members.iter().all(|member| member.take_done().is_none()));
    }

    #[test]
    fn who_has_the_least_to_do_gets_the_next_task_unless_it_is_anothers() {
        let (crew, rung) = crew(2);
        let member = crew.join(1);
        let (task, begun, end) = waiting();
        assert_eq!(member.hand_over(task, None).ok(), Some(0));
        begun.recv_timeout(PATIENCE).expect("it begins");
        assert_eq!(member.hand_over(count(0), None).ok(), Some(1));
        assert!(matches!(next(&member, &rung), Play::Count { .. }));
        assert_eq!(member.hand_over(count(1), None).ok(), Some(1));
        assert_eq!(member.hand_over(count(2), Some(0)).ok(), Some(0));
        assert!(matches!(
            next(&member, &rung),
            Play::Count { number: 1, .. }
        ));
        end.send(()).expect("it waits");
        assert!(matches!(next(&member, &rung), Play::Wait(..)));
        assert!(matches!(
            next(&member, &rung),
            Play::Count { number: 2, .. }
        ));
        assert!(crew.busy_ns() > 0);
    }

    #[test]
    fn a_worker_with_too_much_to_do_takes_no_more() {
        let (crew, rung) = crew(1);
        let member = crew.join(1);
        let (task, begun, end) = waiting();
        assert!(member.hand_over(task, None).is_ok());
        begun.recv_timeout(PATIENCE).expect("it begins");
        for number in 1..TASKS_MAX as u64 {
            assert!(member.hand_over(count(number), None).is_ok());
        }
        let refused = member.hand_over(count(99), None);
        assert!(matches!(refused, Err(Play::Count { number: 99, .. })));
        end.send(()).expect("it waits");
        assert!(matches!(next(&member, &rung), Play::Wait(..)));
        assert!(member.hand_over(count(100), None).is_ok());
        for _ in 0..TASKS_MAX {
            next(&member, &rung);
        }
        assert!(member.take_done().is_none());
    }

    #[test]
    fn a_panic_gives_the_task_back_and_the_next_one_has_new_tools() {
        let (crew, rung) = crew(1);
        let member = crew.join(1);
        let mut tools = Vec::new();
        for task in [count(0), Play::Panic, count(1)] {
            assert!(member.hand_over(task, None).is_ok());
        }
        for _ in 0..3 {
            match next(&member, &rung) {
                Play::Count { done_by, .. } => tools.push(done_by.expect("done")),
                Play::Panic => {}
                Play::Wait(..) => panic!("another task"),
            }
        }
        assert_ne!(tools[0], tools[1]);
    }

    #[test]
    fn what_comes_back_to_nobody_is_dropped_and_workers_end_with_their_crew() {
        let (crew, rung) = crew(2);
        let (gone, here) = (crew.join(1), crew.join(2));
        let (task, begun, end) = waiting();
        assert!(gone.hand_over(task, None).is_ok());
        begun.recv_timeout(PATIENCE).expect("it begins");
        drop(gone);
        end.send(()).expect("it waits");
        assert!(here.hand_over(count(0), Some(0)).is_ok());
        assert!(matches!(next(&here, &rung), Play::Count { number: 0, .. }));
        let (task, begun, end) = waiting();
        assert!(here.hand_over(task, None).is_ok());
        begun.recv_timeout(PATIENCE).expect("it begins");
        let ending = thread::spawn(move || drop(crew));
        end.send(()).expect("it waits");
        ending.join().expect("every worker ends");
        assert!(here.hand_over(count(1), None).is_err(), "there is nobody");
    }
}
