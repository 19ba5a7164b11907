//! `sphx ctl` and `sphx pep` beside processes that are none of `sphx`: anybody may listen where they ask.

use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Output;
use std::thread;

use crate::common::{Scratch, command};

/// Greater than every process id.
const PROCESSES_MAX: u32 = 1 << 22;

/// The name of a process that there is not: the n-th of this test.
fn nobody(n: u32) -> u32 {
    n * PROCESSES_MAX + std::process::id()
}

fn listen(process: u32) -> UnixListener {
    listen_as(&format!("sphx-ctl-{process}"))
}

fn listen_as(name: &str) -> UnixListener {
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    UnixListener::bind_addr(&address).expect("nobody has this name")
}

/// Answers every question like this. It ends with the process.
fn answer(listener: UnixListener, line: impl AsRef<str> + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut question = String::new();
            let _ = BufReader::new(&stream).read_line(&mut question);
            // Whoever does not wait for the answer has no use for it.
            let _ = writeln!(&stream, "{}", line.as_ref());
        }
    });
}

fn ask(words: &[&str]) -> Output {
    let scratch = Scratch::new();
    let output = command(&scratch.path("in"), words).output();
    output.expect("the binary starts")
}

#[test]
fn what_is_answered_moves_no_cursor() {
    let process = nobody(1);
    answer(
        listen(process),
        r#"{"bond":"\u001b[31mred","paths":[{"name":"\u001b]0;title\u0007wifi","state":"up\u009b2J","reason":"\u001b[H"}]}"#,
    );
    let output = ask(&["ctl", "--pid", &process.to_string(), "paths"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("red") && text.contains("wifi"), "{text}");
    assert!(is_plain(&text), "{text:?}");
}

/// Whether nothing moves the cursor but the ends of lines.
fn is_plain(text: &str) -> bool {
    text.chars().all(|c| !c.is_control() || c == '\n')
}

#[test]
fn an_answer_that_is_too_long_is_none() {
    let process = nobody(2);
    answer(listen(process), " ".repeat(5 << 20) + "{}");
    let output = ask(&["ctl", "--pid", &process.to_string(), "paths"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{error}");
}

#[cfg(all(feature = "lab", feature = "pep"))]
#[test]
fn processes_of_others_are_not_asked() {
    use super::pep_between::Host;
    use rustix::process::Uid;
    use rustix::thread::set_thread_res_uid;

    if !crate::common::may_make_namespaces() {
        return;
    }
    // A namespace of its own, in which no other test's processes listen.
    let host = Host::new();
    let listen_there = |process: u32, user: Uid| {
        let listening = || {
            set_thread_res_uid(user, user, user).expect("root may");
            listen(process)
        };
        host.namespace.run(listening).expect("a thread")
    };
    let ask_there = || {
        let asked = host.namespace.run(|| ask(&["ctl", "paths"]));
        asked.expect("a thread")
    };
    let other = listen_there(nobody(3), Uid::from_raw(65_534));
    other.set_nonblocking(true).expect("a socket");
    let output = ask_there();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{error}");
    assert!(error.contains("no sphx with several paths"), "{error}");
    while let Ok((stream, _)) = other.accept() {
        let mut question = String::new();
        let _ = BufReader::new(&stream).read_line(&mut question);
        assert_eq!(question, "");
    }
    // Nor is it one of several.
    let own = listen_there(nobody(4), Uid::ROOT);
    answer(own, r#"{"bond":"backup","paths":[]}"#);
    let output = ask_there();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(output.stdout, b"bond backup\n");
}

/// A host where somebody listens as its agent would.
#[cfg(all(feature = "lab", feature = "pep"))]
fn with_agent(serve: impl FnOnce(UnixListener)) -> Option<super::pep_between::Host> {
    if !crate::common::may_make_namespaces() {
        return None;
    }
    let host = super::pep_between::Host::new();
    let listener = host.namespace.run(|| listen_as("sphx-pep"));
    serve(listener.expect("a thread"));
    Some(host)
}

#[cfg(all(feature = "lab", feature = "pep"))]
#[test]
fn what_is_said_for_an_agent_moves_no_cursor() {
    let line = r#"{"\u001b[31mred":1,"settings":{"agent":"snoop\u001b[2J"},"flows_concerned":"3\u001b[1m",
        "newest_flows":[{"fixed":"\u001b[H","mobile":"m\u009b2J","repaired":"\u001b]0;title\u0007","upload":{"state":"\u001b[7m"}}]}"#;
    let Some(host) = with_agent(|listener| answer(listener, line.replace('\n', ""))) else {
        return;
    };
    for (words, part) in [
        (&["pep", "show", "--flows"][..], "title"),
        (
            &["pep", "handoff", "10.0.0.9", "--to", "192.0.2.7:7750"],
            "3",
        ),
        (&["pep", "doctor", "--agent", "rdb"], "another agent (snoop"),
    ] {
        let output = host.namespace.run(|| ask(words)).expect("a thread");
        let text = String::from_utf8(output.stdout).expect("text");
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains(part) && is_plain(&text), "{text:?}");
    }
}

/// Its agent is asked in vain, for this reason.
#[cfg(all(feature = "lab", feature = "pep"))]
fn assert_no_answer(host: &super::pep_between::Host, reason: &str) {
    let output = host.namespace.run(|| ask(&["pep", "show"]));
    let output = output.expect("a thread");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{error}");
    assert!(error.contains(reason), "{error}");
}

#[cfg(all(feature = "lab", feature = "pep"))]
#[test]
fn an_agent_that_says_no_end_is_not_waited_for() {
    use std::time::Duration;

    let trickle = |listener: UnixListener| {
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                // Until the client has closed the connection.
                while stream.write_all(b" ").is_ok() {
                    thread::sleep(Duration::from_millis(100));
                }
            }
        });
    };
    let Some(host) = with_agent(trickle) else {
        return;
    };
    assert_no_answer(&host, "within 5 s");
}

#[cfg(all(feature = "lab", feature = "pep"))]
#[test]
fn an_agent_that_says_too_much_is_none() {
    let Some(host) = with_agent(|listener| answer(listener, " ".repeat(5 << 20) + "{}")) else {
        return;
    };
    assert_no_answer(&host, "longer than any");
}
