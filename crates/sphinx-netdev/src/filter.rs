//! What the packet filter of this machine does with packets that an agent should see.

use std::{fs, io};

use crate::nfnetlink::{FILTER_HEADER, Head, Messages, Socket, Values, Writer, outcome};

/// The packet filter's numbers.
mod number {
    pub(super) const GET_CHAIN: u16 = (10 << 8) | 4;
    pub(super) const GET_FLOWTABLE: u16 = (10 << 8) | 23;
    /// Kinds of messages that end a list.
    pub(super) const ERROR: u16 = 2;
    pub(super) const DONE: u16 = 3;
}

/// The families of chains that see IP packets: both at once (`inet`), IPv4 and IPv6.
const IP_FAMILIES: [u8; 3] = [1, 2, 10];
/// The hooks by which routed packets come: PREROUTING, FORWARD and POSTROUTING.
const ROUTED: [u32; 3] = [0, 2, 4];

/// Name of a table where only root may ask for the names.
const UNKNOWN: &str = "unknown";

/// A table of flows whose packets go from one interface to another without passing rules, routes or
/// queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flowtable {
    /// Name of the table that it belongs to.
    pub table: String,
    /// Name of the flowtable.
    pub name: String,
    /// Where packets come in.
    pub interfaces: Vec<String>,
    /// The hardware of the interfaces forwards these packets.
    pub hardware: bool,
}

/// The tables of flows in the calling thread's namespace.
///
/// # Errors
///
/// `PermissionDenied` without `CAP_NET_ADMIN`; others where there is no packet filter.
pub fn flowtables() -> io::Result<Vec<Flowtable>> {
    list(number::GET_FLOWTABLE, |_, values| flowtable(values))
}

fn flowtable(values: Values<'_>) -> Flowtable {
    let mut found = Flowtable {
        table: String::new(),
        name: String::new(),
        interfaces: Vec::new(),
        hardware: false,
    };
    for (kind, value) in values {
        match kind {
            1 => found.table = name(value),
            2 => found.name = name(value),
            3 => {
                let devices = Values(value).filter(|(kind, _)| *kind == 3);
                let devices = devices.flat_map(|(_, value)| Values(value));
                found.interfaces.extend(devices.map(|it| name(it.1)));
            }
            7 => found.hardware = value.last().is_some_and(|flags| flags & 1 != 0),
            _ => {}
        }
    }
    found
}

/// Whether chains that translate addresses (NAT) are in the calling thread's namespace, or the table of iptables that does.
///
/// # Errors
///
/// As [`flowtables`].
pub fn translates() -> io::Result<bool> {
    if legacy_tables().iter().any(|it| it == "nat") {
        return Ok(true);
    }
    let kinds = list(number::GET_CHAIN, |_, mut values| {
        values.any(|(kind, value)| kind == 7 && name(value) == "nat")
    })?;
    Ok(kinds.contains(&true))
}

/// Whether addresses may be translated in the calling thread's namespace: if so much is known ([`translates`]), and where only root may ask for the tables of
/// iptables, if connections are tracked.
pub fn may_translate() -> bool {
    let is_unknown = legacy_tables().iter().any(|it| it == UNKNOWN);
    translates().unwrap_or(false) || (is_unknown && tracks())
}

/// Whether connections are tracked in the calling thread's namespace at present.
fn tracks() -> bool {
    let count = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count");
    count.is_ok_and(|count| count.trim() != "0")
}

/// Whether chains in the calling thread's namespace, or tables of iptables, see packets that are routed; those in tables of this name do not count.
///
/// # Errors
///
/// As [`flowtables`].
pub fn sees_routed(but: &str) -> io::Result<bool> {
    if !legacy_tables().is_empty() {
        return Ok(true);
    }
    let seeing = list(number::GET_CHAIN, |family, values| {
        sees(family, values, but)
    })?;
    Ok(seeing.contains(&true))
}

/// Whether packets that are routed come by a chain.
fn sees(family: u8, values: Values<'_>, but: &str) -> bool {
    let (mut table, mut hook) = (String::new(), None);
    for (kind, value) in values {
        match kind {
            1 => table = name(value),
            4 => {
                let number = Values(value).find(|it| it.0 == 1);
                let number = number.and_then(|it| it.1.first_chunk());
                hook = number.map(|it| u32::from_be_bytes(*it));
            }
            _ => {}
        }
    }
    IP_FAMILIES.contains(&family) && hook.is_some_and(|it| ROUTED.contains(&it)) && table != but
}

/// The tables of iptables without nf_tables. Where only root may ask for them, there may be one ([`UNKNOWN`]).
fn legacy_tables() -> Vec<String> {
    let mut tables = Vec::new();
    for list in ["ip_tables_names", "ip6_tables_names"] {
        match fs::read_to_string(format!("/proc/thread-self/net/{list}")) {
            Ok(names) => tables.extend(names.lines().map(str::to_owned)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tables.push(UNKNOWN.to_owned());
            }
            // The kernel has no tables, or none for this family.
            Err(_) => {}
        }
    }
    tables
}

fn name(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

/// Lists all objects of a kind in all families; `read` gets the family of each too.
fn list<T>(kind: u16, mut read: impl FnMut(u8, Values<'_>) -> T) -> io::Result<Vec<T>> {
    let socket = Socket::open()?;
    let mut writer = Writer::default();
    let head = Head {
        kind,
        flags: libc::NLM_F_DUMP,
        family: 0,
        resource: 0,
    };
    writer.message(head, |_| ());
    writer.flush(&socket)?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let length = socket.wait(&mut buffer)?;
        for message in Messages(&buffer[..length]) {
            match message.kind {
                number::DONE => return Ok(found),
                number::ERROR => outcome(message.body)?,
                _ => {
                    let values = message.body.get(FILTER_HEADER..).unwrap_or(&[]);
                    let family = message.body.first().copied().unwrap_or(0);
                    found.push(read(family, Values(values)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{Access, Namespace, probe};

    const BEGIN: u16 = 16;
    const END: u16 = 17;
    const TABLE: u16 = 10 << 8;

    /// Both families of IP.
    const INET: u8 = 1;

    fn head(kind: u16, family: u8) -> Head {
        Head {
            kind,
            flags: libc::NLM_F_CREATE | libc::NLM_F_ACK,
            family,
            resource: 0,
        }
    }

    /// A table with whatever is in it.
    fn install(family: u8, fill: impl FnOnce(&mut Writer)) -> io::Result<()> {
        let edge = |kind| Head {
            kind,
            flags: 0,
            family: 0,
            resource: 10,
        };
        let mut writer = Writer::default();
        writer.message(edge(BEGIN), |_| ());
        writer.message(head(TABLE, family), |it| it.name(1, "shop"));
        fill(&mut writer);
        writer.message(edge(END), |_| ());
        writer.transact(&Socket::open()?)
    }

    /// An attribute, as the kernel writes it.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn tables_of_flows_are_read() {
        let devices = [attribute(1, b"eth0\0"), attribute(1, b"wlan0\0")].concat();
        let hook = [attribute(1, &[0; 4]), attribute(3, &devices)].concat();
        let parts = [
            attribute(1, b"shop\0"),
            attribute(2, b"fast\0"),
            attribute(3, &hook),
            attribute(7, &1_u32.to_be_bytes()),
        ];
        let expected = Flowtable {
            table: "shop".to_owned(),
            name: "fast".to_owned(),
            interfaces: vec!["eth0".to_owned(), "wlan0".to_owned()],
            hardware: true,
        };
        assert_eq!(flowtable(Values(&parts.concat())), expected);
        // What is cut off is left out.
        let cut = parts.concat();
        for end in 0..cut.len() {
            flowtable(Values(&cut[..end]));
        }
    }

    #[test]
    fn what_leads_packets_past_an_agent_is_found() {
        let namespace = match probe() {
            Ok(Access::Direct) => Namespace::new().expect("a namespace"),
            other => return sphinx_testing::skipped!("no namespace: {other:?}"),
        };
        let inside = || {
            if let Err(error) = flowtables() {
                return sphinx_testing::skipped!("no packet filter: {error}");
            }
            assert_eq!(
                (flowtables().unwrap(), translates().unwrap()),
                (vec![], false)
            );
            let chain = |family: u8, name: &str, hook: (u32, u32), kind: &str| {
                install(family, |writer| {
                    writer.message(head(TABLE | 3, family), |it| {
                        it.name(1, "shop");
                        it.name(3, name);
                        it.nest(4, |it| {
                            it.number(1, hook.0);
                            it.number(2, hook.1);
                        });
                        it.name(7, kind);
                    });
                })
            };
            // What this machine gets itself, and what a bridge forwards, is not routed.
            for (family, hook) in [(1, 1), (2, 3), (7, 2)] {
                if let Err(error) = chain(family, "own", (hook, 0), "filter") {
                    sphinx_testing::skipped!("for family {family}: {error}");
                }
            }
            assert!(!sees_routed("").unwrap());
            chain(10, "zones", (2, 0), "filter").expect("a chain");
            assert!(sees_routed("").unwrap() && !sees_routed("shop").unwrap());
            match chain(INET, "out", (4, 100), "nat") {
                Ok(()) => assert!(translates().unwrap()),
                Err(error) => sphinx_testing::skipped!("no NAT: {error}"),
            }
            let made = install(INET, |writer| {
                writer.message(head(TABLE | 22, INET), |it| {
                    it.name(1, "shop");
                    it.name(2, "fast");
                    it.nest(3, |it| {
                        it.number(1, 0);
                        it.number(2, 0);
                        it.nest(3, |it| it.name(1, "lo"));
                    });
                });
            });
            match made {
                Ok(()) => {
                    let expected = Flowtable {
                        table: "shop".to_owned(),
                        name: "fast".to_owned(),
                        interfaces: vec!["lo".to_owned()],
                        hardware: false,
                    };
                    assert_eq!(flowtables().unwrap(), [expected]);
                }
                Err(error) => sphinx_testing::skipped!("no flowtables: {error}"),
            }
        };
        namespace.run(inside).expect("a thread");
    }
}
