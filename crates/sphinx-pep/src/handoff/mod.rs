//! Hand-off: a mobile host goes from one hop to another, and what the agent of the first one knows of its flows and has
//! cached goes to the agent of the second (rules §3).
//!
//! [`Agent::hand_over`] makes [`Handover`]s of flows, which are sealed ([`Sealer`]), sent and received by a [`Courier`], and
//! given to the other agent ([`Agent::handle_handover`]).
//!
//! [`Agent::hand_over`]: crate::Agent::hand_over
//! [`Agent::handle_handover`]: crate::Agent::handle_handover

mod courier;
pub(crate) mod format;

pub use courier::Courier;

use bytes::Bytes;

use crate::{FlowKey, channel, flow::Opened, snoop::State};

/// Seals hand-overs.
pub type Sealer = channel::Sealer<Handover>;
/// Opens hand-overs of any senders, each once and in order.
pub type Opener = channel::Opener<Handover>;

/// Why another agent is told of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The mobile host may come to it.
    Prefill,
    /// The mobile host has gone to it.
    Leave,
}

/// What one agent tells another one of a flow: what it knows, and perhaps one packet that it has cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    pub(crate) flow: FlowKey,
    pub(crate) kind: Move,
    pub(crate) opened: Opened,
    pub(crate) state: State,
    /// A packet of the sender that the mobile host may lack, and whether the sender has repaired it.
    pub(crate) packet: Option<(Bytes, bool)>,
}

impl Handover {
    /// The flow.
    pub fn flow(&self) -> FlowKey {
        self.flow
    }

    /// The packet in it, which came from the fixed host.
    pub fn packet(&self) -> Option<&Bytes> {
        self.packet.as_ref().map(|(packet, _)| packet)
    }
}

impl channel::Message for Handover {
    const MAGIC: [u8; 4] = *b"SPH\x01";

    fn write(&self, out: &mut Vec<u8>) {
        Handover::write(self, out);
    }

    fn read(bytes: &[u8]) -> Option<Handover> {
        Handover::read(bytes)
    }
}
