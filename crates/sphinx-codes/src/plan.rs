//! What each code would send.

use std::time::Duration;

use sphinx_fec::{CodeId, Engine, fft_rs, lt, params, rlc, rs, srlt};

use crate::bench::{self, Setting};
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
    /// The instructions that are measured.
    pub engine: Engine,
}

/// What one code would send.
#[derive(Clone, Debug)]
pub struct CodePlan {
    /// The code.
    pub code: CodeId,
    /// Blocks that are sent in turn.
    pub depth: usize,
    /// Repairs of a block, or of as many symbols of a stream; `None` if the
    /// code cannot have such blocks, or not as many repairs as they need.
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

/// Rows of which a session's `auto` might make its repairs.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name of the rows.
    pub name: &'static str,
    /// Repairs of a block; `None` if there are not as many, or none that are
    /// known to suffice.
    pub repairs: Option<usize>,
    /// Time to encode and to decode a block, measured here; `None` where that
    /// was not possible.
    pub time: Option<Duration>,
}

/// Which rows are the best for these blocks.
#[derive(Clone, Debug)]
pub struct Choice {
    /// All that were looked at.
    pub candidates: Vec<Candidate>,
    /// The fastest of those that send at most 2 % more than the least; `None`
    /// if none could be measured.
    pub best: Option<&'static str>,
    /// What sessions use: by n, R, losses and ε, so that what they send does not depend on where they run.
    pub auto: &'static str,
}

impl Choice {
    /// The time that what sessions use takes over that of the best; `None` if
    /// one of them could not be measured.
    #[must_use]
    pub fn auto_over_best(&self) -> Option<f64> {
        let time = |name| {
            let one = self.candidates.iter().find(|one| one.name == name)?;
            Some(one.time?.as_secs_f64())
        };
        Some(time(self.auto)? / time(self.best?)?)
    }

    /// Why sessions use what they do, in a few words.
    #[must_use]
    pub fn why(&self) -> &'static str {
        match self.auto {
            CAUCHY => "few repairs: dense rows, of which any suffice",
            SPARSE => {
                "many repairs: each may have a part of the symbols only, and they still suffice"
            }
            _ => "few repairs, for more symbols than Cauchy rows are for",
        }
    }
}

const CAUCHY: &str = "cauchy";
const SPARSE: &str = "sparse rlc";
/// Where a block is too large for the others.
const DENSE: &str = "dense rlc";
const XOR: &str = "xor only";
const TRANSFORM: &str = "transform";
/// What may be sent beyond the least for the sake of speed.
const MORE: f64 = 1.02;
/// Bytes of the symbols that are measured.
const SYMBOL_BYTES: usize = 1200;
/// Candidates are measured in turn, so often and each for so long: a machine
/// that does something else meanwhile does not do so every time.
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(2);

/// The most repairs that are looked for where losses come in bursts: more than
/// twice what such a loss rate asks for anyway. What few symbols need in long
/// bursts is more than that, and found soon. Of many symbols it would be work
/// that grows with the square of it.
#[must_use]
pub fn repairs_max(n: usize, loss_rate: f64) -> usize {
    let bound = (n as f64 * params::erasure_bound(loss_rate)).ceil() as usize;
    let most = (2 * (n + bound)).max(params::REPAIRS_MAX / n.max(1));
    most.min(params::REPAIRS_MAX)
}

/// The fewest repairs with which an MDS code fails with at most `epsilon`, with
/// blocks sent `depth` in turn, as [`params::burst_repair_for`]; `None` if that
/// takes more than [`repairs_max`].
#[must_use]
pub fn repairs_for(n: usize, p: f64, burst: f64, depth: usize, epsilon: f64) -> Option<usize> {
    let most = repairs_max(n, p);
    // A block fails at least where one burst takes its first packets, and one more than there are repairs.
    let stays = p + (1.0 - p) * params::burst_correlation(p, burst, depth);
    if p * stays.powi(most as i32) > epsilon {
        return None;
    }
    let repairs = params::burst_repair_for(n, p, burst, depth, epsilon, most);
    (mds_failure(n, repairs, p, burst, depth) <= epsilon).then_some(repairs)
}

/// Probability that a block of an MDS code fails.
fn mds_failure(n: usize, repairs: usize, p: f64, burst: f64, depth: usize) -> f64 {
    match params::burst_correlation(p, burst, depth) {
        // The same result, computed faster.
        0.0 => params::failure_probability(n, repairs, p),
        _ => params::burst_failure_probability(n, repairs, p, burst, depth),
    }
}

/// Compares the rows that a session could use for blocks of `n` symbols, by
/// what they send and by how long they take on this machine. Sessions send one
/// block after the other, whatever [`Request::depth_max`] says. `None` if
/// there are not as many repairs as they need.
#[must_use]
pub fn choose(request: &Request) -> Option<Choice> {
    let Request {
        loss_rate,
        n,
        epsilon,
        mean_burst,
        ..
    } = *request;
    let repairs = repairs_for(n, loss_rate, mean_burst, 1, epsilon)?;
    let setting = |repairs| Setting {
        engine: request.engine,
        n,
        repairs,
        lost: ((n as f64 * loss_rate).round() as usize).clamp(1, n),
        symbol_len: SYMBOL_BYTES,
        time: TIME,
        draw: 0,
    };
    let spread = rlc::spread_for(n, repairs, loss_rate, mean_burst, epsilon);
    let is_cauchy = repairs <= rs::repairs_max(n);
    let in_blocks = n <= sphinx_fec::SYMBOLS_MAX;
    let auto = match (spread > 1, is_cauchy) {
        (true, _) => SPARSE,
        (false, true) => CAUCHY,
        (false, false) => DENSE,
    };
    let is_transform = in_blocks && fft_rs::size_for(repairs).is_some();
    let degree = xor_degree(n);
    let cauchy = is_cauchy.then_some(repairs);
    let transform = is_transform.then_some(repairs);
    let random = in_blocks.then_some(repairs);
    let mut all = vec![(CAUCHY, Rows::Code(CodeId::Rs), cauchy)];
    if auto != CAUCHY {
        all.push((auto, Rows::Rlc { spread }, random));
    }
    all.push((TRANSFORM, Rows::Code(CodeId::FftRs), transform));
    all.push((XOR, Rows::Xor, xor_repairs(request, repairs, degree)));
    let mut candidates: Vec<Candidate> = { all.iter() }
        .map(|&(name, _, repairs)| Candidate {
            name,
            repairs,
            time: None,
        })
        .collect();
    for _ in 0..ROUNDS {
        for (one, (_, rows, repairs)) in candidates.iter_mut().zip(&all) {
            let Some(repairs) = *repairs else {
                continue;
            };
            let speed = match rows {
                Rows::Code(code) => bench::measure(*code, &setting(repairs)),
                Rows::Rlc { spread } => bench::measure_rlc(&setting(repairs), *spread),
                Rows::Xor => bench::measure_xor(&setting(repairs), degree),
            };
            if let Ok(speed) = speed {
                let time = speed.encode + speed.decode;
                one.time = Some(one.time.map_or(time, |best| best.min(time)));
            }
        }
    }
    Some(Choice {
        best: fastest(&candidates, n),
        auto,
        candidates,
    })
}

/// Of those for blocks of `n` symbols that send at most 2 % more than the least.
fn fastest(candidates: &[Candidate], n: usize) -> Option<&'static str> {
    let sends = |one: &Candidate| one.repairs.map(|repairs| (n + repairs) as f64);
    let least = candidates.iter().filter_map(sends).fold(f64::MAX, f64::min);
    let few = { candidates.iter() }
        .filter(|one| sends(one).is_some_and(|all| all <= MORE * least))
        .filter_map(|one| Some((one.time?, one.name)));
    few.min().map(|(_, name)| name)
}

/// Whose rows are measured.
enum Rows {
    Code(CodeId),
    Rlc { spread: u32 },
    Xor,
}

/// Rows of nearly half of the symbols. (With exactly half, some rows add up to
/// nothing.)
fn xor_degree(n: usize) -> u32 {
    (n / 2)
        .saturating_sub(1)
        .clamp(1, srlt::DEGREE_MAX as usize) as u32
}

/// Packets that are simulated for each number of rows that are only added up.
const XOR_PACKETS: usize = 4_000_000;

/// How many rows that are only added up, and all of which are solved together,
/// do what `least` others do.
fn xor_repairs(request: &Request, least: usize, degree: u32) -> Option<usize> {
    let n = request.n;
    if n > 256 {
        return None;
    }
    let scenario = simulate::Scenario {
        n,
        repairs: least,
        loss: Loss::new(request.loss_rate, Some(request.mean_burst)),
        maximum_likelihood: true,
    };
    let rows = simulate::Rows::Srlt { degree };
    let numbers = least..=least + 8 * n;
    simulate::repairs_for(rows, &scenario, request.epsilon, numbers, XOR_PACKETS, 1)
}

/// Plans what each code would send. Failure probabilities are computed for
/// codes that are MDS or as good, and simulated (seeded) for the others: over
/// a thousand blocks for `srlt`, over as many as have thirty failures for `lt`.
/// All blocks are interleaved, but not the stream of `window`.
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
    // Packets of one block are lost less in a row where others are sent between them.
    let own_burst = 1.0 / ((1.0 - correlation) * (1.0 - loss_rate)).max(f64::MIN_POSITIVE);
    let repairs = repairs_for(n, loss_rate, burst, depth, epsilon);
    let spread = repairs.map_or(1, |repairs| {
        rlc::spread_for(n, repairs, loss_rate, own_burst, epsilon)
    });
    let failure = repairs.map(|repairs| mds_failure(n, repairs, loss_rate, burst, depth));
    let as_good_as_mds = |code, is_possible: fn(usize, usize) -> bool, degree: f64, note: &str| {
        let repairs_there = repairs.filter(|repairs| is_possible(n, *repairs));
        CodePlan {
            code,
            depth,
            repairs: repairs_there,
            failure: repairs_there.and(failure),
            degree: repairs_there.map(|_| degree),
            note: match repairs {
                Some(_) => note.to_owned(),
                None => format!("{} repairs would not be enough", repairs_max(n, loss_rate)),
            },
        }
    };
    let note = match spread {
        1 => "decodes with n symbols, rarely n + 1",
        _ => "decodes with n symbols, rarely n + 1: fails up to about a quarter more",
    };
    let dense = n as f64;
    let mut codes = vec![
        as_good_as_mds(
            CodeId::Rlc,
            |n, _| n <= sphinx_fec::SYMBOLS_MAX,
            (dense / f64::from(spread)).ceil(),
            note,
        ),
        as_good_as_mds(
            CodeId::Rs,
            |n, repairs| repairs <= rs::repairs_max(n),
            dense,
            "n + R at most 256",
        ),
        as_good_as_mds(
            CodeId::FftRs,
            |_, repairs| fft_rs::size_for(repairs).is_some(),
            dense,
            "even symbol lengths; for large blocks",
        ),
    ];
    if n <= sphinx_fec::SYMBOLS_MAX / 8 {
        codes.push(window(request));
    }
    if n <= sphinx_fec::SYMBOLS_MAX {
        let loss = Loss::new(loss_rate, Some(own_burst));
        codes.push(srlt(request, (depth, loss)));
        codes.push(lt(request, (depth, loss)));
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
        depth: 1,
        repairs: Some((redundancy * request.n as f64).ceil() as usize),
        failure: { loss.is_told_by(outcome.symbols) }
            .then(|| outcome.lost as f64 / outcome.symbols as f64),
        degree: Some(request.n as f64),
        note: format!(
            "share of symbols lost, not interleaved; in order after {:.1} packets on average, 99 % after {}",
            outcome.delay_mean, outcome.delay_p99
        ),
    }
}

/// With what a block loses that is sent in turn with others: so many together,
/// and losses of its own.
fn srlt(request: &Request, (depth, loss): (usize, Loss)) -> CodePlan {
    use params::srlt as paper;
    let threshold = request.threshold;
    let cap = paper::degree_cap(request.n);
    let degree = paper::degree(request.loss_rate, request.deviation, cap);
    let repairs = paper::packet_count(request.n, request.loss_rate, degree, threshold);
    let scenario = simulate::Scenario {
        n: request.n,
        repairs,
        loss,
        maximum_likelihood: false,
    };
    let rows = simulate::Rows::Srlt { degree };
    let outcome = simulate::blocks(rows, &scenario, 1000, 1);
    CodePlan {
        code: CodeId::Srlt,
        depth,
        repairs: Some(repairs),
        failure: { loss.is_told_by(outcome.sent) }.then(|| outcome.failure()),
        degree: Some(f64::from(degree)),
        note: format!("the paper's rule with T = {threshold}; failure simulated"),
    }
}

/// Symbols that are simulated for `lt` at most, seconds of work.
const LT_SYMBOLS: usize = 5_000_000;

/// The flight with which as few blocks fail as may, and how many do of other
/// ones.
fn lt(request: &Request, (depth, loss): (usize, Loss)) -> CodePlan {
    let Request { n, epsilon, .. } = *request;
    let shape = lt::Shape::default();
    let affordable = LT_SYMBOLS / n;
    // With less than ten failures among them blocks do not show how few there are.
    let is_affordable = 10.0 / epsilon <= affordable as f64;
    let blocks = match is_affordable {
        true => ((30.0 / epsilon) as usize).clamp(300, affordable),
        false => 300,
    };
    let needed = simulate::rateless(shape, n, loss, false, blocks, 1);
    let is_told = is_affordable && loss.is_told_by(blocks * n);
    let sent = needed.quantile(1.0 - epsilon).filter(|_| is_told);
    let failure = sent.map(|sent| {
        let scenario = simulate::Scenario {
            n,
            repairs: sent.saturating_sub(n),
            loss,
            maximum_likelihood: false,
        };
        simulate::blocks(simulate::Rows::Lt { shape }, &scenario, blocks, 2).failure()
    });
    let (mean, given_up) = (needed.mean(), needed.given_up());
    let note = match (sent, given_up) {
        (Some(_), 0) => {
            format!("no source symbols sent; {mean:.0} packets on average; failure simulated")
        }
        (_, 0) => format!(
            "{mean:.0} packets on average; {blocks} blocks do not tell what fails so seldom"
        ),
        _ => format!(
            "{given_up} of {blocks} blocks were given up; {mean:.0} packets on average for the others"
        ),
    };
    CodePlan {
        code: CodeId::Lt,
        depth,
        repairs: sent.map(|sent| sent.saturating_sub(n)),
        failure,
        degree: None,
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(n: usize, loss_rate: f64) -> Request {
        Request {
            loss_rate,
            deviation: 0.0,
            mean_burst: 1.0,
            n,
            epsilon: 0.01,
            threshold: 0.5,
            depth_max: 1,
            engine: Engine::detect(),
        }
    }

    fn choice(n: usize, loss_rate: f64) -> Choice {
        choose(&request(n, loss_rate)).expect("as many repairs as it takes")
    }

    /// By bytes; which one is the fastest is the machine's affair.
    #[test]
    fn rows_that_only_add_up_are_more() {
        for (n, loss_rate) in [(16, 0.01), (100, 0.06)] {
            let choice = choice(n, loss_rate);
            let repairs = |name: &str| {
                let one = choice.candidates.iter().find(|one| one.name == name);
                one.and_then(|one| one.repairs)
            };
            assert!(repairs(XOR) > repairs(choice.auto), "{choice:?}");
            assert_eq!(repairs(choice.auto), repairs(TRANSFORM), "{choice:?}");
        }
    }

    #[test]
    fn the_fastest_sends_little_more() {
        let candidate = |name, repairs, ms: Option<u64>| Candidate {
            name,
            repairs,
            time: ms.map(Duration::from_millis),
        };
        let mut all = vec![
            candidate(CAUCHY, Some(10), Some(9)),
            candidate(TRANSFORM, Some(12), Some(7)),
            candidate(SPARSE, Some(13), Some(5)),
            candidate(DENSE, None, None),
        ];
        // 112 are within 2 % of 110, and 113 are not.
        assert_eq!(fastest(&all, 100), Some(TRANSFORM));
        all[1].time = None;
        assert_eq!(fastest(&all, 100), Some(CAUCHY));
        // What cannot be measured can be sent all the same.
        all[0].time = None;
        assert_eq!(fastest(&all, 100), None);
    }

    #[test]
    fn rows_that_only_add_up_suffice_with_other_losses() {
        for (n, loss_rate, mean_burst) in [(4, 0.2, 1.0), (4, 0.06, 8.0), (16, 0.8, 1.0)] {
            let epsilon = 0.002;
            let request = Request {
                mean_burst,
                epsilon,
                ..request(n, loss_rate)
            };
            let least = repairs_for(n, loss_rate, mean_burst, 1, epsilon);
            let least = least.expect("an MDS code does");
            let degree = xor_degree(n);
            let repairs = xor_repairs(&request, least, degree).expect("enough rows");
            let scenario = simulate::Scenario {
                n,
                repairs,
                loss: Loss::new(loss_rate, Some(mean_burst)),
                maximum_likelihood: true,
            };
            let rows = simulate::Rows::Srlt { degree };
            let outcome = simulate::blocks(rows, &scenario, 100_000, 99);
            // What chance adds in four standard deviations: bursts over several blocks make it twice as much.
            let most = epsilon + 8.0 * (epsilon / 1e5).sqrt();
            assert!(outcome.failure() <= most, "{request:?}: {outcome:?}");
        }
    }

    fn of(plan: &Plan, code: CodeId) -> &CodePlan {
        let found = plan.codes.iter().find(|one| one.code == code);
        found.expect("all codes have such blocks")
    }

    #[test]
    fn all_blocks_are_interleaved() {
        let with = |depth_max| {
            plan(&Request {
                mean_burst: 10.0,
                threshold: 0.9,
                depth_max,
                ..request(100, 0.06)
            })
        };
        let (alone, interleaved) = (with(1), with(8));
        assert_eq!((alone.depth, interleaved.depth), (1, 8));
        let failure = |plan| of(plan, CodeId::Srlt).failure.expect("simulated");
        assert!(failure(&interleaved) < failure(&alone) - 0.05);
        let repairs = |plan, code| of(plan, code).repairs.expect("enough");
        for code in [CodeId::Rlc, CodeId::Lt] {
            assert!(repairs(&interleaved, code) + 5 < repairs(&alone, code));
        }
        for one in &interleaved.codes {
            let depth = if one.code == CodeId::Window { 1 } else { 8 };
            assert_eq!(one.depth, depth, "{one:?}");
        }
    }

    #[test]
    fn what_lt_fails_with_is_counted() {
        let with = |epsilon| {
            let plan = plan(&Request {
                epsilon,
                ..request(20, 0.06)
            });
            of(&plan, CodeId::Lt).clone()
        };
        let usual = with(0.01);
        let failure = usual.failure.expect("3000 blocks");
        assert!((0.004..0.02).contains(&failure), "{usual:?}");
        assert!(with(0.1).repairs < usual.repairs);
        // Nobody sees one in a million within a second.
        let seldom = with(1e-6);
        assert_eq!((seldom.repairs, seldom.failure), (None, None), "{seldom:?}");
    }

    /// These were counted one by one, for hours.
    #[test]
    fn repairs_that_no_burst_leaves_are_not_looked_for() {
        for n in [10, 4096, 32_768] {
            assert_eq!(repairs_for(n, 0.06, 1e6, 1, 0.01), None, "{n}");
        }
        // Independent losses may also take more than there are.
        assert_eq!(repairs_for(32_768, 0.95, 1.0, 1, 0.01), None);
        let request = Request {
            mean_burst: 1e6,
            ..request(100, 0.06)
        };
        assert!(choose(&request).is_none());
        let plan = plan(&request);
        assert_eq!(of(&plan, CodeId::Rlc).repairs, None);
        assert!(of(&plan, CodeId::Rlc).note.contains("would not be enough"));
        // Too few bursts to tell what they do.
        assert_eq!(of(&plan, CodeId::Lt).repairs, None);
        assert_eq!(of(&plan, CodeId::Srlt).failure, None);
        for (n, loss_rate) in [(1, 0.06), (4096, 0.06), (32_768, 0.95)] {
            assert!(repairs_max(n, loss_rate) <= params::REPAIRS_MAX);
        }
        assert!(repairs_max(4096, 0.06) < 9000);
        // Bursts that are not as long are still planned for.
        let few = |n, burst| repairs_for(n, 0.06, burst, 1, 0.01).expect("in reach");
        assert_eq!(few(100, 1.0), 13);
        assert!(few(100, 10.0).abs_diff(51) <= 4);
        assert!(few(4, 200.0) > 300);
    }
}
