//! What the worker of `sphx pep run` may do: no more than it needs for packets.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};
use sphinx_pep::attach;

use crate::failure::{Outcome, local_io};

/// Rights that a worker keeps: for devices, rules and queues, and for sending packets of its own.
const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW);

/// Gives up all rights but those, for good. Only the calling thread does: it has to be the only one, and those
/// that it starts have no more. What needs another right comes first: to be served in time.
pub(super) fn give_up() -> Outcome<()> {
    // Where that is not allowed, packets wait a little longer.
    let _ = attach::serve_in_time();
    give_up_all_but(KEPT_CAPABILITIES)
        .map_err(|error| local_io("give up", "rights", std::io::Error::from(error)))
}

/// The capabilities that an agent needs and the calling thread has not.
pub(super) fn lacking() -> Vec<&'static str> {
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    [
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
    ]
    .into_iter()
    .filter_map(|(right, name)| (!has.contains(right)).then_some(name))
    .collect()
}

fn give_up_all_but(kept: CapabilitySet) -> rustix::io::Result<()> {
    // A program that it starts gets no rights either.
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let kept = capabilities(None)?.permitted & kept;
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_of_a_thread_are_given_up_for_good() {
        std::thread::spawn(|| {
            let before = capabilities(None).expect("capabilities").permitted;
            give_up_all_but(KEPT_CAPABILITIES).expect("rights that are there");
            let after = capabilities(None).expect("capabilities");
            assert_eq!(lacking().is_empty(), before.contains(KEPT_CAPABILITIES));
            assert_eq!(after.permitted, before & KEPT_CAPABILITIES);
            assert_eq!(after.effective, after.permitted);
            assert!(after.inheritable.is_empty());
            if before != after.permitted {
                let sets = CapabilitySets {
                    permitted: before,
                    ..after
                };
                set_capabilities(None, sets).expect_err("they are gone");
            }
        })
        .join()
        .expect("a thread");
    }
}
