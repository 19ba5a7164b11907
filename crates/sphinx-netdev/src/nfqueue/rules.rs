//! Rules of the packet filter that lead packets to a queue.

use std::{io, ops::RangeInclusive};

use rustix::net::sockopt;

use super::{ACK, SOCKET_BYTES};
use crate::header::{ACK as ACKNOWLEDGES, SYN, TCP};
use crate::nfnetlink::{Attributes, Head, Socket, Writer};

/// The packet filter's numbers; few of them are in libc.
mod number {
    pub(super) const BATCH_BEGIN: u16 = 16;
    pub(super) const BATCH_END: u16 = 17;
    pub(super) const SUBSYSTEM_TABLES: u16 = 10;
    pub(super) const NEW_TABLE: u16 = SUBSYSTEM_TABLES << 8;
    pub(super) const GET_TABLE: u16 = NEW_TABLE | 1;
    pub(super) const DELETE_TABLE: u16 = NEW_TABLE | 2;
    pub(super) const NEW_CHAIN: u16 = NEW_TABLE | 3;
    pub(super) const NEW_RULE: u16 = NEW_TABLE | 6;
    pub(super) const NEW_SET: u16 = NEW_TABLE | 9;
    /// Members that programs did not write, and that are forgotten in time.
    pub(super) const SET_TIMEOUT_EVALUATED: u32 = 0x30;
    pub(super) const UPDATE: u32 = 1;
    pub(super) const TABLE_OWNED: u32 = 2;
    pub(super) const META_LENGTH: u32 = 0;
    pub(super) const META_MARK: u32 = 3;
    pub(super) const META_INPUT: u32 = 6;
    pub(super) const META_OUTPUT: u32 = 7;
    pub(super) const META_USER: u32 = 10;
    pub(super) const META_PROTOCOL: u32 = 16;
    pub(super) const SOCKET_CGROUP: u32 = 3;
    pub(super) const TRANSPORT_HEADER: u32 = 2;
    pub(super) const TO_NETWORK: u32 = 1;
    pub(super) const EQUAL: u32 = 0;
    pub(super) const UNEQUAL: u32 = 1;
    pub(super) const AT_MOST: u32 = 3;
    pub(super) const REGISTER: u32 = 1;
    /// Where verdicts are put.
    pub(super) const VERDICT_REGISTER: u32 = 0;
    pub(super) const BYPASS: u16 = 1;
    pub(super) const DROP: u32 = 0;
    pub(super) const ACCEPT: u32 = 1;
    /// States of connection tracking: a packet that belongs to no connection, and one that begins one.
    pub(super) const STATE_INVALID: u32 = 1;
    pub(super) const STATE_NEW: u32 = 8;
}

/// When chains of a hook have their turn: the lowest number first. Connection tracking has -200, the mangle table of old -150, translation of
/// destinations -100 and of sources 100.
mod priority {
    pub(super) const BEFORE_TRACKING: i32 = -300;
    pub(super) const BEHIND_TRACKING: i32 = -199;
    pub(super) const MANGLE: i32 = -150;
    pub(super) const BEHIND_DESTINATIONS: i32 = -90;
}

/// Families of tables: IPv4 and IPv6 together, and each alone, where all parts of iptables can be used.
const INET: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// Places in the TCP header.
const SOURCE_PORT: u32 = 0;
const DESTINATION_PORT: u32 = 2;
const FLAGS: u32 = 13;
const CREATE: libc::c_int = ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
/// The local ports of chosen users and groups: what comes in has no socket yet.
const PORTS: &str = "ports";
/// So many of them, and so long after the last packet.
const PORTS_MAX: u32 = 65_535;
const PORTS_MS: u64 = 3_600_000;
/// Longest name of an interface.
const INTERFACE_BYTES_MAX: usize = 15;

/// Where on its way a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// It has come in, and it has not been decided where it goes.
    Prerouting = 0,
    /// It has come in for this machine.
    Input = 1,
    /// It goes on to other machines.
    Forward = 2,
    /// It comes from this machine.
    Output = 3,
    /// It is about to leave.
    Postrouting = 4,
}

impl Hook {
    /// Where addresses are translated, packets of both directions have those of the inner network: what comes in has got them back by then, and what goes out
    /// has them still, whichever side the inner network is on.
    fn priority(self) -> i32 {
        match self {
            Hook::Prerouting => priority::BEHIND_DESTINATIONS,
            Hook::Input | Hook::Forward | Hook::Output | Hook::Postrouting => priority::MANGLE,
        }
    }
}

/// Which TCP packets are led to a queue, IPv4 and IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those that come in by an interface ([`Hook::Prerouting`]) and those that go out by it ([`Hook::Postrouting`]).
    Interface(String),
    /// Those that a bridge forwards from this port of its or to it ([`Hook::Forward`]), if it shows them to the packet filter ([`shows_ports`]).
    Port(String),
    /// Small ones of this machine's own connections ([`Hook::Input`], [`Hook::Output`]).
    Own(Own),
}

impl Selection {
    fn families(&self) -> &'static [u8] {
        match self {
            // Ports are known by "physdev" of iptables.
            Selection::Port(_) => &[IPV4, IPV6],
            Selection::Interface(_) | Selection::Own(_) => &[INET],
        }
    }
}

/// Connections of this machine: those that have any of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Either end has one of these ports.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The user's number, of the socket.
    pub uids: Vec<u32>,
    /// The control group, of the process that made the socket, or one below it.
    pub cgroups: Vec<Cgroup>,
    /// The longest packet that is led to the queue, in IP bytes.
    pub bytes_max: u32,
}

impl Own {
    /// Whether connections are selected by the user or control group of their socket.
    fn has_owners(&self) -> bool {
        !(self.uids.is_empty() && self.cgroups.is_empty())
    }
}

/// A control group (version 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// The inode number of its directory.
    pub id: u64,
    /// Groups above it.
    pub level: u32,
}

/// Rules in a table of their own that lead the TCP packets of an interface to a queue.
#[derive(Debug)]
pub struct Rules {
    socket: Socket,
    table: String,
    families: &'static [u8],
}

impl Rules {
    /// Leads packets to a queue, in the calling thread's namespace; except those with this
    /// mark. Where nobody serves the queue, packets pass.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if there is a table of this name, `PermissionDenied` without `CAP_NET_ADMIN`, `NotFound`
    /// and others where the kernel has no such rules (it needs nf_tables, and its queue or NFQUEUE).
    pub fn install(table: &str, selection: &Selection, queue: u16, mark: u32) -> io::Result<Rules> {
        if let Selection::Interface(name) | Selection::Port(name) = selection
            && name.len() > INTERFACE_BYTES_MAX
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if is_taken(table)? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        // Kernels have either way to name a queue, or both.
        let rules = |way| -> io::Result<Rules> {
            let socket = Socket::open()?;
            // Hundreds of rules go as one message, and each is answered before the first answer is read.
            let _ = sockopt::set_socket_send_buffer_size_force(&socket, SOCKET_BYTES);
            let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES);
            install(&socket, table, selection, queue, mark, way)?;
            let (table, families) = (table.to_owned(), selection.families());
            Ok(Rules {
                socket,
                table,
                families,
            })
        };
        match rules(Way::Native) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => rules(Way::Compatible),
            installed => installed,
        }
    }

    /// Where addresses are translated, what this program sends by itself belongs to a tracked connection in one direction only: in the one that
    /// has still to be translated. In the other one it would be taken for a connection of its own, and get another port. So what has this
    /// mark and is no part of a connection is refused from now on (`PermissionDenied`), unless it opens one; what has the mark `untracked` is not
    /// tracked, and has the former mark from then on. For rules of an interface. Connections are tracked from now on.
    ///
    /// # Errors
    ///
    /// Those of netlink, where the kernel has no such rules.
    pub fn tell_tracked_apart(&mut self, mark: u32, untracked: u32) -> io::Result<()> {
        let (family, table) = (self.families[0], self.table.as_str());
        let mut writer = Writer::default();
        batch(&mut writer, |writer| {
            let before = (Hook::Output, priority::BEFORE_TRACKING);
            put_chain(writer, family, table, "untracked", before);
            put_rule(writer, family, table, "untracked", |it| {
                compare(it, number::META_PROTOCOL, number::EQUAL, &[TCP]);
                compare(
                    it,
                    number::META_MARK,
                    number::EQUAL,
                    &untracked.to_ne_bytes(),
                );
                expression(it, "notrack", |_| ());
                set_mark(it, mark);
            });
            let behind = (Hook::Output, priority::BEHIND_TRACKING);
            put_chain(writer, family, table, "tracked", behind);
            put_rule(writer, family, table, "tracked", |it| {
                compare(it, number::META_PROTOCOL, number::EQUAL, &[TCP]);
                compare(it, number::META_MARK, number::EQUAL, &mark.to_ne_bytes());
                is_no_part(it);
                flags(it);
                is(it, number::UNEQUAL, &[SYN]);
                drop_packet(it);
            });
        });
        writer.transact(&self.socket)
    }

    /// Removes the rules, if they are still there.
    ///
    /// # Errors
    ///
    /// Those of netlink.
    pub fn remove(&mut self) -> io::Result<()> {
        // One by one: together, one that is gone would keep the other from being removed.
        for family in self.families {
            let mut writer = Writer::default();
            batch(&mut writer, |writer| {
                writer.message(head(*family, number::DELETE_TABLE, ACK), |it| {
                    it.name(1, &self.table);
                });
            });
            match writer.transact(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        Ok(())
    }
}

/// Whether there is a table of this name in the calling thread's namespace.
///
/// # Errors
///
/// `PermissionDenied` without `CAP_NET_ADMIN`, others where there are no tables at all.
pub fn is_taken(table: &str) -> io::Result<bool> {
    for family in [INET, IPV4] {
        let mut writer = Writer::default();
        let head = head(family, number::GET_TABLE, ACK);
        writer.message(head, |it| it.name(1, table));
        match writer.transact(&Socket::open()?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result.map(|()| true),
        }
    }
    Ok(false)
}

/// Whether bridges show what they forward to the packet filter for IP, of the calling thread's namespace.
pub fn shows_ports() -> bool {
    ["iptables", "ip6tables"].into_iter().all(|name| {
        let path = format!("/proc/sys/net/bridge/bridge-nf-call-{name}");
        std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "1")
    })
}

/// How rules name a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// "queue" of nf_tables.
    Native,
    /// "NFQUEUE" of iptables, inside nf_tables.
    Compatible,
}

fn install(
    socket: &Socket,
    table: &str,
    selection: &Selection,
    queue: u16,
    mark: u32,
    way: Way,
) -> io::Result<()> {
    let mut writer = Writer::default();
    // The kernel takes all of these messages, or none.
    batch(&mut writer, |writer| {
        for family in selection.families() {
            put_table(writer, *family, table, selection, queue, mark, way);
        }
    });
    writer.transact(socket)
}

/// A table of one family, with its chains and rules.
fn put_table(
    writer: &mut Writer,
    family: u8,
    table: &str,
    selection: &Selection,
    queue: u16,
    mark: u32,
    way: Way,
) {
    let head = |kind, flags| head(family, kind, flags);
    let hooks = match selection {
        Selection::Interface(_) => &[("in", Hook::Prerouting), ("out", Hook::Postrouting)][..],
        Selection::Port(_) => &[("through", Hook::Forward)],
        Selection::Own(_) => &[("in", Hook::Input), ("out", Hook::Output)],
    };
    writer.message(head(number::NEW_TABLE, CREATE), |it| {
        it.name(1, table);
        it.number(2, number::TABLE_OWNED);
    });
    if matches!(selection, Selection::Own(own) if own.has_owners()) {
        writer.message(head(number::NEW_SET, CREATE), |it| {
            it.name(1, table);
            it.name(2, PORTS);
            it.number(3, number::SET_TIMEOUT_EVALUATED);
            // Its number for programs that show it ("inet_service"), and its length.
            it.number(4, 13);
            it.number(5, 2);
            it.nest(9, |it| it.number(1, PORTS_MAX));
            it.number(10, 1);
        });
    }
    for &(chain, hook) in hooks {
        put_chain(writer, family, table, chain, (hook, hook.priority()));
        for condition in conditions(selection, hook) {
            put_rule(writer, family, table, chain, |it| {
                compare(it, number::META_PROTOCOL, number::EQUAL, &[TCP]);
                compare(it, number::META_MARK, number::UNEQUAL, &mark.to_ne_bytes());
                if let Selection::Own(own) = selection {
                    is_short(it, own.bytes_max);
                }
                condition.put(it);
                to_queue(it, queue, way);
            });
        }
    }
}

/// A chain at a hook, with its priority there.
fn put_chain(
    writer: &mut Writer,
    family: u8,
    table: &str,
    chain: &str,
    (hook, priority): (Hook, i32),
) {
    writer.message(head(family, number::NEW_CHAIN, CREATE), |it| {
        it.name(1, table);
        it.name(3, chain);
        it.nest(4, |it| {
            it.number(1, hook as u32);
            it.number(2, priority as u32);
        });
        it.number(5, number::ACCEPT);
        it.name(7, "filter");
    });
}

/// A rule behind those that a chain has.
fn put_rule(
    writer: &mut Writer,
    family: u8,
    table: &str,
    chain: &str,
    expressions: impl FnOnce(&mut Attributes<'_>),
) {
    let append = ACK | libc::NLM_F_CREATE | libc::NLM_F_APPEND;
    writer.message(head(family, number::NEW_RULE, append), |it| {
        it.name(1, table);
        it.name(2, chain);
        it.nest(4, expressions);
    });
}

/// What a rule asks of a packet.
#[derive(Clone, Debug)]
enum Condition {
    Interface {
        meta: u32,
        name: Vec<u8>,
    },
    /// A port of a bridge, by which it has come in or goes out.
    Port(Passage, Vec<u8>),
    /// The port at this place of the TCP header.
    Ports(u32, RangeInclusive<u16>),
    /// SYN without ACK: the first one to a server whose user or group is chosen.
    Opens,
    /// SYN with ACK: while a server answers, its connection has no socket with a group yet.
    Answers,
    /// The local port of a connection of a chosen user or group.
    Known,
    User(u32),
    Group(Cgroup),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    In,
    Out,
}

/// A name as the packet filter wants it.
fn padded(name: &str) -> Vec<u8> {
    let mut name = name.as_bytes().to_vec();
    name.resize(INTERFACE_BYTES_MAX + 1, 0);
    name
}

/// Conditions, each of which becomes a rule.
fn conditions(selection: &Selection, hook: Hook) -> Vec<Condition> {
    let own = match selection {
        Selection::Interface(name) => {
            let name = padded(name);
            let meta = match hook {
                Hook::Prerouting | Hook::Input => number::META_INPUT,
                Hook::Forward | Hook::Output | Hook::Postrouting => number::META_OUTPUT,
            };
            return vec![Condition::Interface { meta, name }];
        }
        Selection::Port(name) => {
            let passages = [Passage::In, Passage::Out];
            return passages.map(|it| Condition::Port(it, padded(name))).into();
        }
        Selection::Own(own) => own,
    };
    let mut conditions = Vec::new();
    for range in &own.ports {
        let places = [SOURCE_PORT, DESTINATION_PORT];
        conditions.extend(places.map(|place| Condition::Ports(place, range.clone())));
    }
    match hook {
        Hook::Input if own.has_owners() => {
            conditions.extend([Condition::Known, Condition::Opens]);
        }
        Hook::Output => {
            conditions.extend(own.uids.iter().map(|uid| Condition::User(*uid)));
            conditions.extend(own.cgroups.iter().map(|group| Condition::Group(*group)));
            if !own.cgroups.is_empty() {
                conditions.push(Condition::Answers);
            }
        }
        _ => {}
    }
    conditions
}

impl Condition {
    fn put(&self, it: &mut Attributes<'_>) {
        match self {
            Condition::Interface { meta, name } => compare(it, *meta, number::EQUAL, name),
            Condition::Ports(place, range) => {
                load(it, *place, 2);
                expression(it, "range", |it| {
                    it.number(1, number::REGISTER);
                    it.number(2, number::EQUAL);
                    it.nest(3, |it| it.put(1, &range.start().to_be_bytes()));
                    it.nest(4, |it| it.put(1, &range.end().to_be_bytes()));
                });
            }
            Condition::Port(passage, name) => is_port(it, *passage, name),
            Condition::Opens => has_flags(it, SYN),
            Condition::Answers => has_flags(it, SYN | ACKNOWLEDGES),
            Condition::Known => {
                load(it, DESTINATION_PORT, 2);
                expression(it, "lookup", |it| {
                    it.name(1, PORTS);
                    it.number(2, number::REGISTER);
                    it.number(4, 1);
                });
            }
            Condition::User(uid) => {
                compare(it, number::META_USER, number::EQUAL, &uid.to_ne_bytes());
                remember_port(it);
            }
            Condition::Group(group) => {
                expression(it, "socket", |it| {
                    it.number(1, number::SOCKET_CGROUP);
                    it.number(2, number::REGISTER);
                    it.number(3, group.level);
                });
                is(it, number::EQUAL, &group.id.to_ne_bytes());
                remember_port(it);
            }
        }
    }
}

/// Goes on if it comes in by a port of a bridge, or goes out by it ("physdev" of iptables).
fn is_port(it: &mut Attributes<'_>, passage: Passage, name: &[u8]) {
    // What the bridge forwards, and of that what has the port on this side.
    let (place, bits) = match passage {
        Passage::In => (0, 0b101),
        Passage::Out => (2, 0b110),
    };
    // `struct xt_physdev_info`, aligned: names and masks of both ports, what is inverted, which bits count.
    let mut info = [0; 72];
    let field = name.len();
    let length = name.iter().take_while(|byte| **byte != 0).count() + 1;
    info[place * field..(place + 1) * field].copy_from_slice(name);
    info[(place + 1) * field..][..length.min(field)].fill(0xff);
    info[4 * field + 1] = bits;
    expression(it, "match", |it| {
        it.name(1, "physdev");
        it.number(2, 0);
        it.put(3, &info);
    });
}

/// The rule goes on if, of SYN and ACK, exactly these flags are set.
fn has_flags(it: &mut Attributes<'_>, set: u8) {
    flags(it);
    is(it, number::EQUAL, &[set]);
}

/// Loads SYN and ACK.
fn flags(it: &mut Attributes<'_>) {
    load(it, FLAGS, 1);
    mask(it, &[SYN | ACKNOWLEDGES]);
}

/// Clears all but these bits in the register.
fn mask(it: &mut Attributes<'_>, bits: &[u8]) {
    expression(it, "bitwise", |it| {
        it.number(1, number::REGISTER);
        it.number(2, number::REGISTER);
        it.number(3, bits.len() as u32);
        it.nest(4, |it| it.put(1, bits));
        it.nest(5, |it| it.put(1, &vec![0; bits.len()]));
    });
}

/// Goes on if connection tracking takes it for no part of a connection that it knows.
fn is_no_part(it: &mut Attributes<'_>) {
    expression(it, "ct", |it| {
        it.number(1, number::REGISTER);
        // Key of the expression: the state of the connection.
        it.number(2, 0);
    });
    let states = number::STATE_INVALID | number::STATE_NEW;
    mask(it, &states.to_ne_bytes());
    is(it, number::UNEQUAL, &[0; 4]);
}

fn set_mark(it: &mut Attributes<'_>, mark: u32) {
    expression(it, "immediate", |it| {
        it.number(1, number::REGISTER);
        it.nest(2, |it| it.put(1, &mark.to_ne_bytes()));
    });
    expression(it, "meta", |it| {
        it.number(2, number::META_MARK);
        it.number(3, number::REGISTER);
    });
}

fn drop_packet(it: &mut Attributes<'_>) {
    expression(it, "immediate", |it| {
        it.number(1, number::VERDICT_REGISTER);
        it.nest(2, |it| it.nest(2, |it| it.number(1, number::DROP)));
    });
}

/// The local port of what goes out is known from then on.
fn remember_port(it: &mut Attributes<'_>) {
    load(it, SOURCE_PORT, 2);
    expression(it, "dynset", |it| {
        it.name(1, PORTS);
        it.number(2, 1);
        it.number(3, number::UPDATE);
        it.number(4, number::REGISTER);
        it.put(6, &PORTS_MS.to_be_bytes());
    });
}

/// Loads bytes of the TCP header.
fn load(it: &mut Attributes<'_>, place: u32, bytes: u32) {
    expression(it, "payload", |it| {
        it.number(1, number::REGISTER);
        it.number(2, number::TRANSPORT_HEADER);
        it.number(3, place);
        it.number(4, bytes);
    });
}

/// Goes on if the packet has at most so many bytes.
fn is_short(it: &mut Attributes<'_>, bytes_max: u32) {
    expression(it, "meta", |it| {
        it.number(1, number::REGISTER);
        it.number(2, number::META_LENGTH);
    });
    // Numbers are compared byte by byte.
    expression(it, "byteorder", |it| {
        it.number(1, number::REGISTER);
        it.number(2, number::REGISTER);
        it.number(3, number::TO_NETWORK);
        it.number(4, 4);
        it.number(5, 4);
    });
    is(it, number::AT_MOST, &bytes_max.to_be_bytes());
}

/// The rule goes on if the register compares so with `value`.
fn is(it: &mut Attributes<'_>, how: u32, value: &[u8]) {
    expression(it, "cmp", |it| {
        it.number(1, number::REGISTER);
        it.number(2, how);
        it.nest(3, |it| it.put(1, value));
    });
}

fn head(family: u8, kind: u16, flags: libc::c_int) -> Head {
    Head {
        kind,
        flags,
        family,
        resource: 0,
    }
}

/// Messages of which all take effect or none.
fn batch(writer: &mut Writer, body: impl FnOnce(&mut Writer)) {
    let edge = |kind| Head {
        kind,
        flags: 0,
        family: 0,
        resource: number::SUBSYSTEM_TABLES,
    };
    writer.message(edge(number::BATCH_BEGIN), |_| ());
    body(writer);
    writer.message(edge(number::BATCH_END), |_| ());
}

fn expression(it: &mut Attributes<'_>, name: &str, data: impl FnOnce(&mut Attributes<'_>)) {
    it.nest(1, |it| {
        it.name(1, name);
        it.nest(2, data);
    });
}

/// Goes on with the rule if something about the packet is so.
fn compare(it: &mut Attributes<'_>, meta: u32, how: u32, value: &[u8]) {
    expression(it, "meta", |it| {
        it.number(1, number::REGISTER);
        it.number(2, meta);
    });
    is(it, how, value);
}

fn to_queue(it: &mut Attributes<'_>, queue: u16, way: Way) {
    match way {
        Way::Native => expression(it, "queue", |it| {
            it.put(1, &queue.to_be_bytes());
            it.put(2, &1_u16.to_be_bytes());
            it.put(3, &number::BYPASS.to_be_bytes());
        }),
        Way::Compatible => expression(it, "target", |it| {
            it.name(1, "NFQUEUE");
            it.number(2, 3);
            // `struct xt_NFQ_info_v3`, aligned: number, how many, flags.
            let words = [queue, 1, number::BYPASS, 0].map(u16::to_ne_bytes);
            it.put(3, words.as_flattened());
        }),
    }
}
