//! Coding speed, on one core.
//!
//! Every figure is the best of several short windows: on a shared machine the
//! best one is what the code can do, the mean is what the neighbours left.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sphinx_fec::{
    BlockDecoder, BlockReceiver, CodeId, Encoder, Engine, Error, Repair, Row, SymbolDecoder,
    Tracker, WindowDecoder, WindowEncoder, bits, fft_rs, lt, params, rlc, rs, srlt,
};

use crate::loss::Random;

/// Loss patterns that decoding goes through in turn.
const PATTERNS: usize = 8;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The instructions to use, for our own codes.
    pub engine: Engine,
    /// Source symbols in a block.
    pub n: usize,
    /// Repairs that are made.
    pub repairs: usize,
    /// Source symbols that are lost.
    pub lost: usize,
    /// Bytes of a symbol.
    pub symbol_len: usize,
    /// How long to measure each figure.
    pub time: Duration,
}

/// How fast a code was.
#[derive(Clone, Debug)]
pub struct Speed {
    /// The code: one of ours, or the name of another crate or program.
    pub code: String,
    /// The instructions it used.
    pub engine: &'static str,
    /// Source symbols in a block.
    pub n: usize,
    /// Repairs made.
    pub repairs: usize,
    /// Bytes of a symbol.
    pub symbol_len: usize,
    /// Source symbols lost and restored.
    pub lost: usize,
    /// Time to encode a block.
    pub encode: Duration,
    /// Time to decode a block.
    pub decode: Duration,
}

impl Speed {
    pub(crate) fn new(code: &str, setting: &Setting, encode: Duration, decode: Duration) -> Self {
        Self {
            code: code.to_owned(),
            engine: setting.engine.name(),
            n: setting.n,
            repairs: setting.repairs,
            symbol_len: setting.symbol_len,
            lost: setting.lost,
            encode,
            decode,
        }
    }

    /// Source data encoded, in MB/s.
    #[must_use]
    pub fn encode_mb_s(&self) -> f64 {
        self.mb_s(self.encode)
    }

    /// Source data decoded, in MB/s.
    #[must_use]
    pub fn decode_mb_s(&self) -> f64 {
        self.mb_s(self.decode)
    }

    fn mb_s(&self, time: Duration) -> f64 {
        (self.n * self.symbol_len) as f64 / time.as_secs_f64().max(1e-12) / 1e6
    }
}

/// Repairs for which `n` symbols are usually measured: what 6 % loss asks for,
/// and for 100 symbols the 14 of published comparisons.
#[must_use]
pub fn usual_repairs(n: usize) -> usize {
    match n {
        100 => 14,
        _ => params::repair_for(n, 0.06, 0.01),
    }
}

/// Losses as 6 % loss usually brings them.
#[must_use]
pub fn usual_losses(n: usize) -> usize {
    (n as f64 * 0.06).round().max(1.0) as usize
}

/// Measures one of our codes.
///
/// # Errors
/// For settings that the code does not have.
pub fn measure(code: CodeId, setting: &Setting) -> Result<Speed, Error> {
    let Setting { n, repairs, .. } = *setting;
    let degree = {
        use params::srlt as paper;
        paper::degree(0.06, 0.0, paper::degree_cap(n))
    };
    let rows: Vec<(CodeId, Row)> = match code {
        CodeId::Window => return measure_window(setting),
        CodeId::Rs => rs::first_flight(n, repairs).collect(),
        CodeId::FftRs => fft_rs::first_flight(repairs).collect(),
        CodeId::Srlt => paper_rows(n, degree, setting.lost),
        CodeId::Lt => return measure_lt(setting),
        _ => return measure_rlc(setting, usual_spread(n, repairs)),
    };
    if rows.len() < repairs.min(setting.lost) {
        return Err(Error::BlockSize { n });
    }
    let source = Random::new(1).bytes(n * setting.symbol_len);
    measure_block(
        code.name(),
        setting,
        &source,
        &rows,
        &patterns(n, setting.lost),
    )
}

/// Spread of repairs of `rlc` for 6 % loss.
fn usual_spread(n: usize, repairs: usize) -> u32 {
    rlc::spread_for(n, repairs, 0.06, 1.0, 0.01)
}

/// Measures `rlc` with rows of this spread.
pub(crate) fn measure_rlc(setting: &Setting, spread: u32) -> Result<Speed, Error> {
    let n = setting.n;
    let rows: Vec<(CodeId, Row)> = rlc::first_flight(spread, setting.repairs).collect();
    let source = Random::new(1).bytes(n * setting.symbol_len);
    let name = CodeId::Rlc.name();
    measure_block(name, setting, &source, &rows, &patterns(n, setting.lost))
}

/// Measures rows that hold a share of all symbols and only add them up, where
/// the decoder eliminates: so they would replace those of `rlc`.
pub(crate) fn measure_xor(setting: &Setting, degree: u32) -> Result<Speed, Error> {
    let Setting { n, repairs, .. } = *setting;
    let seeds = 0..repairs as u32;
    let rows: Vec<(CodeId, Row)> = seeds
        .map(|seed| (CodeId::Srlt, srlt::row(degree, seed % srlt::SEED_COUNT)))
        .collect();
    let source = Random::new(1).bytes(n * setting.symbol_len);
    measure_block("xor", setting, &source, &rows, &patterns(n, setting.lost))
}

/// As many paper rows as its rule gives at 6 % for T = 0.9 and never fewer than
/// `lost`.
fn paper_rows(n: usize, degree: u32, lost: usize) -> Vec<(CodeId, Row)> {
    let count = params::srlt::packet_count(n, 0.06, degree, 0.9).max(lost);
    let seeds = 0..count as u32;
    seeds
        .map(|seed| (CodeId::Srlt, srlt::row(degree, seed % srlt::SEED_COUNT)))
        .collect()
}

/// Different sets of `lost` of `n` symbols.
fn patterns(n: usize, lost: usize) -> Vec<Vec<usize>> {
    let mut random = Random::new(7);
    (0..PATTERNS)
        .map(|_| {
            let mut symbols: Vec<usize> = (0..n).collect();
            for i in 0..lost.min(n) {
                symbols.swap(i, i + random.below(n - i));
            }
            symbols.truncate(lost);
            symbols.sort_unstable();
            symbols
        })
        .collect()
}

/// Encodes `rows`, and decodes those patterns that they restore: for the paper's
/// code that is not every one.
fn measure_block(
    name: &str,
    setting: &Setting,
    source: &[u8],
    rows: &[(CodeId, Row)],
    patterns: &[Vec<usize>],
) -> Result<Speed, Error> {
    let Setting { n, symbol_len, .. } = *setting;
    let mut symbols = vec![0; rows.len() * symbol_len];
    let mut encoder = Encoder::with_engine(setting.engine);
    encoder.encode_rows(n, symbol_len, source, rows, &mut symbols)?;
    let encode = best_of(setting.time, || {
        let result = encoder.encode_rows(n, symbol_len, source, rows, &mut symbols);
        black_box(result.is_ok());
    });
    let repairs: Vec<Repair<'_>> = rows
        .iter()
        .zip(symbols.chunks(symbol_len))
        .map(|(&(code, row), symbol)| Repair { code, row, symbol })
        .collect();
    let mut decoder = BlockDecoder::with_engine(setting.engine);
    let mut memory = source.to_vec();
    let mut maps = Vec::new();
    for pattern in patterns {
        let mut have = vec![u64::MAX; bits::words(n)];
        for i in pattern {
            bits::remove(&mut have, *i);
        }
        if decoder
            .decode(n, symbol_len, &mut memory, &have, &repairs)
            .is_ok()
        {
            assert!(memory == source, "{name} restored something else");
            maps.push(have);
        }
    }
    if maps.is_empty() {
        return Err(Error::NotDecodable { deficit: 1 });
    }
    let mut turn = 0;
    let decode = best_of(setting.time, || {
        turn = (turn + 1) % maps.len();
        let result = decoder.decode(n, symbol_len, &mut memory, &maps[turn], &repairs);
        black_box(result.is_ok());
    });
    let mut speed = Speed::new(name, setting, encode, decode);
    speed.repairs = rows.len();
    Ok(speed)
}

/// Traditional LT: no source symbol is sent, so all are lost, and there are as
/// many rows as peeling happens to need.
fn measure_lt(setting: &Setting) -> Result<Speed, Error> {
    let n = setting.n;
    let mut tracker = Tracker::new(n)?;
    let mut maker = sphinx_fec::RowMaker::new();
    let mut rows = Vec::new();
    while !tracker.is_decodable() {
        let row = lt::Shape::default().row(rows.len() as u32);
        tracker.add_repair(&mut maker, CodeId::Lt, row);
        rows.push((CodeId::Lt, row));
    }
    let source = Random::new(1).bytes(n * setting.symbol_len);
    let all = [(0..n).collect()];
    let mut speed = measure_block("lt", setting, &source, &rows, &all)?;
    speed.lost = n;
    Ok(speed)
}

/// The sliding window: repairs evenly between `n` source symbols of a stream,
/// with a window of `n` symbols, and `lost` of them lost.
fn measure_window(setting: &Setting) -> Result<Speed, Error> {
    let Setting {
        n,
        repairs,
        lost,
        symbol_len,
        ..
    } = *setting;
    let source = Random::new(1).bytes(n * symbol_len);
    let redundancy = repairs as f64 / n as f64;
    let mut encoder = WindowEncoder::new(n, redundancy, symbol_len)?.with_engine(setting.engine);
    let mut out = vec![0; symbol_len];
    let mut pass = |encoder: &mut WindowEncoder, each: Each<'_>| {
        for symbol in source.chunks(symbol_len) {
            let number = encoder.push(symbol);
            each(number, Ok(symbol));
            while let Some((first, count, row)) = encoder.next_repair(&mut out) {
                each(first, Err((count, row, &out)));
            }
        }
    };
    // The first pass fills the window.
    pass(&mut encoder, &mut |_, _| {});
    let encode = best_of(setting.time, || pass(&mut encoder, &mut |_, _| {}));
    let capacity = (2 * n).min(sphinx_fec::SYMBOLS_MAX);
    let mut decoder = WindowDecoder::new(capacity, symbol_len)?.with_engine(setting.engine);
    let mut memory = vec![0; capacity * symbol_len];
    // Decoding is measured with the encoding of its input, which is then
    // subtracted: repairs of a stream cannot be used twice.
    let gap = (n / lost.max(1)).max(1) as u64;
    let both = best_of(setting.time, || {
        pass(&mut encoder, &mut |number, packet| match packet {
            Ok(symbol) => {
                if number % gap != gap / 2
                    && let Some(slot) = decoder.slot(number)
                {
                    memory[slot * symbol_len..][..symbol_len].copy_from_slice(symbol);
                    decoder.add_source(&mut memory, number);
                }
            }
            Err((count, row, symbol)) => {
                let code = CodeId::Window;
                let repair = Repair { code, row, symbol };
                decoder.add_repair(&mut memory, number, count, repair);
            }
        });
    });
    let decode = both.saturating_sub(encode);
    let mut speed = Speed::new("window", setting, encode, decode);
    speed.lost = n / gap as usize;
    Ok(speed)
}

/// How fast a block is decoded while it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Time for all symbols of a block together.
    pub all: Duration,
    /// Time for the last one, which completes the block.
    pub last: Duration,
}

/// Measures `rlc` as symbols arrive, source symbols first: what the last one
/// costs is what the application waits for.
///
/// # Errors
/// For settings that the code does not have.
pub fn measure_arrival(setting: &Setting) -> Result<Arrival, Error> {
    let Setting {
        engine,
        n,
        repairs,
        lost,
        symbol_len,
        time,
    } = *setting;
    let source = Random::new(1).bytes(n * symbol_len);
    let spread = usual_spread(n, repairs);
    let rows: Vec<(CodeId, Row)> = rlc::first_flight(spread, repairs).collect();
    let mut symbols = vec![0; rows.len() * symbol_len];
    Encoder::with_engine(engine).encode_rows(n, symbol_len, &source, &rows, &mut symbols)?;
    let mut receiver = BlockReceiver::new(0, n, symbol_len)?.with_engine(engine);
    let mut memory = source.clone();
    let mut best = Arrival {
        all: Duration::MAX,
        last: Duration::MAX,
    };
    let patterns = patterns(n, lost);
    let begin = Instant::now();
    while begin.elapsed() < time || best.all == Duration::MAX {
        for pattern in &patterns {
            receiver.reset(0, n, symbol_len)?;
            let start = Instant::now();
            let kept = (0..n).filter(|i| pattern.binary_search(i).is_err());
            for i in kept {
                receiver.add_source(&mut memory, i as u64);
            }
            let mut last = Duration::ZERO;
            for (&(code, row), symbol) in rows.iter().zip(symbols.chunks(symbol_len)) {
                let repair = Repair { code, row, symbol };
                let before = Instant::now();
                receiver.add_repair(&mut memory, 0, n, repair);
                last = before.elapsed();
                if receiver.deficit() == 0 {
                    break;
                }
            }
            if receiver.deficit() == 0 {
                best.all = best.all.min(start.elapsed());
                best.last = best.last.min(last);
            }
        }
        if best.all == Duration::MAX {
            return Err(Error::NotDecodable { deficit: 1 });
        }
    }
    assert!(memory == source, "rlc restored something else");
    Ok(best)
}

/// Takes a source symbol, or the extent, row and bytes of a repair.
type Each<'a> = &'a mut dyn FnMut(u64, Result<&[u8], (usize, Row, &[u8])>);

/// A program that measures a code of somebody else's.
#[derive(Clone, Debug)]
pub struct Program {
    /// What the code is called.
    pub name: String,
    /// The program.
    pub path: PathBuf,
}

impl Program {
    /// Runs it: its arguments are the source symbols of a block, the repairs,
    /// the bytes of a symbol, the source symbols lost and the milliseconds to
    /// measure each figure; its output, MB/s of source data encoded and decoded.
    ///
    /// # Errors
    /// Why there are no such numbers, in words.
    pub fn measure(&self, setting: &Setting) -> Result<Speed, String> {
        let Setting {
            n,
            repairs,
            symbol_len,
            lost,
            time,
            ..
        } = *setting;
        let arguments = [n, repairs, symbol_len, lost, time.as_millis() as usize];
        let failed = |why: String| format!("{}: {why}", self.path.display());
        let output = Command::new(&self.path)
            .args(arguments.map(|number| number.to_string()))
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(output.status.to_string()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers = text.split_whitespace().map(str::parse::<f64>);
        match &numbers.collect::<Vec<_>>()[..] {
            [Ok(encode), Ok(decode)] if *encode > 0.0 && *decode > 0.0 => {
                let bytes = (n * symbol_len) as f64;
                let time = |mb_s: &f64| Duration::from_secs_f64(bytes / (mb_s * 1e6));
                Ok(Speed {
                    engine: "its own",
                    ..Speed::new(&self.name, setting, time(encode), time(decode))
                })
            }
            _ => Err(failed(format!("two speeds in MB/s expected, not {text:?}"))),
        }
    }
}

/// How many times as fast one is as the other: what rounds in which both were
/// measured say together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The geometric mean.
    pub mean: f64,
    /// Its 95 % interval; `None` of one round.
    pub interval: Option<(f64, f64)>,
}

impl Ratio {
    /// Of the ratios of all rounds; `None` without any.
    #[must_use]
    pub fn of(rounds: &[f64]) -> Option<Self> {
        /// Student's t for 95 %, by degrees of freedom from 1.
        const T: [f64; 19] = [
            12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
            2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
        ];
        let count = rounds.len() as f64;
        let logarithms = || rounds.iter().map(|ratio| ratio.ln());
        let mean = logarithms().sum::<f64>() / count;
        let squares: f64 = logarithms().map(|one| (one - mean).powi(2)).sum();
        let interval = rounds.len().checked_sub(2).map(|at| {
            let t = T.get(at).unwrap_or(&T[T.len() - 1]);
            let half = t * (squares / (count - 1.0) / count).sqrt();
            ((mean - half).exp(), (mean + half).exp())
        });
        (!rounds.is_empty()).then(|| Self {
            mean: mean.exp(),
            interval,
        })
    }
}

/// Measures the codes of other crates; none without the cargo feature `peers`.
#[must_use]
pub fn measure_peers(setting: &Setting) -> Vec<Speed> {
    #[cfg(feature = "peers")]
    {
        let source = Random::new(1).bytes(setting.n * setting.symbol_len);
        let patterns = patterns(setting.n, setting.lost);
        let peers = crate::peers::all(setting, &source, &patterns);
        peers
            .into_iter()
            .map(|(code, encode, decode)| Speed {
                engine: "its own",
                ..Speed::new(code, setting, encode, decode)
            })
            .collect()
    }
    #[cfg(not(feature = "peers"))]
    {
        let _ = setting;
        Vec::new()
    }
}

/// The shortest mean time of a call in windows of about half a millisecond.
pub(crate) fn best_of(time: Duration, mut f: impl FnMut()) -> Duration {
    let begin = Instant::now();
    f();
    f();
    let once = begin.elapsed() / 2;
    let window = Duration::from_micros(500);
    let calls = (window.as_nanos() / once.as_nanos().max(1)).clamp(1, 100_000) as u32;
    let mut best = Duration::MAX;
    let begin = Instant::now();
    while begin.elapsed() < time || best == Duration::MAX {
        let window = Instant::now();
        for _ in 0..calls {
            f();
        }
        best = best.min(window.elapsed() / calls);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_intervals() {
        assert_eq!(Ratio::of(&[]), None);
        let one = Ratio::of(&[2.0]).expect("a round");
        assert!((one.mean - 2.0).abs() < 1e-12 && one.interval.is_none());
        let two = Ratio::of(&[1.0, 4.0]).expect("rounds");
        let (low, high) = two.interval.expect("two rounds");
        // ln 4 / 2 is the standard error: the interval is 12.706 of these wide on either side.
        assert!((two.mean - 2.0).abs() < 1e-12);
        assert!((high / low).ln() / 2.0 / 12.706 - 4.0_f64.ln() / 2.0 < 1e-9);
        let many = Ratio::of(&[1.5; 30]).and_then(|ratio| ratio.interval);
        assert!(many.is_some_and(|(low, high)| (high - low).abs() < 1e-9));
    }

    #[test]
    fn programs_tell_their_speed() {
        let setting = Setting {
            engine: Engine::detect(),
            n: 100,
            repairs: 14,
            lost: 6,
            symbol_len: 1000,
            time: Duration::from_millis(1),
        };
        let program = |path: &str| Program {
            name: "theirs".to_owned(),
            path: path.into(),
        };
        // Six words, and none of them a speed.
        let silent = program("/bin/echo")
            .measure(&setting)
            .expect_err("no speeds");
        assert!(silent.contains("100 14 1000 6 1"), "{silent}");
        assert!(program("/bin/false").measure(&setting).is_err());
        assert!(program("/nowhere").measure(&setting).is_err());
    }

    #[test]
    fn every_code_can_be_measured() {
        let setting = Setting {
            engine: Engine::detect(),
            n: 32,
            repairs: 8,
            lost: 2,
            symbol_len: 64,
            time: Duration::from_millis(1),
        };
        for code in CodeId::ALL {
            match measure(code, &setting) {
                Ok(speed) => {
                    assert_eq!((speed.code.as_str(), speed.n), (code.name(), 32));
                    assert!(speed.encode_mb_s() > 0.0 && speed.lost >= 2);
                }
                Err(error) => {
                    assert_eq!(error, Error::NotBuilt { code });
                    assert_eq!((code, fft_rs::IS_BUILT), (CodeId::FftRs, false));
                }
            }
        }
        let arrival = measure_arrival(&setting).unwrap();
        assert!(arrival.last <= arrival.all);
        let large = Setting { n: 300, ..setting };
        assert!(measure(CodeId::Rs, &large).is_err());
        let peers = measure_peers(&setting);
        assert_eq!(peers.is_empty(), !cfg!(feature = "peers"));
    }
}
