use super::Transport::{Tcp, Udp};
use super::*;

fn permit(text: &str) -> Permit {
    text.parse().expect(text)
}

/// Attempts to get round the rules: rule, transport, name that was asked for, address that it resolved to, whether it is reached.
#[test]
fn attempts() {
    for (rules, transport, name, address, reached) in [
        ("tunnel", Tcp, None, "192.0.2.1:80", true),
        ("tunnel", Udp, None, "[2001:db8::1]:53", true),
        ("tunnel", Tcp, None, "127.0.0.1:22", true),
        ("tunnel", Tcp, None, "[::1]:22", true),
        // Metadata and link-local addresses, in all their clothes.
        ("tunnel", Tcp, None, "169.254.169.254:80", false),
        ("tunnel", Tcp, None, "[::ffff:169.254.169.254]:80", false),
        ("tunnel", Tcp, None, "[::169.254.169.254]:80", false),
        ("tunnel", Tcp, None, "[64:ff9b::a9fe:a9fe]:80", false),
        ("tunnel", Tcp, None, "[2002:a9fe:a9fe::1]:80", false),
        ("tunnel", Tcp, None, "[fe80::1]:80", false),
        ("tunnel", Tcp, None, "[fd00:ec2::254]:80", false),
        ("tunnel", Tcp, None, "100.100.100.200:80", false),
        (
            "tunnel",
            Tcp,
            Some("metadata.example"),
            "169.254.169.254:80",
            false,
        ),
        ("tunnel", Udp, None, "224.0.0.1:5353", false),
        ("tunnel", Udp, None, "255.255.255.255:67", false),
        (
            "tunnel:tcp:0.0.0.0/0:*",
            Tcp,
            None,
            "169.254.169.254:80",
            false,
        ),
        ("tunnel:tcp:[::/0]:*", Tcp, None, "[fe80::1]:80", false),
        (
            "tunnel:tcp:169.254.0.0/15:80",
            Tcp,
            None,
            "169.254.169.254:80",
            false,
        ),
        (
            "tunnel:tcp:169.254.169.254:80",
            Tcp,
            None,
            "169.254.169.254:80",
            true,
        ),
        (
            "tunnel:tcp:169.254.169.254:80",
            Tcp,
            None,
            "[::ffff:169.254.169.254]:80",
            true,
        ),
        (
            "tunnel:tcp:169.254.0.0/16:80",
            Tcp,
            None,
            "169.254.1.1:80",
            true,
        ),
        (
            "tunnel:tcp:169.254.169.254:80",
            Tcp,
            None,
            "169.254.169.254:81",
            false,
        ),
        (
            "tunnel:udp:224.0.0.0/4:5353",
            Udp,
            None,
            "224.0.0.251:5353",
            true,
        ),
        // Rules with names.
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("db.corp"),
            "192.0.2.1:443",
            true,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("DB.Corp."),
            "192.0.2.1:443",
            true,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("db.corp"),
            "192.0.2.1:444",
            false,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Udp,
            Some("db.corp"),
            "192.0.2.1:443",
            false,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("corp"),
            "192.0.2.1:443",
            false,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some(".corp"),
            "192.0.2.1:443",
            false,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("evilcorp"),
            "192.0.2.1:443",
            false,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("db.corp.evil"),
            "192.0.2.1:443",
            false,
        ),
        ("tunnel:tcp:*.corp:443", Tcp, None, "192.0.2.1:443", false),
        // A name that leads home.
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("db.corp"),
            "127.0.0.1:443",
            false,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("db.corp"),
            "0.0.0.0:443",
            false,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("db.corp"),
            "[::]:443",
            false,
        ),
        (
            "tunnel:tcp:*.corp:443",
            Tcp,
            Some("db.corp"),
            "[::ffff:127.0.0.1]:443",
            false,
        ),
        (
            "tunnel:tcp:db.corp:443",
            Tcp,
            Some("db.corp"),
            "169.254.169.254:443",
            false,
        ),
        (
            "tunnel:tcp:localhost:5432",
            Tcp,
            Some("localhost"),
            "127.0.0.1:5432",
            true,
        ),
        ("tunnel:tcp:localhost:5432", Tcp, None, "0.0.0.0:5432", true),
        (
            "tunnel:tcp:localhost:5432",
            Tcp,
            Some("localhost"),
            "192.0.2.1:5432",
            false,
        ),
        // Addresses.
        (
            "tunnel:tcp:10.0.0.0/8:1-1023",
            Tcp,
            Some("any.example"),
            "10.9.8.7:22",
            true,
        ),
        (
            "tunnel:tcp:10.0.0.0/8:1-1023",
            Tcp,
            None,
            "[::ffff:10.9.8.7]:22",
            true,
        ),
        (
            "tunnel:tcp:10.0.0.0/8:1-1023",
            Tcp,
            None,
            "11.0.0.1:22",
            false,
        ),
        (
            "tunnel:tcp:10.0.0.0/8:1-1023",
            Tcp,
            None,
            "10.0.0.1:1024",
            false,
        ),
        (
            "tunnel:tcp:[2001:db8::/32]:*",
            Tcp,
            None,
            "[2001:db8:ffff::1]:9",
            true,
        ),
        (
            "tunnel:tcp:[2001:db8::1]:9",
            Tcp,
            None,
            "[2001:db8::2]:9",
            false,
        ),
        ("tunnel:udp:*:53", Udp, None, "9.9.9.9:53", true),
        ("tunnel:udp:*:53", Tcp, None, "9.9.9.9:53", false),
        ("listen:2222", Tcp, None, "127.0.0.1:2222", false),
    ] {
        let address = address.parse().expect(address);
        let permit = permit(rules);
        assert_eq!(
            permit.lets_reach(transport, name, address),
            reached,
            "{rules}: {transport} {name:?} {address}"
        );
        if let Some(name) = name.filter(|_| reached) {
            assert!(permit.lets_resolve(transport, name, address.port()));
        }
    }
    assert!(!permit("tunnel:tcp:*.corp:443").lets_resolve(Tcp, "a.example", 443));
    assert!(!Permit::default().lets_reach(Tcp, None, ([192, 0, 2, 1], 80).into()));
}

#[test]
fn listeners_and_unix_sockets() {
    for (rules, address, allowed) in [
        ("tunnel", "127.0.0.1:8080", true),
        ("tunnel", "[::1]:0", true),
        ("tunnel", "0.0.0.0:8080", false),
        ("tunnel", "192.0.2.1:8080", false),
        ("listen:2222", "127.0.0.1:2222", true),
        ("listen:2222", "127.0.0.1:2223", false),
        ("listen:2222", "0.0.0.0:2222", false),
        ("listen:2222", "127.0.0.1:0", false),
        ("listen:*:2222", "[::]:2222", true),
        ("listen:192.0.2.1:*", "192.0.2.1:0", true),
        ("listen:0.0.0.0/0:2222", "0.0.0.0:2222", true),
        ("tunnel:tcp:*:*", "127.0.0.1:80", false),
    ] {
        assert_eq!(
            permit(rules).lets_listen(address.parse().unwrap()),
            allowed,
            "{rules} {address}"
        );
    }
    assert!(!permit("tunnel").lets_reach_path("/run/docker.sock"));
    let one = permit("tunnel:unix:/run/db.sock");
    assert!(one.lets_reach_path("/run/db.sock"));
    assert!(!one.lets_reach_path("/run/../run/db.sock"));
}

#[test]
fn what_is_no_rule_is_told() {
    for (text, reason) in [
        ("", "expected tunnel"),
        ("tunel", "expected tunnel"),
        ("tunnel:", "tunnel:tcp"),
        ("tunnel:tcp:a", "no port"),
        ("tunnel:tcp:a:99999", "no port"),
        ("tunnel:tcp:a:9-1", "no port"),
        ("tunnel:tcp:::1:9", "brackets"),
        ("tunnel:tcp:*corp:9", "no host"),
        ("tunnel:tcp:10.0.0.0/33:9", "no host"),
        ("tunnel:unix:relative", "tunnel:unix"),
        ("listen:a.example:9", "not a name"),
        ("listen:0.0.0.0:9", "listen:*:PORT"),
        ("listen:[::]:9", "listen:*:PORT"),
        ("listen:[::ffff:0.0.0.0]:9", "listen:*:PORT"),
        ("tunnel,files:../inbox", "below the server's"),
        ("files:/srv", "below the server's"),
        ("files:", "below the server's"),
        ("files:a/../b", "below the server's"),
        ("files:.", "below the server's"),
        ("files:./a", "below the server's"),
        ("files:a,files:b", "one place"),
        ("files,files", "one place"),
        ("perf:", "nothing behind"),
        ("perf:10mbit", "nothing behind"),
        ("live", "expected tunnel"),
        ("File:a", "expected tunnel"),
    ] {
        let error = text.parse::<Permit>().expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn services_are_let_through_by_a_rule_of_their_own() {
    for (rules, tunnel, files, perf) in [
        ("tunnel", true, None, false),
        ("tunnel:tcp:*:443", true, None, false),
        ("tunnel:unix:/run/db.sock", true, None, false),
        ("listen:2222", true, None, false),
        ("tun", true, None, false),
        ("files", false, Some(""), false),
        ("files:inbox", false, Some("inbox"), false),
        ("files:a/b/", false, Some("a/b"), false),
        ("files:tunnel", false, Some("tunnel"), false),
        ("perf", false, None, true),
        ("tunnel, files:perf ,listen:1", true, Some("perf"), false),
        ("perf,files,tun", true, Some(""), true),
    ] {
        let permit = permit(rules);
        assert_eq!(permit.lets_tunnel(), tunnel, "{rules}");
        assert_eq!(permit.lets_send(), files.map(Path::new), "{rules}");
        assert_eq!(permit.lets_measure(), perf, "{rules}");
    }
    let none = Permit::default();
    assert!(!none.lets_tunnel() && none.lets_send().is_none() && !none.lets_measure());
    // Neither lets anybody reach anything else.
    let address = ([127, 0, 0, 1], 7749).into();
    for rules in ["files", "perf"] {
        let permit = permit(rules);
        assert!(!permit.lets_reach(Tcp, None, address) && !permit.lets_listen(address));
        assert!(!permit.lets_resolve(Tcp, "a.example", 80) && !permit.lets_tun());
    }
}
