//! Rules and routes that lead TCP traffic from an interface to a device of ours.
//!
//! A rule stays when the process dies, but the route in its table goes with the device: lookups then fall
//! through to the next rule, and traffic goes where it went before.

use std::io;

use crate::{
    header::TCP,
    netlink::{
        FAMILIES, Message, RULE, RULE_INTERFACE, RULE_PRIORITY, RULE_PROTOCOL, RULE_TABLE, UNICAST,
        route, rule,
    },
    netns::context,
    nfnetlink::Values,
    tun::index_and_mtu,
};

/// Makes a device the default route of the calling thread's namespace, for both families, as far as there is IPv6.
///
/// # Errors
///
/// Those of netlink: `PermissionDenied` without `CAP_NET_ADMIN`.
pub fn default_route(device: &str) -> io::Result<()> {
    let main = u32::from(libc::RT_TABLE_MAIN);
    everything_to(device, main, None, libc::NLM_F_REPLACE).map(drop)
}

/// Makes a device one more default route: for those who send through it by name. The larger the metric, the less others use it; each route
/// has one of its own.
///
/// # Errors
///
/// As [`default_route`].
pub fn further_default_route(device: &str, metric: u32) -> io::Result<()> {
    let main = u32::from(libc::RT_TABLE_MAIN);
    everything_to(device, main, Some(metric), libc::NLM_F_REPLACE).map(drop)
}

/// Makes a device the route of a table for everything that has no other one there; `before` says what becomes of one that is there. Whether a route
/// was added.
fn everything_to(
    device: &str,
    table: u32,
    metric: Option<u32>,
    before: libc::c_int,
) -> io::Result<bool> {
    let (index, _) = index_and_mtu(device)?;
    let mut any = false;
    for family in FAMILIES {
        let mut route =
            route(before, family, 0, UNICAST, table).with(libc::RTA_OIF, &index.to_ne_bytes());
        if let Some(metric) = metric {
            route = route.with(libc::RTA_PRIORITY, &metric.to_ne_bytes());
        }
        any |= added(route.send(), family, "adding a route")?;
    }
    Ok(any)
}

/// Whether something was added that was not there. Without IPv6 there is nothing to lead.
fn added(answer: io::Result<()>, family: u8, what: &str) -> io::Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(_) if i32::from(family) == libc::AF_INET6 => Ok(false),
        Err(error) => Err(context(what, error)),
    }
}

/// A diversion: a routing table of its own, and rules that lead there. All calls work in the calling
/// thread's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diversion {
    /// Priority of its rules: less than 32766 comes before the main table.
    pub priority: u32,
    /// Number of the table, used by nobody else.
    pub table: u32,
}

impl Diversion {
    /// Makes a device, of this name, the only route of the table, for both families, as far as there is IPv6. Whether it was not there.
    ///
    /// # Errors
    ///
    /// Those of netlink: `PermissionDenied` without `CAP_NET_ADMIN`.
    pub fn route_to(&self, device: &str) -> io::Result<bool> {
        everything_to(device, self.table, None, libc::NLM_F_EXCL)
    }

    /// Leads TCP packets that arrive at an interface to the table. Whether the rule was not there.
    ///
    /// # Errors
    ///
    /// As [`route_to`](Diversion::route_to).
    pub fn divert(&self, interface: &str) -> io::Result<bool> {
        let mut any = false;
        for family in FAMILIES {
            let mut name = interface.as_bytes().to_vec();
            name.push(0);
            let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
            let answer = rule(libc::RTM_NEWRULE, flags, family, self.table)
                .with(RULE_PRIORITY, &self.priority.to_ne_bytes())
                .with(RULE_INTERFACE, &name)
                .with(RULE_PROTOCOL, &[TCP])
                .send();
            any |= added(answer, family, &format!("a rule for {interface}"))?;
        }
        Ok(any)
    }

    /// Whether rules lead to the table.
    ///
    /// # Errors
    ///
    /// Those of netlink.
    pub fn leads(&self) -> io::Result<bool> {
        let mut fixed = [0; RULE];
        fixed[0] = FAMILIES[0];
        let mut leads = false;
        Message::new(libc::RTM_GETRULE, libc::NLM_F_DUMP, &fixed).list(|body| {
            let mut values = Values(body.get(RULE..).unwrap_or(&[]));
            let table = (RULE_TABLE, &self.table.to_ne_bytes()[..]);
            leads |= values.any(|it| it == table);
        })?;
        Ok(leads)
    }

    /// Removes all rules that lead to the table, whatever their priority, those of a process that was killed too.
    ///
    /// # Errors
    ///
    /// As [`route_to`](Diversion::route_to); there being none is no error.
    pub fn remove(&self) -> io::Result<()> {
        for family in FAMILIES {
            loop {
                match rule(libc::RTM_DELRULE, 0, family, self.table).send() {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(_) if i32::from(family) == libc::AF_INET6 => break,
                    Err(error) => return Err(context("removing a rule", error)),
                }
            }
        }
        Ok(())
    }
}
