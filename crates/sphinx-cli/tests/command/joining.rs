//! Servers for many: invitations, clients with keys of their own, and what becomes of those who are revoked.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use rustix::process::Signal;

use crate::common::{Ended, PATIENCE, Running, Scratch, admin, until, user};

/// A server with its state in `s`, and where it listens.
fn server(scratch: &Scratch, more: &[&str]) -> (Running, String) {
    let base = ["server", "--json", "-v", "--state", "s", "--listen"];
    let listen: &[&str] = if more.first().is_some_and(|it| it.starts_with("127.")) {
        &[]
    } else {
        &["127.0.0.1:0"]
    };
    let mut server = Running::start(scratch, &[&base[..], listen, more].concat(), &[]);
    let listening = server.event("listening");
    let at = listening["listen"].as_str().expect("an address").to_owned();
    (server, at)
}

fn join(scratch: &Scratch, home: &str, ticket: &str) -> Ended {
    let line = ["join", "--json", "--ticket-file", ticket, "--as", "office"];
    user(scratch, home, &line).end()
}

/// Somebody who says everything back.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address.to_string()
}

/// A tunnel of this user to `target`, and where it listens.
fn tunnel(scratch: &Scratch, home: &str, target: &str) -> (Running, TcpStream) {
    let forward = format!("127.0.0.1:0:{target}");
    let line = ["tunnel", "office", "--json", "-L", &forward];
    let mut tunnel = user(scratch, home, &line);
    let bound = tunnel.event("forward")["bound"]
        .as_str()
        .expect("an address")
        .to_owned();
    let stream = TcpStream::connect(bound).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("an option");
    (tunnel, stream)
}

fn says_back(stream: &mut TcpStream) {
    stream.write_all(b"hello").expect("it is read");
    let mut got = [0; 5];
    stream.read_exact(&mut got).expect("it is said back");
    assert_eq!(&got, b"hello");
}

#[test]
fn who_is_invited_joins_once_and_comes_back_after_the_server_was_started_again() {
    let scratch = Scratch::new();
    let target = echo();
    let (running, at) = server(&scratch, &[]);
    admin(
        &scratch,
        &[
            "invite",
            "laptop",
            "--permit",
            "tunnel",
            "--ticket-file",
            "i",
        ],
    )
    .expect(0);
    admin(
        &scratch,
        &[
            "invite",
            "laptop",
            "--permit",
            "tunnel",
            "--ticket-file",
            "j",
        ],
    )
    .expect(2);
    until(0, || join(&scratch, "a", "i"));
    // It works once; but who has joined with it may be told so again.
    join(&scratch, "b", "i").expect(4).error("authentication");
    until(0, || join(&scratch, "a", "i"));
    let (first, mut stream) = tunnel(&scratch, "a", &target);
    says_back(&mut stream);
    first.signal(Signal::TERM);
    first.end().expect(143);

    running.signal(Signal::TERM);
    let ended = running.end().expect(143);
    // That a client asks whether it is in is nothing that a rule denies.
    assert!(ended.events.iter().all(|it| it["event"] != "denied"));
    let (_again, _) = server(&scratch, &[&at]);
    let (_tunnel, mut stream) = tunnel(&scratch, "a", &target);
    says_back(&mut stream);
    let listed = admin(&scratch, &["clients"]).expect(0);
    assert_eq!(listed.event("client")["name"], "laptop");
    assert_eq!(listed.event("client")["settings"], "permit=tunnel");
}

#[test]
fn who_is_revoked_is_cut_off_and_the_others_notice_nothing() {
    let scratch = Scratch::new();
    let target = echo();
    let (mut running, _) = server(&scratch, &[]);
    for (name, home) in [("laptop", "a"), ("phone", "b")] {
        admin(
            &scratch,
            &["invite", name, "--permit", "tunnel", "--ticket-file", name],
        )
        .expect(0);
        until(0, || join(&scratch, home, name));
    }
    let (cut, mut stream) = tunnel(&scratch, "a", &target);
    let (_other, mut others) = tunnel(&scratch, "b", &target);
    says_back(&mut stream);
    says_back(&mut others);
    // The session is cut in the middle of a transfer.
    let mut sending = stream.try_clone().expect("a socket");
    let sender = thread::spawn(move || while sending.write_all(&[0; 4096]).is_ok() {});
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(1..) = stream.read(&mut bytes) {}
    });
    admin(&scratch, &["revoke", "laptop"]).expect(0);
    let ended = cut.end().expect(4);
    assert!(
        ended.error("authentication")["message"]
            .to_string()
            .contains("revoked")
    );
    sender.join().expect("it ends");
    reader.join().expect("it ends");
    says_back(&mut others);
    let again = ["tunnel", "office", "--json", "-D", "127.0.0.1:0"];
    user(&scratch, "a", &again).end().expect(4);
    admin(&scratch, &["revoke", "laptop"]).expect(2);
    let gone = running.event("client");
    assert!(gone["name"].is_string());
}

#[test]
fn edits_of_the_list_hold_at_once() {
    let scratch = Scratch::new();
    let target = echo();
    let (mut running, _) = server(&scratch, &[]);
    admin(
        &scratch,
        &[
            "invite",
            "laptop",
            "--permit",
            "tunnel",
            "--ticket-file",
            "i",
        ],
    )
    .expect(0);
    until(0, || join(&scratch, "a", "i"));
    let (_tunnel, mut stream) = tunnel(&scratch, "a", &target);
    says_back(&mut stream);
    let path = scratch.path("s/authorized");
    let before = fs::read_to_string(&path).expect("the list");
    // What is not understood changes nothing.
    fs::write(&path, format!("{before}nonsense\n")).expect("it is ours");
    running.says("nothing changes");
    says_back(&mut stream);
    // Less is permitted: what is open stays, what begins is denied.
    let less = before.replace("permit=tunnel", "permit=tunnel:tcp:127.0.0.1:1");
    assert_ne!(less, before);
    fs::write(&path, less).expect("it is ours");
    let forward = format!("127.0.0.1:0:{target}");
    let mut denied = user(
        &scratch,
        "a",
        &["tunnel", "office", "--json", "-L", &forward],
    );
    let bound = denied.event("forward")["bound"]
        .as_str()
        .expect("an address")
        .to_owned();
    loop {
        let mut stream = TcpStream::connect(&bound).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        let mut got = [0; 5];
        if stream.write_all(b"hello").is_err() || stream.read_exact(&mut got).is_err() {
            break;
        }
    }
    assert_eq!(running.event("denied")["client"], "laptop");
    says_back(&mut stream);
}

#[test]
fn a_stranger_with_the_door_key_alone_gets_nowhere() {
    let scratch = Scratch::new();
    let (mut running, _) = server(&scratch, &[]);
    admin(
        &scratch,
        &[
            "invite",
            "laptop",
            "--permit",
            "tunnel",
            "--ticket-file",
            "i",
        ],
    )
    .expect(0);
    until(0, || join(&scratch, "a", "i"));
    // Another user has the place, but not the key.
    let servers = scratch.path("a/sphinx/client/servers");
    fs::create_dir_all(scratch.path("b/sphinx/client")).expect("a directory");
    fs::copy(servers, scratch.path("b/sphinx/client/servers")).expect("a copy");
    let line = ["tunnel", "office", "--json", "-D", "127.0.0.1:0"];
    user(&scratch, "b", &line)
        .end()
        .expect(4)
        .error("authentication");
    // An invitation is for joining, and for nothing else.
    admin(
        &scratch,
        &[
            "invite",
            "phone",
            "--permit",
            "tunnel",
            "--ticket-file",
            "p",
        ],
    )
    .expect(0);
    let line = [
        "tunnel",
        "--ticket-file",
        "p",
        "--json",
        "-D",
        "127.0.0.1:0",
    ];
    user(&scratch, "b", &line)
        .end()
        .expect(4)
        .error("authentication");
    assert!(!running.has_ended());
}

#[test]
fn nobody_is_invited_by_a_server_that_there_is_not() {
    let scratch = Scratch::new();
    let line = ["--permit", "tunnel", "--advertise", "vpn.example.org"];
    let line = [&["invite", "laptop", "--ticket-file", "i"], &line[..]].concat();
    let ended = admin(&scratch, &line).expect(2);
    let error = ended.error("usage");
    assert!(error["hint"].to_string().contains("--state"), "{error}");
    assert!(!scratch.path("i").exists() && !scratch.path("s/key").exists());
    // Nor is an empty list that of a server elsewhere, nor another key that server's.
    let ended = admin(&scratch, &["clients"]).expect(0);
    let said = &ended.stderr;
    assert!(said.contains("no receiver or server"), "{said}");
    let line = ["server", "key", "rotate", "--json", "--state", "s"];
    let ended = Running::start(&scratch, &line, &[]).end().expect(0);
    assert_eq!(ended.event("key")["rotated"], false);
    let said = &ended.stderr;
    assert!(
        said.contains("--state") && !said.contains("another key"),
        "{said}"
    );
}

#[test]
fn another_key_ends_what_was_before() {
    let scratch = Scratch::new();
    let (running, at) = server(&scratch, &[]);
    admin(
        &scratch,
        &[
            "invite",
            "laptop",
            "--permit",
            "tunnel",
            "--ticket-file",
            "i",
        ],
    )
    .expect(0);
    until(0, || join(&scratch, "a", "i"));
    let rotate = || {
        let line = ["server", "key", "rotate", "--json", "--state", "s"];
        Running::start(&scratch, &line, &[]).end()
    };
    rotate().expect(8);
    running.signal(Signal::TERM);
    running.end().expect(143);
    assert_eq!(rotate().expect(0).event("key")["rotated"], true);
    let (_again, _) = server(&scratch, &[&at]);
    let line = ["tunnel", "office", "--json", "-D", "127.0.0.1:0"];
    user(&scratch, "a", &line)
        .end()
        .expect(4)
        .error("authentication");
}

#[test]
fn names_that_nobody_has_are_told_with_the_one_that_was_meant() {
    let scratch = Scratch::new();
    let (_running, _) = server(&scratch, &[]);
    admin(
        &scratch,
        &[
            "invite",
            "laptop",
            "--permit",
            "tunnel",
            "--ticket-file",
            "i",
        ],
    )
    .expect(0);
    let wrong = admin(&scratch, &["revoke", "lptop"]).expect(2);
    assert_eq!(wrong.error("usage")["hint"], "did you mean laptop?");
    until(0, || join(&scratch, "a", "i"));
    let line = ["tunnel", "ofice", "--json", "-D", "127.0.0.1:0"];
    let wrong = user(&scratch, "a", &line).end().expect(2);
    assert_eq!(wrong.error("usage")["hint"], "did you mean office?");
    admin(
        &scratch,
        &["invite", "x", "--permit", "tunel", "--ticket-file", "x"],
    )
    .expect(2);
}

/// What stands beside a ticket file would be ignored.
#[test]
fn a_ticket_file_and_an_argument_are_one_too_many() {
    let scratch = Scratch::new();
    for line in [
        "join --json --ticket-file t office",
        "tunnel --json --ticket-file t office -L 8080:db:5432",
        "tunnel --json --ticket-file t -L 8080:db:5432 8081:db:5433",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = user(&scratch, "a", &words).end().expect(2);
        let message = ended.error("usage")["message"].to_string();
        assert!(message.contains("two tickets"), "{line}: {message}");
    }
}

/// SIGHUP reads the configuration again; one that cannot be followed changes nothing.
#[test]
fn a_configuration_is_read_again() {
    let scratch = Scratch::new();
    let file = scratch.path("server.toml");
    let text = "listen = \"127.0.0.1:0\"\nstate = \"s\"\n[limits]\nstreams-per-client = 5\n";
    fs::write(&file, text).expect("a file");
    let check = |file: &str| {
        let line = ["config", "check", "--json", "--server", file];
        Running::start(&scratch, &line, &[]).end()
    };
    check("server.toml").expect(0);
    // What is right line by line may still be nothing that a server begins with.
    for (more, why) in [
        ("permit = \"files\"", "no place for them"),
        ("permit = \"tun\"", "need addresses"),
        ("ticket-file = \"t\"", "good for nothing"),
    ] {
        fs::write(&file, format!("{more}\n{text}")).expect("a file");
        let wrong = check("server.toml").expect(2);
        let message = wrong.error("usage")["message"].to_string();
        assert!(message.contains(why), "{message}");
    }
    fs::write(&file, text).expect("a file");
    let line = ["server", "--json", "-v", "--config", "server.toml"];
    let mut running = Running::start(&scratch, &line, &[]);
    running.event("listening");
    running.signal(Signal::HUP);
    running.event("reloaded");
    fs::write(&file, text.replace("streams-per", "stream-per")).expect("a file");
    let wrong = check("server.toml").expect(2);
    let message = wrong.error("usage")["message"].to_string();
    assert!(
        message.contains("server.toml:4") && message.contains("did you mean"),
        "{message}"
    );
    running.signal(Signal::HUP);
    fs::write(&file, text).expect("a file");
    // Whichever of the two it reads, it goes on, and hears the next one.
    running.signal(Signal::HUP);
    running.event("reloaded");
    assert!(!running.has_ended());
    running.signal(Signal::TERM);
    running.end().expect(143);
}

#[test]
fn settings_say_where_they_come_from() {
    let scratch = Scratch::new();
    fs::write(
        scratch.path("c.toml"),
        "connect-timeout = \"5s\"\ncc = \"cubic\"\n",
    )
    .expect("a file");
    let show = |environment: &[(&str, &str)]| {
        let line = ["config", "show", "--origin", "--json"];
        Running::start(&scratch, &line, environment).end().expect(0)
    };
    let shown = show(&[("SPHX_CONFIG", "c.toml"), ("SPHX_CC", "bbr")]);
    let of = |name: &str| {
        let mut found = shown.events.iter().filter(|event| event["name"] == name);
        let event = found.next().expect("it is shown");
        (event["values"][0].clone(), event["origin"].clone())
    };
    assert_eq!(of("connect-timeout"), ("5s".into(), "c.toml:1".into()));
    assert_eq!(of("cc"), ("bbr".into(), "$SPHX_CC".into()));
    assert_eq!(of("idle-timeout"), ("15s".into(), "default".into()));
}

#[test]
fn units_are_right() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        sphinx_testing::skipped!("there is no systemd-analyze");
        return;
    }
    let scratch = Scratch::new();
    let binary = env!("CARGO_BIN_EXE_sphx");
    for (unit, scope) in [
        ("sphx-server.service", "--system"),
        ("sphx-recv.service", "--user"),
    ] {
        let path = format!("{}/../../dist/systemd/{unit}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).expect("a unit");
        // Whoever is told of the capability for tunnels of packets is told of the device, which a private /dev lacks.
        assert_eq!(
            text.contains("CAP_NET_ADMIN"),
            text.contains("DeviceAllow=/dev/net/tun rw")
        );
        // The manager of a user knows no such target, and would start the unit without it.
        assert!(scope == "--system" || !text.contains("network-online.target"));
        let here = scratch.path(unit);
        fs::write(&here, text.replace("/usr/local/bin/sphx", binary)).expect("a file");
        let verified = Command::new("systemd-analyze")
            .args([scope, "verify"])
            .arg(&here)
            .env("XDG_RUNTIME_DIR", scratch.path("in"))
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&verified.stderr);
        assert!(verified.status.success() && !said.contains(unit), "{said}");
        if scope == "--system" {
            // What systemd calls safe ends at 2.
            let judged = Command::new("systemd-analyze")
                .args(["security", "--offline=true", "--threshold=20"])
                .arg(&here)
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&judged.stdout);
            assert!(judged.status.success(), "{said}");
        }
    }
}
