//! Listeners at the other end (`-R`).

use std::sync::Arc;
use std::time::Duration;

use sphinx_transport::asynchronous::{RecvStream, SendStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{ClientError, Plan};
use crate::dial::{self, Names};
use crate::event::{Direction, Event, Events};
use crate::exchange::{self, Asked};
use crate::forward::{Carried, Forward, Listen};
use crate::limits::Throttle;
use crate::live::Live;
use crate::relay::{First, relay};
use crate::udp;
use crate::wire::{Refusal, Request, Status, Target};

/// How often a listener at the other end is asked for again that somebody, most often this client's last session, still has.
const IN_USE_TIME: Duration = Duration::from_secs(5);

/// Listeners at the other end, and where they lead.
#[derive(Clone)]
pub(super) struct Remote {
    forwards: Arc<Vec<Forward>>,
    events: Events,
    names: Names,
}

/// What keeps a listener at the other end.
pub(super) type Held = Vec<JoinSet<()>>;

impl Remote {
    pub(super) fn new(plan: &Plan, events: &Events) -> Self {
        Self {
            forwards: Arc::new(plan.remote.clone()),
            events: events.clone(),
            names: Names::default(),
        }
    }

    /// Asks for all of them. Those that do not come about are a failure the first time, and later tried again where that may help.
    pub(super) async fn listen(&self, live: &Live, is_first: bool) -> Result<Held, ClientError> {
        let mut held = Vec::new();
        for (listener, forward) in (0..).zip(self.forwards.iter()) {
            let spec = format!("-R {}", forward.text);
            let mut task = JoinSet::new();
            match self.ask(live, listener, forward).await {
                Ok(streams) => {
                    task.spawn(keep(streams));
                }
                Err(refusal) if is_first => return Err(ClientError::Refused { spec, refusal }),
                Err(refusal) => {
                    self.events
                        .tell(Event::Warning(format!("{spec}: {refusal}")));
                    let (remote, live, forward) = (self.clone(), live.clone(), forward.clone());
                    task.spawn(async move {
                        loop {
                            sleep(IN_USE_TIME).await;
                            if let Ok(streams) = remote.ask(&live, listener, &forward).await {
                                return keep(streams).await;
                            }
                        }
                    });
                }
            }
            held.push(task);
        }
        Ok(held)
    }

    async fn ask(&self, live: &Live, listener: u32, forward: &Forward) -> Result<Streams, Refusal> {
        let at = match &forward.listen {
            Listen::Address(address) => Target::Ip(*address),
            Listen::Path(_) => {
                return Err(Refusal::new(
                    Status::Unsupported,
                    "listeners there have addresses",
                ));
            }
        };
        let request = match forward.carried {
            Carried::Stream => Request::Listen { listener, at },
            Carried::Datagrams(giving) => Request::ListenUdp {
                listener,
                giving,
                at,
            },
        };
        let (send, mut recv) = exchange::ask(&live.session, &request).await?;
        let bound = exchange::reply(&mut recv).await?;
        self.events.tell(Event::Forward {
            spec: format!("-R {}", forward.text),
            bound: bound.map_or_else(|| forward.listen.to_string(), |at| at.to_string()),
        });
        Ok((send, recv))
    }

    /// Connects to what a listener leads to.
    pub(super) async fn serve(self, live: Live, asked: Asked) {
        let Asked {
            request,
            mut send,
            mut recv,
        } = asked;
        let forward = |listener: u32| self.forwards.get(listener as usize);
        let refusal = match request {
            Request::Accepted { listener } => match forward(listener) {
                Some(forward) => {
                    let mut flow =
                        self.events
                            .flow("tcp", forward.target.to_string(), Direction::In);
                    match dial::connect((&self.events, &self.names), &forward.target, None).await {
                        Ok((local, _)) => {
                            if exchange::accept(&mut send, None).await.is_ok() {
                                let both = (send, recv);
                                flow.ended(relay(local, both, First::Data, &flow.counts).await);
                            }
                            return;
                        }
                        Err(refusal) => {
                            flow.ended(Err(&refusal));
                            refusal
                        }
                    }
                }
                None => unknown(),
            },
            Request::AcceptedUdp { listener, flow } => match forward(listener) {
                Some(Forward {
                    target,
                    carried: Carried::Datagrams(giving),
                    ..
                }) => {
                    let entered = live.datagrams.enter(flow, *giving);
                    let connected =
                        dial::connect_udp((&self.events, &self.names), target, None).await;
                    match (entered, connected) {
                        (Ok(flow), Ok(socket)) => {
                            let mut told =
                                self.events.flow("udp", target.to_string(), Direction::In);
                            if exchange::accept(&mut send, None).await.is_ok() {
                                let all = Throttle::default();
                                udp::carry(flow, &socket, &mut recv, &mut told, &all).await;
                            }
                            return;
                        }
                        (_, Err(refusal)) => refusal,
                        (Err(_), _) => unknown(),
                    }
                }
                _ => unknown(),
            },
            _ => Refusal::new(
                Status::Denied,
                "this end does not connect to anything but what -R says",
            ),
        };
        exchange::refuse(&mut send, &refusal).await;
    }
}

fn unknown() -> Refusal {
    Refusal::new(Status::Unsupported, "no such listener")
}

type Streams = (SendStream, RecvStream);

/// Keeps a listener at the other end for as long as it is polled, or until that has failed there.
async fn keep((_send, mut recv): Streams) {
    udp::closed(&mut recv).await;
}
