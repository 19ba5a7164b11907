//! Two network namespaces joined by the emulator.

use std::{fs, io, process::Command};

use sphinx_link::front::{
    End, Front, FrontConfig, FrontCounters, FrontError, Interface, LinkThread, between,
};
use sphinx_netdev::{
    netns::{Access, NoAccess, enter_user_namespace, probe},
    route::further_default_route,
};
use thiserror::Error;

use crate::{
    Cell, Contestant, LinkSpec, PathSpec, Side,
    several::{addresses, interface, seed_of},
};

/// Routes of further paths are worse than the first one's; by how much does not matter.
const FURTHER_METRIC: u32 = 100;
/// Of what a kernel is allowed to hold, payload is about nine tenths: receivers that read nothing held 0.83 (64 KiB) to 0.90 (512 KiB) of
/// it with multipath TCP, 0.92 to 0.98 with TCP.
const KERNEL_BUFFER: (u64, u64) = (10, 9);

/// A link under test: senders run at its left end, receivers at its right one. When this is dropped,
/// the link ends; the namespaces disappear with the last process in them.
#[derive(Debug)]
pub struct Testbed {
    front: Front,
    /// The links of further paths, in the order of the paths.
    further: Vec<LinkThread>,
}

/// Why there is no link to measure on.
#[derive(Debug, Error)]
pub enum TestbedError {
    /// Neither root nor user namespaces give access to TUN devices.
    #[error(transparent)]
    NoAccess(#[from] NoAccess),
    /// The process could not become the root of a user namespace after all.
    #[error("no user namespace: {0}")]
    UserNamespace(#[source] io::Error),
    /// The link could not be started.
    #[error(transparent)]
    Front(#[from] FrontError),
    /// Routes, parameters or paths could not be set.
    #[error("{what}: {error}")]
    Setting {
        /// What was attempted.
        what: &'static str,
        /// How it failed.
        error: io::Error,
    },
}

impl Testbed {
    /// Gets this process the rights that [`start`](Testbed::start) needs. To be called before the
    /// process has a second thread; it may change the process's user and network namespace.
    ///
    /// # Errors
    ///
    /// [`TestbedError::NoAccess`] and [`TestbedError::UserNamespace`].
    pub fn prepare_process() -> Result<(), TestbedError> {
        match probe()? {
            Access::Direct => Ok(()),
            Access::UserNamespace => enter_user_namespace().map_err(TestbedError::UserNamespace),
        }
    }

    /// Starts a fresh link, or all paths, as a contestant needs them.
    ///
    /// # Errors
    ///
    /// [`TestbedError::Front`] and [`TestbedError::Setting`].
    pub fn start(
        cell: &Cell,
        seed: u64,
        contestant: &dyn Contestant,
    ) -> Result<Testbed, TestbedError> {
        let first: &LinkSpec = cell.paths.first().map_or(&cell.link, |path| &path.link);
        let mut testbed = Testbed {
            front: Front::start(first.front(seed))?,
            further: Vec::new(),
        };
        // An error if they cannot be set: without them it would be another contestant than its runs say.
        for (name, value) in contestant.parameters() {
            for side in [Side::Sender, Side::Receiver] {
                let set = testbed.end(side).namespace().sysctl(&name, &value);
                set.map_err(|error| failed("a kernel parameter", error))?;
            }
        }
        for (index, path) in cell.paths.iter().enumerate().skip(1) {
            let link = testbed.join(index, path, seed)?;
            testbed.further.push(link);
        }
        if let Some(bytes) = cell.receive_buffer {
            let most = bytes * KERNEL_BUFFER.0 / KERNEL_BUFFER.1;
            let value = format!("4096 {most} {most}");
            let receiver = testbed.end(Side::Receiver).namespace();
            let set = receiver.sysctl("net.ipv4.tcp_rmem", &value);
            set.map_err(|error| failed("a receive buffer of the kernel", error))?;
        }
        if contestant.is_mptcp() && !cell.paths.is_empty() {
            testbed
                .tell_kernel(&cell.paths)
                .map_err(|error| failed("ip mptcp", error))?;
        }
        Ok(testbed)
    }

    /// Adds a path: an interface at either end. The sender's end has a route over it that counts for those who ask for the interface; what comes
    /// back is routed by its address.
    fn join(&self, index: usize, path: &PathSpec, seed: u64) -> Result<LinkThread, TestbedError> {
        let defaults = FrontConfig::default();
        let names = ["left", "right"].map(|end| interface(end, index));
        let ends = [self.front.left(), self.front.right()];
        for end in ends {
            // Packets from one address arrive by every path, which reverse-path filtering would drop.
            for name in ["all", "default"] {
                let name = format!("net.ipv4.conf.{name}.rp_filter");
                let set = end.namespace().sysctl(&name, "0");
                set.map_err(|error| failed("routing", error))?;
            }
        }
        let new = |side: usize| Interface {
            namespace: ends[side].namespace(),
            name: &names[side],
            ipv4: (addresses(index)[side], 24),
            ipv6: None,
            mtu: defaults.mtu,
            queue_packets: defaults.kernel_queue_packets,
        };
        let links = path.link.front(seed_of(index, seed));
        let links = [links.left_to_right, links.right_to_left];
        let link = between([&new(0), &new(1)], links, None)?;
        let metric = FURTHER_METRIC + index as u32;
        let route = ends[0].run(|| further_default_route(&names[0], metric));
        route
            .and_then(|added| added)
            .map_err(|error| failed("a route", error))?;
        Ok(link)
    }

    /// Multipath TCP begins at every address of the sender.
    fn tell_kernel(&self, paths: &[PathSpec]) -> io::Result<()> {
        let many = paths.len().to_string();
        for end in [self.front.left(), self.front.right()] {
            let limits = [
                "mptcp",
                "limits",
                "set",
                "subflows",
                &many,
                "add_addr_accepted",
                &many,
            ];
            ip(end, &limits)?;
        }
        for index in 1..paths.len() {
            let (address, device) = (addresses(index)[0].to_string(), interface("left", index));
            let endpoint = [
                "mptcp", "endpoint", "add", &address, "dev", &device, "subflow",
            ];
            ip(self.front.left(), &endpoint)?;
        }
        Ok(())
    }

    /// How many further paths of multipath TCP have been joined.
    ///
    /// # Errors
    ///
    /// Those of reading the kernel's counters.
    pub fn mptcp_joins(&self) -> io::Result<u64> {
        let read = || fs::read_to_string("/proc/thread-self/net/netstat");
        let text = self.front.right().run(read)??;
        Ok(counter(&text, "MPTcpExt:", "MPJoinAckRx").unwrap_or(0))
    }

    /// The end where senders or receivers run.
    pub fn end(&self, side: Side) -> &End {
        match side {
            Side::Sender => self.front.left(),
            Side::Receiver => self.front.right(),
        }
    }

    /// The totals so far, of each path.
    pub fn counters(&self) -> Vec<FrontCounters> {
        let further = self.further.iter().map(LinkThread::counters);
        [self.front.counters()].into_iter().chain(further).collect()
    }

    /// What could not be set up but is not essential, in words.
    pub fn warnings(&self) -> &[String] {
        self.front.warnings()
    }
}

fn failed(what: &'static str, error: io::Error) -> TestbedError {
    TestbedError::Setting { what, error }
}

fn ip(end: &End, words: &[&str]) -> io::Result<()> {
    let ended = end.spawn(Command::new("ip").args(words))?.wait()?;
    match ended.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("ip {}: {ended}", words.join(" ")))),
    }
}

/// A counter of `/proc/net/netstat`, where a line of names is followed by one of numbers.
fn counter(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|one| one == name)?;
    numbers.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nMPTcpExt: X MPJoinAckRx\nMPTcpExt: 7 3\n";
        assert_eq!(counter(text, "MPTcpExt:", "MPJoinAckRx"), Some(3));
        assert_eq!(counter(text, "MPTcpExt:", "None"), None);
        assert_eq!(counter("", "MPTcpExt:", "X"), None);
    }
}
