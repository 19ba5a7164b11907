//! Datagrams of many flows on one session: sent with their flow's number, handed out by it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sphinx_transport::DatagramOptions;
use sphinx_transport::asynchronous::Session;
use tokio::sync::mpsc;
use tokio::task::yield_now;

use crate::forward::Giving;
use crate::limits::{Count, Counted};

/// Longest payload of a UDP datagram, in bytes.
pub(crate) const DATAGRAM_MAX: usize = 65_507;
/// Datagrams taken from a socket or a session before others have their turn.
pub(crate) const TURN: usize = 64;
/// Datagrams of a flow that wait to be written to its socket.
const WAITING_MAX: usize = 256;
/// Most bytes that wait in all flows of a session: a flow takes none while a name is looked up for it.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// How long a datagram that is not repaired may wait for its turn.
const UNREPAIRED_TIME: Duration = Duration::from_millis(100);
/// How long datagrams that came before their flow was known wait for it.
const EARLY_TIME: Duration = Duration::from_secs(1);
/// Most bytes of datagrams whose flow is not known yet.
const EARLY_BYTES_MAX: usize = 256 << 10;
/// Bytes that a datagram which waits counts for besides its own: the cost of small ones.
pub(crate) const OVERHEAD: usize = 64;
/// How long a measurement of the path is used.
const PATH_TIME: Duration = Duration::from_millis(50);
/// Bytes that leave for each byte of a datagram (headers, repair beside it), and how long the pacer may take for them at most.
const PACED_SHARE: f64 = 1.5;
const PACED_MAX: Duration = Duration::from_secs(2);

/// The datagrams of a session.
#[derive(Clone)]
pub(crate) struct Datagrams(Arc<Inner>);

struct Inner {
    session: Session,
    state: Mutex<State>,
    /// Bytes that wait for their flows to take them.
    waiting: Count,
}

/// A datagram that waits for its flow to take it.
type Waiting = (Vec<u8>, Counted);

#[derive(Default)]
struct State {
    flows: HashMap<u64, mpsc::Sender<Waiting>>,
    /// Datagrams whose flow is not known yet: when they came, the number of the flow, and the payload.
    early: VecDeque<(Instant, u64, Vec<u8>)>,
    early_bytes: usize,
    /// When the path was looked at, its one-way delay and its rate in bytes per second.
    path: Option<(Instant, Duration, u64)>,
    next_flow: u64,
    /// The first of the flows that carry IP packets, and who gets these.
    packets: Option<(u64, Packets)>,
}

/// Gets IP packets that have arrived.
pub(crate) type Packets = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// Flows that carry IP packets: as many as a session gives out in order.
pub(crate) const PACKET_FLOWS: u64 = 256;

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams").finish_non_exhaustive()
    }
}

/// The other end may not use this number for a flow, or does already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken;

/// The flows of IP packets that the other end has opened: dropping this ends them. A request that was refused gets none, so that it cannot end
/// those of an earlier one.
#[derive(Debug)]
pub(crate) struct Entered(Datagrams);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.end_packets();
    }
}

/// The datagrams of one flow.
#[derive(Debug)]
pub(crate) struct DatagramFlow {
    sender: DatagramSender,
    arrived: mpsc::Receiver<Waiting>,
}

/// Sends datagrams of one flow.
#[derive(Debug, Clone)]
pub(crate) struct DatagramSender(Arc<Sending>);

/// What all senders of a flow have in common.
#[derive(Debug)]
struct Sending {
    datagrams: Datagrams,
    flow: u64,
    giving: Giving,
}

impl Datagrams {
    /// `connects`: this end's flows have even numbers, the other end's odd ones, or the other way round.
    pub(crate) fn new(session: &Session, connects: bool) -> Self {
        let state = State {
            next_flow: u64::from(!connects),
            ..State::default()
        };
        Self(Arc::new(Inner {
            session: session.clone(),
            state: Mutex::new(state),
            waiting: Count::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands datagrams out until the session ends.
    pub(crate) async fn run(&self) {
        // There may be many idle clients: the buffer for the longest datagram is made when one comes.
        let mut data = Vec::new();
        for taken in 1_usize.. {
            let Ok(info) = self.0.session.take_datagram(&mut data).await else {
                return;
            };
            self.hand_out(info.flow, &mut data);
            // A session in which there is always a datagram would never wait, and others never have their turn.
            if taken.is_multiple_of(TURN) {
                yield_now().await;
            }
        }
    }

    fn hand_out(&self, flow: u64, data: &mut Vec<u8>) {
        let mut state = self.lock();
        if let Some((first, packets)) = &state.packets
            && is_packet(*first, flow)
        {
            let packets = Arc::clone(packets);
            drop(state);
            return packets(data);
        }
        match state.flows.get(&flow) {
            // A socket that does not take datagrams is like a full queue on the way: the new ones are dropped.
            Some(flow) => self.0.give(flow, std::mem::take(data)),
            None => state.keep_early(flow, std::mem::take(data)),
        }
    }

    /// Begins a flow with a number of its own.
    pub(crate) fn open(&self, giving: Giving) -> DatagramFlow {
        let mut state = self.lock();
        let flow = state.next_flow;
        state.next_flow += 2;
        self.begin(state, flow, giving)
    }

    /// Begins a flow that the other end has opened.
    ///
    /// # Errors
    /// The other end may not use the number, or does already.
    pub(crate) fn enter(&self, flow: u64, giving: Giving) -> Result<DatagramFlow, Taken> {
        let state = self.lock();
        let is_own = flow % 2 == state.next_flow % 2;
        let is_packet = matches!(&state.packets, Some((first, _)) if is_packet(*first, flow));
        match is_own || is_packet || state.flows.contains_key(&flow) {
            true => Err(Taken),
            false => Ok(self.begin(state, flow, giving)),
        }
    }

    /// Begins the flows of IP packets with numbers of their own: the first one.
    pub(crate) fn open_packets(&self, packets: Packets) -> u64 {
        let mut state = self.lock();
        let first = state.next_flow;
        state.next_flow += 2 * PACKET_FLOWS;
        state.packets = Some((first, packets));
        first
    }

    /// Begins the flows of IP packets that the other end has opened: until what is returned is dropped.
    ///
    /// # Errors
    /// The other end may not use the numbers, or has such flows already.
    pub(crate) fn enter_packets(&self, first: u64, packets: Packets) -> Result<Entered, Taken> {
        let mut state = self.lock();
        let is_own = first % 2 == state.next_flow % 2;
        let is_too_high = first > FLOW_MAX - 2 * PACKET_FLOWS;
        let is_used = state.flows.keys().any(|flow| is_packet(first, *flow));
        if is_own || is_too_high || is_used || state.packets.is_some() {
            return Err(Taken);
        }
        state.packets = Some((first, packets));
        Ok(Entered(self.clone()))
    }

    /// Ends the flows of IP packets.
    pub(crate) fn end_packets(&self) {
        self.lock().packets = None;
    }

    fn begin(&self, mut state: MutexGuard<'_, State>, flow: u64, giving: Giving) -> DatagramFlow {
        let (sender, arrived) = mpsc::channel(WAITING_MAX);
        for data in state.take_early(flow) {
            self.0.give(&sender, data);
        }
        state.flows.insert(flow, sender);
        let sending = Sending {
            datagrams: self.clone(),
            flow,
            giving,
        };
        DatagramFlow {
            sender: DatagramSender(Arc::new(sending)),
            arrived,
        }
    }

    /// The one-way delay, half of the round trip, and the rate in bytes per second.
    fn path(&self) -> (Duration, u64) {
        let now = Instant::now();
        let mut state = self.lock();
        match state.path {
            Some((at, one_way, rate)) if now.duration_since(at) < PATH_TIME => (one_way, rate),
            _ => {
                let stats = self.0.session.as_blocking().stats();
                let (one_way, rate) = (stats.rtt / 2, stats.pacing_rate);
                state.path = Some((now, one_way, rate));
                (one_way, rate)
            }
        }
    }
}

impl Inner {
    /// Gives a datagram to its flow, if there is room for it.
    fn give(&self, flow: &mpsc::Sender<Waiting>, data: Vec<u8>) {
        if let Some(counted) = self.waiting.add(data.len() + OVERHEAD, WAITING_BYTES_MAX) {
            let _ = flow.try_send((data, counted));
        }
    }
}

/// How long so many bytes take to the other end: the one-way delay, and what the pacer takes for them. Without the latter a large datagram would never be
/// begun on a session that has sent little yet and does not know its rate.
fn delay(bytes: usize, (one_way, rate): (Duration, u64)) -> Duration {
    // The bytes of headers and of repair count too.
    let paced = PACED_SHARE * bytes as f64 / rate.max(1) as f64;
    one_way + Duration::from_secs_f64(paced).min(PACED_MAX)
}

impl State {
    fn keep_early(&mut self, flow: u64, data: Vec<u8>) {
        let now = Instant::now();
        while let Some((at, _, data)) = self.early.front() {
            let is_old = now.duration_since(*at) > EARLY_TIME;
            if !is_old && self.early_bytes < EARLY_BYTES_MAX {
                break;
            }
            self.early_bytes -= data.len() + OVERHEAD;
            self.early.pop_front();
        }
        self.early_bytes += data.len() + OVERHEAD;
        self.early.push_back((now, flow, data));
    }

    fn take_early(&mut self, flow: u64) -> Vec<Vec<u8>> {
        let (of_it, others) = std::mem::take(&mut self.early)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(_, of, _)| *of == flow);
        self.early = others;
        let bytes = of_it.iter().map(|(_, _, data)| data.len() + OVERHEAD);
        self.early_bytes -= bytes.sum::<usize>();
        of_it.into_iter().map(|(_, _, data)| data).collect()
    }
}

/// Numbers of flows are below this.
const FLOW_MAX: u64 = 1 << 62;

fn is_packet(first: u64, flow: u64) -> bool {
    (first..first.saturating_add(2 * PACKET_FLOWS)).contains(&flow) && flow % 2 == first % 2
}

impl DatagramFlow {
    /// The number that the other end has to know.
    pub(crate) fn number(&self) -> u64 {
        self.sender.0.flow
    }

    /// The next datagram of the other end.
    pub(crate) async fn recv(&mut self) -> Option<Vec<u8>> {
        self.arrived.recv().await.map(|(data, _counted)| data)
    }

    pub(crate) fn sender(&self) -> DatagramSender {
        self.sender.clone()
    }
}

impl Drop for DatagramFlow {
    fn drop(&mut self) {
        let Sending {
            datagrams, flow, ..
        } = &*self.sender.0;
        datagrams.lock().flows.remove(flow);
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // The session no longer keeps the order of this flow, so that others may have one.
        if self.giving.in_order {
            let session = self.datagrams.0.session.as_blocking();
            session.end_ordered(self.flow);
        }
    }
}

impl DatagramSender {
    /// Sends one, which may be lost like any datagram.
    pub(crate) fn send(&self, data: &[u8]) {
        let Sending {
            datagrams,
            flow,
            giving,
        } = &*self.0;
        let Giving { deadline, in_order } = *giving;
        let options = DatagramOptions::default().flow(*flow);
        let delay = delay(data.len(), datagrams.path());
        let options = match deadline.is_zero() {
            true => options.expiry(delay + UNREPAIRED_TIME),
            // What waits for others should not wait for the answer to a loss.
            false if in_order => options.repaired_together_within(delay + deadline),
            false => options.repaired_within(delay + deadline),
        };
        send(&datagrams.0.session, data, &options, in_order);
    }
}

/// Sends a datagram, which may be lost like any.
pub(crate) fn send(session: &Session, data: &[u8], options: &DatagramOptions, in_order: bool) {
    // A session that has ended is noticed elsewhere, and what is too long is lost.
    let _ = match in_order {
        // Where as many flows have an order as a session keeps, others go without.
        true => session
            .send_datagram(data, &options.ordered())
            .or_else(|_| session.send_datagram(data, options)),
        false => session.send_datagram(data, options),
    };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::loopback::Loopback;

    #[tokio::test]
    async fn a_session_that_always_has_datagrams_gives_others_their_turn() {
        const ALL: usize = 1000;
        let loopback = Loopback::new();
        let (near, far) = loopback.session().await;
        let options = DatagramOptions::default()
            .ordered()
            .repaired_within(Duration::from_secs(60));
        for _ in 0..ALL {
            near.send_datagram(b"x", &options).expect("a session");
        }
        // All of them are there before the first is taken.
        let received = || far.as_blocking().stats().datagrams.received;
        while received() < ALL as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let datagrams = Datagrams::new(&far, false);
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let count = move |_: &mut [u8]| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let _entered = datagrams
            .enter_packets(0, Arc::new(count))
            .expect("they are free");
        let others = async {
            let mut before = 0;
            while before < ALL {
                let now = taken.load(Ordering::Relaxed);
                assert!(now - before <= TURN, "{} at once", now - before);
                before = now;
                yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = datagrams.run() => panic!("the session has ended"),
            () = others => {}
        }
    }

    /// A session has these flows once: asking for them again takes nothing from whoever has them.
    #[tokio::test]
    async fn who_is_refused_ends_nobodys_packets() {
        let loopback = Loopback::new();
        let (_near, far) = loopback.session().await;
        let datagrams = Datagrams::new(&far, false);
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let count: Packets = Arc::new(move |_: &mut [u8]| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let enter = |first| datagrams.enter_packets(first, Arc::clone(&count));
        let give = || {
            datagrams.hand_out(0, &mut vec![1]);
            taken.load(Ordering::Relaxed)
        };
        let first = enter(0).expect("they are free");
        assert!(enter(2 * PACKET_FLOWS).is_err());
        assert_eq!(give(), 1);
        drop(first);
        assert_eq!(give(), 1, "nobody wants it any more");
        let _again = enter(0).expect("they are free again");
        assert_eq!(give(), 2);
    }

    #[tokio::test]
    async fn little_waits_for_all_flows_of_a_session_together() {
        const BYTES: usize = 60_000;
        let loopback = Loopback::new();
        let (_near, far) = loopback.session().await;
        let datagrams = Datagrams::new(&far, false);
        let enter = |number: u64| datagrams.enter(2 * number, Giving::default());
        let mut flows: Vec<_> = (0..4).map(|it| enter(it).expect("it is free")).collect();
        let give_all = |flows: &[DatagramFlow]| {
            for _ in 0..WAITING_MAX {
                for flow in flows {
                    datagrams.hand_out(flow.number(), &mut vec![0; BYTES]);
                }
            }
            flows.iter().map(|it| it.arrived.len()).sum::<usize>()
        };
        let most = WAITING_BYTES_MAX / (BYTES + OVERHEAD);
        assert_eq!(give_all(&flows), most);
        // What is taken, and what goes with its flow, leaves its room.
        flows[0].recv().await.expect("it waits");
        flows.pop();
        assert_eq!(give_all(&flows), most);
    }

    #[tokio::test]
    async fn flows_that_are_over_leave_their_order_to_others() {
        let loopback = Loopback::new();
        let (near, far) = loopback.session().await;
        let datagrams = Datagrams::new(&near, true);
        let giving = Giving {
            deadline: Duration::from_secs(60),
            in_order: true,
        };
        let mut data = Vec::new();
        for _ in 0..300 {
            let flow = datagrams.open(giving);
            let sender = flow.sender();
            sender.send(b"first");
            // The listener may know its source for longer than the flow lasts.
            drop(flow);
            sender.send(b"second");
            for number in 0..2 {
                let info = far.take_datagram(&mut data).await.expect("it arrives");
                assert_eq!(info.number, Some(number), "of {}", info.flow);
            }
        }
    }
}
