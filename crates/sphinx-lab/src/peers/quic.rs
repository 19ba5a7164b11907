//! QUIC: bulk on one stream, blocks on one stream each, and requests.

mod requests;

use std::{
    error::Error,
    fs, io,
    net::{SocketAddr, UdpSocket},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, RecvStream,
    SendDatagramError, SendStream, ServerConfig, TokioRuntime, TransportConfig, VarInt, WriteError,
    congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig},
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force, socket_recv_buffer_size,
};
use rustls::{
    RootCertStore,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    version::TLS13,
};
use sphinx_netdev::usage::monotonic_ns;
use tokio::{runtime::Runtime, sync::mpsc, time::timeout};

use super::{
    PEER_TIMEOUT, Pattern, PeerError, PeerTask, Preamble, Received, Tally, output,
    tally::{checked_head, number_of, write_block},
    tried,
};
use crate::Workload;

pub use requests::{ask, serve};

/// The name in the certificate.
const NAME: &str = "bench-link";
/// Windows of streams, connections and senders.
const WINDOW_BYTES: u32 = 32_000_000;
/// Kernel buffers of the sockets.
const SOCKET_BYTES: usize = 16_000_000;
/// Most blocks under way.
const STREAMS_MAX: u32 = 4_096;
/// Threads of the runtime.
const THREADS: usize = 2;
/// How long a close may take.
const CLOSING: Duration = Duration::from_millis(500);
/// Most bytes taken from a stream at once.
const READ_BYTES: usize = 256 << 10;

/// Whether there is a congestion control of this name.
///
/// # Errors
///
/// [`PeerError::Congestion`].
pub fn check_congestion(name: &str) -> Result<(), PeerError> {
    controller(name).map(drop)
}

fn controller(name: &str) -> Result<Arc<dyn ControllerFactory + Send + Sync>, PeerError> {
    match name {
        "bbr" => Ok(Arc::new(BbrConfig::default())),
        "cubic" => Ok(Arc::new(CubicConfig::default())),
        "newreno" => Ok(Arc::new(NewRenoConfig::default())),
        _ => Err(PeerError::Congestion(name.to_owned())),
    }
}

fn transport(task: &PeerTask) -> Result<Arc<TransportConfig>, PeerError> {
    let mut config = TransportConfig::default();
    config
        .congestion_controller_factory(controller(&task.congestion)?)
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(u64::from(WINDOW_BYTES))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX))
        .send_fairness(false);
    Ok(Arc::new(config))
}

fn runtime() -> Result<Runtime, PeerError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    tried(
        "runtime",
        builder.worker_threads(THREADS).enable_all().build(),
    )
}

/// To be called inside the runtime. With the bytes that the system lets its socket keep of what arrives.
fn endpoint(
    address: SocketAddr,
    server: Option<ServerConfig>,
) -> Result<(Endpoint, u64), PeerError> {
    let socket = tried("bind", UdpSocket::bind(address))?;
    // Beyond the system's limit if this process may do that, else up to the limit.
    let receive = set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES)
        .or_else(|_| set_socket_recv_buffer_size(&socket, SOCKET_BYTES));
    let send = set_socket_send_buffer_size_force(&socket, SOCKET_BYTES)
        .or_else(|_| set_socket_send_buffer_size(&socket, SOCKET_BYTES));
    let granted = receive
        .and(send)
        .and_then(|()| socket_recv_buffer_size(&socket));
    // The kernel counts twice what it was asked for.
    let granted = tried("socket buffers", granted.map_err(io::Error::from))? as u64 / 2;
    let config = EndpointConfig::default();
    let endpoint = tried(
        "endpoint",
        Endpoint::new(config, server, socket, Arc::new(TokioRuntime)),
    )?;
    Ok((endpoint, granted))
}

fn refused<T, E: Error>(what: &'static str, result: Result<T, E>) -> Result<T, PeerError> {
    result.map_err(|error| {
        // "connection lost" alone does not say by what.
        let cause = error.source().map(|cause| format!(": {cause}"));
        PeerError::Refused {
            what,
            reason: format!("{error}{}", cause.unwrap_or_default()),
        }
    })
}

/// Where the listener leaves its certificate.
fn certificate_file(task: &PeerTask) -> PathBuf {
    let directory = task.directory.as_deref().unwrap_or(".".as_ref());
    directory.join("certificate.der")
}

/// One cipher, which is that of Sphinx: left to itself, rustls takes AES-256.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..aws_lc_rs::default_provider()
    })
}

/// A listener's configuration; its certificate is where the other end looks for it.
fn server_config(task: &PeerTask) -> Result<ServerConfig, PeerError> {
    let certified = refused(
        "certificate",
        rcgen::generate_simple_self_signed([NAME.to_owned()]),
    )?;
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let certificate = certified.cert.der().clone();
    let tls = rustls::ServerConfig::builder_with_provider(provider());
    let tls = refused("TLS", tls.with_protocol_versions(&[&TLS13]))?.with_no_client_auth();
    let tls = refused(
        "certificate",
        tls.with_single_cert(vec![certificate.clone()], key.into()),
    )?;
    let tls = refused("TLS", QuicServerConfig::try_from(tls))?;
    let mut server = ServerConfig::with_crypto(Arc::new(tls));
    server.transport_config(transport(task)?);
    tried(
        "certificate",
        fs::write(certificate_file(task), &certificate),
    )?;
    Ok(server)
}

fn client_config(task: &PeerTask) -> Result<ClientConfig, PeerError> {
    let certificate = tried("certificate", fs::read(certificate_file(task)))?;
    let mut roots = RootCertStore::empty();
    refused("certificate", roots.add(CertificateDer::from(certificate)))?;
    let tls = rustls::ClientConfig::builder_with_provider(provider());
    let tls = refused("TLS", tls.with_protocol_versions(&[&TLS13]))?;
    let tls = tls.with_root_certificates(roots).with_no_client_auth();
    let tls = refused("TLS", QuicClientConfig::try_from(tls))?;
    let mut client = ClientConfig::new(Arc::new(tls));
    client.transport_config(transport(task)?);
    Ok(client)
}

/// Any port of the family of `peer`.
fn any_address(peer: SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    }
}

/// What has to come true while a task's other end may still come.
async fn in_time<T>(
    task: &PeerTask,
    future: impl Future<Output = Result<T, PeerError>>,
) -> Result<T, PeerError> {
    let late = |_| PeerError::System {
        what: "accept",
        error: io::ErrorKind::TimedOut.into(),
    };
    timeout(task.limit + PEER_TIMEOUT, future)
        .await
        .map_err(late)?
}

/// Receives one transfer; `listening` is called when a sender may come and the certificate is there.
///
/// # Errors
///
/// [`PeerError`].
pub fn receive(task: &PeerTask, listening: &dyn Fn(SocketAddr)) -> Result<Received, PeerError> {
    let workload = task.workload.clone();
    let server = server_config(task)?;
    runtime()?.block_on(async {
        let (endpoint, socket_bytes) = endpoint(task.address, Some(server))?;
        listening(tried("address", endpoint.local_addr())?);
        let accept = async {
            let incoming = endpoint.accept().await.ok_or(PeerError::Closed(0))?;
            let connection = refused("accept", incoming.await)?;
            let mut stream = refused("preamble", connection.accept_uni().await)?;
            let mut preamble = [0; Preamble::BYTES];
            refused("preamble", stream.read_exact(&mut preamble).await)?;
            Ok((connection, stream, Preamble::from_bytes(preamble)))
        };
        let (connection, stream, preamble) = in_time(task, accept).await?;
        let mut tally = task.tally(preamble)?;
        let left = tally.left(monotonic_ns()).unwrap_or_default();
        let pattern = Pattern::new(task.seed);
        let transfer = async {
            match workload {
                Workload::Bulk { .. } => bulk_from(stream, &mut tally, &pattern).await,
                Workload::Blocks { bytes, .. } | Workload::Live { bytes, .. }
                    if !task.datagrams =>
                {
                    blocks_from(&connection, bytes as usize, &mut tally, &pattern).await
                }
                Workload::Live { bytes, .. } => {
                    datagrams_from(&connection, bytes, &mut tally, &pattern).await
                }
                _ => Err(PeerError::Cannot("carry this over QUIC")),
            }
        };
        // What has not arrived when the time is over does not count.
        timeout(left, transfer).await.unwrap_or(Ok(()))?;
        connection.close(VarInt::from_u32(0), b"");
        // Repeats the close if need be, at most as long as the sender may still send.
        let _ = timeout(CLOSING, endpoint.wait_idle()).await;
        let received = match task.datagrams {
            true => tally.close_at_last(),
            false => tally.close(),
        };
        Ok(Received {
            socket_bytes: Some(socket_bytes),
            ..received
        })
    })
}

async fn bulk_from(
    mut stream: RecvStream,
    tally: &mut Tally,
    pattern: &Pattern,
) -> Result<(), PeerError> {
    // Counted here rather than taken from the tally, which leaves out bytes that come at the cut-off.
    let mut at = 0;
    while !tally.is_complete() {
        let chunk = refused("read", stream.read_chunk(READ_BYTES, true).await)?;
        let chunk = chunk.ok_or(PeerError::Closed(at))?;
        if !pattern.matches(at, &chunk.bytes) {
            return Err(PeerError::Corrupt(at));
        }
        at += chunk.bytes.len() as u64;
        let now_ns = monotonic_ns();
        tally.add(chunk.bytes.len() as u64, now_ns);
        if let Some(bytes) = tally.news(now_ns) {
            output::progress(bytes);
        }
    }
    Ok(())
}

async fn blocks_from(
    connection: &Connection,
    block_bytes: usize,
    tally: &mut Tally,
    pattern: &Pattern,
) -> Result<(), PeerError> {
    let (whole, mut blocks) = mpsc::channel(STREAMS_MAX as usize);
    while !tally.is_complete() {
        tokio::select! {
            stream = connection.accept_uni() => {
                let mut stream = refused("accept", stream)?;
                let whole = whole.clone();
                tokio::spawn(async move {
                    let block = stream.read_to_end(block_bytes).await;
                    // Fails after the end, when nobody waits for blocks any more.
                    let _ = whole.send((block, monotonic_ns())).await;
                });
            }
            Some((block, now_ns)) = blocks.recv() => {
                let block = refused("read", block)?;
                let head = checked_head(&block, block_bytes as u64, pattern)?;
                tally.add(block.len() as u64, now_ns);
                tally.add_block(head, now_ns)?;
            }
        }
    }
    Ok(())
}

/// Messages as datagrams: what is lost stays lost, and silence when no more are due is the end.
async fn datagrams_from(
    connection: &Connection,
    bytes: u64,
    tally: &mut Tally,
    pattern: &Pattern,
) -> Result<(), PeerError> {
    let mut until_ns = tally.may_come_until(0, monotonic_ns());
    while !tally.is_complete() {
        let left = Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()));
        let Ok(datagram) = timeout(left, connection.read_datagram()).await else {
            break;
        };
        let datagram = refused("datagram", datagram)?;
        let now_ns = monotonic_ns();
        let head = checked_head(&datagram, bytes, pattern)?;
        tally.add(bytes, now_ns);
        tally.add_block(head, now_ns)?;
        until_ns = tally.may_come_until(number_of(head), now_ns);
    }
    Ok(())
}

/// Sends one transfer, and returns how many payload bytes the library took before the cut-off.
///
/// # Errors
///
/// [`PeerError`].
pub fn send(task: &PeerTask) -> Result<u64, PeerError> {
    let workload = task.workload.clone();
    let client = client_config(task)?;
    runtime()?.block_on(async {
        let (mut endpoint, _) = endpoint(any_address(task.address), None)?;
        endpoint.set_default_client_config(client);
        let mut sent = 0;
        let transfer = async {
            let start_ns = monotonic_ns();
            let connecting = refused("connect", endpoint.connect(task.address, NAME))?;
            let connection = refused("connect", connecting.await)?;
            let pattern = Pattern::new(task.seed);
            match workload {
                Workload::Bulk { bytes } => {
                    bulk_to(&connection, start_ns, bytes, &pattern, &mut sent).await?;
                }
                Workload::Blocks {
                    count,
                    bytes,
                    interval,
                }
                | Workload::Live {
                    count,
                    bytes,
                    interval,
                    ..
                } => {
                    let schedule = (count, bytes, interval);
                    let carrier = Carrier {
                        connection: &connection,
                        datagrams: task.datagrams,
                    };
                    blocks_to(&carrier, start_ns, schedule, &pattern, &mut sent).await?;
                }
                _ => return Err(PeerError::Cannot("carry this over QUIC")),
            }
            // The receiver closes when it has everything.
            connection.closed().await;
            Ok(())
        };
        // After the limit, the receiver has cut off.
        timeout(task.limit, transfer).await.unwrap_or(Ok(()))?;
        Ok(sent)
    })
}

async fn bulk_to(
    connection: &Connection,
    start_ns: u64,
    bytes: u64,
    pattern: &Pattern,
    sent: &mut u64,
) -> Result<(), PeerError> {
    let mut stream = refused("stream", connection.open_uni().await)?;
    let preamble = Preamble {
        start_ns,
        schedule_ns: start_ns,
    };
    let mut open = write(&mut stream, &preamble.to_bytes()).await?;
    while open && *sent < bytes {
        let piece = pattern.piece(*sent, bytes - *sent);
        open = write(&mut stream, piece).await?;
        *sent += piece.len() as u64;
    }
    // Fails only if the receiver has closed.
    let _ = stream.finish();
    Ok(())
}

/// Sends whole blocks over a connection.
struct Carrier<'a> {
    connection: &'a Connection,
    /// Whether blocks are datagrams; otherwise each has a stream.
    datagrams: bool,
}

impl Carrier<'_> {
    /// False if the receiver has closed.
    async fn begin(&self, preamble: Preamble) -> Result<bool, PeerError> {
        let mut stream = refused("stream", self.connection.open_uni().await)?;
        let open = write(&mut stream, &preamble.to_bytes()).await?;
        let _ = stream.finish();
        Ok(open)
    }

    /// False if the receiver has closed.
    async fn send(&self, block: &[u8]) -> Result<bool, PeerError> {
        if self.datagrams {
            return match self.connection.send_datagram(block.to_vec().into()) {
                Ok(()) => Ok(true),
                Err(SendDatagramError::ConnectionLost(ConnectionError::ApplicationClosed(_))) => {
                    Ok(false)
                }
                Err(error) => refused("datagram", Err(error)),
            };
        }
        let mut stream = match self.connection.open_uni().await {
            Ok(stream) => stream,
            Err(ConnectionError::ApplicationClosed(_)) => return Ok(false),
            Err(error) => return refused("stream", Err(error)),
        };
        let open = write(&mut stream, block).await?;
        let _ = stream.finish();
        Ok(open)
    }
}

async fn blocks_to(
    carrier: &Carrier<'_>,
    start_ns: u64,
    (count, bytes, interval): (u64, u64, Duration),
    pattern: &Pattern,
    sent: &mut u64,
) -> Result<(), PeerError> {
    let preamble = Preamble {
        start_ns,
        schedule_ns: monotonic_ns(),
    };
    let schedule = Instant::now();
    let mut open = carrier.begin(preamble).await?;
    let mut block = Vec::new();
    for number in 0..count {
        let after = interval.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = preamble.schedule_ns.saturating_add(after_ns);
        write_block(&mut block, (number, due_ns), bytes, pattern);
        tokio::time::sleep_until((schedule + after).into()).await;
        open = open && carrier.send(&block).await?;
        if !open {
            break;
        }
        *sent += bytes;
    }
    Ok(())
}

/// Writes everything; false if the receiver has closed.
async fn write(stream: &mut SendStream, bytes: &[u8]) -> Result<bool, PeerError> {
    match stream.write_all(bytes).await {
        Ok(()) => Ok(true),
        Err(WriteError::ConnectionLost(ConnectionError::ApplicationClosed(_))) => Ok(false),
        Err(error) => refused("write", Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use super::*;

    /// Both ends over loopback.
    fn transfer(congestion: &str, blocks: Option<u64>, bytes: u64) -> (Received, u64) {
        let directory = tempfile::tempdir().unwrap();
        let workload = match blocks {
            None => Workload::Bulk { bytes },
            Some(count) => Workload::Blocks {
                count,
                bytes,
                interval: Duration::from_millis(2),
            },
        };
        let receiver_task = PeerTask {
            congestion: congestion.into(),
            warmup: Duration::from_millis(10),
            directory: Some(directory.path().to_owned()),
            ..super::super::tests::task(workload)
        };
        thread::scope(|scope| {
            let (ready, address) = channel();
            let task = &receiver_task;
            let receiver = scope.spawn(move || receive(task, &|at| ready.send(at).unwrap()));
            let sender_task = PeerTask {
                address: address.recv().unwrap(),
                ..receiver_task.clone()
            };
            let sent = send(&sender_task).unwrap();
            (receiver.join().unwrap().unwrap(), sent)
        })
    }

    #[test]
    fn bulk_arrives() {
        for congestion in ["bbr", "cubic"] {
            let (received, sent) = transfer(congestion, None, 1_000_003);
            assert_eq!((received.bytes, sent), (1_000_003, 1_000_003));
            assert!(received.complete && received.seconds > 0.0);
        }
    }

    #[test]
    fn blocks_arrive_and_are_timed() {
        let (received, sent) = transfer("cubic", Some(20), 50_000);
        assert_eq!(
            (received.blocks, received.bytes, sent),
            (20, 1_000_000, 1_000_000)
        );
        let block_ms = received.block_ms.unwrap();
        assert_eq!(block_ms.count, 15);
        assert!(block_ms.mean_ms > 0.0);
    }

    /// What the system grants is told, however little it is.
    #[test]
    fn socket_buffers_are_told_as_they_are() {
        let (received, _) = transfer("bbr", None, 1000);
        let granted = received.socket_bytes.unwrap();
        assert!((1..=SOCKET_BYTES as u64).contains(&granted), "{granted}");
    }

    #[test]
    fn silence_in_the_middle_is_no_end() {
        let directory = tempfile::tempdir().unwrap();
        let (count, bytes, interval) = (100, 100, Duration::from_millis(100));
        let task = PeerTask {
            congestion: "cubic".into(),
            datagrams: true,
            directory: Some(directory.path().to_owned()),
            ..super::super::tests::task(Workload::Live {
                count,
                bytes,
                interval,
                deadline: Duration::from_millis(50),
            })
        };
        // All blocks are due already when the transfer begins.
        let start_ns = monotonic_ns() - 10_000_000_000;
        let preamble = Preamble {
            start_ns,
            schedule_ns: start_ns,
        };
        let send = async |address| {
            let (mut endpoint, _) = endpoint(any_address(address), None).unwrap();
            endpoint.set_default_client_config(client_config(&task).unwrap());
            let connection = endpoint.connect(address, NAME).unwrap().await.unwrap();
            let carrier = Carrier {
                connection: &connection,
                datagrams: true,
            };
            assert!(carrier.begin(preamble).await.unwrap());
            let (pattern, mut block) = (Pattern::new(task.seed), Vec::new());
            for number in 0..count {
                let due_ns = start_ns + number * interval.as_nanos() as u64;
                write_block(&mut block, (number, due_ns), bytes, &pattern);
                assert!(carrier.send(&block).await.unwrap());
                if number == 0 {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
            connection.closed().await;
        };
        let received = thread::scope(|scope| {
            let (ready, address) = channel();
            let task = &task;
            let receiver = scope.spawn(move || receive(task, &|at| ready.send(at).unwrap()));
            let address = address.recv().unwrap();
            runtime().unwrap().block_on(send(address));
            receiver.join().unwrap().unwrap()
        });
        assert!(received.complete, "{received:?}");
    }

    #[test]
    fn an_unknown_congestion_control_is_refused() {
        assert!(check_congestion("newreno").is_ok());
        assert!(check_congestion("reno").is_err());
    }
}
