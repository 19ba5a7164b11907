//! The end that decides what is measured.

use std::time::Duration;

use super::clock::{self, ClockOffset};
use super::control::{
    ClockOffer, Direction, Hello, Limit, Pacing, Plan, Report, VERSION, Welcome, get, put,
};
use super::{Measured, WARMUP_ROUND_TRIPS, close_on_failure, receive_data, send_data};
use crate::channel::{Channel, Outgoing};
use crate::failure::{Outcome, code, fail, protocol, usage};
use crate::report::Progress;
use sphinx_netdev::usage::cpu_time;
use sphinx_transport::ErrorKind;

/// The measurement that the user asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) direction: Direction,
    pub(crate) limit: Limit,
    pub(crate) streams: u16,
    pub(crate) pacing: Option<Pacing>,
}

/// Runs one measurement to its end and closes the session.
pub(crate) fn measure<C: Channel>(
    channel: &C,
    request: Request,
    progress: &Progress,
) -> Outcome<Measured> {
    let mut measured = close_on_failure(channel, run(channel, request, progress))?;
    channel.close(code::DONE, "done");
    measured.done.stats = channel.stats();
    Ok(measured)
}

fn run<C: Channel>(channel: &C, request: Request, progress: &Progress) -> Outcome<Measured> {
    let Request {
        direction,
        limit,
        streams,
        pacing,
    } = request;
    let mut plan = Plan {
        direction,
        limit,
        streams,
        pacing,
        seed: clock::nonce()?,
        warmup_ns: 0,
    };
    plan.check()
        .map_err(|_| usage("these blocks on so many streams need too much memory"))?;
    let nonce = clock::nonce()?;
    let offer = pacing.map(|_| ClockOffer { nonce, proof: None });
    let mut out = channel.open_uni()?;
    put(
        &mut out,
        &Hello {
            version: VERSION,
            clock: offer,
            plan,
        },
    )?;
    // Bulk data follows at once: the first round trip is part of what is measured.
    let mut input = None;
    let mut offset = ClockOffset::default();
    if pacing.is_some() {
        let (answers, clock) = welcome(channel)?;
        let offer = clock.ok_or_else(|| protocol("the server offers no clock"))?;
        let answers = input.insert(answers);
        offset = clock::ask(&mut out, answers, nonce, &offer, WARMUP_ROUND_TRIPS)?;
        plan.warmup_ns = offset.warmup_ns;
    } else if direction == Direction::Down {
        // The server's first stream carries its answers, the data comes on the next.
        input = Some(welcome(channel)?.0);
    }
    let mut done = match direction {
        Direction::Up => send_data(channel, &plan, progress, Duration::ZERO)?,
        Direction::Down => receive_data(channel, &plan, offset, progress, Duration::ZERO)?,
    };
    done.clock = pacing.map(|_| offset.name());
    put(&mut out, &done.report())?;
    out.finish()?;
    let mut input = match input {
        Some(input) => input,
        None => welcome(channel)?.0,
    };
    let peer: Report = get(&mut input)?;
    if !plan.is_lossy() && peer.bytes != done.bytes {
        return Err(fail(
            ErrorKind::Integrity,
            "the ends count different numbers of bytes",
        ));
    }
    done.hear(&peer);
    done.dropped = plan.dropped(done.bytes, peer.bytes);
    done.cpu = cpu_time();
    Ok(Measured { done, peer })
}

/// The server's first words and the stream it says more on.
fn welcome<C: Channel>(channel: &C) -> Outcome<(C::In, Option<ClockOffer>)> {
    let mut input = channel.accept_uni()?;
    let Welcome { version, clock } = get(&mut input)?;
    match version {
        VERSION => Ok((input, clock)),
        other => Err(protocol(format!(
            "the server speaks version {other} of perf"
        ))),
    }
}
