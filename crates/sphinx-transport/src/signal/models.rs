//! Models of threads and tasks that wait for one signal: loom runs them in every order (`make loom`).

use std::task::{Context, Poll, Wake};

use loom::thread::{self, JoinHandle};

use super::*;
use crate::shared::models::in_every_order;

/// Wakes a task that has a thread of its own.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// Polls until it is ready, each time after the waker has been used.
pub(crate) fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let bell = Arc::<Bell>::default();
    let waker = Waker::from(Arc::clone(&bell));
    loop {
        if let Poll::Ready(value) = poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let mut rung = bell.rung.lock().unwrap();
        while !std::mem::take(&mut *rung) {
            rung = bell.changed.wait(rung).unwrap();
        }
    }
}

/// A number that grows, and what tells that it has.
#[derive(Clone, Default)]
struct Counter {
    count: Arc<Mutex<usize>>,
    grown: Signal,
}

impl Counter {
    fn add(&self) {
        *self.count.lock().unwrap() += 1;
        self.grown.notify();
    }

    fn poll(&self, waiter: &mut Waiter, cx: &Context<'_>, least: usize) -> Poll<()> {
        let count = self.count.lock().unwrap();
        if *count >= least {
            return Poll::Ready(());
        }
        let unused = waiter.register(cx.waker());
        drop(count);
        drop(unused);
        Poll::Pending
    }

    fn task(&self, least: usize) -> JoinHandle<()> {
        let counter = self.clone();
        thread::spawn(move || {
            let mut waiter = Waiter::new(&counter.grown);
            block_on(|cx| counter.poll(&mut waiter, cx, least));
        })
    }

    fn thread(&self, least: usize) -> JoinHandle<()> {
        let counter = self.clone();
        thread::spawn(move || {
            let mut count = counter.count.lock().unwrap();
            while *count < least {
                count = counter.grown.wait(count);
            }
        })
    }
}

#[test]
fn a_thread_and_a_task_hear_of_a_change() {
    in_every_order(|| {
        let counter = Counter::default();
        let waiting = [counter.task(1), counter.thread(1)];
        counter.add();
        for waiting in waiting {
            waiting.join().unwrap();
        }
    });
}

#[test]
fn a_task_hears_of_each_change() {
    in_every_order(|| {
        let counter = Counter::default();
        let waiting = counter.task(2);
        let adding = thread::spawn({
            let counter = counter.clone();
            move || counter.add()
        });
        counter.add();
        adding.join().unwrap();
        waiting.join().unwrap();
    });
}

/// Of two tasks at one place, as when a future is dropped and its stream polled by another one, the later is woken.
#[test]
fn a_task_takes_the_place_of_another() {
    in_every_order(|| {
        let counter = Counter::default();
        let waiting = thread::spawn({
            let counter = counter.clone();
            move || {
                let mut waiter = Waiter::new(&counter.grown);
                let mut cx = Context::from_waker(Waker::noop());
                let _ = counter.poll(&mut waiter, &mut cx, 1);
                block_on(|cx| counter.poll(&mut waiter, cx, 1));
            }
        });
        counter.add();
        waiting.join().unwrap();
    });
}

/// A task that gives up takes nobody else's place with it.
#[test]
fn a_task_gives_up_beside_one_that_does_not() {
    in_every_order(|| {
        let counter = Counter::default();
        let waiting = counter.task(1);
        let giving_up = thread::spawn({
            let counter = counter.clone();
            move || {
                let mut waiter = Waiter::new(&counter.grown);
                let mut cx = Context::from_waker(Waker::noop());
                let _ = counter.poll(&mut waiter, &mut cx, 1);
            }
        });
        counter.add();
        giving_up.join().unwrap();
        waiting.join().unwrap();
    });
}
