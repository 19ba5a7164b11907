//! The end that does what clients ask for.

use super::clock::{self, ClockOffset};
use super::control::{Direction, Hello, Report, VERSION, get, put};
use super::{Measured, close_on_failure, receive_data, send_data};
use crate::channel::{Channel, Outgoing};
use crate::failure::{Outcome, protocol};
use crate::report::{Progress, Role};
use crate::usage;

/// Serves one session to its end.
pub(crate) fn serve<C: Channel>(channel: &C, progress: &Progress) -> Outcome<Measured> {
    let measured = close_on_failure(channel, run(channel, progress))?;
    // The client closes, after it has read the report. How does not matter any more.
    let _ = channel.accept_stream();
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
    let mut offset = ClockOffset::default();
    match (plan.pacing, clock) {
        (Some(_), Some(offer)) => {
            offset = clock::serve(&mut out, &mut input, offer.nonce)?;
            plan.warmup_ns = offset.warmup_ns;
        }
        (None, None) => {}
        _ => {
            return Err(protocol(
                "paced blocks and the clock exchange belong together",
            ));
        }
    }
    let mut done = match plan.direction {
        Direction::Up => receive_data(channel, &plan, offset, progress, cpu_before)?,
        Direction::Down => send_data(channel, &plan, progress, cpu_before)?,
    };
    done.clock = plan.pacing.map(|_| offset.name());
    put(&mut out, &done.report())?;
    out.finish()?;
    let peer: Report = get(&mut input)?;
    if done.role == Role::Sender {
        done.block_ms = peer.blocks;
    }
    Ok(Measured { done, peer })
}
