//! What each code would send.

use sphinx_fec::{CodeId, fft_rs, lt, params, rs};

use crate::loss::Loss;
use crate::simulate;

/// What to plan for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Share of packets lost.
    pub loss_rate: f64,
    /// Its standard deviation, for the paper's degree rule.
    pub deviation: f64,
    /// Mean number of packets lost in a row; 1 for independent losses.
    pub mean_burst: f64,
    /// Source symbols in a block, or in the window.
    pub n: usize,
    /// Probability that a block may fail in its first flight.
    pub epsilon: f64,
    /// T of the paper's rule.
    pub threshold: f64,
    /// Blocks that may be interleaved at most.
    pub depth_max: usize,
}

/// What one code would send.
#[derive(Clone, Debug)]
pub struct CodePlan {
    /// The code.
    pub code: CodeId,
    /// Repairs of a block, or of as many symbols of a stream; `None` if the
    /// code cannot have such blocks.
    pub repairs: Option<usize>,
    /// Probability that a block fails in its first flight.
    pub failure: Option<f64>,
    /// Symbols that a repair holds.
    pub degree: Option<f64>,
    /// What else is worth knowing.
    pub note: String,
}

/// Plans for all codes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Redundancy that no code can do without, p / (1 − p).
    pub erasure_bound: f64,
    /// Blocks to interleave.
    pub depth: usize,
    /// Correlation of the losses of neighbouring packets of an (interleaved)
    /// block.
    pub correlation: f64,
    /// Symbols to send for a receiver that lacks 1, 2, 4 and 8.
    pub reactive: [usize; 4],
    /// The codes.
    pub codes: Vec<CodePlan>,
}

/// Plans what each code would send. Failure probabilities are computed for
/// codes that are MDS or as good, and simulated (seeded, a few thousand blocks)
/// for the LT codes.
#[must_use]
pub fn plan(request: &Request) -> Plan {
    let Request {
        loss_rate,
        n,
        epsilon,
        ..
    } = *request;
    let burst = request.mean_burst;
    let depth = params::interleave_depth(n, loss_rate, burst, epsilon, request.depth_max);
    let correlation = params::burst_correlation(loss_rate, burst, depth);
    let repairs = params::burst_repair_for(n, loss_rate, burst, depth, epsilon, 100 * n);
    let failure = params::burst_failure_probability(n, repairs, loss_rate, burst, depth);
    let as_good_as_mds = |code, repairs: Option<usize>, degree: f64, note: &str| CodePlan {
        code,
        repairs,
        failure: repairs.map(|_| failure),
        degree: repairs.map(|_| degree),
        note: note.to_owned(),
    };
    let spread = sphinx_fec::rlc::spread_for(n, repairs);
    let rs_repairs = (repairs <= rs::repairs_max(n)).then_some(repairs);
    let fft_repairs = fft_rs::size_for(repairs).map(|_| repairs);
    let has_blocks = (n <= sphinx_fec::SYMBOLS_MAX).then_some(repairs);
    let dense = n as f64;
    let mut codes = vec![
        as_good_as_mds(
            CodeId::Rlc,
            has_blocks,
            (dense / f64::from(spread)).ceil(),
            "decodes with n symbols, rarely n + 1",
        ),
        as_good_as_mds(CodeId::Rs, rs_repairs, dense, "n + R at most 256"),
        as_good_as_mds(
            CodeId::FftRs,
            fft_repairs,
            dense,
            "even symbol lengths; for large blocks",
        ),
    ];
    if n <= sphinx_fec::SYMBOLS_MAX / 8 {
        codes.push(window(request));
    }
    if n <= sphinx_fec::SYMBOLS_MAX {
        codes.push(srlt(request, request.threshold));
        codes.push(lt(request));
    }
    Plan {
        erasure_bound: params::erasure_bound(loss_rate),
        depth,
        correlation,
        reactive: [1, 2, 4, 8].map(|m| params::reactive(m, loss_rate)),
        codes,
    }
}

/// A window needs what the losses take on average, and a margin that keeps the
/// queue of outstanding losses short: it has the size of the deviation of the
/// losses within a window, and gives 12 % at 6 % loss and a window of 100.
fn window(request: &Request) -> CodePlan {
    let bound = params::erasure_bound(request.loss_rate);
    let redundancy = bound + (0.55 * bound).max(2.2 * (bound / request.n as f64).sqrt());
    let loss = Loss::new(request.loss_rate, Some(request.mean_burst));
    let outcome = simulate::window(request.n, redundancy, loss, 20_000, 1);
    CodePlan {
        code: CodeId::Window,
        repairs: Some((redundancy * request.n as f64).ceil() as usize),
        failure: Some(outcome.lost as f64 / outcome.symbols as f64),
        degree: Some(request.n as f64),
        note: format!(
            "share of symbols lost; in order after {:.1} packets on average, 99 % after {}",
            outcome.delay_mean, outcome.delay_p99
        ),
    }
}

fn srlt(request: &Request, threshold: f64) -> CodePlan {
    use params::srlt as paper;
    let cap = paper::degree_cap(request.n);
    let degree = paper::degree(request.loss_rate, request.deviation, cap);
    let repairs = paper::packet_count(request.n, request.loss_rate, degree, threshold);
    let scenario = simulate::Scenario {
        n: request.n,
        repairs,
        loss: Loss::new(request.loss_rate, Some(request.mean_burst)),
        maximum_likelihood: false,
    };
    let rows = simulate::Rows::Srlt { degree };
    let outcome = simulate::blocks(rows, &scenario, 1000, 1);
    CodePlan {
        code: CodeId::Srlt,
        repairs: Some(repairs),
        failure: Some(outcome.failure()),
        degree: Some(f64::from(degree)),
        note: format!("the paper's rule with T = {threshold}; failure simulated"),
    }
}

fn lt(request: &Request) -> CodePlan {
    let loss = Loss::new(request.loss_rate, Some(request.mean_burst));
    let shape = lt::Shape::default();
    let needed = simulate::rateless(shape, request.n, loss, false, 300, 1);
    let sent = needed.quantile(1.0 - request.epsilon);
    CodePlan {
        code: CodeId::Lt,
        repairs: Some(sent.saturating_sub(request.n)),
        failure: Some(request.epsilon),
        degree: None,
        note: format!(
            "no source symbols sent; {:.0} packets on average; simulated",
            needed.mean()
        ),
    }
}
