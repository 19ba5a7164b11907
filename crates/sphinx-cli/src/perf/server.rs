//! The end that does what clients ask for.

use super::clock::{self, ClockOffset};
use super::control::{Direction, Hello, Report, VERSION, Welcome, get, put};
use super::{Measured, close_on_failure, receive_data, send_data};
use crate::channel::{Channel, Outgoing};
use crate::failure::{Outcome, protocol};
use crate::report::{Progress, Role};
use crate::usage;

/// Serves one session to its end.
pub(crate) fn serve<C: Channel>(channel: &C, progress: &Progress) -> Outcome<Measured> {
    let mut measured = close_on_failure(channel, run(channel, progress))?;
    // The client closes, after it has read the report. How does not matter any more.
    let _ = channel.accept_stream();
    measured.done.stats = channel.stats();
    Ok(measured)
}

fn run<C: Channel>(channel: &C, progress: &Progress) -> Outcome<Measured> {
    let cpu_before = usage::cpu_time();
    let mut input = channel.accept_stream()?;
    let mut out = channel.open_stream()?;
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
    // From its first byte on the client may have it and close: a failure here may be just that, and
    // both ends' numbers are known.
    let _ = put(&mut out, &done.report()).and_then(|()| out.finish());
    if done.role == Role::Sender {
        done.block_ms = peer.blocks;
    }
    Ok(Measured { done, peer })
}
