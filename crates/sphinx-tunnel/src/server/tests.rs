use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sphinx_transport::asynchronous::RecvStream;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::dial::tests::Silence;
use crate::loopback::Loopback;

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// A server, and clients of it that do what a test wants.
struct Stage {
    loopback: Loopback,
    server: Arc<Server>,
}

impl Stage {
    fn new(names: &Names) -> Self {
        let server = Server {
            names: names.clone(),
            ..Server::new(Events::new(drop))
        };
        Self {
            loopback: Loopback::new(),
            server: Arc::new(server),
        }
    }

    /// Another client, who may do what `ssh` would let it.
    async fn client(&self, limits: Limits) -> Live {
        let (near, far) = self.loopback.session().await;
        let permit = "tunnel".parse().expect("a rule");
        let granted = Granted::new(Grant::new("client", permit, limits));
        tokio::spawn(Arc::clone(&self.server).serve(far, granted));
        Live::new(near, true)
    }
}

/// The streams of something that was asked for, and the address that is told.
type Served = ((SendStream, RecvStream), Option<SocketAddr>);

async fn ask(live: &Live, request: &Request) -> Result<Served, Refusal> {
    let (send, mut recv) = exchange::ask(&live.session, request).await?;
    let address = exchange::reply(&mut recv).await?;
    Ok(((send, recv), address))
}

/// Asks for a flow to nobody.
async fn ask_for_flow(live: &Live) -> Result<Served, Refusal> {
    let nobody = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let giving = Giving::default();
    let request = Request::Udp {
        flow: live.datagrams.open(giving).number(),
        giving,
        target: Target::Ip(nobody.expect("a port")),
    };
    ask(live, &request).await
}

fn is_limit<T>(asked: &Result<T, Refusal>) -> bool {
    matches!(asked, Err(refusal) if refusal.status == Status::Limit)
}

/// What a listener of the client at the server asks for next.
async fn accepted(live: &Live) -> Asked {
    let stream = live.session.accept_bi().await.expect("a session");
    exchange::asked(stream).await.expect("a header")
}

#[tokio::test]
async fn connections_are_no_flows() {
    let stage = Stage::new(&Names::default());
    let limits = Limits {
        flows: 1,
        ..Limits::default()
    };
    let live = stage.client(limits).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = Target::Ip(listener.local_addr().expect("an address"));
    let mut held = Vec::new();
    for _ in 0..2 {
        let connected = ask(&live, &Request::Connect(target.clone())).await;
        held.push(connected.expect("a connection"));
    }
    held.push(ask_for_flow(&live).await.expect("the only flow"));
    assert!(is_limit(&ask_for_flow(&live).await));
}

#[tokio::test]
async fn who_connects_to_a_listener_counts_among_the_streams_of_its_client() {
    let stage = Stage::new(&Names::default());
    let limits = Limits {
        streams: 3,
        ..Limits::default()
    };
    let live = stage.client(limits).await;
    let request = Request::Listen {
        listener: 0,
        at: Target::Ip(([127, 0, 0, 1], 0).into()),
    };
    let (_listening, at) = ask(&live, &request).await.expect("a listener");
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..5 {
        let stream = TcpStream::connect(at.expect("an address")).await;
        let (mut stream, mut byte) = (stream.expect("it listens"), [0]);
        tokio::select! {
            carried = accepted(&live) => held.push((carried, stream)),
            closed = stream.read(&mut byte) => {
                assert_eq!(closed.expect("an end"), 0);
                refused += 1;
            }
        }
    }
    assert_eq!((held.len(), refused), (2, 3));
    assert!(is_limit(&ask_for_flow(&live).await));
}

#[tokio::test]
async fn the_sources_of_a_listener_count_among_the_flows_of_its_client() {
    let stage = Stage::new(&Names::default());
    let limits = Limits {
        flows: 1,
        ..Limits::default()
    };
    let live = stage.client(limits).await;
    let request = Request::ListenUdp {
        listener: 0,
        giving: Giving::default(),
        at: Target::Ip(([127, 0, 0, 1], 0).into()),
    };
    let (_listening, at) = ask(&live, &request).await.expect("a listener");
    let sends = || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let sent = socket.send_to(b"hello", at.expect("an address"));
        assert_eq!(sent.expect("it is sent"), 5);
    };
    sends();
    let mut first = accepted(&live).await;
    assert!(is_limit(&ask_for_flow(&live).await));
    // The first was never answered: another one has its place.
    sends();
    let second = accepted(&live).await;
    udp::closed(&mut first.recv).await;
    assert!(is_limit(&ask_for_flow(&live).await));
    // With the end of its flow there is room.
    drop(second);
    let again = async { while is_limit(&ask_for_flow(&live).await) {} };
    timeout(PATIENCE, again).await.expect("a place");
}

/// What goes to those who have sent something to a listener of a client comes from that client.
#[tokio::test]
async fn answers_to_the_sources_of_a_listener_keep_to_the_rate_of_its_client() {
    const BYTES: usize = 1000;
    let stage = Stage::new(&Names::default());
    let limits = Limits {
        rate: Some(10 * BYTES as u64),
        ..Limits::default()
    };
    let live = stage.client(limits).await;
    let giving = Giving::default();
    let request = Request::ListenUdp {
        listener: 0,
        giving,
        at: Target::Ip(([127, 0, 0, 1], 0).into()),
    };
    let (_listening, at) = ask(&live, &request).await.expect("a listener");
    let source = tokio::net::UdpSocket::bind("127.0.0.1:0").await;
    let source = source.expect("a port");
    let sent = source.send_to(b"hello", at.expect("an address")).await;
    assert_eq!(sent.expect("it is sent"), 5);
    let mut asked = accepted(&live).await;
    let Request::AcceptedUdp { flow, .. } = asked.request else {
        panic!("{:?}", asked.request);
    };
    exchange::accept(&mut asked.send, None)
        .await
        .expect("a session");
    let flow = live.datagrams.enter(flow, giving).expect("it is free");
    let began = Instant::now();
    for _ in 0..50 {
        flow.sender().send(&[0; BYTES]);
    }
    let (mut came, mut patience, mut buffer) = (0, PATIENCE, [0; 2 * BYTES]);
    while let Ok(Ok(_)) = timeout(patience, source.recv(&mut buffer)).await {
        came += 1;
        patience = Duration::from_millis(500);
    }
    let most = 2.0 + 10.0 * began.elapsed().as_secs_f64();
    assert!(came > 0 && f64::from(came) <= most, "{came} of {most}");
}

/// A client asks for names that are never answered, more than there are threads for, and does not wait for them: the others have theirs.
#[tokio::test]
async fn names_that_are_never_answered_hold_up_nobody_else() {
    let silence = Silence::new();
    let stage = Stage::new(&silence.names);
    let (first, second) = (
        stage.client(Limits::default()).await,
        stage.client(Limits::default()).await,
    );
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let reached = Request::Connect(Target::new("reached", port).expect("a name"));
    let mut held = Vec::new();
    for number in 0..600 {
        let target = Target::new(&format!("{number}.silent"), port).expect("a name");
        let giving = Giving::default();
        let request = match number % 2 {
            0 => Request::Connect(target),
            _ => Request::Udp {
                flow: first.datagrams.open(giving).number(),
                giving,
                target,
            },
        };
        let (mut send, recv) = exchange::ask(&first.session, &request)
            .await
            .expect("a stream");
        send.flush().await.expect("a stream");
        held.push((send, recv));
    }
    let asked = || silence.asked.load(Ordering::Relaxed);
    let all = async {
        while asked() < 16 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, all)
        .await
        .expect("as many as it may have");
    assert!(ask(&second, &reached).await.is_ok());
    // They are still being asked for when nobody waits for them any more.
    drop(held);
    assert!(ask(&second, &reached).await.is_ok());
    assert_eq!(asked(), 18);
    // Once they are answered, all the same, it has its own again.
    drop(silence);
    let again = async { while ask(&first, &reached).await.is_err() {} };
    timeout(PATIENCE, again).await.expect("an answer");
}
