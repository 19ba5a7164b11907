//! Several paths between the two ends.

use std::{net::Ipv4Addr, time::Duration};

use sphinx_link::Loss;

use crate::LinkSpec;

/// One of several paths: a link between an interface of its own at either end.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSpec {
    /// The path's name.
    pub name: String,
    /// The path's link.
    pub link: LinkSpec,
    /// Cost of a byte on the path, for contestants that weigh costs.
    pub cost: u32,
}

/// Where a path begins, at the sender's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// Name of the path.
    pub name: String,
    /// Name of the interface.
    pub interface: String,
    /// IPv4 address of the interface.
    pub address: Ipv4Addr,
    /// Cost of a byte on the path.
    pub cost: u32,
}

impl PathSpec {
    /// Where the path with this index begins.
    pub fn beginning(&self, index: usize) -> Beginning {
        Beginning {
            name: self.name.clone(),
            interface: interface("left", index),
            address: addresses(index)[0],
            cost: self.cost,
        }
    }

    /// The path in a few words.
    fn description(&self) -> String {
        let cost = match self.cost {
            0 => String::new(),
            cost => format!(", cost {cost}"),
        };
        format!("{}: {}{cost}", self.name, self.link.description())
    }
}

/// All paths in a few words.
pub(crate) fn description(paths: &[PathSpec]) -> String {
    let all: Vec<String> = paths.iter().map(PathSpec::description).collect();
    format!("{} paths ({})", paths.len(), all.join(" | "))
}

/// What paths are together, as far as that is one link: all rates, the longest round trip, and the losses of what is sent at these rates.
pub(crate) fn together(paths: &[PathSpec]) -> LinkSpec {
    let rate: u64 = paths.iter().map(|path| path.link.rate).sum();
    let rtt = paths.iter().map(|path| path.link.rtt).max();
    let lost = |path: &PathSpec| path.link.rate as f64 * path.link.forward_loss();
    let lost: f64 = paths.iter().map(lost).sum();
    LinkSpec {
        rate,
        forward: match lost {
            0.0 => Loss::None,
            _ => Loss::Bernoulli(lost / rate as f64),
        },
        ..LinkSpec::clean(rtt.unwrap_or(Duration::ZERO))
    }
}

/// Sets the random decisions of several paths apart.
const FURTHER_SEED: u64 = 0x5851_f42d_4c95_7f2d;

/// The seed of the path with this index, of a run with this one.
pub(crate) fn seed_of(index: usize, seed: u64) -> u64 {
    seed.wrapping_add(FURTHER_SEED.wrapping_mul(index as u64))
}

/// The name of the interface of the path with this index.
pub(crate) fn interface(end: &str, index: usize) -> String {
    match index {
        0 => end.to_owned(),
        _ => format!("{end}{}", index + 1),
    }
}

/// Addresses of the two ends of the path with this index, the left one first: 10.77.INDEX.1 and 10.77.INDEX.2.
pub(crate) fn addresses(index: usize) -> [Ipv4Addr; 2] {
    // A link has at most `sphinx_proto::PATHS_MAX` paths.
    let net = u8::try_from(index).unwrap_or(u8::MAX);
    [1, 2].map(|host| Ipv4Addr::new(10, 77, net, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_they_are_one_link() {
        let path = |rate, rtt, loss| PathSpec {
            name: "p".to_owned(),
            link: LinkSpec {
                rate,
                forward: Loss::Bernoulli(loss),
                ..LinkSpec::clean(Duration::from_millis(rtt))
            },
            cost: 0,
        };
        let link = together(&[path(30_000_000, 20, 0.0), path(10_000_000, 200, 0.04)]);
        assert_eq!((link.rate, link.rtt.as_millis()), (40_000_000, 200));
        assert!((link.forward_loss() - 0.01).abs() < 1e-12);
    }

    #[test]
    fn every_path_has_interfaces_and_addresses_of_its_own() {
        assert_eq!(interface("left", 0), "left");
        assert_eq!(interface("right", 2), "right3");
        assert_eq!(addresses(1)[0].to_string(), "10.77.1.1");
    }
}
