//! Do both ends read one clock? If not, by how much do their clocks differ?

use std::fs;

use rustix::rand::{GetRandomFlags, getrandom};
use sphinx_netdev::usage::monotonic_ns;

use super::control::{ClockOffer, ClockStep, Pong, get, put};
use crate::channel::{Incoming, Outgoing};
use crate::failure::{Outcome, local_io, protocol};

/// Round trips that estimate the offset; the shortest counts.
const PINGS: u32 = 8;
/// Pings a server answers before it expects the result.
const PINGS_MAX: u32 = 64;

/// The server's clock minus the client's, and whether they are known to be one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClockOffset {
    pub(super) ns: i64,
    pub(super) shared: bool,
    /// Shortest round trip of the exchange.
    pub(super) rtt_ns: u64,
    pub(super) warmup_ns: u64,
}

impl ClockOffset {
    pub(super) fn name(self) -> String {
        if self.shared { "shared" } else { "estimated" }.to_owned()
    }
}

/// What distinguishes this kernel's monotonic clock from every other: the boot and the time
/// namespace. `None` where the system does not tell.
fn identity() -> Option<Vec<u8>> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/time").ok()?;
    Some([&boot[..], namespace.as_os_str().as_encoded_bytes()].concat())
}

pub(super) fn nonce() -> Outcome<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| local_io("read", "random numbers", error))?;
    Ok(u64::from_be_bytes(bytes))
}

/// Proves knowledge of the clock's identity without telling it: a hash keyed by both nonces.
fn proof(identity: Option<&[u8]>, client: u64, server: u64, who: &str) -> Option<String> {
    let key = format!("{client:016x}{server:016x}");
    let mut hasher = blake3::Hasher::new_keyed(key.as_bytes().try_into().ok()?);
    hasher
        .update(b"sphinx perf clock 1 ")
        .update(who.as_bytes())
        .update(identity?);
    Some(hasher.finalize().to_hex().to_string())
}

/// The client's half, after the server's `offer`; the server runs [`serve`].
pub(super) fn ask(
    out: &mut impl Outgoing,
    input: &mut impl Incoming,
    nonce: u64,
    offer: &ClockOffer,
    warmup_round_trips: u32,
) -> Outcome<ClockOffset> {
    let identity = identity();
    let expected = proof(identity.as_deref(), nonce, offer.nonce, "server");
    let mut best = ClockOffset {
        rtt_ns: u64::MAX,
        ..ClockOffset::default()
    };
    for _ in 0..PINGS {
        let sent = monotonic_ns();
        put(out, &ClockStep::Ping)?;
        let pong: Pong = get(input)?;
        let received = monotonic_ns();
        let held = pong.sent_ns.saturating_sub(pong.received_ns);
        let rtt_ns = (received - sent).saturating_sub(held);
        if rtt_ns < best.rtt_ns {
            // The server's middle minus the client's middle.
            best.ns = middle(pong.received_ns, pong.sent_ns) - middle(sent, received);
            best.rtt_ns = rtt_ns;
        }
    }
    // Copies of a running machine have one identity and two clocks: the estimate must agree.
    best.shared =
        expected.is_some() && offer.proof == expected && best.ns.unsigned_abs() <= best.rtt_ns;
    if best.shared {
        best.ns = 0;
    }
    best.warmup_ns = best.rtt_ns.saturating_mul(u64::from(warmup_round_trips));
    put(
        out,
        &ClockStep::Start {
            proof: proof(identity.as_deref(), nonce, offer.nonce, "client"),
            shared: best.shared,
            offset_ns: best.ns,
            warmup_ns: best.warmup_ns,
        },
    )?;
    Ok(best)
}

/// The server's offer, in answer to the client's nonce.
pub(super) fn offer(client_nonce: u64) -> Outcome<ClockOffer> {
    let nonce = nonce()?;
    let proof = proof(identity().as_deref(), client_nonce, nonce, "server");
    Ok(ClockOffer { nonce, proof })
}

/// The server's half, after its offer with `nonce`.
pub(super) fn serve(
    out: &mut impl Outgoing,
    input: &mut impl Incoming,
    client_nonce: u64,
    nonce: u64,
) -> Outcome<ClockOffset> {
    let identity = identity();
    for _ in 0..PINGS_MAX {
        match get(input)? {
            ClockStep::Ping => {
                let received_ns = monotonic_ns();
                put(
                    out,
                    &Pong {
                        received_ns,
                        sent_ns: monotonic_ns(),
                    },
                )?;
            }
            ClockStep::Start {
                proof: given,
                shared,
                offset_ns,
                warmup_ns,
            } => {
                let expected = proof(identity.as_deref(), client_nonce, nonce, "client");
                let shared = shared && expected.is_some() && given == expected;
                let ns = if shared { 0 } else { offset_ns };
                return Ok(ClockOffset {
                    ns,
                    shared,
                    rtt_ns: 0,
                    warmup_ns,
                });
            }
        }
    }
    Err(protocol("the client pings without end"))
}

fn middle(a: u64, b: u64) -> i64 {
    i64::try_from(a.midpoint(b)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;
    use crate::testing::{In, Out, pair};
    use std::sync::mpsc;
    use std::thread;

    fn exchange(
        server: impl FnOnce(&mut Out, &mut In) + Send + 'static,
        offer: &ClockOffer,
    ) -> ClockOffset {
        let (near, far) = pair();
        let server = thread::spawn(move || {
            server(&mut far.open_uni().unwrap(), &mut far.accept_uni().unwrap());
        });
        let mut out = near.open_uni().unwrap();
        let mut input = near.accept_uni().unwrap();
        let asked = ask(&mut out, &mut input, 5, offer, 10).unwrap();
        server.join().unwrap();
        asked
    }

    #[test]
    fn two_ends_of_one_machine_share_its_clock() {
        let offer = offer(5).unwrap();
        let nonce = offer.nonce;
        let (sender, served) = mpsc::channel();
        let server = move |out: &mut Out, input: &mut In| {
            sender.send(serve(out, input, 5, nonce).unwrap()).unwrap();
        };
        let asked = exchange(server, &offer);
        let served = served.recv().unwrap();
        assert!(asked.shared && served.shared);
        assert_eq!((asked.ns, served.ns), (0, 0));
        assert_eq!(asked.warmup_ns, served.warmup_ns);
        assert_eq!(asked.warmup_ns, asked.rtt_ns * 10);
    }

    #[test]
    fn another_clock_is_estimated() {
        // A server whose clock is ten seconds ahead and that claims nothing.
        let server = |out: &mut Out, input: &mut In| {
            while let Ok(ClockStep::Ping) = get(input) {
                let now = monotonic_ns() + 10_000_000_000;
                put(
                    out,
                    &Pong {
                        received_ns: now,
                        sent_ns: now,
                    },
                )
                .unwrap();
            }
        };
        let asked = exchange(
            server,
            &ClockOffer {
                nonce: 1,
                proof: None,
            },
        );
        assert!(!asked.shared);
        assert_eq!(asked.name(), "estimated");
        let error = asked.ns.abs_diff(10_000_000_000);
        assert!(
            error <= asked.rtt_ns,
            "{error} ns off at {} ns",
            asked.rtt_ns
        );
    }

    #[test]
    fn a_proof_that_the_pings_contradict_counts_for_nothing() {
        // A copy of a running machine: the same identity, another clock.
        let server = |out: &mut Out, input: &mut In| {
            while let Ok(ClockStep::Ping) = get(input) {
                let now = monotonic_ns() / 2;
                put(
                    out,
                    &Pong {
                        received_ns: now,
                        sent_ns: now,
                    },
                )
                .unwrap();
            }
        };
        assert!(!exchange(server, &offer(5).unwrap()).shared);
    }

    #[test]
    fn proofs_depend_on_everything() {
        let base = proof(Some(b"x"), 1, 2, "client");
        assert!(base.is_some());
        for other in [
            proof(Some(b"y"), 1, 2, "client"),
            proof(Some(b"x"), 2, 2, "client"),
            proof(Some(b"x"), 1, 1, "client"),
            proof(Some(b"x"), 1, 2, "server"),
            proof(None, 1, 2, "client"),
        ] {
            assert_ne!(base, other);
        }
    }
}
