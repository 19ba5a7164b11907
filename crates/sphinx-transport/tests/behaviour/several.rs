//! Several paths at once, on real sockets: each begins at another address of the loopback interface.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use sphinx_transport::{ErrorKind, LocalPath, Options, Session};

use crate::support::*;

fn at(last: u8) -> LocalPath {
    LocalPath::Address(Ipv4Addr::new(127, 0, 0, last).into())
}

fn with(paths: &[LocalPath]) -> Options {
    Options {
        paths: paths.iter().cloned().map(Into::into).collect(),
        ..Options::default()
    }
}

fn working(session: &Session) -> usize {
    let stats = session.stats();
    let paths = stats.paths.iter().flatten();
    paths.filter(|path| path.state == "working").count()
}

#[test]
fn three_paths_carry_what_is_sent_and_what_comes_back() {
    bounded(|| {
        let listener = server();
        let ticket = ticket(&listener, listener.local_addr());
        let client = client(&ticket, &with(&[at(1), at(2), at(3)])).unwrap();
        let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
        wait_until("all paths are open", || {
            working(&client) == 3 && working(&server) == 3
        });
        transfer(&client, &server, &content(1, 30_000_000));
        transfer(&server, &client, &content(2, 30_000_000));
        for (session, other) in [(&client, &server), (&server, &client)] {
            let stats = session.stats();
            let paths: Vec<_> = stats.paths.iter().flatten().collect();
            assert_eq!(
                paths.iter().map(|path| path.id).collect::<Vec<_>>(),
                [0, 1, 2]
            );
            for path in &paths {
                assert!(path.wire_bytes_sent > 500_000, "{path:?}");
                assert!(path.wire_bytes_received > 500_000, "{path:?}");
            }
            let sum: u64 = paths.iter().map(|path| path.wire_bytes_sent).sum();
            assert!(sum <= stats.wire_bytes_sent);
            assert!(other.stats().wire_bytes_received > 25_000_000);
        }
        let begins = |last| Some(IpAddr::from([127, 0, 0, last]));
        let stats = client.stats();
        let locals: Vec<_> = stats
            .paths
            .iter()
            .flatten()
            .map(|path| path.local)
            .collect();
        assert_eq!(&locals[1..], [begins(2), begins(3)]);
    });
}

/// UDP sockets of this process at 127.0.0.`last`. While others come and go the kernel may leave one out of its list.
fn sockets_at(last: u8) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let own: Vec<String> = links
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    let place = format!("{:08X}:", u32::from_ne_bytes([127, 0, 0, last]));
    let all = fs::read_to_string("/proc/self/net/udp").unwrap();
    let is_own = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1].starts_with(&place) && own.contains(&format!("socket:[{}]", words[9]))
    };
    all.lines().skip(1).filter(is_own).count()
}

#[test]
fn a_path_that_is_given_up_takes_its_socket_along() {
    bounded(|| {
        let listener = server();
        let ticket = ticket(&listener, listener.local_addr());
        let client = client(&ticket, &with(&[at(1)])).unwrap();
        let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
        // More than there may be at a time, and one that comes back.
        for last in (80..92).chain([80]) {
            client.add_path(&at(last).into()).unwrap();
            let begin = Some(IpAddr::from([127, 0, 0, last]));
            let its = || {
                let stats = client.stats();
                let mut paths = stats.paths.into_iter().flatten();
                let its = paths.find(|path| path.local == begin && path.state == "working");
                its.map(|path| path.id)
            };
            let mut id = None;
            wait_until("it is open", || {
                id = its();
                id.is_some() && sockets_at(last) == 1
            });
            assert!(client.abandon_path(id.expect("it is open")));
            wait_until("it is closed", || sockets_at(last) == 0);
        }
        transfer(&client, &server, &content(4, 1_000_000));
        assert_eq!((working(&client), working(&server)), (1, 1));
    });
}

#[test]
fn one_path_of_its_own_is_one_path() {
    bounded(|| {
        let listener = server();
        let ticket = ticket(&listener, listener.local_addr());
        let client = client(&ticket, &with(&[at(7)])).unwrap();
        let server = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
        assert_eq!(server.remote_addr().ip(), IpAddr::from([127, 0, 0, 7]));
        transfer(&client, &server, &content(3, 1_000_000));
        assert_eq!((working(&client), working(&server)), (1, 1));
    });
}

/// The first address of the ticket is of a family in which the interface has no way to there.
#[test]
fn a_path_takes_the_family_that_its_interface_has() {
    bounded(|| {
        let listener = server();
        let nowhere = "[2001:db8::1]:9".to_owned();
        let here = listener.local_addr().to_string();
        let lo = LocalPath::Interface("lo".to_owned());
        let ticket = listener.ticket(&[nowhere.clone(), here]).unwrap();
        let session = client(&ticket, &with(std::slice::from_ref(&lo))).unwrap();
        assert_eq!(session.remote_addr(), listener.local_addr());
        let accepted = listener.accept(Some(PATIENCE)).unwrap().expect("in time");
        transfer(&session, &accepted, &content(4, 100_000));
        // Where the ticket has no other family, the error says why.
        let ticket = listener.ticket(&[nowhere]).unwrap();
        let error = client(&ticket, &with(&[lo])).expect_err("no way to there");
        assert_eq!(error.kind(), ErrorKind::LocalIo, "{error}");
    });
}

#[test]
fn paths_that_cannot_be_say_why() {
    let listener = server();
    let ticket = ticket(&listener, listener.local_addr());
    let interface = |name: &str| LocalPath::Interface(name.to_owned());
    for (paths, kind, word) in [
        (
            vec![at(1), interface("sphx-nowhere")],
            ErrorKind::LocalIo,
            "no such interface",
        ),
        (
            vec![interface("lo"), at(1)],
            ErrorKind::Usage,
            "two paths begin at 127.0.0.1",
        ),
        (
            vec![LocalPath::Address([192, 0, 2, 1].into())],
            ErrorKind::LocalIo,
            "192.0.2.1",
        ),
        (
            vec![at(1), LocalPath::Address("::1".parse().unwrap())],
            ErrorKind::Usage,
            "family",
        ),
    ] {
        let error = client(&ticket, &with(&paths)).expect_err("no such path");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}
