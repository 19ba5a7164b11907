//! SOCKS5 and HTTP CONNECT on one port: the first byte tells them apart.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use fast_socks5::server::{Socks5ServerProtocol, SocksServerError, states};
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command, new_udp_header, parse_udp_request};
use sphinx_transport::asynchronous::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::event::{Direction, Events};
use crate::exchange;
use crate::forward::Giving;
use crate::limits::Throttle;
use crate::live::{Link, Live};
use crate::relay::{First, Local, relay};
use crate::udp::{self, Activity, Receiver};
use crate::wire::{Refusal, Request, Status, Target};

/// How long a program may take to say what it wants.
const REQUEST_TIME: Duration = Duration::from_secs(30);
/// Longest head of an HTTP request.
const HEAD_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
const SOCKS_VERSION: u8 = 5;

/// The program, to be answered, and its command and target.
type SocksRequest<S> = (
    Socks5ServerProtocol<S, states::CommandRead>,
    Socks5Command,
    TargetAddr,
);

/// A user and a password, which programs have to name.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = &self.user;
        f.debug_struct("Credentials")
            .field("user", user)
            .finish_non_exhaustive()
    }
}

impl FromStr for Credentials {
    type Err = &'static str;

    /// `USER:PASSWORD`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some((user, password)) if !user.is_empty() && !password.is_empty() => Ok(Self {
                user: user.to_owned(),
                password: password.to_owned(),
            }),
            _ => Err("expected USER:PASSWORD"),
        }
    }
}

impl Credentials {
    fn are(&self, user: &str, password: &str) -> bool {
        same(self.user.as_bytes(), user.as_bytes())
            & same(self.password.as_bytes(), password.as_bytes())
    }

    /// The value of `Proxy-Authorization` (RFC 7617).
    fn basic(&self) -> String {
        let text = format!("{}:{}", self.user, self.password);
        format!("Basic {}", BASE64_STANDARD.encode(text))
    }
}

/// Compares without telling by the time it takes where they differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    verify_slices_are_equal(one, other).is_ok()
}

/// A proxy for programs: SOCKS5 and HTTP CONNECT.
pub(crate) struct Proxy {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) events: Events,
}

impl Proxy {
    /// Serves one program; on the session that there is, or as soon as there is one.
    pub(crate) async fn serve(&self, stream: TcpStream, link: &Link) {
        let _ = stream.set_nodelay(true);
        let mut first = [0];
        match timeout(REQUEST_TIME, stream.peek(&mut first)).await {
            Ok(Ok(1)) if first[0] == SOCKS_VERSION => {
                // Whoever does not speak the protocol has been told.
                let _ = self.socks(stream, link).await;
            }
            Ok(Ok(1)) => {
                let _ = self.http(stream, link).await;
            }
            _ => {}
        }
    }

    async fn socks(&self, stream: TcpStream, link: &Link) -> Result<(), SocksServerError> {
        let (Ok(own), Ok(program)) = (stream.local_addr(), stream.peer_addr()) else {
            return Ok(());
        };
        // At a listener of both families IPv4 comes as IPv6, where no program that speaks IPv4 could send to.
        let ends = (own.ip().to_canonical(), program.ip().to_canonical());
        let asked = socks_request(stream, self.credentials.as_ref());
        let Ok(request) = timeout(REQUEST_TIME, asked).await else {
            return Ok(());
        };
        let (protocol, command, target) = request?;
        let Some(live) = link.live().await else {
            return protocol.reply_error(&ReplyError::NetworkUnreachable).await;
        };
        match (command, target_of(&target)) {
            (Socks5Command::TCPBind, _) => {
                protocol.reply_error(&ReplyError::CommandNotSupported).await
            }
            (Socks5Command::TCPConnect, None) => {
                protocol.reply_error(&ReplyError::HostUnreachable).await
            }
            (Socks5Command::TCPConnect, Some(target)) => {
                match exchange::open(&live.session, &target).await {
                    Ok((both, from)) => {
                        let stream = protocol.reply_success(from.unwrap_or(NOWHERE)).await?;
                        self.carry(stream, both, &target).await;
                        Ok(())
                    }
                    Err(refusal) => protocol.reply_error(&socks_code(refusal.status)).await,
                }
            }
            (Socks5Command::UDPAssociate, _) => self.associate(protocol, ends, live).await,
        }
    }

    async fn carry(&self, stream: TcpStream, both: (SendStream, RecvStream), target: &Target) {
        let mut flow = self.events.flow("tcp", target.to_string(), Direction::Out);
        let ended = relay(Local::Tcp(stream), both, First::Data, &flow.counts).await;
        flow.ended(ended);
    }

    /// UDP ASSOCIATE: until its connection ends, or there is nothing for a while.
    async fn associate(
        &self,
        protocol: Socks5ServerProtocol<TcpStream, states::CommandRead>,
        // Address at which the program has reached this end, and address of the program.
        (own, program): (IpAddr, IpAddr),
        live: Live,
    ) -> Result<(), SocksServerError> {
        let flow = live.datagrams.open(Giving::default());
        let request = Request::Associate {
            flow: flow.number(),
            giving: Giving::default(),
        };
        let bound = udp::bind(SocketAddr::new(own, 0)).await;
        let (mut stream, socket) = match bound.and_then(|socket| Ok((socket.local_addr()?, socket)))
        {
            Ok((at, socket)) => (protocol.reply_success(at).await?, socket),
            Err(error) => {
                self.events.scarce_files(&error);
                return protocol.reply_error(&ReplyError::GeneralFailure).await;
            }
        };
        let mut told = self.events.flow("udp", "any".to_owned(), Direction::Out);
        let (sender, activity) = (flow.sender(), Activity::new());
        let (socket, counts) = (Arc::new(socket), Arc::clone(&told.counts));
        let program = Program::new(Arc::clone(&socket), program);
        let outwards = async {
            loop {
                let mut arrived = Vec::new();
                let taken = udp::take(&socket, |data, from| {
                    if program.is(from) {
                        arrived.push(data.to_vec());
                    }
                });
                if taken.await.is_err() {
                    return;
                }
                for data in arrived {
                    activity.touch();
                    if let Some(data) = outward(&data).await {
                        counts.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
                        sender.send(&data);
                    }
                }
            }
        };
        let (receiver, all) = (Receiver::Socks(&program), Throttle::default());
        let gone = async {
            let mut unknown = [0; 256];
            while stream.read(&mut unknown).await.is_ok_and(|bytes| bytes > 0) {}
        };
        let ended = tokio::select! {
            ended = udp::answers(&live, &request, flow, (&activity, &counts, &all), receiver) => ended,
            () = outwards => Ok(()),
            () = gone => Ok(()),
        };
        told.ended(ended);
        Ok(())
    }

    async fn http(&self, mut stream: TcpStream, link: &Link) -> io::Result<()> {
        let request = timeout(REQUEST_TIME, head(&mut stream, self.credentials.as_ref())).await;
        let Ok(request) = request else {
            return Ok(());
        };
        let answer = match request? {
            Ok((target, rest)) => match link.live().await {
                None => Err(status_line(
                    503,
                    "Service Unavailable",
                    "no session with the server",
                )),
                Some(live) => match exchange::open(&live.session, &target).await {
                    Ok((both, _)) => Ok((both, target, rest)),
                    Err(refusal) => Err(http_answer(&refusal)),
                },
            },
            Err(answer) => Err(answer),
        };
        match answer {
            Ok(((mut send, recv), target, rest)) => {
                stream
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await?;
                // What the program has sent behind its request, before it was answered.
                send.write_all(&rest).await.map_err(io::Error::other)?;
                self.carry(stream, (send, recv), &target).await;
                Ok(())
            }
            Err(answer) => {
                stream.write_all(answer.as_bytes()).await?;
                stream.shutdown().await
            }
        }
    }
}

/// The program at the other side of a UDP association.
pub(crate) struct Program {
    socket: Arc<UdpSocket>,
    ip: IpAddr,
    /// Where its datagrams come from, which the first of them tells.
    source: Mutex<Option<SocketAddr>>,
}

impl Program {
    fn new(socket: Arc<UdpSocket>, ip: IpAddr) -> Self {
        let source = Mutex::new(None);
        Self { socket, ip, source }
    }

    /// Whether a datagram is the program's: it comes from the machine that its connection comes from, and always from the same place.
    fn is(&self, from: SocketAddr) -> bool {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        from.ip() == self.ip && *source.get_or_insert(from) == from
    }

    /// Gives a datagram of the other end to the program.
    pub(crate) async fn give(&self, data: &[u8]) {
        let source = *self.source.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(data), Some(source)) = (inward(data), source) {
            // One that cannot be sent is lost.
            let _ = self.socket.send_to(&data, source).await;
        }
    }
}

/// The address in a reply where none is known.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Reads the request of a program that speaks SOCKS, which has to name the credentials first if there are any.
pub(crate) async fn socks_request<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    credentials: Option<&Credentials>,
) -> Result<SocksRequest<S>, SocksServerError> {
    let authenticated = match credentials {
        None => Socks5ServerProtocol::accept_no_auth(stream).await?,
        Some(credentials) => {
            let check = |user: String, password: String| credentials.are(&user, &password);
            let accepted = Socks5ServerProtocol::accept_password_auth(stream, check);
            accepted.await?.0
        }
    };
    authenticated.read_command().await
}

fn target_of(address: &TargetAddr) -> Option<Target> {
    match address {
        TargetAddr::Ip(address) => Some(Target::Ip(*address)),
        TargetAddr::Domain(name, port) => Target::new(name, *port).ok(),
    }
}

fn socks_code(status: Status) -> ReplyError {
    match status {
        Status::Denied => ReplyError::ConnectionNotAllowed,
        Status::Refused => ReplyError::ConnectionRefused,
        Status::NetworkUnreachable => ReplyError::NetworkUnreachable,
        Status::HostUnreachable | Status::NoName => ReplyError::HostUnreachable,
        Status::TimedOut => ReplyError::TtlExpired,
        Status::Unsupported => ReplyError::CommandNotSupported,
        Status::Limit | Status::InUse | Status::Other => ReplyError::GeneralFailure,
    }
}

/// A datagram of a SOCKS client as it goes to the other end; none for what cannot be given on.
pub(crate) async fn outward(data: &[u8]) -> Option<Vec<u8>> {
    match parse_udp_request(data).await {
        // Fragments are put together by nobody (RFC 1928, §7: an implementation that does not drops them).
        Ok((0, target, data)) => Some(udp::addressed(&target_of(&target)?, data)),
        _ => None,
    }
}

/// A datagram of the other end as a SOCKS client gets it.
pub(crate) fn inward(mut data: &[u8]) -> Option<Vec<u8>> {
    let Ok(Target::Ip(from)) = Target::take(&mut data) else {
        return None;
    };
    let mut out = new_udp_header(from).ok()?;
    out.extend_from_slice(data);
    Some(out)
}

/// Reads the request of an HTTP client: its target, and what it has sent behind the request; or the answer to one that is refused.
async fn head(
    stream: &mut TcpStream,
    credentials: Option<&Credentials>,
) -> io::Result<Result<(Target, Vec<u8>), String>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(request) = connect_request(&bytes, credentials) {
            return Ok(request);
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The request (CONNECT) in what an HTTP client has sent so far; `None`: more has to come.
pub(crate) fn connect_request(
    bytes: &[u8],
    credentials: Option<&Credentials>,
) -> Option<Result<(Target, Vec<u8>), String>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let bad = |why: &str| Some(Err(status_line(400, "Bad Request", why)));
    let len = match request.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return None,
        Ok(httparse::Status::Partial) => return bad("the head is too long"),
        Err(error) => return bad(&format!("this is no HTTP request ({error}), and no SOCKS5")),
    };
    if let Some(credentials) = credentials {
        let mut given = request.headers.iter();
        let given = given.find(|header| header.name.eq_ignore_ascii_case("proxy-authorization"));
        let is_right =
            given.is_some_and(|header| same(header.value, credentials.basic().as_bytes()));
        if !is_right {
            return Some(Err(
                "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"sphx\"\r\n\
                 Content-Length: 0\r\nConnection: close\r\n\r\n"
                    .to_owned(),
            ));
        }
    }
    if request.method != Some("CONNECT") {
        let why = "this proxy tunnels (CONNECT, or SOCKS5); it does not fetch pages";
        return Some(Err(status_line(405, "Method Not Allowed", why)));
    }
    match crate::forward::target(request.path.unwrap_or_default()) {
        Ok(target @ (Target::Ip(_) | Target::Name(..))) => {
            Some(Ok((target, bytes[len..].to_vec())))
        }
        _ => bad("CONNECT needs HOST:PORT"),
    }
}

fn http_answer(refusal: &Refusal) -> String {
    let (code, reason) = match refusal.status {
        Status::Denied => (403, "Forbidden"),
        Status::TimedOut => (504, "Gateway Timeout"),
        Status::Limit => (503, "Service Unavailable"),
        _ => (502, "Bad Gateway"),
    };
    status_line(code, reason, &refusal.message)
}

fn status_line(code: u16, reason: &str, why: &str) -> String {
    let why: String = why.chars().filter(|c| !c.is_control()).collect();
    let len = why.len() + 1;
    format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len}\r\n\
         Connection: close\r\n\r\n{why}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_requests() {
        let target = |bytes: &str| {
            connect_request(bytes.as_bytes(), None)
                .map(|request| request.map(|(target, rest)| (target.to_string(), rest)))
        };
        assert_eq!(target("CONNECT a.example:443 HTTP/1.1\r\nHost: a"), None);
        let whole = "CONNECT a.example:443 HTTP/1.1\r\nHost: a\r\n\r\nhello";
        assert_eq!(
            target(whole),
            Some(Ok(("a.example:443".to_owned(), b"hello".to_vec())))
        );
        let v6 = "CONNECT [::1]:443 HTTP/1.1\r\n\r\n";
        assert_eq!(target(v6), Some(Ok(("[::1]:443".to_owned(), Vec::new()))));
        for (request, code) in [
            ("GET http://a/ HTTP/1.1\r\n\r\n", "405"),
            ("CONNECT a HTTP/1.1\r\n\r\n", "400"),
            ("CONNECT /run/x HTTP/1.1\r\n\r\n", "400"),
            ("\u{4}\u{1}", "400"),
        ] {
            let answer = target(request).expect("an answer").unwrap_err();
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {code} ")),
                "{request}: {answer}"
            );
        }
        let endless = "CONNECT a:1 HTTP/1.1\r\nX: ".to_owned() + &"x".repeat(HEAD_MAX);
        assert!(target(&endless).expect("an answer").is_err());
    }

    #[test]
    fn passwords() {
        let credentials: Credentials = "Aladdin:open sesame".parse().unwrap();
        // RFC 7617, §2.
        assert_eq!(credentials.basic(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(
            "a:bc".parse::<Credentials>().unwrap().basic(),
            "Basic YTpiYw=="
        );
        assert!(credentials.are("Aladdin", "open sesame"));
        assert!(!credentials.are("Aladdin", "open sesam"));
        assert!(!credentials.are("Aladdin", "open sesamE"));
        let request = |line: &str| {
            let request = format!("CONNECT a:1 HTTP/1.1\r\n{line}\r\n\r\n");
            connect_request(request.as_bytes(), Some(&credentials)).expect("it is whole")
        };
        assert!(request("x: y").unwrap_err().contains(" 407 "));
        assert!(request("Proxy-Authorization: Basic eDp5").is_err());
        assert!(request("Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").is_ok());
        for text in ["", "a", "a:", ":a"] {
            assert!(text.parse::<Credentials>().is_err());
        }
    }
}
