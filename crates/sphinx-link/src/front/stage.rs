//! Something in the path in front of the link.

use super::Side;
use crate::Time;

/// Stands between the left end and the link, within the link's thread: it sees every packet to single hosts in both directions, and
/// what goes on is what it says. It must not wait for anything.
///
/// [`drain`](Stage::drain) is called after every other call but `next_timeout`.
pub trait Stage: Send {
    /// An IP packet comes from the left end, or from the right one, out of the link.
    fn packet(&mut self, from: Side, now: Time, packet: &[u8]);

    /// Does what is due by now.
    fn timeout(&mut self, now: Time);

    /// When `timeout` is to be called, at the latest.
    fn next_timeout(&self) -> Option<Time>;

    /// What goes on now, in order: to the right into the link, to the left out of it.
    fn drain(&mut self, send: &mut dyn FnMut(Side, &[u8]));
}
