//! What on this machine spoils an agent's help.

use std::{fs, io, path::Path};

use serde::Serialize;
use sphinx_netdev::{
    cgroup,
    filter::{Flowtable, flowtables, translates},
    netns::Namespace,
    qdisc,
};

use crate::{
    attach::{self, Attachment, Own, interfaces},
    queue, tun,
};

/// Something that spoils help, and what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A word for programs.
    pub name: &'static str,
    /// What was found.
    pub message: String,
    /// What can be done.
    pub hint: &'static str,
}

/// All that were found so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn tell(&mut self, name: &'static str, message: String, hint: &'static str) {
        self.0.push(Finding {
            name,
            message,
            hint,
        });
    }
}

/// Looks for what spoils help, in the calling thread's namespace, at this interface to the lossy hop if one is named.
pub fn examine(wireless: Option<&str>) -> Vec<Finding> {
    Facts::read(wireless).findings()
}

/// Looks for a queue at the interface to a thin link that does what [`AckFilter`](crate::acks::AckFilter) does, and better where it has the link's rate; in
/// the calling thread's namespace.
pub fn examine_queue(wireless: &str) -> Option<Finding> {
    better(wireless, &qdisc::kinds(wireless).ok()?)
}

/// Finds a queue discipline among these that is better than the agent.
fn better(interface: &str, kinds: &[String]) -> Option<Finding> {
    let has = |kind: &str| kinds.iter().any(|it| it == kind);
    if has("cake") {
        let message = format!(
            "CAKE is the queue of {interface}: with its rate and 'ack-filter' it does this for less, and for UDP too"
        );
        let hint = "'tc qdisc change dev NAME root cake bandwidth RATE ack-filter', and no agent; or 'ack-filter:every=TIME' in front of it";
        return Some(Finding {
            name: "cake",
            message,
            hint,
        });
    }
    has("fq_codel").then(|| Finding {
        name: "fq_codel",
        message: format!(
            "fq_codel is the queue of {interface}: what waits there is fair to each flow, but it drops no acknowledgements, and without a \
             shaper in front of it packets wait in the modem"
        ),
        hint: "with ack-filter:rate=RATE they wait in the agent; CAKE, where the kernel has it, does both",
    })
}

/// Looks for what spoils help for thin streams of this machine ([`Attachment::own`]), in the calling thread's namespace. It is tried in an empty
/// namespace whether the kernel can lead such connections to an agent.
pub fn examine_own(own: &Own) -> Vec<Finding> {
    OwnFacts::read(own).findings()
}

/// What was read about this machine's own connections.
#[derive(Debug)]
struct OwnFacts {
    /// Whether an agent could start, with these conditions.
    works: io::Result<()>,
    /// Whether another program has the queue.
    taken: bool,
    sack: bool,
    dsack: bool,
    /// Whether there are control groups of version 2.
    groups: bool,
    connections: Option<(usize, usize)>,
}

impl OwnFacts {
    fn read(own: &Own) -> OwnFacts {
        let text = |path: &str| fs::read_to_string(path).ok();
        let is_on = |name: &str| {
            let value = text(&format!("/proc/sys/net/ipv4/{name}"));
            value.is_none_or(|it| it.trim() != "0")
        };
        let queues = text("/proc/thread-self/net/netfilter/nfnetlink_queue");
        let agent = queue::is_open().unwrap_or(false) || tun::is_open().unwrap_or(false);
        let tracked = text("/proc/thread-self/net/nf_conntrack");
        OwnFacts {
            works: try_own(own),
            taken: !agent && queues.is_some_and(|text| has_queue(&text)),
            sack: is_on("tcp_sack"),
            dsack: is_on("tcp_dsack"),
            groups: cgroup::root().is_ok(),
            connections: tracked.map(|text| (text.lines().count(), quic(&text))),
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut found = Findings::default();
        match &self.works {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.tell(
                "rights",
                "an agent may not be started, nor rules be read".to_owned(),
                "run it as root, or with CAP_NET_ADMIN and CAP_NET_RAW",
            ),
            Err(error) => found.tell(
                "packet_filter",
                format!("the kernel cannot lead connections of this machine to an agent: {error}"),
                "it needs nf_tables with 'queue', 'socket' and sets, or NFQUEUE of iptables and NFT_COMPAT; or run the agent on a \
                 router in front of the senders (--wireless)",
            ),
        }
        if self.taken {
            let message = "the packet filter's queue 7749 is another program's".to_owned();
            found.tell("queue", message, "no agent can begin until that ends");
        }
        if !self.sack {
            let message = "this machine does without SACK: receivers tell of no copies, so no repaired loss is known, nor is there \
                           any response to it";
            found.tell("sack", message.to_owned(), "net.ipv4.tcp_sack=1");
        }
        if !self.dsack {
            let message = "this machine does not tell of copies that it receives: agents at those who send to it do not know what \
                           they repair";
            found.tell("dsack", message.to_owned(), "net.ipv4.tcp_dsack=1");
        }
        if !self.groups {
            let message =
                "control groups of version 2 are not mounted: no --cgroup and no 'sphx pep exec'";
            found.tell(
                "cgroup",
                message.to_owned(),
                "mount them, or choose connections by --port or --uid",
            );
        }
        if let Some((all, quic @ 1..)) = self.connections {
            found.tell("quic", quic_message(all, quic), "");
        }
        found.0
    }
}

/// Attaches an agent in an empty namespace, where it gets no packets.
fn try_own(own: &Own) -> io::Result<()> {
    let empty = Namespace::new()?;
    empty.run(|| Attachment::own(own.clone()).map(drop))?
}

/// Whether the agent's queue is in the list of those that programs have (`/proc/net/netfilter/nfnetlink_queue`).
fn has_queue(list: &str) -> bool {
    let number = queue::QUEUE.to_string();
    let mut queues = list.lines().filter_map(|it| it.split_whitespace().next());
    queues.any(|queue| queue == number)
}

fn quic_message(all: usize, quic: usize) -> String {
    let share = 100.0 * quic as f64 / all as f64;
    format!("{quic} of {all} connections ({share:.0} %) seem to be QUIC, which no agent can help")
}

/// Looks for what keeps packets from an agent at this interface, or is in their way to it, in the calling thread's namespace. It takes no time, however many
/// connections there are.
pub fn examine_way(wireless: &str) -> Vec<Finding> {
    Way::read(Some(wireless)).findings()
}

/// How packets come to an agent.
#[derive(Debug)]
struct Way {
    forwards: bool,
    /// The interface, if it is a port of a bridge on a machine that routes.
    port: Option<String>,
    /// An agent has devices, and rules of the packet filter see what goes there.
    seen: bool,
    /// An agent has devices, and no rules lead there.
    stray: bool,
}

impl Way {
    fn read(wireless: Option<&str>) -> Way {
        let has_devices = tun::is_open().unwrap_or(false);
        let forwards = attach::forwards();
        let port = wireless.filter(|name| forwards && attach::is_port(name));
        Way {
            forwards,
            port: port.map(str::to_owned),
            seen: has_devices && tun::is_seen(),
            stray: has_devices && !tun::is_led().unwrap_or(true),
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut found = Findings::default();
        if !self.forwards {
            let message = "this machine does not forward: only its own connections can be helped";
            let hint = "net.ipv4.ip_forward=1, if others' are to be helped";
            found.tell("forwarding", message.to_owned(), hint);
        }
        if let Some(name) = &self.port {
            let message = format!(
                "{name} is a port of a bridge: only what that forwards comes to an agent there, nothing that this machine routes"
            );
            let hint = "for what this machine routes, --wireless with the bridge's name";
            found.tell("bridge", message, hint);
        }
        if self.seen {
            let message = "rules of the packet filter see packets twice, and pep-fixed and pep-mobile as where they come from and go to: what they let pass \
                           by the names of other interfaces does not pass";
            let hint = "--attach nfqueue, or rules for these two as well";
            found.tell("firewall", message.to_owned(), hint);
        }
        if self.stray {
            let message = "no rules lead packets to the agent that runs: somebody has removed them";
            let hint = "'ip rule' lists them; the agent adds them again within a second";
            found.tell("rules", message.to_owned(), hint);
        }
        found.0
    }
}

/// What was read from the system.
#[derive(Debug)]
struct Facts {
    /// The wireless interface, and whether it exists.
    wireless: Option<(String, bool)>,
    wifi: bool,
    tun: bool,
    way: Way,
    flowtables: io::Result<Vec<Flowtable>>,
    translates: bool,
    /// Whether connection tracking takes sequence numbers that it does not expect, if there is any.
    liberal: Option<bool>,
    /// Devices of an agent at which source addresses are checked strictly.
    strict: Vec<String>,
    /// Connections that are tracked, and those of them that seem to be QUIC.
    connections: Option<(usize, usize)>,
}

impl Facts {
    fn read(wireless: Option<&str>) -> Facts {
        let text = |path: &str| fs::read_to_string(path).ok();
        let number = |path: &str| text(path)?.trim().parse::<u8>().ok();
        let net = |path: &str| number(&format!("/proc/sys/net/{path}"));
        let known = interfaces().unwrap_or_default();
        let filter = |name: &str| net(&format!("ipv4/conf/{name}/rp_filter")).unwrap_or(0);
        let own = known.iter().filter(|name| name.starts_with("pep-"));
        let strict = own.filter(|name| filter(name).max(filter("all")) == 1);
        let tracked = text("/proc/thread-self/net/nf_conntrack");
        Facts {
            wireless: wireless.map(|name| (name.to_owned(), known.iter().any(|it| it == name))),
            wifi: wireless.is_some_and(|name| {
                Path::new("/sys/class/net")
                    .join(name)
                    .join("phy80211")
                    .exists()
            }),
            tun: Path::new("/dev/net/tun").exists(),
            way: Way::read(wireless),
            flowtables: flowtables(),
            translates: translates().unwrap_or(false),
            liberal: net("netfilter/nf_conntrack_tcp_be_liberal").map(|it| it != 0),
            strict: strict.cloned().collect(),
            connections: tracked.map(|text| (text.lines().count(), quic(&text))),
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut found = Findings::default();
        if let Some((name, false)) = &self.wireless {
            found.tell(
                "interface",
                attach::missing(name),
                "'ip link' lists the interfaces",
            );
        }
        match &self.flowtables {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.tell(
                "rights",
                "an agent may not be started, nor rules be read".to_owned(),
                "run it as root, or with CAP_NET_ADMIN and CAP_NET_RAW",
            ),
            Err(error) => found.tell(
                "packet_filter",
                format!("the kernel has no nf_tables ({error}): --attach nfqueue cannot work"),
                "use --attach tun",
            ),
            Ok(tables) => {
                for table in tables {
                    let by = if table.hardware {
                        "hardware takes"
                    } else {
                        "the kernel takes"
                    };
                    let interfaces = table.interfaces.join(", ");
                    let (of, name) = (&table.table, &table.name);
                    let message = format!(
                        "flowtable {name} of table {of}: {by} connections of {interfaces} past any agent"
                    );
                    found.tell(
                        "flowtable",
                        message,
                        "remove it, or leave TCP out of its rules",
                    );
                }
            }
        }
        if !self.tun {
            let message = "there is no /dev/net/tun: --attach tun cannot work".to_owned();
            found.tell(
                "tun",
                message,
                "load the module tun, or use --attach nfqueue",
            );
        }
        for name in &self.strict {
            let message = format!(
                "source addresses are checked strictly at {name}: all that the agent sends is dropped"
            );
            found.tell("rp_filter", message, "net.ipv4.conf.NAME.rp_filter=2");
        }
        if self.liberal == Some(false) {
            let message = "connection tracking may call repairs invalid, and rules may drop them";
            let hint = "net.netfilter.nf_conntrack_tcp_be_liberal=1";
            found.tell("conntrack", message.to_owned(), hint);
        }
        if self.translates {
            let message = "addresses are translated here (NAT): packets come by nfqueue only; with --eln, both agents have to see the same ones";
            found.tell(
                "nat",
                message.to_owned(),
                "run the base station's agent where mobile hosts' own addresses are seen",
            );
        }
        if self.wifi {
            let message =
                "Wi-Fi sends again itself what it loses: little may be left to be repaired";
            let hint = "compare 'repaired' with 'from_fixed' in 'sphx pep show'";
            found.tell("arq", message.to_owned(), hint);
        }
        if let Some((all, quic @ 1..)) = self.connections {
            found.tell("quic", quic_message(all, quic), "");
        }
        found.0.extend(self.way.findings());
        found.0
    }
}

/// Tracked connections to UDP port 443.
fn quic(tracked: &str) -> usize {
    let is_quic = |line: &&str| {
        let mut words = line.split_whitespace();
        words.any(|word| word == "udp") && words.any(|word| word == "dport=443")
    };
    tracked.lines().filter(is_quic).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound_way() -> Way {
        Way {
            forwards: true,
            port: None,
            seen: false,
            stray: false,
        }
    }

    fn sound() -> Facts {
        Facts {
            wireless: Some(("wlan0".to_owned(), true)),
            wifi: false,
            tun: true,
            way: sound_way(),
            flowtables: Ok(Vec::new()),
            translates: false,
            liberal: Some(true),
            strict: Vec::new(),
            connections: Some((9, 0)),
        }
    }

    #[test]
    fn each_fact_that_spoils_help_is_a_finding() {
        assert_eq!(sound().findings(), []);
        let table = Flowtable {
            table: "shop".to_owned(),
            name: "fast".to_owned(),
            interfaces: vec!["eth0".to_owned(), "wlan0".to_owned()],
            hardware: true,
        };
        let denied = || Err(io::ErrorKind::PermissionDenied.into());
        let of_way = |change: fn(&mut Way)| {
            let mut facts = sound();
            change(&mut facts.way);
            facts
        };
        for (name, part, facts) in [
            (
                "interface",
                "wlan0",
                Facts {
                    wireless: Some(("wlan0".to_owned(), false)),
                    ..sound()
                },
            ),
            (
                "flowtable",
                "hardware takes connections of eth0, wlan0",
                Facts {
                    flowtables: Ok(vec![table]),
                    ..sound()
                },
            ),
            (
                "rights",
                "may not",
                Facts {
                    flowtables: denied(),
                    ..sound()
                },
            ),
            (
                "packet_filter",
                "nf_tables",
                Facts {
                    flowtables: Err(io::ErrorKind::NotFound.into()),
                    ..sound()
                },
            ),
            (
                "tun",
                "/dev/net/tun",
                Facts {
                    tun: false,
                    ..sound()
                },
            ),
            ("forwarding", "forward", of_way(|it| it.forwards = false)),
            (
                "rp_filter",
                "pep-fixed",
                Facts {
                    strict: vec!["pep-fixed".to_owned()],
                    ..sound()
                },
            ),
            (
                "conntrack",
                "invalid",
                Facts {
                    liberal: Some(false),
                    ..sound()
                },
            ),
            (
                "bridge",
                "wlan0 is a port",
                of_way(|it| it.port = Some("wlan0".to_owned())),
            ),
            ("firewall", "pep-fixed", of_way(|it| it.seen = true)),
            ("rules", "no rules lead", of_way(|it| it.stray = true)),
            (
                "nat",
                "NAT",
                Facts {
                    translates: true,
                    ..sound()
                },
            ),
            (
                "arq",
                "Wi-Fi",
                Facts {
                    wifi: true,
                    ..sound()
                },
            ),
            (
                "quic",
                "3 of 12 connections (25 %)",
                Facts {
                    connections: Some((12, 3)),
                    ..sound()
                },
            ),
        ] {
            let found = facts.findings();
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].name, name);
            assert!(found[0].message.contains(part), "{found:?}");
        }
    }

    #[test]
    fn what_spoils_help_for_own_connections_is_a_finding() {
        let sound = || OwnFacts {
            works: Ok(()),
            taken: false,
            sack: true,
            dsack: true,
            groups: true,
            connections: None,
        };
        assert_eq!(sound().findings(), []);
        let fails = |kind: io::ErrorKind| OwnFacts {
            works: Err(kind.into()),
            ..sound()
        };
        let off = |change: fn(&mut OwnFacts)| {
            let mut facts = sound();
            change(&mut facts);
            facts
        };
        for (name, facts) in [
            ("rights", fails(io::ErrorKind::PermissionDenied)),
            ("packet_filter", fails(io::ErrorKind::Unsupported)),
            ("queue", off(|it| it.taken = true)),
            ("sack", off(|it| it.sack = false)),
            ("dsack", off(|it| it.dsack = false)),
            ("cgroup", off(|it| it.groups = false)),
            ("quic", off(|it| it.connections = Some((12, 3)))),
        ] {
            let found = facts.findings();
            let names: Vec<&str> = found.iter().map(|it| it.name).collect();
            assert_eq!(names, [name], "{found:?}");
        }
        let queues = " 77490  4211     0 2 65531     0     0        9  1\n";
        assert!(!has_queue(queues));
        assert!(has_queue(&queues.replace("77490 ", " 7749 ")));
    }

    #[test]
    fn queues_that_do_better_are_told() {
        let of = |kinds: &[&str]| {
            let kinds: Vec<String> = kinds.iter().map(|&it| it.to_owned()).collect();
            better("wan0", &kinds).map(|it| it.name)
        };
        assert_eq!(of(&["mq", "fq_codel"]), Some("fq_codel"));
        assert_eq!(of(&["cake", "fq_codel"]), Some("cake"));
        assert_eq!(of(&["noqueue"]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn quic_is_told_by_its_port() {
        let tracked = "\
ipv4     2 udp      17 28 src=10.0.0.2 dst=192.0.2.1 sport=5 dport=443 src=192.0.2.1 dst=10.0.0.2 sport=443 dport=5 mark=0
ipv4     2 tcp      6 431 ESTABLISHED src=10.0.0.2 dst=192.0.2.1 sport=6 dport=443 src=192.0.2.1 dst=10.0.0.2 sport=443 dport=6
ipv4     2 udp      17 28 src=10.0.0.2 dst=192.0.2.1 sport=5 dport=4433 src=192.0.2.1 dst=10.0.0.2 sport=4433 dport=5
";
        assert_eq!(quic(tracked), 1);
    }
}
