//! The end that does what clients ask for.

use sphinx_netdev::usage;

use super::clock::{self, ClockOffset};
use super::control::{Direction, Hello, Report, VERSION, Welcome, expect_end, get, put};
use super::{Measured, close_on_failure, receive_data, send_data};
use crate::channel::{Channel, Outgoing};
use crate::failure::{Outcome, code, protocol};
use crate::report::{Progress, Role};

/// Serves one session to its end. `planned` hears before the first data which end of it this is and whether paced blocks
/// are measured.
pub(crate) fn serve<C: Channel>(
    channel: &C,
    progress: &Progress,
    planned: impl FnOnce(Role, bool),
) -> Outcome<Measured> {
    let mut measured = close_on_failure(channel, run(channel, progress, planned))?;
    ended(channel)?;
    measured.done.stats = channel.stats();
    Ok(measured)
}

/// Waits for the client to close, which it does when it has read the report.
fn ended<C: Channel>(channel: &C) -> Outcome<()> {
    let Err(failure) = channel.accept_uni() else {
        let failure = protocol("the client goes on after its report");
        return close_on_failure(channel, Err(failure));
    };
    match channel.peer_code() {
        // A client that does not repeat its farewell for ever may not be heard: that is no failure of
        // a measurement that both ends have finished.
        Some(code::DONE) | None => Ok(()),
        Some(_) => Err(failure),
    }
}

fn run<C: Channel>(
    channel: &C,
    progress: &Progress,
    planned: impl FnOnce(Role, bool),
) -> Outcome<Measured> {
    let cpu_before = usage::cpu_time();
    let mut input = channel.accept_uni()?;
    let mut out = channel.open_uni()?;
    let Hello {
        version,
        clock,
        mut plan,
    } = get(&mut input)?;
    if version != VERSION {
        return Err(protocol(format!(
            "the client speaks version {version} of perf"
        )));
    }
    plan.check()?;
    if plan.pacing.is_some() != clock.is_some() {
        return Err(protocol(
            "paced blocks and the clock exchange belong together",
        ));
    }
    planned(plan.direction.server(), plan.pacing.is_some());
    let offer = clock
        .as_ref()
        .map(|asked| clock::offer(asked.nonce))
        .transpose()?;
    let nonces = clock
        .zip(offer.as_ref())
        .map(|(asked, own)| (asked.nonce, own.nonce));
    put(
        &mut out,
        &Welcome {
            version: VERSION,
            clock: offer,
        },
    )?;
    let mut offset = ClockOffset::default();
    if let Some((client, own)) = nonces {
        offset = clock::serve(&mut out, &mut input, client, own)?;
        plan.warmup_ns = offset.warmup_ns;
    }
    let mut done = match plan.direction {
        Direction::Up => receive_data(channel, &plan, offset, progress, cpu_before)?,
        Direction::Down => send_data(channel, &plan, progress, cpu_before)?,
    };
    done.clock = plan.pacing.map(|_| offset.name());
    // The client closes when it has this end's report: its own has to be here by then.
    let peer: Report = get(&mut input)?;
    expect_end(&mut input)?;
    // Once the client has the last byte of this report it may close, even before this end has finished the stream. So an error
    // here need not be one: the code that the client closes with tells (`ended`).
    let _ = put(&mut out, &done.report()).and_then(|()| out.finish());
    done.hear(&peer);
    done.dropped = plan.dropped(done.bytes, peer.bytes);
    Ok(Measured { done, peer })
}
