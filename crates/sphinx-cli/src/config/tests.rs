use super::*;

/// Whether an option may be given several times; for tests that the table agrees with the grammar.
#[cfg(feature = "tunnel")]
fn is_repeated(grammar: &Command, command: &str, id: &str) -> Option<bool> {
    let command = grammar.find_subcommand(command)?;
    let argument = command.get_arguments().find(|it| it.get_id() == id)?;
    Some(matches!(argument.get_action(), clap::ArgAction::Append))
}

fn said(kind: Kind, text: &str) -> Result<Vec<(String, String)>, String> {
    let said = read_text(kind, text).map_err(|(line, why)| format!("{line}: {why}"))?;
    Ok(said
        .into_iter()
        .map(|said| (said.name, said.values.join(" ")))
        .collect())
}

#[cfg(feature = "tunnel")]
#[test]
fn every_key_is_an_option() {
    let grammar = crate::grammar();
    for (command, keys) in [
        ("server", &SERVER[..]),
        ("send", &USER),
        ("tunnel", &FORWARDS),
    ] {
        for key in keys {
            assert!(
                is_repeated(&grammar, command, key.id).is_some(),
                "{command} {}",
                key.id
            );
        }
    }
}

#[test]
fn a_server_s_file() {
    let text = "listen = [\"[::]:7749\"]\nadvertise = [\"vpn.example.org\"]\nauthorized = \"clients\"\n\
                [tun]\npool = \"10.9.0.0/24\"\n[limits]\nstreams-per-client = 4096\nmemory = \"512MiB\"\n";
    let mut all = said(Kind::Server, text).unwrap();
    all.sort();
    let expected = [
        ("advertise", "vpn.example.org"),
        ("authorized", "clients"),
        ("limits.memory", "512MiB"),
        ("limits.streams-per-client", "4096"),
        ("listen", "[::]:7749"),
        ("tun.pool", "10.9.0.0/24"),
    ];
    assert_eq!(all, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[test]
fn what_cannot_be_followed_is_told_with_its_line() {
    for (kind, text, why) in [
        (
            Kind::Server,
            "\nlisen = \"x\"",
            "2: there is no setting 'lisen'; did you mean listen?",
        ),
        (
            Kind::Server,
            "[limits]\nmemry = \"1\"",
            "2: there is no setting 'memry'; did you mean memory?",
        ),
        (
            Kind::Server,
            "[limit]\nx = 1",
            "1: there is no setting 'limit'; did you mean limits?",
        ),
        (Kind::Server, "listen = 1.5", "1: listen: write \"…\""),
        (
            Kind::Server,
            "listen = [\"a\", \"b\"]",
            "1: listen: write one address",
        ),
        (
            Kind::Server,
            "listen = \"a\"\nlisten = \"b\"",
            "2: duplicate key",
        ),
        (Kind::Server, "permit = \"\"", "1: permit: '' says nothing"),
        (Kind::Server, "listen", "1: "),
        (
            Kind::User,
            "idle-timout = \"5s\"",
            "1: there is no setting 'idle-timout'; did you mean idle-timeout?",
        ),
        (
            Kind::User,
            "[tunnel.office]\nlocl = \"x\"",
            "2: there is no setting 'locl'; did you mean local?",
        ),
        (
            Kind::User,
            "[tunnel]\noffice = 1",
            "2: write [tunnel.office]",
        ),
        (Kind::User, "[tunnel.\"a b\"]", "1: 'a b' is no name"),
    ] {
        let told = said(kind, text).expect_err(text);
        assert!(told.starts_with(why), "{text}: {told}");
    }
}

#[cfg(feature = "tunnel")]
#[test]
fn values_are_those_of_the_command_line() {
    let grammar = crate::grammar();
    let check_text = |kind, text: &str| {
        let said = read_text(kind, text).expect("it can be read");
        let file = File {
            path: "f.toml".into(),
            said,
        };
        check(kind, &grammar, &file).map_err(|failure| failure.message)
    };
    assert_eq!(check_text(Kind::Server, "permit = \"tunnel\""), Ok(()));
    let wrong = check_text(Kind::Server, "\npermit = \"tunel\"").unwrap_err();
    assert!(wrong.starts_with("f.toml:2: "), "{wrong}");
    let pools = "[tun]\npool = [\"10.9.0.0/24\", \"10.8.0.0/24\"]";
    let wrong = check_text(Kind::Server, pools).unwrap_err();
    assert!(
        wrong.starts_with("f.toml:2: ") && wrong.contains("one family"),
        "{wrong}"
    );
    let wrong = check_text(Kind::Server, "advertise = [\"a\", \"bad host\"]").unwrap_err();
    assert!(
        wrong.starts_with("f.toml:1: ") && wrong.contains("'bad host'"),
        "{wrong}"
    );
    let wrong = check_text(Kind::Server, "[limits]\nrate-per-client = \"5\"").unwrap_err();
    assert!(wrong.starts_with("f.toml:2: "), "{wrong}");
    let forwards = "connect-timeout = \"5s\"\n[tunnel.office]\nlocal = [\"8080:db:5432\"]";
    assert_eq!(check_text(Kind::User, forwards), Ok(()));
    let wrong = check_text(Kind::User, "[tunnel.office]\nlocal = \"99999:a:1\"").unwrap_err();
    assert!(wrong.starts_with("f.toml:2: "), "{wrong}");
}

#[cfg(feature = "tunnel")]
#[test]
fn a_flag_goes_before_a_file() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("server.toml");
    fs::write(
        &path,
        "listen = \"127.0.0.1:5\"\nauthorized = \"clients\"\n[limits]\nstreams-per-client = 5",
    )
    .unwrap();
    let grammar = crate::grammar();
    let complete_line = |more: &[&str]| {
        let line = ["sphx", "server", "--config", path.to_str().unwrap()];
        let words: Vec<OsString> = line.iter().chain(more).map(OsString::from).collect();
        let parsed = grammar.clone().try_get_matches_from(&words).unwrap();
        complete(&grammar, &words, parsed).unwrap()
    };
    let completed = complete_line(&["--listen", "127.0.0.1:6"]);
    let (_, matches) = completed.subcommand().unwrap();
    let raw = |id: &str| {
        let mut values = matches.get_raw(id).unwrap();
        values.next_back().unwrap().to_string_lossy().into_owned()
    };
    assert_eq!(raw("listen"), "127.0.0.1:6");
    assert_eq!(raw("streams_per_client"), "5");
    // The path is relative to the directory of the file.
    assert_eq!(
        PathBuf::from(raw("authorized")),
        scratch.path().join("clients")
    );
}

#[test]
fn a_limit_under_its_other_name_goes_before_one_that_is_configured() {
    let said = read_text(Kind::User, "limit = \"5mbit\"\ncc = \"bbr\"").unwrap();
    let chosen = |line: &[&str], of_file: &[Said], environment: &[Said]| {
        let parsed = crate::grammar().try_get_matches_from(line).unwrap();
        let (_, matches) = parsed.subcommand().unwrap();
        let chosen = choose(matches, of_file, environment);
        let mut ids: Vec<&str> = chosen.iter().map(|said| said.id).collect();
        ids.sort_unstable();
        ids.join(" ")
    };
    for (of_file, environment) in [(&said[..], &[][..]), (&[], &said), (&said, &said)] {
        for (line, added) in [
            (&["sphx", "sync", "a", "h:"][..], "cc limit"),
            (&["sphx", "sync", "--limit", "1mbit", "a", "h:"], "cc"),
            (&["sphx", "sync", "--bwlimit", "1mbit", "a", "h:"], "cc"),
            (&["sphx", "cp", "a", "h:"], "cc limit"),
        ] {
            assert_eq!(chosen(line, of_file, environment), added, "{line:?}");
        }
    }
}
