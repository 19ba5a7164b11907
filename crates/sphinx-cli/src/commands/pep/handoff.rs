//! `sphx pep handoff`: what the agent of this network namespace is told of mobile hosts that go from one hop to another.

use std::net::{IpAddr, SocketAddr};

use sphinx_pep::handoff::Move;
use sphinx_pep::{Agent, Time};

use super::args::{ChangeArgs, HandoffArgs};
use super::{Context, control, show};
use crate::failure::{Outcome, usage};
use crate::report::Event;

/// What has become of a mobile host, as it is said to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    mobile: IpAddr,
    /// The agent that it goes to, and whether it has gone or may go; `None`: it has come here.
    to: Option<(SocketAddr, Move)>,
}

impl Change {
    fn of(mobile: IpAddr, change: &ChangeArgs) -> Change {
        let leaves = change.to.map(|peer| (peer, Move::Leave));
        let may_leave = change.prefill.map(|peer| (peer, Move::Prefill));
        let to = leaves.or(may_leave);
        Change { mobile, to }
    }

    /// The change as it is written in a request of one line.
    fn words(&self) -> String {
        match self.to {
            Some((peer, Move::Leave)) => format!("{} to {peer}", self.mobile),
            Some((peer, Move::Prefill)) => format!("{} prefill {peer}", self.mobile),
            None => format!("{} arrived", self.mobile),
        }
    }

    pub(super) fn read(words: &str) -> Option<Change> {
        let words: Vec<&str> = words.split(' ').collect();
        let (mobile, to) = match words[..] {
            [mobile, "to", peer] => (mobile, Some((peer.parse().ok()?, Move::Leave))),
            [mobile, "prefill", peer] => (mobile, Some((peer.parse().ok()?, Move::Prefill))),
            [mobile, "arrived"] => (mobile, None),
            _ => return None,
        };
        let mobile = mobile.parse().ok()?;
        Some(Change { mobile, to })
    }

    /// Lets the agent follow it; how many flows it is about, or why that cannot be.
    pub(super) fn follow(
        &self,
        agent: &mut Agent,
        now: Time,
        courier: bool,
    ) -> Result<usize, String> {
        match self.to {
            Some(_) if !courier => Err("the agent runs without --handoff-key".to_owned()),
            Some((peer, kind)) => {
                let flows = agent.hand_over(now, self.mobile, peer, kind);
                flows.ok_or_else(|| {
                    "agents are told of 64 mobile hosts already: a minute later one goes that nobody asks for again"
                        .to_owned()
                })
            }
            None => Ok(agent.arrived(now, self.mobile)),
        }
    }
}

pub(super) fn run(args: &HandoffArgs, context: &Context) -> Outcome<()> {
    let change = Change::of(args.mobile, &args.change);
    let question = format!("handoff {}", change.words());
    let answer = control::ask(&question).map_err(show::refused)?;
    if let Some(why) = answer["refusal"].as_str() {
        return Err(usage(why));
    }
    let flows = &answer["flows_concerned"];
    context
        .reporter
        .event(Event::new("handoff").with("flows", flows.clone()));
    if !args.json {
        let flows = show::plain(flows);
        context.reporter.data(&format!("{flows} connections"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let mobile = "fd00::9".parse().expect("an address");
        let peer: SocketAddr = "192.0.2.7:7750".parse().expect("an address");
        for to in [None, Some((peer, Move::Leave)), Some((peer, Move::Prefill))] {
            let change = Change { mobile, to };
            assert_eq!(Change::read(&change.words()), Some(change));
        }
        for words in [
            "",
            "fd00::9",
            "fd00::9 to",
            "fd00::9 to here",
            "x arrived",
            "fd00::9 arrived 1",
        ] {
            assert_eq!(Change::read(words), None, "{words}");
        }
    }
}
