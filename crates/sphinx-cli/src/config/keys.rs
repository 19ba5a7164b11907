//! What configuration files may say, and the option that each of it stands for.

/// A setting that a configuration file may have.
#[derive(Debug)]
pub(super) struct Key {
    /// The table it stands in; nothing for the top.
    pub(super) table: &'static str,
    pub(super) name: &'static str,
    /// The option that it stands for, as it is called on a command line and in the grammar.
    pub(super) flag: &'static str,
    pub(super) id: &'static str,
    pub(super) is_path: bool,
}

const fn key(table: &'static str, name: &'static str, flag: &'static str, id: &'static str) -> Key {
    Key {
        table,
        name,
        flag,
        id,
        is_path: false,
    }
}

const fn path(name: &'static str, flag: &'static str, id: &'static str) -> Key {
    Key {
        is_path: true,
        ..key("", name, flag, id)
    }
}

/// What `sphx server --config` reads.
pub(super) const SERVER: [Key; 15] = [
    key("", "listen", "--listen", "listen"),
    key("", "advertise", "--advertise", "advertise"),
    key("", "permit", "--permit", "permit"),
    path("output", "--output", "output"),
    path("authorized", "--authorized", "authorized"),
    path("state", "--state", "state"),
    path("ticket-file", "--ticket-file", "ticket_file"),
    key("", "idle-timeout", "--idle-timeout", "idle_timeout"),
    key("tun", "pool", "--tun-pool", "tun_pool"),
    key("limits", "memory", "--memory", "memory"),
    key(
        "limits",
        "streams-per-client",
        "--streams-per-client",
        "streams_per_client",
    ),
    key(
        "limits",
        "flows-per-client",
        "--flows-per-client",
        "flows_per_client",
    ),
    key(
        "limits",
        "pending-per-client",
        "--pending-per-client",
        "pending_per_client",
    ),
    key(
        "limits",
        "rate-per-client",
        "--rate-per-client",
        "rate_per_client",
    ),
    key(
        "limits",
        "memory-per-client",
        "--memory-per-client",
        "memory_per_client",
    ),
];

/// What the user's file may say at the top: options of every command that makes a session.
pub(super) const USER: [Key; 7] = [
    key(
        "",
        "connect-timeout",
        "--connect-timeout",
        "connect_timeout",
    ),
    key("", "idle-timeout", "--idle-timeout", "idle_timeout"),
    key("", "cc", "--cc", "cc"),
    key("", "ecn", "--ecn", "ecn"),
    key("", "codec", "--codec", "codec"),
    key("", "limit", "--limit", "limit"),
    key("", "memory", "--memory", "memory"),
];

/// And in the table of a server: what `sphx tunnel NAME` forwards without being told.
pub(super) const FORWARDS: [Key; 3] = [
    key("", "local", "-L", "local"),
    key("", "remote", "-R", "remote"),
    key("", "proxy", "-D", "proxy"),
];
