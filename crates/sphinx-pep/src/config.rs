//! What an agent is to do, and where it is.

use serde::Serialize;

use crate::{
    FlowKey, MS, Match, Profile, Radio, Time,
    acks::{AckCc, AckFilter, Mode, ReturnQueue},
    rdb::Rdb,
    returning::Returning,
    rsfc::Rsfc,
};

/// Lag beyond which [`Agent::handle_lag`](crate::Agent::handle_lag) takes the agent for overloaded, unless the configuration says
/// otherwise.
const LAG_NS_MAX: Time = 5 * MS;

/// Where packets come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The hosts behind the network.
    Fixed,
    /// The hosts behind the lossy hop.
    Mobile,
}

/// Where an agent is, seen from the lossy hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Between the network and the hop: it helps downloads, and reports what the hop loses of uploads.
    #[default]
    Base,
    /// On the mobile host: it helps uploads, by such reports.
    Mobile,
}

impl Place {
    /// The side that sends the data which an agent at this place helps.
    pub(crate) fn sender(self) -> Side {
        match self {
            Place::Base => Side::Fixed,
            Place::Mobile => Side::Mobile,
        }
    }
}

/// What an agent does with data towards the hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Nothing: data passes.
    Pass,
    /// What the hop has lost is sent again from a cache in front of it.
    Snoop(Profile),
    /// Thin streams towards the hop repeat what is not acknowledged.
    Rdb(Rdb),
}

impl Default for Stage {
    fn default() -> Stage {
        Stage::Snoop(Profile::default())
    }
}

/// What an agent does.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it is; [`Agent::reconfigure`](crate::Agent::reconfigure) does not change it.
    pub place: Place,
    /// Whether an agent at the base station reports what the hop loses of uploads
    /// ([`Agent::poll_report`](crate::Agent::poll_report)). For flows that begin from now on.
    pub reports: bool,
    /// What it does with data towards the hop. For flows that begin from now on; settings of [`Stage::Rdb`] for those that have begun with it too.
    pub stage: Stage,
    /// What it does with acknowledgements towards the hop, after everything else. Its queue takes the place of `radio`. For flows that begin from now on;
    /// other settings of it for those that have begun with it too.
    pub ack_filter: Option<AckFilter>,
    /// Whether acknowledgements towards the hop become fewer while they wait in the agent's queue for it. Not together with
    /// [`AckFilter::every_ns`]. For flows that begin from now on; other settings of it for those that have begun with it too.
    pub ack_cc: Option<AckCc>,
    /// What it does about acknowledgements that come from the hop, after everything else. For flows that begin from now on.
    pub returning: Returning,
    /// Whether segments towards the hop go with time between them, where their sender sends many at once. For flows that begin from now on.
    pub pace: bool,
    /// What it does about uploads that come over the hop: to acknowledgements towards it, before they are filtered. For flows that begin from now on; other settings
    /// of it for those that have begun with it too.
    pub rsfc: Option<Rsfc>,
    /// Connections that are helped: those that one of these contains, and all if there are none. For flows that begin from now on.
    pub matches: Vec<Match>,
    /// The agent's own queue in front of the hop, if it is to have one.
    pub radio: Option<Radio>,
    /// The DSCP (RFC 2474), 0 to 63, that repairs leave with: a queue behind the agent may let them overtake. Their own one if none.
    pub repair_dscp: Option<u8>,
    /// Passes everything at once and untouched, and counts what would have been done.
    pub dry_run: bool,
    /// How long packets may wait for the agent, in nanoseconds, before it only passes them
    /// ([`Agent::handle_lag`](crate::Agent::handle_lag)(crate::Agent::handle_lag)); 5 ms by default.
    pub lag_ns_max: Time,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            place: Place::default(),
            reports: false,
            stage: Stage::default(),
            ack_filter: None,
            ack_cc: None,
            returning: Returning::default(),
            pace: false,
            rsfc: None,
            matches: Vec::new(),
            radio: None,
            repair_dscp: None,
            dry_run: false,
            lag_ns_max: LAG_NS_MAX,
        }
    }
}

impl Config {
    /// Whether a flow that begins now is one of those that are helped.
    pub(crate) fn wants(&self, key: &FlowKey) -> bool {
        self.matches.is_empty() || self.matches.iter().any(|it| it.contains(key))
    }

    /// The agent's own queue in front of the hop, if it is fair to each flow.
    pub(crate) fn return_queue(&self) -> Option<ReturnQueue> {
        let of_filter = self.ack_filter.and_then(|filter| filter.queue);
        let of_cc = self.ack_cc.and_then(|cc| cc.queue);
        of_filter.or(of_cc.map(|queue| ReturnQueue {
            mode: Mode::Keep,
            ..queue
        }))
    }

    /// How a flow is helped that begins now.
    pub(crate) fn flow_stage(&self) -> Stage {
        match self.place {
            Place::Base => self.stage,
            Place::Mobile => Stage::Snoop(Profile::Sack),
        }
    }
}

impl Side {
    /// The opposite one.
    pub fn other(self) -> Side {
        match self {
            Side::Fixed => Side::Mobile,
            Side::Mobile => Side::Fixed,
        }
    }
}
