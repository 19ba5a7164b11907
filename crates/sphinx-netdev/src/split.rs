//! Routes that lead some destinations into a tunnel and leave others out, the tunnel's own packets first of all.
//!
//! They are in two tables of their own. The first one is asked before the main table: what is to go into the tunnel is a route to
//! the device there, what is not a `throw`, with which the kernel goes on to the next rule. So what is left out goes wherever the main table says at
//! that time, also when the machine has moved to another network. The second table has the default route, if it is to lead into the tunnel; it is asked
//! behind the main table's routes to networks, as a default route should.
//!
//! Other programs remove rules that they do not know, and the kernel the routes of a device that somebody turns off: [`SplitRoutes::restore`] adds what is missing.
//!
//! Routes to a device go with the device. Rules and `throw` routes of a process that was killed stay: lookups fall through them, and the next process
//! with a device of that name removes them.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use crate::lookup::{address, interface};
use crate::netlink::{
    FAMILIES, Message, ROUTE, RULE, RULE_PRIORITY, RULE_SUPPRESS_PREFIX_LENGTH, THROW, UNICAST,
    route,
};
use crate::tun::{bring_up, has_ipv6, index_and_mtu};
use crate::{netlink, netns::context, nfnetlink::Values};

/// Priority of the rules: before the main table's (32766).
const PRIORITY: u32 = 7749;
/// Number of the first table of tunnels.
const TABLES: u32 = 774_900;
/// Number of pairs of tables; the name of a device chooses one of them.
const PAIRS: u32 = 10_000;

/// Addresses with a common beginning: the first one, and the bits that are common.
pub type Prefix = (IpAddr, u8);

/// What leads into a tunnel, in the namespace of the thread that made it; all calls are to be made there. It goes when this is dropped.
#[derive(Debug)]
pub struct SplitRoutes {
    device: String,
    table: u32,
    index: i32,
    routes: Vec<Prefix>,
    excluded: Mutex<Vec<Prefix>>,
    has_default: bool,
}

impl SplitRoutes {
    /// Leads `routes` to a device, except for `excluded`.
    ///
    /// # Errors
    ///
    /// Those of netlink: `PermissionDenied` without `CAP_NET_ADMIN`. Nothing is left then.
    pub fn new(device: &str, routes: &[Prefix], excluded: &[Prefix]) -> io::Result<SplitRoutes> {
        let (index, _) = index_and_mtu(device)?;
        // Those of one name are the same each time, so that what a killed process has left is found.
        let hash = device.bytes().fold(0_u32, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        let split = SplitRoutes {
            device: device.to_owned(),
            table: TABLES + 2 * (hash % PAIRS),
            index,
            routes: routes.to_vec(),
            excluded: Mutex::new(excluded.to_vec()),
            has_default: routes.iter().any(|route| route.1 == 0),
        };
        split.remove();
        // A kernel without rules has one table only, into which all these routes would go.
        for family in FAMILIES {
            unless_off(family, split.has_rules(family), has_ipv6())?;
        }
        split.lay()?;
        Ok(split)
    }

    /// Adds what is missing, and turns the device on. Whether anything was missing.
    ///
    /// # Errors
    ///
    /// Those of netlink; `ENODEV` if the device is gone, or has another name.
    pub fn restore(&self) -> io::Result<bool> {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let found = interface(&self.device).map_err(|_| gone())?;
        if found.index.cast_signed() != self.index {
            return Err(gone());
        }
        if !found.is_up {
            bring_up(&self.device)?;
        }
        Ok(self.lay()? || !found.is_up)
    }

    /// Adds what is not there, what leads into the tunnel last. Whether anything was not.
    fn lay(&self) -> io::Result<bool> {
        // The routes that exist are listed once: there may be many, and this is called whenever something changes.
        let there = self.there()?;
        let mut any = false;
        let excluded = self.excluded.lock().unwrap_or_else(PoisonError::into_inner);
        for &prefix in excluded.iter() {
            any |= leave_out(prefix, [self.table, self.table + 1], |table| {
                let is_there = there.contains(&(table, THROW, prefix));
                let add = || is_new(self.add(prefix, table, (THROW, libc::NLM_F_EXCL)));
                if is_there { Ok(false) } else { add() }
            })?;
        }
        drop(excluded);
        for &(address, prefix) in &self.routes {
            let table = self.table + u32::from(prefix == 0);
            if there.contains(&(table, UNICAST, (address, prefix))) {
                continue;
            }
            any |= match is_new(self.add((address, prefix), table, (UNICAST, libc::NLM_F_EXCL))) {
                // Nothing of it goes anywhere, and once some does, the route is missing.
                Err(error) if address.is_ipv6() && is_off(&error, has_ipv6()) => false,
                added => added
                    .map_err(|error| context(&format!("a route to {address}/{prefix}"), error))?,
            };
        }
        for family in FAMILIES {
            any |= unless_off(family, self.add_rules(family), has_ipv6())?;
        }
        Ok(any)
    }

    /// The routes of both tables that are as we make them: table, kind and destination.
    fn there(&self) -> io::Result<HashSet<(u32, u8, Prefix)>> {
        let mut there = HashSet::new();
        for family in FAMILIES {
            for table in [self.table, self.table + 1] {
                let mut fixed = [0; ROUTE];
                fixed[0] = family;
                let list = Message::new(libc::RTM_GETROUTE, libc::NLM_F_DUMP, &fixed)
                    .with(libc::RTA_TABLE, &table.to_ne_bytes());
                let listed = list.list_strictly(|body| there.extend(self.route_in(body)));
                match listed {
                    // There is no such table yet, or no such family.
                    Err(error) if error.kind() == io::ErrorKind::NotFound || is_unknown(&error) => {
                    }
                    listed => listed?,
                }
            }
        }
        Ok(there)
    }

    /// A route of a list, if it is in our tables and leads where ours lead.
    fn route_in(&self, body: &[u8]) -> Option<(u32, u8, Prefix)> {
        let (family, bits, is) = (*body.first()?, *body.get(1)?, *body.get(7)?);
        let (mut table, mut index) = (0, 0);
        let mut to: IpAddr = match family == FAMILIES[0] {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        for (kind, value) in Values(body.get(ROUTE..)?) {
            match kind {
                libc::RTA_TABLE => table = u32::from_ne_bytes(*value.first_chunk()?),
                libc::RTA_OIF => index = i32::from_ne_bytes(*value.first_chunk()?),
                libc::RTA_DST => to = address(value)?,
                _ => {}
            }
        }
        let is_ours = [self.table, self.table + 1].contains(&table)
            && (is == THROW || (is == UNICAST && index == self.index));
        is_ours.then_some((table, is, (to, bits)))
    }

    /// Leaves a destination out, from now on. Where the kernel has no IPv6, nothing of it goes into a tunnel.
    ///
    /// # Errors
    ///
    /// Those of netlink.
    pub fn exclude(&self, prefix: Prefix) -> io::Result<()> {
        let mut excluded = self.excluded.lock().unwrap_or_else(PoisonError::into_inner);
        if !excluded.contains(&prefix) {
            excluded.push(prefix);
        }
        drop(excluded);
        leave_out(prefix, [self.table, self.table + 1], |table| {
            is_new(self.add(prefix, table, (THROW, libc::NLM_F_REPLACE)))
        })
        .map(drop)
    }

    /// Adds a route of a kind; `before` says what becomes of one that is there.
    fn add(
        &self,
        (address, prefix): Prefix,
        table: u32,
        (is, before): (u8, libc::c_int),
    ) -> io::Result<()> {
        let family = match address {
            IpAddr::V4(_) => FAMILIES[0],
            IpAddr::V6(_) => FAMILIES[1],
        };
        let mut message = route(before, family, prefix, is, table);
        message = match address {
            IpAddr::V4(address) => message.with(libc::RTA_DST, &address.octets()),
            IpAddr::V6(address) => message.with(libc::RTA_DST, &address.octets()),
        };
        if is == UNICAST {
            message = message.with(libc::RTA_OIF, &self.index.to_ne_bytes());
        }
        message.send()
    }

    /// Fails if the kernel has no rules of a family.
    fn has_rules(&self, family: u8) -> io::Result<()> {
        let mut fixed = [0; RULE];
        fixed[0] = family;
        Message::new(libc::RTM_GETRULE, libc::NLM_F_DUMP, &fixed).list_strictly(|_| ())
    }

    /// Adds the rules of a family; whether any of them was missing.
    fn add_rules(&self, family: u8) -> io::Result<bool> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let new = |at| rule(libc::RTM_NEWRULE, flags, family, at);
        let mut any = is_new(new((PRIORITY, self.table)).send())?;
        if self.has_default {
            // All of the main table but its default route. Another tunnel's says the same.
            let main = new((PRIORITY + 1, u32::from(libc::RT_TABLE_MAIN)));
            let main = main.with(RULE_SUPPRESS_PREFIX_LENGTH, &0_u32.to_ne_bytes());
            any |= is_new(main.send())?;
            any |= is_new(new((PRIORITY + 2, self.table + 1)).send())?;
        }
        Ok(any)
    }

    /// Removes rules and routes, also those of a process that was killed.
    fn remove(&self) {
        for family in FAMILIES {
            for at in [(PRIORITY, self.table), (PRIORITY + 2, self.table + 1)] {
                while rule(libc::RTM_DELRULE, 0, family, at).send().is_ok() {}
            }
            // Routes go with the device; what is left here are those that throw.
            let _ = flush(family, [self.table, self.table + 1]);
        }
        self.remove_shared();
    }

    /// The rule that tunnels with a default route share goes with the last of them.
    fn remove_shared(&self) {
        for family in FAMILIES {
            let mut is_used = false;
            let mut header = [0; RULE];
            header[0] = family;
            let list = Message::new(libc::RTM_GETRULE, libc::NLM_F_DUMP, &header);
            let priority = (PRIORITY + 2).to_ne_bytes();
            let listed = list.list(|body| {
                is_used |= attribute(body, RULE, RULE_PRIORITY) == Some(&priority[..]);
            });
            if listed.is_ok() && !is_used {
                let at = (PRIORITY + 1, u32::from(libc::RT_TABLE_MAIN));
                while rule(libc::RTM_DELRULE, 0, family, at).send().is_ok() {}
            }
        }
    }
}

impl Drop for SplitRoutes {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Adds routes to these tables with `add`, which says whether one was not there. Whether any was not.
fn leave_out(
    (address, prefix): Prefix,
    tables: [u32; 2],
    add: impl Fn(u32) -> io::Result<bool>,
) -> io::Result<bool> {
    let mut any = false;
    for table in tables {
        match add(table) {
            Err(error) if address.is_ipv6() && is_unknown(&error) => {}
            added => {
                any |= added.map_err(|error| {
                    let what = format!("leaving {address}/{prefix} out of a tunnel");
                    context(&what, error)
                })?;
            }
        }
    }
    Ok(any)
}

/// Whether something was added that was not there.
fn is_new(added: io::Result<()>) -> io::Result<bool> {
    match added {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// What came of a request about rules of a family. Without IPv6, if nothing `has` any, there is nothing to lead.
fn unless_off<T: Default>(family: u8, answer: io::Result<T>, has: bool) -> io::Result<T> {
    match answer {
        Err(error) if family == FAMILIES[1] && !has && is_unknown(&error) => Ok(T::default()),
        answer => answer.map_err(|error| context("a rule for a tunnel", error)),
    }
}

/// Whether this says that there is no IPv6: the kernel has none, or it is turned off for the device, and nothing else `has` any.
fn is_off(error: &io::Error, has: bool) -> bool {
    is_unknown(error) || (error.raw_os_error() == Some(libc::EACCES) && !has)
}

/// Whether the kernel knows nothing of the family that it was asked about.
fn is_unknown(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)
    )
}

fn rule(kind: u16, flags: libc::c_int, family: u8, (priority, table): (u32, u32)) -> Message {
    netlink::rule(kind, flags, family, table).with(RULE_PRIORITY, &priority.to_ne_bytes())
}

/// Removes all routes of these tables.
fn flush(family: u8, tables: [u32; 2]) -> io::Result<()> {
    let mut header = [0; ROUTE];
    header[0] = family;
    let tables = tables.map(u32::to_ne_bytes);
    let mut found = Vec::new();
    let list = Message::new(libc::RTM_GETROUTE, libc::NLM_F_DUMP, &header);
    list.list(|body| {
        let table = attribute(body, header.len(), libc::RTA_TABLE);
        if table.is_some_and(|table| tables.iter().any(|it| it == table)) {
            found.push(body.to_vec());
        }
    })?;
    for route in found {
        // What describes a route in a list names it when it is to go.
        Message::new(libc::RTM_DELROUTE, 0, &route).send()?;
    }
    Ok(())
}

/// The value of an attribute, behind a fixed part of `fixed` bytes.
fn attribute(body: &[u8], fixed: usize, wanted: u16) -> Option<&[u8]> {
    let mut values = Values(body.get(fixed..)?);
    values.find(|it| it.0 == wanted).map(|it| it.1)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::netns::{Access, Namespace, probe};
    use crate::tun::{Tun, TunConfig};

    #[test]
    fn without_ipv6_the_other_family_is_left_out_all_the_same() {
        let added = RefCell::new(Vec::new());
        // As a kernel without IPv6 answers, in one of its two ways.
        let leave_out = |address: IpAddr, unknown: i32| {
            leave_out((address, 128), [1, 2], |table| {
                if address.is_ipv6() {
                    return Err(io::Error::from_raw_os_error(unknown));
                }
                added.borrow_mut().push(table);
                Ok(true)
            })
        };
        let (v4, v6) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([1_u16; 8]));
        for unknown in [libc::EOPNOTSUPP, libc::EAFNOSUPPORT] {
            added.borrow_mut().clear();
            assert!(leave_out(v6, unknown).is_ok() && leave_out(v4, unknown).is_ok());
            assert_eq!(*added.borrow(), [1, 2]);
        }
        // Where only the device has none, the rest would go past it.
        let refused = |code| io::Error::from_raw_os_error(code);
        assert!(is_off(&refused(libc::EOPNOTSUPP), true));
        assert!(is_off(&refused(libc::EACCES), false) && !is_off(&refused(libc::EACCES), true));
        assert!(!is_off(&refused(libc::EPERM), false));
        // Nor are its rules nothing, if there is some.
        let rules =
            |family, code, has| unless_off(FAMILIES[family], Err::<bool, _>(refused(code)), has);
        assert!(!rules(1, libc::EAFNOSUPPORT, false).expect("nothing to lead"));
        for (family, code, has) in [
            (1, libc::EAFNOSUPPORT, true),
            (0, libc::EAFNOSUPPORT, false),
            (1, libc::ENOBUFS, false),
        ] {
            assert!(rules(family, code, has).is_err());
        }
        // What else is wrong with it is told.
        let refused = leave_out(v6, libc::EPERM).expect_err("no permission");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_is_there_is_not_added_again() {
        let namespace = match probe() {
            Ok(Access::Direct) => Namespace::new().expect("a namespace"),
            other => return sphinx_testing::skipped!("no namespace: {other:?}"),
        };
        let ran = namespace.run(|| {
            let config = TunConfig {
                name: "vpn".into(),
                mtu: 1500,
                queue_packets: 10,
                addresses: vec![([10, 9, 0, 1].into(), 24)],
            };
            let _tun = Tun::open(&config).expect("a device");
            let v4 = |last, bits| (IpAddr::from([10, 8, 0, last]), bits);
            let (all, some, none) = (([0; 4].into(), 0), v4(0, 24), v4(7, 32));
            let mut routes = vec![all, some];
            if has_ipv6() {
                routes.extend([(IpAddr::from([0_u16; 8]), 0), ([1; 8].into(), 128)]);
            }
            let split = SplitRoutes::new("vpn", &routes, &[none]).expect("routes");
            let (first, second) = (split.table, split.table + 1);
            let there = split.there().expect("a list");
            for &route in &routes {
                let table = if route.1 == 0 { second } else { first };
                assert!(there.contains(&(table, UNICAST, route)), "{there:?}");
            }
            for table in [first, second] {
                assert!(there.contains(&(table, THROW, none)), "{there:?}");
            }
            assert_eq!(there.len(), routes.len() + 2);
            assert!(!split.restore().expect("nothing is missing"));
            flush(FAMILIES[0], [first, second]).expect("they go");
            assert!(split.restore().expect("they are added"));
            assert_eq!(split.there().expect("a list"), there);
            // Another device's are not ours.
            let other = SplitRoutes {
                index: split.index + 1,
                device: "other".into(),
                routes: Vec::new(),
                excluded: Mutex::default(),
                ..split
            };
            let theirs = other.there().expect("a list");
            assert!(theirs.iter().all(|it| it.1 == THROW), "{theirs:?}");
        });
        ran.expect("a thread");
    }
}
