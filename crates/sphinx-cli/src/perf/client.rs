//! The end that decides what is measured.

use super::clock::{self, ClockOffset};
use super::control::{
    ClockOffer, Direction, Hello, Limit, Pacing, Plan, Report, VERSION, get, put,
};
use super::{Measured, WARMUP_ROUND_TRIPS, close_on_failure, receive_data, send_data};
use crate::channel::{Channel, Outgoing};
use crate::failure::{Outcome, code, fail, usage};
use crate::report::{Progress, Role};
use crate::usage::cpu_time;
use sphinx_transport::ErrorKind;

/// What the user asked for.
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
    let measured = close_on_failure(channel, run(channel, request, progress))?;
    channel.close(code::DONE, "done");
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
    let mut out = channel.open_stream()?;
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
        let answers = input.insert(channel.accept_stream()?);
        offset = clock::ask(&mut out, answers, nonce, WARMUP_ROUND_TRIPS)?;
        plan.warmup_ns = offset.warmup_ns;
    }
    let mut done = match direction {
        Direction::Up => send_data(channel, &plan, progress, std::time::Duration::ZERO)?,
        Direction::Down => {
            // The server's first stream carries its answers, the data comes on the next.
            if input.is_none() {
                input = Some(channel.accept_stream()?);
            }
            receive_data(channel, &plan, offset, progress, std::time::Duration::ZERO)?
        }
    };
    done.clock = pacing.map(|_| offset.name());
    put(&mut out, &done.report())?;
    out.finish()?;
    let mut input = match input {
        Some(input) => input,
        None => channel.accept_stream()?,
    };
    let peer: Report = get(&mut input)?;
    if peer.bytes != done.bytes {
        return Err(fail(
            ErrorKind::Integrity,
            "the ends count different numbers of bytes",
        ));
    }
    if done.role == Role::Sender {
        done.block_ms = peer.blocks;
    }
    done.cpu = cpu_time();
    Ok(Measured { done, peer })
}
