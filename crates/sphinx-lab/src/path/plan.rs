//! What is to be run.

use std::path::PathBuf;

use sphinx_link::{LinkConfig, settings::LinkSettings};

use super::{PathArgs, Transfer, flows::Group};
use crate::{
    emulator::{Files, LinkError, LinkErrorKind},
    peers::socket::check_congestion,
};

pub(super) const BYTES: &str = "2MB";
pub(super) const LIMIT: &str = "60s";
pub(super) const CONGESTION: &str = "cubic";
pub(super) const INTERFACE_MTU: &str = "1500";

/// Keeps the hops' random decisions apart where both have the same seed.
const SECOND_SEED: u64 = 0x5851_f42d_4c95_7f2d;

/// A hop.
#[derive(Clone, Debug)]
pub(super) struct HopPlan {
    pub(super) settings: LinkSettings,
    /// The settings as links, for both directions.
    pub(super) configs: [LinkConfig; 2],
}

/// A path and what goes over it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The wired and the wireless hop; forward is from left to right.
    pub(super) hops: [HopPlan; 2],
    pub(super) middle: Option<String>,
    pub(super) right: Option<String>,
    pub(super) transfer: Transfer,
    /// Groups of flows; where there are any, they replace the transfer.
    pub(super) groups: Vec<Group>,
    /// Kernel parameters of the left and the right host.
    pub(super) parameters: Vec<(String, String)>,
    pub(super) interface_mtu: usize,
    pub(super) log: Option<PathBuf>,
}

impl Plan {
    /// Puts together what the arguments say.
    ///
    /// # Errors
    ///
    /// A setting that does not exist or cannot be, a congestion control that the kernel does not have.
    pub fn new(args: PathArgs) -> Result<Plan, LinkError> {
        let [wired, wireless] = <[String; 2]>::try_from(args.hops).map_err(|hops| {
            usage(format!(
                "a path has two hops, not {}: write --hop twice",
                hops.len()
            ))
        })?;
        // What is wrong shall be said before anything is created.
        let files = Files::default();
        let plan = Plan {
            hops: [
                hop(&wired, args.seed, "first", &files)?,
                hop(&wireless, args.seed ^ SECOND_SEED, "second", &files)?,
            ],
            middle: args.middle,
            right: args.right,
            transfer: Transfer {
                upload: args.upload,
                bytes: args.bytes,
                limit: args.time,
                congestion: args.cc.clone(),
                sack: !args.no_sack,
                split: args.split,
                windows: args.windows,
            },
            groups: Group::parse_all(&args.flows, &args.cc)?,
            parameters: args
                .sysctl
                .iter()
                .map(|it| parameter(it))
                .collect::<Result<_, _>>()?,
            interface_mtu: args.interface_mtu,
            log: args.log,
        };
        let groups = plan.groups.iter().map(|group| &group.congestion);
        for congestion in [&plan.transfer.congestion].into_iter().chain(groups) {
            check_congestion(congestion, false).map_err(|error| {
                let hint =
                    "'sysctl net.ipv4.tcp_available_congestion_control' shows those that are loaded";
                LinkError::new(LinkErrorKind::Local, error.to_string(), hint)
            })?;
        }
        Ok(plan)
    }
}

fn hop(text: &str, seed: u64, which: &str, files: &Files) -> Result<HopPlan, LinkError> {
    let mut settings = LinkSettings::default();
    let refuse = |error| {
        let error = LinkError::from(error);
        let message = format!("the {which} hop: {}", error.message);
        LinkError::new(
            error.kind,
            message,
            "sphx lab path --help shows what can be written",
        )
    };
    settings.set("seed", &seed.to_string()).map_err(refuse)?;
    for word in text.split_whitespace() {
        settings.set_text(word).map_err(refuse)?;
    }
    let configs = settings.configs(&|path| files.read(path)).map_err(refuse)?;
    Ok(HopPlan { settings, configs })
}

fn parameter(text: &str) -> Result<(String, String), LinkError> {
    let is_name = |name: &str| {
        let mut characters = name.chars();
        name.starts_with("net.")
            && characters.all(|it| it.is_ascii_alphanumeric() || "._-".contains(it))
    };
    match text.split_once('=') {
        Some((name, value)) if is_name(name) && !name.contains("..") => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => {
            let text = format!(
                "--sysctl '{text}': write the name of a parameter of the network, = and its value"
            );
            Err(usage(text))
        }
    }
}

/// What was asked for cannot be: a failure that refers to `sphx lab path --help`.
pub(super) fn usage(message: String) -> LinkError {
    let hint = "sphx lab path --help shows what can be written";
    LinkError::new(LinkErrorKind::Usage, message, hint)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        path: PathArgs,
    }

    fn plan(words: &[&str]) -> Result<Plan, LinkError> {
        let words = ["path"].iter().chain(words);
        Plan::new(Line::try_parse_from(words).expect("the grammar").path)
    }

    #[test]
    fn hops_are_described_by_settings() {
        let hops = [
            "--hop",
            "rate=10mbit rtt=50ms",
            "--hop",
            " loss=1%  return.loss=0 ",
        ];
        let [wired, wireless] = plan(&hops).unwrap().hops.map(|hop| hop.configs);
        assert_eq!(wired[0].delay.as_millis(), 25);
        assert_eq!(wireless[0].loss.mean(), 0.01);
        assert_eq!(wireless[1].loss.mean(), 0.0);
        assert_ne!(wired[0].seed, wireless[0].seed);
        let seeded = ["--hop", "seed=5", "--hop", "", "--seed", "7"];
        let [wired, _] = plan(&seeded).unwrap().hops.map(|hop| hop.configs);
        assert_eq!(wired[0].seed, 5);
    }

    #[test]
    fn mistakes_are_told_with_their_hop() {
        for (words, reason) in [
            (&["--hop", "rtt=5ms"][..], "a path has two hops, not 1"),
            (
                &["--hop", "", "--hop", "los=1%"],
                "the second hop: there is no setting 'los'",
            ),
            (
                &["--hop", "rate=5", "--hop", ""],
                "the first hop: rate: '5' has no unit",
            ),
            (
                &["--hop", "", "--hop", "", "--cc", "no-such-thing"],
                "no congestion control 'no-such-thing'",
            ),
            (
                &[
                    "--hop",
                    "",
                    "--hop",
                    "",
                    "--flows",
                    "greedy cc=no-such-thing",
                ],
                "no congestion control 'no-such-thing'",
            ),
            (
                &["--hop", "", "--hop", "", "--sysctl", "kernel.panic=1"],
                "--sysctl 'kernel.panic=1': write",
            ),
            (
                &["--hop", "", "--hop", "", "--sysctl", "net.../x=1"],
                "--sysctl 'net.../x=1': write",
            ),
        ] {
            let error = plan(words).expect_err(reason);
            assert!(error.message.starts_with(reason), "{}", error.message);
        }
    }
}
