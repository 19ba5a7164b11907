//! `sphx tunnel` and `sphx server` as people use them: real sockets on loopback, programs that know nothing of it, and a link that
//! loses packets where namespaces are allowed.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Ended, PATIENCE, Running, Scratch};
use crate::cp::server::Sshd;

const BASE: [&str; 7] = [
    "server",
    "--json",
    "-v",
    "--listen",
    "127.0.0.1:0",
    "--ticket-file",
    "t",
];

/// A server that lets through what `permit` says.
fn server(scratch: &Scratch, permit: &str) -> Running {
    server_with(scratch, &["--permit", permit])
}

fn server_with(scratch: &Scratch, more: &[&str]) -> Running {
    let mut server = Running::start(scratch, &[&BASE, more].concat(), &[]);
    server.event("listening");
    server
}

/// A server whose key stays the same when it is started again.
fn server_with_key(scratch: &Scratch, listen: &str) -> Running {
    let base = ["server", "--json", "--listen", listen];
    let more = ["--ticket-file", "t", "--key", "key", "--permit", "tunnel"];
    let mut server = Running::start(scratch, &[&base[..], &more].concat(), &[]);
    server.event("listening");
    server
}

/// An address at which no server listens now.
fn free_udp_port() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("an address").to_string()
}

/// A client, and where its forwards listen, in the order in which it tells that: -R, -L, -D.
fn tunnel(scratch: &Scratch, forwards: &[&str]) -> (Running, Vec<String>) {
    let base = ["tunnel", "--json", "-v", "--ticket-file", "t"];
    let mut tunnel = Running::start(scratch, &[&base, forwards].concat(), &[]);
    let letters = ["-L", "-R", "-D"];
    let count = forwards
        .iter()
        .filter(|word| letters.contains(word))
        .count();
    let bound = (0..count).map(|_| {
        let told = tunnel.event("forward");
        told["bound"].as_str().expect("an address").to_owned()
    });
    let bound = bound.collect();
    (tunnel, bound)
}

fn connect(to: &str) -> TcpStream {
    try_connect(to).expect("it listens")
}

fn try_connect(to: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A server on loopback: `each` has its connections, one thread for each.
fn serve(each: impl Fn(TcpStream) + Send + Sync + Copy + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_read_timeout(Some(PATIENCE)).expect("an option");
            thread::spawn(move || each(stream));
        }
    });
    address
}

/// A port where nobody listens.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

/// Reads to the end, then sends all of it back.
fn echo_afterwards(mut stream: TcpStream) {
    let mut got = Vec::new();
    if stream.read_to_end(&mut got).is_ok() {
        let _ = stream.write_all(&got);
    }
}

/// Resets its connection when it has heard something.
fn reset_afterwards(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 1]);
    reset(&stream);
}

/// A connection that is reset when it is dropped.
fn reset(stream: &TcpStream) {
    set_socket_linger(stream, Some(Duration::ZERO)).expect("an option");
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8)
        .collect()
}

/// What comes back of what was sent and ended.
fn exchange(mut stream: TcpStream, data: &[u8]) -> Vec<u8> {
    let mut sending = stream.try_clone().expect("a socket");
    let mut got = Vec::new();
    thread::scope(|scope| {
        scope.spawn(move || {
            sending.write_all(data).expect("it is read");
            sending.shutdown(Shutdown::Write).expect("a connection");
        });
        stream.read_to_end(&mut got).expect("it is sent back");
    });
    got
}

/// Waits until a connection is closed: whether by a reset.
fn ends_by_reset(mut stream: TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
                return true;
            }
        }
    }
}

/// Waits for the end of a flow that says how it has ended.
fn flow(running: &mut Running) -> Value {
    running.event("flow")
}

#[test]
fn what_one_side_has_ended_the_other_goes_on_with() {
    let scratch = Scratch::new();
    let mut server = server(&scratch, "tunnel");
    let target = serve(echo_afterwards);
    let forward = format!("0:localhost:{}", target.port());
    let (mut tunnel, bound) = tunnel(&scratch, &["-L", &forward]);
    let data = content(3_000_000);
    assert!(exchange(connect(&bound[0]), &data) == data);
    for end in [&mut tunnel, &mut server] {
        let told = flow(end);
        assert_eq!(told["bytes_up"], 3_000_000, "{told}");
        assert_eq!(told["bytes_down"], 3_000_000, "{told}");
        assert_eq!(
            (&told["end"], &told["proto"]),
            (&"ok".into(), &"tcp".into()),
            "{told}"
        );
    }
    // Nothing at all is a connection too.
    assert!(exchange(connect(&bound[0]), b"").is_empty());
    tunnel.signal(Signal::TERM);
    assert_eq!(tunnel.end().expect(143).error("interrupted")["code"], 143);
    server.signal(Signal::INT);
    server.end().expect(130);
}

#[test]
fn resets_are_carried_over_both_ways() {
    let scratch = Scratch::new();
    let _server = server(&scratch, "tunnel");
    let resets = serve(reset_afterwards);
    // Tells on another connection how this one has ended.
    let (told, hears) = std::sync::mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let waits = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"x").expect("a connection");
        told.send(ends_by_reset(stream)).expect("a test");
    });
    let forwards = [format!("0:{resets}"), format!("0:{waits}")];
    let (mut tunnel, bound) = tunnel(&scratch, &["-L", &forwards[0], "-L", &forwards[1]]);
    let mut stream = connect(&bound[0]);
    stream.write_all(b"x").expect("a connection");
    assert!(ends_by_reset(stream));
    assert_ne!(flow(&mut tunnel)["end"], "ok");
    let mut stream = connect(&bound[1]);
    stream.read_exact(&mut [0]).expect("a byte");
    reset(&stream);
    drop(stream);
    assert_eq!(hears.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn what_is_not_let_through_or_not_there_is_told() {
    let scratch = Scratch::new();
    let target = serve(echo_afterwards);
    let free = free_port();
    let permit = format!("tunnel:tcp:{target},tunnel:tcp:{free}");
    let mut server = server(&scratch, &permit);
    let forwards = [
        format!("0:{target}"),
        format!("0:{free}"),
        "0:127.0.0.1:9".to_owned(),
    ];
    let forwards: Vec<&str> = forwards
        .iter()
        .flat_map(|forward| ["-L", forward])
        .collect();
    let (mut tunnel, bound) = tunnel(&scratch, &forwards);
    assert_eq!(exchange(connect(&bound[0]), b"hello"), b"hello");
    assert!(ends_by_reset(connect(&bound[1])));
    assert_eq!(flow(&mut tunnel)["end"], "ok");
    let refused = flow(&mut tunnel);
    assert!(
        refused["end"]
            .as_str()
            .is_some_and(|end| end.ends_with("connection refused")),
        "{refused}"
    );
    assert!(ends_by_reset(connect(&bound[2])));
    let denied = server.event("denied");
    assert_eq!(denied["target"], "127.0.0.1:9");
    assert_eq!(denied["rule"], "no rule lets it through");
    // With exit codes, where there is one connection.
    let stdio = |target: &str| {
        let arguments = ["tunnel", "--ticket-file", "t", "-W", target];
        Running::start(&scratch, &arguments, &[]).end()
    };
    let refused = stdio(&free.to_string()).expect(9);
    assert!(
        refused.stderr.contains("connection refused"),
        "{}",
        refused.stderr
    );
    let denied = stdio("127.0.0.1:9").expect(4);
    assert!(
        denied.stderr.contains("no rule lets it through"),
        "{}",
        denied.stderr
    );
    // Listening there needs a rule of its own.
    let arguments = [
        "tunnel",
        "--json",
        "--ticket-file",
        "t",
        "-R",
        "0:localhost:1",
    ];
    let denied = Running::start(&scratch, &arguments, &[]).end().expect(4);
    denied.error("authentication");
}

#[test]
fn standard_input_and_output_are_a_connection() {
    let scratch = Scratch::new();
    let _server = server(&scratch, "tunnel");
    let target = serve(echo_afterwards).to_string();
    let data = content(1_000_000);
    let mut child = crate::common::command(
        &scratch.path(""),
        &["tunnel", "--ticket-file", "t", "-W", &target],
    )
    .stdin(Stdio::piped())
    .spawn()
    .expect("the binary");
    let mut input = child.stdin.take().expect("it is piped");
    let sent = data.clone();
    let sending = thread::spawn(move || input.write_all(&sent));
    let output = child.wait_with_output().expect("its end");
    assert!(sending.join().expect("a thread").is_ok());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stdout == data);
}

/// Programs talk through it in messages that end no line, and wait for answers.
#[test]
fn what_is_said_through_standard_output_leaves_at_once() {
    let scratch = Scratch::new();
    let _server = server(&scratch, "tunnel");
    let target = serve(|mut stream| {
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
    });
    let mut child = crate::common::command(
        &scratch.path(""),
        &["tunnel", "--ticket-file", "t", "-W", &target.to_string()],
    )
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .spawn()
    .expect("the binary");
    let mut input = child.stdin.take().expect("it is piped");
    let mut output = child.stdout.take().expect("it is piped");
    let (sender, answers) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut byte = [0];
        while output.read_exact(&mut byte).is_ok() && sender.send(byte[0]).is_ok() {}
    });
    for byte in 100..150 {
        input.write_all(&[byte]).expect("it is read");
        assert_eq!(answers.recv_timeout(PATIENCE), Ok(byte));
    }
    drop(input);
    assert!(child.wait().expect("its end").success());
}

/// Whoever reads it takes its time over what the other end has sent and closed: all of that comes, and then the end, also while there is more to be said.
#[test]
fn standard_output_ends_when_all_of_it_is_read() {
    // More than a pipe holds.
    const BYTES: usize = 150_000;
    let scratch = Scratch::new();
    let _server = server(&scratch, "tunnel");
    let target = serve(|mut stream| {
        let _ = stream.write_all(&content(BYTES));
    });
    for input in [Stdio::null(), Stdio::piped()] {
        let mut child = crate::common::command(
            &scratch.path(""),
            &["tunnel", "--ticket-file", "t", "-W", &target.to_string()],
        )
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary");
        let input = child.stdin.take();
        let mut output = child.stdout.take().expect("it is piped");
        thread::sleep(Duration::from_secs(1));
        let (told, hears) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut got = Vec::new();
            let _ = told.send(output.read_to_end(&mut got).map(|_| got));
        });
        let got = hears.recv_timeout(PATIENCE);
        if got.is_err() {
            let _ = child.kill();
        }
        let got = got.expect("it ends").expect("a pipe");
        assert!(got == content(BYTES), "{} bytes", got.len());
        drop(input);
        assert!(child.wait().expect("its end").success());
    }
}

#[test]
fn ssh_and_scp_go_through_it() {
    let Some(sshd) = Sshd::start() else { return };
    let scratch = Scratch::new();
    let _server = server(&scratch, "tunnel");
    scratch.file("a", 2_000_000);
    let proxy = format!(
        "ProxyCommand={} tunnel --ticket-file {} --quiet -W %h:%p",
        env!("CARGO_BIN_EXE_sphx"),
        scratch.path("t").display(),
    );
    let ssh = sshd.ssh();
    let options: Vec<&str> = ssh.split(' ').skip(1).chain(["-o", &proxy]).collect();
    let run = |program: &str, arguments: &[&str]| {
        let ended = Command::new(program)
            .args(&options)
            .args(arguments)
            .output();
        let ended = ended.expect("it starts");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "{program} {arguments:?}: {said}");
        ended.stdout
    };
    assert_eq!(run("ssh", &["127.0.0.1", "echo hello"]), b"hello\n");
    let at = |name: &str| scratch.path(name).display().to_string();
    // By scp's own protocol: this sshd has no sftp.
    run(
        "scp",
        &["-O", &at("a"), &format!("127.0.0.1:{}", at("there"))],
    );
    run(
        "scp",
        &["-O", &format!("127.0.0.1:{}", at("there")), &at("back")],
    );
    scratch.assert_same("a", "there");
    scratch.assert_same("a", "back");
}

#[test]
fn listeners_at_the_other_end_and_unix_sockets() {
    let scratch = Scratch::new();
    let here = scratch.path("here.sock");
    let there = scratch.path("there.sock");
    let permit = format!("tunnel,tunnel:unix:{}", there.display());
    let _server = server(&scratch, &permit);
    let target = serve(echo_afterwards);
    let unix = UnixListener::bind(&there).expect("a socket");
    thread::spawn(move || {
        for mut stream in unix.incoming().map_while(Result::ok) {
            let mut got = Vec::new();
            stream.read_to_end(&mut got).expect("it ends");
            stream.write_all(&got).expect("it is read");
        }
    });
    let (here, there) = (here.to_string_lossy(), there.to_string_lossy());
    let forwards = [
        format!("0:{target}"),
        format!("0:{there}"),
        format!("{here}:{target}"),
        format!("0:{there}"),
    ];
    let [remote, remote_unix, local, local_unix] = forwards.each_ref().map(String::as_str);
    let arguments = [
        "-R",
        remote,
        "-R",
        remote_unix,
        "-L",
        local,
        "-L",
        local_unix,
    ];
    let (tunnel, bound) = tunnel(&scratch, &arguments);
    let data = content(300_000);
    for at in [&bound[0], &bound[1], &bound[3]] {
        assert!(exchange(connect(at), &data) == data, "{at}");
    }
    assert_eq!(bound[2], here);
    let mut stream = UnixStream::connect(&*here).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("an option");
    stream.write_all(b"hello").expect("a connection");
    stream.shutdown(Shutdown::Write).expect("a connection");
    let mut got = String::new();
    stream.read_to_string(&mut got).expect("it is sent back");
    assert_eq!(got, "hello");
    // Nobody else may use it, and it goes with the tunnel.
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(&*here).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    tunnel.signal(Signal::TERM);
    tunnel.end().expect(143);
    assert!(!fs::exists(&*here).expect("a directory"));
}

#[test]
fn only_a_socket_without_a_listener_is_replaced() {
    let scratch = Scratch::new();
    let _server = server(&scratch, "tunnel");
    let [notes, link, dead] = ["notes.txt", "link", "dead.sock"].map(|name| scratch.path(name));
    fs::write(&notes, "precious").expect("a file");
    std::os::unix::fs::symlink(&notes, &link).expect("a link");
    for at in [&notes, &link] {
        let forward = format!("{}:127.0.0.1:9", at.display());
        let arguments = ["tunnel", "--json", "--ticket-file", "t", "-L", &forward];
        let refused = Running::start(&scratch, &arguments, &[]).end().expect(8);
        let told = refused.error("local_io");
        assert!(told["message"].to_string().contains("no socket"), "{told}");
        assert_eq!(fs::read_to_string(at).expect("it stays"), "precious");
    }
    drop(UnixListener::bind(&dead).expect("a socket"));
    let forward = format!("{}:127.0.0.1:9", dead.display());
    let (tunnel, bound) = tunnel(&scratch, &["-L", &forward]);
    assert_eq!(bound[0], dead.to_string_lossy());
    drop(UnixStream::connect(&dead).expect("it listens"));
    // What has taken its place is not the tunnel's.
    fs::remove_file(&dead).expect("a socket");
    fs::write(&dead, "precious").expect("a file");
    tunnel.signal(Signal::TERM);
    tunnel.end().expect(143);
    assert_eq!(fs::read_to_string(&dead).expect("it stays"), "precious");
}

/// Sends datagrams back.
fn echo_datagrams() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address");
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    address
}

/// A datagram that is sent until it comes back: any may be lost on any way.
fn comes_back(socket: &UdpSocket, to: &str, data: &[u8]) {
    let mut buffer = vec![0; 65_536];
    let deadline = Instant::now() + PATIENCE;
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .expect("an option");
    while Instant::now() < deadline {
        socket.send_to(data, to).expect("a socket");
        // An earlier one may have been late.
        while let Ok(len) = socket.recv(&mut buffer) {
            if buffer[..len] == *data {
                return;
            }
        }
    }
    panic!("{} bytes do not come back", data.len());
}

#[test]
fn datagrams_of_every_size_come_whole() {
    let scratch = Scratch::new();
    let _server = server(&scratch, "tunnel");
    let target = echo_datagrams();
    let forwards = [
        format!("0:localhost:{}/udp", target.port()),
        format!("0:{target}/udp,deadline=0"),
        format!("0:{target}/udp,deadline=100ms"),
        format!("0:{target}/udp,in-order"),
    ];
    let [usual, plain, remote, ordered] = forwards.each_ref().map(String::as_str);
    let (_tunnel, bound) = tunnel(
        &scratch,
        &[
            "-R", remote, "-L", usual, "-L", plain, "-R", ordered, "-L", ordered,
        ],
    );
    let data = content(65_507);
    for at in &bound {
        // Each source has a flow of its own.
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
        for len in [
            1, 0, 20, 100, 1100, 1200, 1300, 1472, 1500, 4096, 9000, 32_768, 65_507,
        ] {
            for socket in &sockets {
                comes_back(socket, at, &data[..len]);
            }
        }
    }
}

/// As many sources as a listener keeps apart send one datagram each, which nobody answers. Whoever comes then is served.
#[test]
fn sources_that_nobody_answers_keep_nobody_out() {
    let scratch = Scratch::new();
    let _server = server(&scratch, "tunnel");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let forward = format!("0:{}/udp", socket.local_addr().expect("an address"));
    let (told, hears) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            match &buffer[..len] {
                b"question" => drop(socket.send_to(b"question", from)),
                other => drop(told.send(other.to_vec())),
            }
        }
    });
    let (_tunnel, bound) = tunnel(&scratch, &["-L", &forward]);
    let deadline = Instant::now() + PATIENCE;
    for number in 0..1024_u16 {
        let [high, low] = number.to_be_bytes();
        let source = UdpSocket::bind(SocketAddr::from(([127, 1, high, low], 0))).expect("a port");
        let heard = |got: Vec<u8>| got == [high, low];
        let mut is_there = false;
        while !is_there {
            assert!(Instant::now() < deadline, "source {number} is not served");
            source.send_to(&[high, low], &bound[0]).expect("a socket");
            is_there = hears
                .recv_timeout(Duration::from_millis(500))
                .is_ok_and(heard);
        }
    }
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    comes_back(&socket, &bound[0], b"question");
}

/// What a SOCKS server answers to bytes, so many of them.
fn socks(at: &str, said: &[&[u8]], answers: &[usize]) -> (TcpStream, Vec<Vec<u8>>) {
    let mut stream = connect(at);
    let mut heard = Vec::new();
    for (bytes, answer) in said.iter().zip(answers) {
        stream.write_all(bytes).expect("a connection");
        let mut got = vec![0; *answer];
        stream.read_exact(&mut got).expect("an answer");
        heard.push(got);
    }
    (stream, heard)
}

fn ask_for(address: SocketAddr, command: u8) -> Vec<u8> {
    let SocketAddr::V4(address) = address else {
        panic!("an IPv4 address");
    };
    let head = [5, command, 0, 1];
    [
        &head,
        &address.ip().octets()[..],
        &address.port().to_be_bytes(),
    ]
    .concat()
}

#[test]
fn a_proxy_speaks_socks() {
    let scratch = Scratch::new();
    let target = serve(echo_afterwards);
    let datagrams = echo_datagrams();
    let free = free_port();
    let _server = server(&scratch, "tunnel");
    let (_tunnel, bound) = tunnel(&scratch, &["-D", "0"]);
    let hello: &[u8] = &[5, 1, 0];
    let by_name = [
        &[5, 1, 0, 3, 9],
        &b"localhost"[..],
        &target.port().to_be_bytes(),
    ]
    .concat();
    for request in [ask_for(target, 1), by_name] {
        let (stream, heard) = socks(&bound[0], &[hello, &request], &[2, 10]);
        assert_eq!(heard[0], [5, 0]);
        assert_eq!(heard[1][..4], [5, 0, 0, 1]);
        let data = content(100_000);
        assert!(exchange(stream, &data) == data);
    }
    // RFC 1928, §6.
    let metadata = "169.254.169.254:80".parse().expect("an address");
    let unknown = [&[5, 1, 0, 3, 15], &b"nowhere.invalid"[..], &[0, 80]].concat();
    for (request, code) in [
        (ask_for(free, 1), 5),
        (ask_for(metadata, 1), 2),
        (unknown, 4),
        (ask_for(target, 2), 7),
        (ask_for(target, 9), 7),
        (vec![5, 1, 0, 9, 1, 1], 8),
    ] {
        let (_, heard) = socks(&bound[0], &[hello, &request], &[2, 10]);
        assert_eq!(heard[1][..2], [5, code], "{request:?}");
    }
    let (_, heard) = socks(&bound[0], &[&[5, 1, 2]], &[2]);
    assert_eq!(heard[0], [5, 255]);

    let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let (control, heard) = socks(&bound[0], &[hello, &ask_for(anywhere, 3)], &[2, 10]);
    assert_eq!(heard[1][..4], [5, 0, 0, 1]);
    let port = u16::from_be_bytes([heard[1][8], heard[1][9]]);
    let relay = SocketAddr::from(([127, 0, 0, 1], port)).to_string();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let head = ask_for(datagrams, 0);
    for len in [0, 1, 1400, 30_000, 65_497] {
        let data = [&[0, 0, 0], &head[3..], &content(len)[..]].concat();
        comes_back(&socket, &relay, &data);
    }
    // It ends with its connection: then nobody is at that port.
    drop(control);
    let deadline = Instant::now() + PATIENCE;
    while UdpSocket::bind(&relay).is_err() {
        assert!(Instant::now() < deadline, "the association goes on");
        thread::sleep(Duration::from_millis(5));
    }
}

/// At a listener of both families IPv4 looks like IPv6. Programs are told an address that they can send to.
#[test]
fn datagrams_of_ipv4_go_through_a_proxy_of_both_families() {
    let scratch = Scratch::new();
    let datagrams = echo_datagrams();
    let _server = server(&scratch, "tunnel");
    let (_tunnel, bound) = tunnel(&scratch, &["-D", "*:0"]);
    let (_, port) = bound[0].rsplit_once(':').expect("a port");
    let anywhere = ask_for(SocketAddr::from(([0, 0, 0, 0], 0)), 3);
    let said: [&[u8]; 2] = [&[5, 1, 0], &anywhere];
    let (_control, heard) = socks(&format!("127.0.0.1:{port}"), &said, &[2, 10]);
    assert_eq!(heard[1][..8], [5, 0, 0, 1, 127, 0, 0, 1]);
    let port = u16::from_be_bytes([heard[1][8], heard[1][9]]);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let data = [&[0, 0, 0], &ask_for(datagrams, 0)[3..], &b"hello"[..]].concat();
    comes_back(&socket, &format!("127.0.0.1:{port}"), &data);
}

#[test]
fn a_proxy_asks_for_a_password_and_speaks_http() {
    let scratch = Scratch::new();
    let target = serve(echo_afterwards);
    fs::write(scratch.path("auth"), "me:secret\n").expect("a file");
    let _server = server(&scratch, "tunnel");
    let (_tunnel, bound) = tunnel(&scratch, &["-D", "0", "--proxy-auth", "auth"]);
    let (user, wrong): (&[u8], &[u8]) = (b"\x01\x02me\x06secret", b"\x01\x02me\x06Secret");
    let (stream, heard) = socks(
        &bound[0],
        &[&[5, 2, 0, 2], user, &ask_for(target, 1)],
        &[2, 2, 10],
    );
    assert_eq!(
        (&heard[0][..], &heard[1][..], heard[2][1]),
        (&[5, 2][..], &[1, 0][..], 0)
    );
    assert_eq!(exchange(stream, b"hello"), b"hello");
    let (_, heard) = socks(&bound[0], &[&[5, 1, 2], wrong], &[2, 2]);
    assert_ne!(heard[1][1], 0);
    let (_, heard) = socks(&bound[0], &[&[5, 1, 0]], &[2]);
    assert_eq!(heard[0], [5, 255]);
    for (lines, code) in [
        ("", "407"),
        ("Proxy-Authorization: Basic bWU6U2VjcmV0\r\n", "407"),
        ("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n", "200"),
    ] {
        let request = format!("CONNECT {target} HTTP/1.1\r\n{lines}\r\nhello");
        let got = exchange(connect(&bound[0]), request.as_bytes());
        let got = String::from_utf8_lossy(&got).into_owned();
        assert!(got.starts_with(&format!("HTTP/1.1 {code} ")), "{got}");
        assert_eq!(got.ends_with("\r\n\r\nhello"), code == "200", "{got}");
    }
}

#[test]
fn curl_goes_through_all_of_them() {
    if Command::new("curl").arg("-V").output().is_err() {
        sphinx_testing::skipped!("there is no curl");
        return;
    }
    let scratch = Scratch::new();
    let target = serve(|mut stream| {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let body = content(500_000);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(&[head.as_bytes(), &body].concat());
    });
    let _server = server(&scratch, "tunnel");
    let forward = format!("0:{target}");
    let (_tunnel, bound) = tunnel(&scratch, &["-L", &forward, "-D", "0"]);
    let page = format!("http://localhost:{}/", target.port());
    let (direct, proxy) = (format!("http://{}/", bound[0]), &bound[1]);
    let http = format!("http://{proxy}");
    for arguments in [
        vec![direct.as_str()],
        vec!["--socks5-hostname", proxy, &page],
        vec!["--socks5", proxy, &page],
        vec!["-p", "-x", &http, &page],
    ] {
        let fetched = Command::new("curl")
            .args(["-sS", "--noproxy", ""])
            .args(&arguments)
            .output();
        let fetched = fetched.expect("curl");
        assert!(
            fetched.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&fetched.stderr)
        );
        assert!(fetched.stdout == content(500_000), "{arguments:?}");
    }
}

/// Fifty download, one of them reads nothing: the others have all of it, and a new one too.
#[test]
fn a_reader_that_has_stopped_holds_up_itself() {
    let scratch = Scratch::new();
    let target = serve(|mut stream| {
        let _ = stream.read(&mut [0; 1]);
        let _ = stream.write_all(&content(4_000_000));
    });
    let _server = server(&scratch, "tunnel");
    let forward = format!("0:{target}");
    let (_tunnel, bound) = tunnel(&scratch, &["-L", &forward]);
    let download = |at: &str| {
        let mut stream = connect(at);
        stream.write_all(b"x").expect("a connection");
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("it comes");
        assert!(got == content(4_000_000));
    };
    let mut stopped = connect(&bound[0]);
    stopped.write_all(b"x").expect("a connection");
    thread::scope(|scope| {
        for _ in 0..49 {
            scope.spawn(|| download(&bound[0]));
        }
    });
    download(&bound[0]);
    let mut got = Vec::new();
    stopped.read_to_end(&mut got).expect("it was waited for");
    assert!(got == content(4_000_000));
}

/// A target whose queue of connections is full answers no more: others are reached all the same.
#[test]
fn a_target_that_never_answers_holds_up_nobody() {
    let scratch = Scratch::new();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    rustix::net::listen(&silent, 0).expect("a listener");
    let at = silent.local_addr().expect("an address");
    let fills = TcpStream::connect(at).expect("there is room for one");
    let patience = Duration::from_millis(300);
    if let Ok(_answered) = TcpStream::connect_timeout(&at, patience) {
        sphinx_testing::skipped!("connections do not wait here");
        return;
    }
    let few = ["--permit", "tunnel", "--pending-per-client", "500"];
    let mut server = server_with(&scratch, &few);
    let target = serve(echo_afterwards);
    let forwards = [format!("0:{at}"), format!("0:{target}")];
    let (_tunnel, bound) = tunnel(&scratch, &["-L", &forwards[0], "-L", &forwards[1]]);
    let mut waiting: Vec<_> = (0..300).map(|_| try_connect(&bound[0])).collect();
    assert_eq!(exchange(connect(&bound[1]), b"hello"), b"hello");
    assert_eq!(flow(&mut server)["end"], "ok");
    // Of those beyond what may wait one is told at once, maybe before it is told that it is connected.
    assert!(match waiting.pop().expect("300 of them") {
        Ok(last) => ends_by_reset(last),
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    });
    // Thousands of short connections do not stop the others either.
    for _ in 0..4700 {
        // Some are reset at once.
        drop(TcpStream::connect(&bound[0]));
    }
    assert_eq!(exchange(connect(&bound[1]), b"hello"), b"hello");
    drop(fills);
}

#[test]
fn a_client_that_was_killed_leaves_no_connection_at_the_target() {
    let scratch = Scratch::new();
    let _server = server_with(&scratch, &["--permit", "tunnel", "--idle-timeout", "2s"]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let forward = format!("0:{}", listener.local_addr().expect("an address"));
    let (tunnel, bound) = tunnel(&scratch, &["-L", &forward]);
    let mut stream = connect(&bound[0]);
    stream.write_all(b"x").expect("a connection");
    let (mut there, _) = listener.accept().expect("a connection");
    there.set_read_timeout(Some(PATIENCE)).expect("an option");
    there.read_exact(&mut [0]).expect("a byte");
    tunnel.signal(Signal::KILL);
    assert!(ends_by_reset(there));
}

#[test]
fn a_server_that_comes_again_with_its_key_is_found_again() {
    let scratch = Scratch::new();
    let port = free_udp_port();
    let again = || server_with_key(&scratch, &port);
    let first = again();
    let ticket = fs::read(scratch.path("t")).expect("a ticket");
    let target = serve(echo_afterwards);
    let forwards = [format!("0:{target}"), format!("0:{target}")];
    let arguments = [
        "-L",
        &forwards[0],
        "-R",
        &forwards[1],
        "--idle-timeout",
        "2s",
    ];
    let (mut tunnel, bound) = tunnel(&scratch, &arguments);
    assert_eq!(exchange(connect(&bound[1]), b"hello"), b"hello");
    first.signal(Signal::KILL);
    first.end().expect(-1);
    let reconnecting = tunnel.event("reconnecting");
    assert!(
        reconnecting["next_ms"].as_u64() >= Some(200),
        "{reconnecting}"
    );
    // A connection that is opened meanwhile waits for the tunnel.
    let waits = connect(&bound[1]);
    let mut second = again();
    assert_eq!(fs::read(scratch.path("t")).expect("a ticket"), ticket);
    tunnel.event("connected");
    assert_eq!(exchange(waits, b"hello"), b"hello");
    let remote = tunnel.event("forward")["bound"]
        .as_str()
        .expect("an address")
        .to_owned();
    assert_eq!(exchange(connect(&remote), b"hello"), b"hello");
    assert!(!second.has_ended());
    // A server with another key is not trusted.
    second.signal(Signal::TERM);
    second.end().expect(143);
    fs::remove_file(scratch.path("key")).expect("a key");
    let _third = again();
    tunnel.end().expect(4).error("authentication");
    // Nor is a key that others can read, or that is none.
    let refused = |why: &str| {
        let arguments = [
            "server",
            "--ticket-file",
            "u",
            "--key",
            "key",
            "--permit",
            "tunnel",
            "--listen",
            "127.0.0.1:0",
        ];
        let ended: Ended = Running::start(&scratch, &arguments, &[]).end().expect(8);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    };
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(scratch.path("key"), fs::Permissions::from_mode(0o644)).expect("a file");
    refused("others can read");
    fs::set_permissions(scratch.path("key"), fs::Permissions::from_mode(0o600)).expect("a file");
    fs::write(scratch.path("key"), "nothing").expect("a file");
    refused("is no key");
}

/// Nobody waits until it has been silent for long enough.
#[test]
fn a_server_that_was_killed_and_is_back_says_that_it_does_not_know_the_session() {
    let scratch = Scratch::new();
    let port = free_udp_port();
    let again = || server_with_key(&scratch, &port);
    let first = again();
    let forward = format!("0:{}", serve(echo_afterwards));
    let (mut tunnel, bound) = tunnel(&scratch, &["-L", &forward, "--idle-timeout", "1h"]);
    assert_eq!(exchange(connect(&bound[0]), b"hello"), b"hello");
    first.signal(Signal::KILL);
    first.end().expect(-1);
    let _second = again();
    let mut asks = connect(&bound[0]);
    asks.write_all(b"is anybody there?").expect("a connection");
    let reconnecting = tunnel.event("reconnecting");
    let reason =
        "the server does not know this session any more: it was started again, or had given it up";
    assert_eq!(reconnecting["reason"], reason);
    assert!(ends_by_reset(asks));
    assert_eq!(exchange(connect(&bound[0]), b"hello"), b"hello");
}

#[test]
fn mistakes_are_told_before_anything_happens() {
    let scratch = Scratch::new();
    let state = scratch.path("state");
    let home = [("XDG_STATE_HOME", state.to_str().expect("a path"))];
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let forward = format!("{}:a:1", taken.local_addr().expect("an address"));
    fs::write(scratch.path("auth"), "nobody\n").expect("a file");
    for (arguments, reason) in [
        (&["tunnel", "-L", "99999:a:1"][..], "no port"),
        (&["tunnel", "-L", "1:a:1/tcp6"], "neither /tcp nor /udp"),
        (&["tunnel", "--ticket-file", "t"], "nothing to forward"),
        (
            &["tunnel", "-L", "1:a:1", "-L", "127.0.0.1:1:b:2"],
            "same address",
        ),
        (&["tunnel", "-L", "1:a:1", "-D", "1"], "same address"),
        (&["tunnel", "-R", "1:a:1", "-R", "*:1:a:1"], "same address"),
        (&["tunnel", "-R", "./x:a:1"], "not built yet"),
        (
            &["tunnel", "-W", "a:1", "-L", "1:a:1"],
            "cannot be used with",
        ),
        (&["tunnel", "-W", "a:1", "--json"], "cannot be used with"),
        (
            &["tunnel", "-D", "0", "--proxy-auth", "auth"],
            "USER:PASSWORD",
        ),
        (
            &["tunnel", "--tun", "--tun"],
            "cannot be used multiple times",
        ),
        (
            &["tunnel", "--tun", "--address", "10.9.0.2/33"],
            "no address",
        ),
        (
            &["tunnel", "--tun", "--address", "::/0", "--address", "::1"],
            "one address of each family",
        ),
        (
            &[
                "tunnel",
                "--tun",
                "--address",
                "::2/64",
                "--route",
                "0.0.0.0/0",
            ],
            "none of this family",
        ),
        (&["tunnel", "--tun", "a/b"], "name of an interface"),
        (&["tunnel", "--route", "::/0"], "--tun"),
        (&["tunnel", "--tun", "a", "--", "sh"], "has no name here"),
        (
            &["tunnel", "-L", "1:a:1", "office"],
            "no server called office",
        ),
        (&["tunnel", "-L", "1:a:1"], "there is no ticket"),
        (&["server", "--ticket-file", "t"], "rules"),
        (&["server", "--permit", "tunel"], "no rule"),
        (&["server", "--permit", "tun"], "--tun-pool"),
        (
            &["server", "--permit", "tunnel", "--tun-pool", "10.9.0.0/24"],
            "--permit tun",
        ),
        (
            &["server", "--permit", "tun", "--tun-pool", "10.9.0.0/31"],
            "no network for clients",
        ),
        (
            &["server", "--permit", "tun", "--tun-pool", "10.0.0.0/7"],
            "no wider than /8",
        ),
        (
            &[
                "server",
                "--permit",
                "tun",
                "--tun-pool",
                "10.9.0.0/24",
                "--tun-pool",
                "fd09::/64",
                "--tun-pool",
                "10.8.0.0/24",
            ],
            "--tun-pool 10.9.0.0/24 and 10.8.0.0/24: both are of one family",
        ),
        (&["server", "--permit", "tunnel,files"], "--output DIR"),
        (&["server", "--key", "k"], "rules"),
        // Nobody has this address: a server would not begin.
        (
            &[
                "server",
                "--key",
                "k",
                "--authorized",
                "a",
                "--listen",
                "192.0.2.1:1",
            ],
            "cannot be used with",
        ),
        (&["server", "invite", "laptop"], "--permit"),
        (&["join"], "Usage"),
    ] {
        let ended = Running::start(&scratch, arguments, &home).end().expect(2);
        assert!(
            ended.stderr.contains(reason),
            "{arguments:?}: {}",
            ended.stderr
        );
    }
    // A busy local port is reported before the tunnel connects to the server.
    let _server = server(&scratch, "tunnel");
    let arguments = ["tunnel", "--json", "--ticket-file", "t", "-L", &forward];
    let busy = Running::start(&scratch, &arguments, &[]).end().expect(8);
    let told = busy.error("local_io");
    assert!(told["hint"].to_string().contains("port 0"), "{told}");
}

/// Forwards work over a link that loses packets, too.
#[cfg(feature = "lab")]
#[test]
fn forwards_cross_a_link_that_loses() {
    if let Err(error) = sphinx_netdev::netns::probe() {
        sphinx_testing::skipped!("{error}");
        return;
    }
    for program in ["curl", "python3"] {
        if Command::new(program).arg("-V").output().is_err() {
            sphinx_testing::skipped!("there is no {program}");
            return;
        }
    }
    let scratch = Scratch::new();
    scratch.file("in/page", 3_000_000);
    let binary = env!("CARGO_BIN_EXE_sphx");
    let right = format!(
        "ip link set lo up; (cd in; exec python3 -m http.server --bind 127.0.0.1 8080 >/dev/null 2>&1) & \
         while ! curl -s http://127.0.0.1:8080/ >/dev/null; do sleep 0.05; done; exec {binary} server --permit tunnel --key key --ticket-file t --quiet"
    );
    let left = format!(
        "ip link set lo up; while ! test -s t; do sleep 0.02; done; \
         {binary} tunnel --ticket-file t --json -L 8081:localhost:8080 -D 1080 > events & \
         while ! grep -q 1080 events; do sleep 0.02; done; \
         curl -sSf http://127.0.0.1:8081/page > direct && \
         curl -sSf --socks5-hostname 127.0.0.1:1080 http://localhost:8080/page > proxied; \
         code=$?; kill $!; exit $code"
    );
    let arguments = [
        "lab", "link", "--quiet", "--left", &left, "--right", &right, "--rate", "50mbit", "--rtt",
        "20ms", "--loss", "6%",
    ];
    let runtime = scratch.path(".").to_string_lossy().into_owned();
    let environment = [
        ("XDG_RUNTIME_DIR", runtime.as_str()),
        ("SPHX_LINK_SOCKET", ""),
    ];
    Running::start(&scratch, &arguments, &environment)
        .end()
        .expect(0);
    scratch.assert_same("in/page", "direct");
    scratch.assert_same("in/page", "proxied");
}

/// An end runs out of files: it says so once, and goes on when there are some again.
#[test]
fn want_of_files_is_told_once_and_passes() {
    const FILES: usize = 60;
    for is_client in [true, false] {
        let scratch = Scratch::new();
        let start = |words: &[&str], is_short: bool| {
            let mut command = Command::new("sh");
            let limit = if is_short { FILES } else { 1024 };
            let line = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
            command.args(["-c", &line, env!("CARGO_BIN_EXE_sphx")]);
            command.args(words).env_remove("SPHX_TICKET");
            command.env("XDG_CACHE_HOME", scratch.path("cache"));
            Running::of(&scratch, command)
        };
        let words = ["server", "--json", "--listen", "127.0.0.1:0"];
        let more = ["--ticket-file", "t", "--permit", "tunnel"];
        let mut server = start(&[&words[..], &more].concat(), !is_client);
        server.event("listening");
        let forward = format!("0:127.0.0.1:{}", serve(echo_afterwards).port());
        let words = ["tunnel", "--json", "--ticket-file", "t", "-L", &forward];
        let mut tunnel = start(&words, is_client);
        let bound = tunnel.event("forward")["bound"].clone();
        let bound = bound.as_str().expect("an address");
        let held: Vec<_> = (0..2 * FILES).map(|_| connect(bound)).collect();
        let short = if is_client { &mut tunnel } else { &mut server };
        let told = short.event("note");
        let told = told["message"].as_str().expect("text");
        assert!(told.contains("LimitNOFILE="), "{told}");
        drop(held);
        let data = content(1000);
        let deadline = Instant::now() + PATIENCE;
        while exchange_or_nothing(connect(bound), &data) != data {
            assert!(Instant::now() < deadline, "it never goes on");
        }
        tunnel.signal(Signal::INT);
        server.signal(Signal::INT);
        let ended = [tunnel, server].map(|running| running.end().expect(130).events);
        let notes = ended.iter().flatten().filter(|it| it["event"] == "note");
        assert_eq!(notes.count(), 1, "{ended:?}");
    }
}

/// The same as [`exchange`] where the connection may be reset, or refused.
fn exchange_or_nothing(mut stream: TcpStream, data: &[u8]) -> Vec<u8> {
    let mut got = Vec::new();
    let sent = stream.write_all(data);
    let sent = sent.and_then(|()| stream.shutdown(Shutdown::Write));
    match sent.and_then(|()| stream.read_to_end(&mut got)) {
        Ok(_) => got,
        Err(_) => Vec::new(),
    }
}
