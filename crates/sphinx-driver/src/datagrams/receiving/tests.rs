use super::super::numbers::RANGES_MAX;
use super::*;
use crate::pool::BufferPool;

const MS: Nanos = 1_000_000;
const ROOM: usize = 100_000;

fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * MS)
}

/// A queue with little room, and where its memory comes from.
struct Receiving {
    queue: RecvQueue<()>,
    pool: BufferPool,
}

impl Receiving {
    fn new() -> Self {
        Self {
            queue: RecvQueue::new(ROOM),
            pool: BufferPool::new(0),
        }
    }

    /// With room for all messages of short flows.
    fn of_flows() -> Self {
        let mut receiving = Self::new();
        receiving.queue.limit(10 * ROOM);
        receiving
    }

    /// One of flow 0 arrives as soon as it is sent.
    fn arrives(&mut self, now: Time, kind: FlowKind, number: u64, life_ms: u64, len: usize) {
        let stamp = Stamp {
            number,
            time: (now.as_nanos() / 1000) as u32,
            life: life_ms * 1000,
        };
        let delivery = match kind {
            FlowKind::Ordered => Delivery::Ordered(stamp),
            FlowKind::Live => Delivery::Live(stamp),
        };
        self.arrives_of(now, 0, delivery, len);
    }

    fn arrives_of(&mut self, now: Time, flow: u64, delivery: Delivery, len: usize) {
        let datagram = Datagram {
            flow,
            delivery,
            len,
        };
        let place = (self.pool.take(len), 0..len);
        self.queue.add(now, 0, &datagram, place);
    }

    /// The only live message of a flow arrives.
    fn one_arrives(&mut self, now: Time, flow: u64) {
        let stamp = Stamp {
            number: 0,
            time: (now.as_nanos() / 1000) as u32,
            life: 100_000,
        };
        self.arrives_of(now, flow, Delivery::Live(stamp), 10);
    }

    /// Flows of live messages that the application is given, each with what has arrived and whether that is all.
    fn accepts(&mut self) -> Vec<(u64, usize, LiveEnd)> {
        let mut flows = Vec::new();
        while let Some((flow, ())) = self.queue.accept() {
            let messages = std::iter::from_fn(|| self.queue.next_live(flow)).count();
            flows.push((flow, messages, self.queue.live_end(flow)));
        }
        flows
    }

    fn live(&mut self) -> Vec<u64> {
        let next = || self.queue.next_live(0);
        let given = std::iter::from_fn(next);
        given.filter_map(|arrived| arrived.number).collect()
    }

    fn ordered(&mut self) -> Vec<u64> {
        let given = std::iter::from_fn(|| self.queue.next());
        given.filter_map(|arrived| arrived.number).collect()
    }

    fn missing(&mut self) -> Vec<u64> {
        let missing = self.queue.take_missing(0);
        missing.into_iter().flatten().collect()
    }

    fn ends(&mut self, now: Time, flow: u64, total: u64) {
        self.queue.on_news(now, FlowNews::Ended { flow, total });
    }

    fn expires(&mut self, now: Time, kind: FlowKind, numbers: Range<u64>) {
        let expired = FlowNews::Expired {
            kind,
            flow: 0,
            first: numbers.start,
            count: numbers.end - numbers.start,
        };
        self.queue.on_news(now, expired);
    }
}

#[test]
fn messages_that_make_room_are_reported() {
    for on_time in [false, true] {
        let mut receiving = Receiving::new();
        receiving.arrives(ms(1), FlowKind::Live, 0, 100, 10);
        receiving.queue.set_on_time(0, on_time);
        for number in 1..100 {
            receiving.arrives(ms(1), FlowKind::Live, number, 100, 10_000);
        }
        assert!(receiving.queue.bytes() <= ROOM);
        receiving.queue.handle_timeout(ms(101));
        let (live, missing) = (receiving.live(), receiving.missing());
        assert!(live.len() > 5 && receiving.queue.bytes() == 0);
        assert_eq!(receiving.queue.counts().overrun, missing.len() as u64);
        let all: Vec<u64> = missing.into_iter().chain(live).collect();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_missing_when_a_flow_is_over_is_reported() {
    let mut receiving = Receiving::new();
    for number in [1, 4] {
        receiving.arrives(ms(1), FlowKind::Live, number, 100, 10);
    }
    receiving.ends(ms(2), 0, 7);
    receiving.expires(ms(3), FlowKind::Live, 3..5);
    assert_eq!(receiving.missing(), [3]);
    assert_eq!(receiving.live(), [1, 4]);
    assert_eq!(receiving.queue.live_end(0), LiveEnd::Open);
    // A second after the last that is known to have been of use.
    let over = receiving.queue.next_due().expect("it is waited for");
    assert_eq!(over, ms(1101));
    receiving.queue.handle_timeout(over);
    assert_eq!(receiving.missing(), [0, 2, 5, 6]);
    assert_eq!(receiving.queue.counts().missed, 5);
    assert_eq!(receiving.queue.live_end(0), LiveEnd::Ended);
    assert_eq!(receiving.queue.next_due(), None);
    // What comes now has been reported.
    receiving.arrives(ms(1102), FlowKind::Live, 5, 2000, 10);
    assert!(receiving.live().is_empty() && receiving.missing().is_empty());
}

#[test]
fn more_gaps_than_are_kept_are_reported() {
    let mut receiving = Receiving::new();
    let last = 2 * RANGES_MAX as u64 + 1;
    for number in 0..=last {
        if number % 2 == 1 {
            receiving.arrives(ms(1), FlowKind::Live, number, 100, 0);
            assert_eq!(receiving.live(), [number]);
        }
    }
    assert_eq!(receiving.missing(), [0]);
    receiving.ends(ms(1), 0, last + 1);
    receiving.queue.handle_timeout(ms(1101));
    let even = (2..=last).filter(|number| number % 2 == 0);
    assert_eq!(receiving.missing(), even.collect::<Vec<_>>());
}

/// A peer that leaves gaps in every flow that it may have does not fill memory with what is known of them.
#[test]
fn gaps_of_many_flows_take_little_memory() {
    let mut receiving = Receiving::new();
    for flow in 0..LIVE_MAX as u64 {
        for number in 1..RANGES_MAX as u64 + 10 {
            for kind in [FlowKind::Ordered, FlowKind::Live] {
                let expired = FlowNews::Expired {
                    kind,
                    flow,
                    first: 2 * number,
                    count: 1,
                };
                receiving.queue.on_news(ms(flow), expired);
            }
        }
    }
    let RecvQueue { ordered, live, .. } = &receiving.queue;
    assert_eq!((ordered.len(), live.len()), (FLOWS_MAX, LIVE_MAX));
    let ordered = ordered.values().map(|flow| flow.missing.ranges());
    let live = live.values();
    let live = live.map(|flow| flow.settled.ranges() + flow.missing.len());
    let ranges: usize = ordered.chain(live).sum();
    assert!(ranges < 100 * RANGES_MAX, "{ranges} ranges");
}

#[test]
fn each_message_comes_at_its_own_time() {
    let mut receiving = Receiving::new();
    receiving.arrives(ms(1), FlowKind::Live, 0, 50, 10);
    receiving.queue.set_on_time(0, true);
    assert_eq!(receiving.live(), [0], "as they came until now");
    for (number, life_ms) in [(1, 500), (2, 20), (3, 20)] {
        receiving.arrives(ms(number), FlowKind::Live, number, life_ms, 10);
    }
    for (at, number) in [(22, 2), (23, 3), (501, 1)] {
        assert_eq!(receiving.queue.next_due(), Some(ms(at)));
        receiving.queue.handle_timeout(ms(at));
        assert_eq!(receiving.live(), [number]);
    }
    assert_eq!(receiving.queue.next_due(), None);
}

#[test]
fn a_datagram_in_order_waits_for_its_own_time_at_most() {
    let mut receiving = Receiving::new();
    for (number, life_ms) in [(1, 500), (3, 20), (5, 600)] {
        receiving.arrives(ms(1), FlowKind::Ordered, number, life_ms, 10);
    }
    assert!(receiving.ordered().is_empty());
    assert_eq!(receiving.queue.next_due(), Some(ms(21)));
    receiving.queue.handle_timeout(ms(21));
    assert_eq!(receiving.ordered(), [1, 3]);
    receiving.arrives(ms(22), FlowKind::Ordered, 2, 500, 10);
    assert_eq!(receiving.queue.counts().late, 1, "after a later one");
    receiving.expires(ms(23), FlowKind::Ordered, 4..5);
    assert_eq!(receiving.ordered(), [5]);
}

#[test]
fn nothing_waits_for_a_datagram_that_made_room() {
    let mut receiving = Receiving::new();
    receiving.expires(ms(1), FlowKind::Ordered, 0..1);
    // 1, 3 and 5 are missing. The last one takes so much room that 2, which is given out for that, and 4 go.
    for (number, len) in [(2, 40_000), (4, 40_000), (6, 60_000)] {
        receiving.arrives(ms(1), FlowKind::Ordered, number, 500, len);
    }
    assert!(receiving.queue.bytes() <= ROOM);
    assert_eq!(receiving.queue.counts().overrun, 2);
    assert!(receiving.ordered().is_empty());
    receiving.arrives(ms(2), FlowKind::Ordered, 3, 500, 0);
    assert_eq!(receiving.ordered(), [3]);
    receiving.arrives(ms(2), FlowKind::Ordered, 5, 500, 0);
    assert_eq!(receiving.ordered(), [5, 6]);
}

/// What waits for one that does not come is not lost for it, as long as the application takes what it is given.
#[test]
fn where_there_is_little_room_those_in_order_do_not_wait() {
    let mut receiving = Receiving::new();
    let mut given = Vec::new();
    for number in (0..1000).filter(|number| number % 300 != 1) {
        receiving.arrives(ms(0), FlowKind::Ordered, number, 1000, 1000);
        assert!(receiving.queue.bytes() <= ROOM);
        given.extend(receiving.ordered());
    }
    receiving.queue.handle_timeout(ms(1000));
    given.extend(receiving.ordered());
    let arrived: Vec<u64> = (0..1000).filter(|number| number % 300 != 1).collect();
    assert_eq!(given, arrived);
    assert_eq!(receiving.queue.counts().overrun, 0);
}

/// What waits in a flow that makes room for another is given out, and whoever waits for it is told.
#[test]
fn what_waits_in_a_flow_that_is_forgotten_is_told_of() {
    let mut receiving = Receiving::of_flows();
    let second = |now: u64| {
        Delivery::Ordered(Stamp {
            number: 1,
            time: 1000 * now as u32,
            life: 10_000_000,
        })
    };
    for flow in 0..FLOWS_MAX as u64 {
        receiving.arrives_of(ms(flow), flow, second(flow), 10);
    }
    assert!(receiving.queue.next_len().is_none() && receiving.queue.changed.is_empty());
    let now = FLOWS_MAX as u64;
    receiving.arrives_of(ms(now), now, second(now), 10);
    assert!(!receiving.queue.changed.is_empty());
    assert_eq!(receiving.queue.next().map(|given| given.flow()), Some(0));
    assert!(receiving.queue.next().is_none());
}

/// A sender may open as many as it likes one after the other, whether or not anybody takes them.
#[test]
fn flows_that_have_ended_make_room_for_others() {
    let mut receiving = Receiving::of_flows();
    let (all, kept) = (3 * LIVE_MAX as u64, LIVE_MAX as u64);
    for flow in 0..all {
        receiving.one_arrives(ms(flow), flow);
        receiving.ends(ms(flow), flow, 1);
        assert!(receiving.queue.live.len() <= LIVE_MAX);
    }
    assert_eq!(receiving.queue.counts().overrun, all - kept);
    let expected = (all - kept..all).map(|flow| (flow, 1, LiveEnd::Ended));
    assert_eq!(receiving.accepts(), expected.collect::<Vec<_>>());
    assert_eq!(receiving.queue.bytes(), 0);
    // What comes late begins none.
    receiving.one_arrives(ms(all), all - kept - 1);
    receiving.ends(ms(all), all - kept - 1, 1);
    assert!(receiving.accepts().is_empty());
}

#[test]
fn a_flow_whose_end_comes_last_is_kept() {
    let mut receiving = Receiving::of_flows();
    receiving.one_arrives(ms(1), 0);
    let last = 2 * LIVE_MAX as u64;
    for flow in 1..=last {
        receiving.one_arrives(ms(flow), flow);
        receiving.ends(ms(flow), flow, 1);
    }
    receiving.ends(ms(last), 0, 1);
    assert_eq!(receiving.accepts()[0], (0, 1, LiveEnd::Ended));
}

/// Their sender, who has heard that nobody wants them, does not say that they have ended.
#[test]
fn flows_that_nobody_wants_make_room_for_others() {
    let mut receiving = Receiving::of_flows();
    receiving.one_arrives(ms(1), 0);
    assert_eq!(receiving.accepts(), [(0, 1, LiveEnd::Open)]);
    for flow in 1..=2 * LIVE_MAX as u64 {
        receiving.one_arrives(ms(flow), flow);
        assert_eq!(receiving.accepts(), [(flow, 1, LiveEnd::Open)]);
        receiving.queue.let_go(flow);
        assert!(receiving.queue.live.len() <= LIVE_MAX);
    }
    assert_eq!(receiving.queue.live_end(0), LiveEnd::Open);
    assert_eq!(receiving.queue.counts().overrun, 0);
}

/// Ends may be on their way, and those of flows that have been silent for longest are the likeliest.
#[test]
fn of_flows_that_are_open_the_most_silent_makes_room() {
    let mut receiving = Receiving::of_flows();
    let last = LIVE_MAX as u64;
    for flow in 0..last {
        receiving.one_arrives(ms(flow), flow);
    }
    receiving.expires(ms(last), FlowKind::Live, 5..6);
    receiving.one_arrives(ms(last), last);
    assert_eq!(receiving.queue.live.len(), LIVE_MAX);
    let open: Vec<u64> = receiving.accepts().iter().map(|flow| flow.0).collect();
    assert!(!open.contains(&1));
    assert_eq!((open[0], open[open.len() - 1]), (0, last));
    assert_eq!(receiving.queue.live_end(1), LiveEnd::Ended);
    assert_eq!(receiving.queue.counts().overrun, 1);
}
