//! An agent in front of an emulated link (`sphx lab link --agent`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sphinx_lab::emulator::{Side, Stage};
use sphinx_pep::{Agent, Config, Side as PathSide};

use super::stage::{self, Stages};
use super::{report, totals};
use crate::commands::Context;
use crate::failure::{Outcome, usage};

/// The same agent for the link's thread and for whoever tells of it.
#[derive(Clone, Debug)]
pub(crate) struct InLink(Arc<Mutex<Agent>>);

impl InLink {
    /// What `--agent` says; none if that is nothing.
    pub(crate) fn new(agents: &[String]) -> Outcome<Option<InLink>> {
        if agents.is_empty() {
            return Ok(None);
        }
        let read =
            |text: &String| stage::read(text).map_err(|why| format!("--agent {text}: {why}"));
        let chosen: Result<Vec<_>, String> = agents.iter().map(read).collect();
        let stages = chosen.and_then(|chosen| Stages::together(&chosen));
        let config = stages.map_err(usage)?.set(Config::default());
        stage::check(&config).map_err(usage)?;
        stage::check_alone(&config).map_err(usage)?;
        Ok(Some(InLink(Arc::new(Mutex::new(Agent::new(config))))))
    }

    /// Reports what the agent has done.
    pub(crate) fn report(&self, context: &Context) {
        let agent = self.agent();
        report(&agent, context);
        context.reporter.event(totals("agent", &agent));
    }

    fn agent(&self) -> MutexGuard<'_, Agent> {
        // After a panic between two packets it is still an agent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stage for InLink {
    fn packet(&mut self, from: Side, now: u64, packet: &[u8]) {
        let from = match from {
            Side::Left => PathSide::Fixed,
            Side::Right => PathSide::Mobile,
        };
        self.agent()
            .handle_packet(now, from, packet.to_vec().into());
    }

    fn timeout(&mut self, now: u64) {
        self.agent().handle_timeout(now);
    }

    fn next_timeout(&self) -> Option<u64> {
        self.agent().next_timeout()
    }

    fn drain(&mut self, send: &mut dyn FnMut(Side, &[u8])) {
        let mut agent = self.agent();
        while let Some(output) = agent.poll_output() {
            let to = match output.to {
                PathSide::Fixed => Side::Left,
                PathSide::Mobile => Side::Right,
            };
            send(to, &output.packet);
        }
    }
}
