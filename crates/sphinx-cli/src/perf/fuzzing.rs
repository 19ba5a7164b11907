//! The messages of a measurement from a hostile peer.

use sphinx_fuzz::Input;

use super::control::{ClockStep, Hello, Limit, Pong, Report, Welcome, get};
use crate::channel::Arrived;

/// Bytes as each of the messages; what a plan that is accepted leads to.
pub fn measurement(data: &[u8]) {
    let input = &mut Input::new(data);
    let framed = match input.byte() {
        0..0xe0 => {
            let json = input.take(usize::MAX);
            [&(json.len() as u32).to_be_bytes()[..], json].concat()
        }
        _ => input.take(usize::MAX).to_vec(),
    };
    let arrived = || Arrived {
        bytes: &framed,
        piece: 7,
    };
    if let Ok(hello) = get::<Hello>(&mut arrived())
        && hello.plan.check().is_ok()
    {
        let plan = hello.plan;
        if let Limit::Bytes(bytes) = plan.limit {
            let streams = (0..plan.streams).map(|index| plan.stream_bytes(bytes, index));
            assert_eq!(streams.sum::<u64>(), bytes);
        }
        if let Some(pacing) = plan.pacing {
            assert!(pacing.blocks(plan.limit).is_ok_and(|blocks| blocks > 0));
        }
    }
    if let Ok(report) = get::<Report>(&mut arrived()) {
        let _ = report.elapsed();
    }
    let _ = get::<Welcome>(&mut arrived());
    let _ = get::<ClockStep>(&mut arrived());
    let _ = get::<Pong>(&mut arrived());
}
