//! Coding speed, on one core.
//!
//! Every figure is the best of several short windows: on a shared machine the
//! best one is what the code can do, the mean is what the neighbours left.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sphinx_fec::{
    BlockDecoder, BlockReceiver, CodeId, Delivery, Encoder, Engine, Error, Repair, Row, RowMaker,
    SymbolDecoder, Tracker, WindowDecoder, WindowEncoder, bits, fft_rs, lt, params, rlc, rs, srlt,
};

use crate::loss::{Channel, Loss, Random};

/// Loss patterns that decoding goes through in turn.
const PATTERNS: usize = 8;
/// So many are tried to find these: the paper's code restores half of them.
const ATTEMPTS: usize = 64;

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
    /// Which of many draws of losses, and of rows where these are drawn too.
    pub draw: u64,
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
    /// Repairs made; of `lt` the rows, on average, as it sends nothing else.
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

/// T of the paper's rule where nothing else is said: nearly all blocks are
/// restored.
const CAUTIOUS_THRESHOLD: f64 = 0.9;

/// Measures one of our codes. `srlt` has as many repairs as the paper's rule
/// gives for T = 0.9, and `lt` as many rows as it needs where the same share of
/// these is lost.
///
/// # Errors
/// For settings that the code does not have, and if it does not restore what is
/// lost.
pub fn measure(code: CodeId, setting: &Setting) -> Result<Speed, Error> {
    let Setting { n, repairs, .. } = *setting;
    let rows: Vec<(CodeId, Row)> = match code {
        CodeId::Window => return measure_window(setting),
        CodeId::Rs => rs::first_flight(n, repairs).collect(),
        CodeId::FftRs => fft_rs::first_flight(repairs).collect(),
        CodeId::Srlt => return measure_srlt(setting, CAUTIOUS_THRESHOLD),
        CodeId::Lt => return measure_lt(setting),
        _ => return measure_rlc(setting, usual_spread(n, repairs)),
    };
    if rows.len() < repairs.min(setting.lost) {
        return Err(Error::BlockSize { n });
    }
    measure_block(code.name(), setting, &rows)
}

/// Measures `srlt` with as many rows as the paper's rule gives at 6 % loss for
/// this T, and never fewer than are lost. Decoding is that of blocks that can
/// be decoded.
///
/// # Errors
/// For settings that the code does not have.
pub fn measure_srlt(setting: &Setting, threshold: f64) -> Result<Speed, Error> {
    use params::srlt as paper;
    let n = setting.n;
    let degree = paper::degree(0.06, 0.0, paper::degree_cap(n));
    let count = paper::packet_count(n, 0.06, degree, threshold).max(setting.lost);
    let name = CodeId::Srlt.name();
    measure_block(name, setting, &sums(degree, count, setting.draw))
}

/// Spread of repairs of `rlc` for 6 % loss.
fn usual_spread(n: usize, repairs: usize) -> u32 {
    rlc::spread_for(n, repairs, 0.06, 1.0, 0.01)
}

/// Measures `rlc` with rows of this spread.
pub(crate) fn measure_rlc(setting: &Setting, spread: u32) -> Result<Speed, Error> {
    let rows: Vec<(CodeId, Row)> = rlc::first_flight(spread, setting.repairs).collect();
    measure_block(CodeId::Rlc.name(), setting, &rows)
}

/// Measures rows that hold a share of all symbols and only add them up, where
/// the decoder eliminates: so they would replace those of `rlc`.
pub(crate) fn measure_xor(setting: &Setting, degree: u32) -> Result<Speed, Error> {
    let rows = sums(degree, setting.repairs, setting.draw);
    let decoder = BlockDecoder::with_engine(setting.engine).maximum_likelihood();
    let patterns = patterns(setting).take(ATTEMPTS);
    measure_rows("xor", setting, (&rows, rows.len()), patterns, decoder)
}

/// Rows that add up symbols, others for each draw.
fn sums(degree: u32, count: usize, draw: u64) -> Vec<(CodeId, Row)> {
    let first = draw.wrapping_mul(count as u64);
    (first..first + count as u64)
        .map(|seed| (seed % u64::from(srlt::SEED_COUNT)) as u32)
        .map(|seed| (CodeId::Srlt, srlt::row(degree, seed)))
        .collect()
}

/// Different sets of `lost` of `n` symbols, without end.
fn patterns(setting: &Setting) -> impl Iterator<Item = Vec<usize>> {
    let Setting { n, lost, draw, .. } = *setting;
    let mut random = Random::new(7_u64.wrapping_add(draw));
    std::iter::repeat_with(move || {
        let mut symbols: Vec<usize> = (0..n).collect();
        for i in 0..lost.min(n) {
            symbols.swap(i, i + random.below(n - i));
        }
        symbols.truncate(lost);
        symbols.sort_unstable();
        symbols
    })
}

fn source_of(setting: &Setting) -> Vec<u8> {
    Random::new(1).bytes(setting.n * setting.symbol_len)
}

/// Measures a code that sends source symbols and then these rows.
fn measure_block(name: &str, setting: &Setting, rows: &[(CodeId, Row)]) -> Result<Speed, Error> {
    let decoder = BlockDecoder::with_engine(setting.engine);
    let patterns = patterns(setting).take(ATTEMPTS);
    measure_rows(name, setting, (rows, rows.len()), patterns, decoder)
}

/// Encodes `rows`, and decodes those patterns of lost source symbols that the
/// first `arrived` of these restore: for the paper's code that is not every one.
fn measure_rows(
    name: &str,
    setting: &Setting,
    (rows, arrived): (&[(CodeId, Row)], usize),
    patterns: impl IntoIterator<Item = Vec<usize>>,
    mut decoder: BlockDecoder,
) -> Result<Speed, Error> {
    let Setting { n, symbol_len, .. } = *setting;
    let source = source_of(setting);
    let mut symbols = vec![0; rows.len() * symbol_len];
    let mut encoder = Encoder::with_engine(setting.engine);
    encoder.encode_rows(n, symbol_len, &source, rows, &mut symbols)?;
    let encode = best_of(setting.time, || {
        let result = encoder.encode_rows(n, symbol_len, &source, rows, &mut symbols);
        black_box(result.is_ok());
    });
    let repairs: Vec<Repair<'_>> = rows[..arrived]
        .iter()
        .zip(symbols.chunks(symbol_len))
        .map(|(&(code, row), symbol)| Repair { code, row, symbol })
        .collect();
    let mut memory = source.clone();
    let mut maps = Vec::new();
    let mut lacking = usize::MAX;
    for pattern in patterns {
        let mut have = vec![u64::MAX; bits::words(n)];
        for i in pattern {
            bits::remove(&mut have, i);
            memory[i * symbol_len..][..symbol_len].fill(0);
        }
        match decoder.decode(n, symbol_len, &mut memory, &have, &repairs) {
            Ok(_) => {
                assert!(memory == source, "{name} restored something else");
                maps.push(have);
            }
            Err(Error::NotDecodable { deficit }) => {
                lacking = lacking.min(deficit);
                memory.copy_from_slice(&source);
            }
            Err(error) => return Err(error),
        }
        if maps.len() == PATTERNS {
            break;
        }
    }
    if maps.is_empty() {
        return Err(Error::NotDecodable { deficit: lacking });
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
/// many rows as peeling happens to need, where as large a share of them is lost
/// as of the symbols of other codes. The mean of several flights, as that
/// differs much.
fn measure_lt(setting: &Setting) -> Result<Speed, Error> {
    let Setting { n, lost, draw, .. } = *setting;
    let rate = (lost as f64 / n as f64).min(params::LOSS_MAX);
    let mut channel = Channel::new(Loss::Independent { rate }, draw);
    let mut seed = Random::new(draw).bits() as u32;
    let (name, flights) = (CodeId::Lt.name(), PATTERNS as u32);
    let each = Setting {
        time: setting.time / flights,
        ..*setting
    };
    let mut speeds = Vec::new();
    for _ in 0..flights {
        let (rows, arrived) = lt_flight(n, &mut seed, &mut channel)?;
        let all = [(0..n).collect()];
        let decoder = BlockDecoder::with_engine(setting.engine);
        let flight = (&rows[..], arrived);
        speeds.push(measure_rows(name, &each, flight, all, decoder)?);
    }
    let mean = |pick: fn(&Speed) -> Duration| speeds.iter().map(pick).sum::<Duration>() / flights;
    let (encode, decode) = (mean(|speed| speed.encode), mean(|speed| speed.decode));
    let rows: usize = speeds.iter().map(|speed| speed.repairs).sum();
    Ok(Speed {
        repairs: (rows as f64 / f64::from(flights)).round() as usize,
        lost: n,
        ..Speed::new(name, setting, encode, decode)
    })
}

/// What is sent until a block can be decoded, and how much of it arrives: that
/// comes first.
fn lt_flight(
    n: usize,
    seed: &mut u32,
    channel: &mut Channel,
) -> Result<(Vec<(CodeId, Row)>, usize), Error> {
    let mut tracker = Tracker::new(n)?;
    let mut maker = RowMaker::new();
    let (mut rows, mut lost) = (Vec::new(), Vec::new());
    while !tracker.is_decodable() {
        *seed = seed.wrapping_add(1);
        let row = lt::Shape::default().row(*seed);
        if channel.loses_next() {
            lost.push((CodeId::Lt, row));
        } else {
            tracker.add_repair(&mut maker, CodeId::Lt, row);
            rows.push((CodeId::Lt, row));
        }
    }
    let arrived = rows.len();
    rows.append(&mut lost);
    Ok((rows, arrived))
}

/// Turns of `n` symbols in which what a stream's receiver gives out is compared,
/// before it is measured.
const TURNS_COMPARED: usize = 4;

/// The sliding window: repairs evenly between `n` source symbols of a stream,
/// with a window of `n` symbols, and `lost` of them lost, evenly too.
fn measure_window(setting: &Setting) -> Result<Speed, Error> {
    let Setting {
        engine,
        n,
        repairs,
        lost,
        symbol_len,
        time,
        ..
    } = *setting;
    let source = source_of(setting);
    let mut out = vec![0; symbol_len];
    let mut turn = |encoder: &mut WindowEncoder, each: Each<'_>| {
        for symbol in source.chunks(symbol_len) {
            let number = encoder.push(symbol);
            each(number, Ok(symbol));
            while let Some((first, count, row)) = encoder.next_repair(&mut out) {
                each(first, Err((count, row, &out)));
            }
        }
    };
    let redundancy = repairs as f64 / n as f64;
    let encoder = || -> Result<_, Error> {
        Ok(WindowEncoder::new(n, redundancy, symbol_len)?.with_engine(engine))
    };
    let mut only_encoded = encoder()?;
    // The first turn fills the window.
    turn(&mut only_encoded, &mut |_, _| {});
    let encode = best_of(time, || turn(&mut only_encoded, &mut |_, _| {}));
    // Decoding is measured with the encoding of its input, which is then
    // subtracted: repairs of a stream cannot be used twice.
    let mut encoder = encoder()?;
    let mut listener = Listener::new(setting, &source)?;
    for _ in 0..TURNS_COMPARED {
        turn(&mut encoder, &mut |number, packet| {
            listener.hear(number, packet, true);
        });
    }
    let lacks = Error::NotDecodable {
        deficit: lost.saturating_sub(repairs).max(1),
    };
    if listener.restored < TURNS_COMPARED * lost {
        return Err(lacks);
    }
    let both = best_of(time, || {
        turn(&mut encoder, &mut |number, packet| {
            listener.hear(number, packet, false);
        });
    });
    if listener.given_up > 0 {
        return Err(lacks);
    }
    let decode = both.saturating_sub(encode);
    Ok(Speed::new(CodeId::Window.name(), setting, encode, decode))
}

/// The receiver of a stream that has the same source symbols again and again.
struct Listener<'a> {
    n: u64,
    lost: u64,
    symbol_len: usize,
    source: &'a [u8],
    decoder: WindowDecoder,
    memory: Vec<u8>,
    /// Source symbols that repairs brought back.
    restored: usize,
    /// Source symbols that it is too late for.
    given_up: u64,
}

impl<'a> Listener<'a> {
    fn new(setting: &Setting, source: &'a [u8]) -> Result<Self, Error> {
        let Setting { n, symbol_len, .. } = *setting;
        let capacity = (2 * n).min(sphinx_fec::SYMBOLS_MAX);
        let decoder = WindowDecoder::new(capacity, symbol_len)?;
        Ok(Self {
            n: n as u64,
            lost: setting.lost as u64,
            symbol_len,
            source,
            decoder: decoder.with_engine(setting.engine),
            memory: vec![0; capacity * symbol_len],
            restored: 0,
            given_up: 0,
        })
    }

    fn is_lost(&self, symbol: u64) -> bool {
        (symbol + 1) * self.lost / self.n > symbol * self.lost / self.n
    }

    /// Takes a packet, and gives out what it brings.
    fn hear(&mut self, number: u64, packet: Result<&[u8], Sum<'_>>, is_compared: bool) {
        let len = self.symbol_len;
        match packet {
            Ok(_) if self.is_lost(number) => {}
            Ok(symbol) => {
                if let Some(slot) = self.decoder.slot(number) {
                    self.memory[slot * len..][..len].copy_from_slice(symbol);
                    self.decoder.add_source(&mut self.memory, number);
                }
            }
            Err((count, row, symbol)) => {
                let code = CodeId::Window;
                let repair = Repair { code, row, symbol };
                self.decoder
                    .add_repair(&mut self.memory, number, count, repair);
            }
        }
        while self.decoder.next_restored().is_some() {
            self.restored += 1;
        }
        while let Some(delivery) = self.decoder.next_in_order() {
            match delivery {
                Delivery::Symbol { symbol, slot } if is_compared => {
                    let at = (symbol % self.n) as usize;
                    assert!(
                        self.memory[slot * len..][..len] == self.source[at * len..][..len],
                        "window restored something else"
                    );
                }
                Delivery::Symbol { .. } => {}
                Delivery::Lost { count, .. } => self.given_up += count,
            }
        }
    }
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
        symbol_len,
        time,
        ..
    } = *setting;
    let source = source_of(setting);
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
    let patterns: Vec<Vec<usize>> = patterns(setting).take(PATTERNS).collect();
    let mut lacking = usize::MAX;
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
            lacking = lacking.min(receiver.deficit());
            if receiver.deficit() == 0 {
                best.all = best.all.min(start.elapsed());
                best.last = best.last.min(last);
            }
        }
        if lacking > 0 {
            return Err(Error::NotDecodable { deficit: lacking });
        }
    }
    assert!(memory == source, "rlc restored something else");
    Ok(best)
}

/// Extent, row and bytes of a repair of a stream.
type Sum<'a> = (usize, Row, &'a [u8]);

/// Takes a source symbol or a repair, and the number of its first symbol.
type Each<'a> = &'a mut dyn FnMut(u64, Result<&[u8], Sum<'_>>);

/// A program that measures a code of somebody else's.
#[derive(Clone, Debug)]
pub struct Program {
    /// What the code is called.
    pub name: String,
    /// Path of the program that measures the code.
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
        match times(&text, n * symbol_len) {
            Some([encode, decode]) => Ok(Speed {
                engine: "its own",
                ..Speed::new(&self.name, setting, encode, decode)
            }),
            None => Err(failed(format!("two speeds in MB/s expected, not {text:?}"))),
        }
    }
}

/// What so many bytes take at two speeds in MB/s; `None` if there are no two, or
/// they are none that anything can have.
fn times(text: &str, bytes: usize) -> Option<[Duration; 2]> {
    let time = |word: &str| {
        let mb_s: f64 = word.parse().ok()?;
        let time = Duration::try_from_secs_f64(bytes as f64 / (mb_s * 1e6)).ok();
        time.filter(|time| !time.is_zero())
    };
    let times: Option<Vec<Duration>> = text.split_whitespace().map(time).collect();
    times?.try_into().ok()
}

/// How many times as fast one is as the other: what rounds in which both were
/// measured say together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The geometric mean.
    pub mean: f64,
    /// 95 % confidence interval of the mean; `None` after one round.
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
        let patterns: Vec<Vec<usize>> = patterns(setting).take(PATTERNS).collect();
        let peers = crate::peers::all(setting, &source_of(setting), &patterns);
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
        let error = (high / low).ln() / 2.0 / 12.706;
        assert!((error - 4.0_f64.ln() / 2.0).abs() < 1e-9, "{error}");
        let many = Ratio::of(&[1.5; 30]).and_then(|ratio| ratio.interval);
        assert!(many.is_some_and(|(low, high)| (high - low).abs() < 1e-9));
    }

    fn setting() -> Setting {
        Setting {
            engine: Engine::detect(),
            n: 32,
            repairs: 8,
            lost: 2,
            symbol_len: 64,
            time: Duration::from_millis(1),
            draw: 0,
        }
    }

    #[test]
    fn programs_tell_their_speed() {
        let setting = Setting {
            n: 100,
            repairs: 14,
            lost: 6,
            symbol_len: 1000,
            ..setting()
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
        let ms = Duration::from_millis;
        assert_eq!(times("100 50\n", 100_000), Some([ms(1), ms(2)]));
        for text in [
            "", "1", "1 2 3", "0 1", "1 -1", "NaN 1", "inf 1", "1e-300 1", "1 1e300", "a b",
        ] {
            assert_eq!(times(text, 100_000), None, "{text}");
        }
    }

    #[test]
    fn every_code_can_be_measured() {
        let setting = setting();
        for code in CodeId::ALL {
            match measure(code, &setting) {
                Ok(speed) => {
                    assert_eq!((speed.code.as_str(), speed.n), (code.name(), 32));
                    assert!(speed.encode_mb_s() > 0.0);
                    let lost = if code == CodeId::Lt { 32 } else { 2 };
                    assert_eq!(speed.lost, lost, "{code:?}");
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

    #[test]
    fn what_cannot_be_restored_has_no_speed() {
        for (n, repairs) in [(32, 8), (100, 14), (100, 1), (16, 12)] {
            let with = |lost| Setting {
                n,
                repairs,
                lost,
                ..setting()
            };
            for code in [CodeId::Rlc, CodeId::Window] {
                for lost in [0, 1, repairs - 1, repairs] {
                    let speed = measure(code, &with(lost));
                    let lost_there = speed.map(|speed| speed.lost);
                    assert_eq!(lost_there, Ok(lost), "{code:?} {n} {repairs}");
                }
                for more in [1, 6].into_iter().filter(|more| repairs + more <= n) {
                    let lacks = Error::NotDecodable { deficit: more };
                    let speed = measure(code, &with(repairs + more));
                    assert_eq!(speed.err(), Some(lacks), "{code:?} {n} {repairs}");
                }
            }
            let lacks = Error::NotDecodable { deficit: 4 };
            let arrival = (repairs + 4 <= n).then(|| measure_arrival(&with(repairs + 4)));
            assert!(arrival.is_none_or(|arrival| arrival.err() == Some(lacks)));
        }
    }

    /// Half of the blocks are decoded with as many rows as the paper sends, and
    /// those are what is measured.
    #[test]
    fn the_papers_code_has_the_rows_of_its_rule() {
        let setting = Setting {
            n: 100,
            lost: 6,
            ..setting()
        };
        let repairs = |threshold| {
            let speed = measure_srlt(&setting, threshold).expect("some are decoded");
            speed.repairs
        };
        assert_eq!((repairs(0.5), repairs(0.9)), (15, 27));
    }

    /// Rows that peeling alone would hardly ever make anything of.
    #[test]
    fn rows_that_only_add_up_are_eliminated() {
        let setting = Setting {
            n: 64,
            repairs: 35,
            lost: 13,
            ..setting()
        };
        assert!(measure_xor(&setting, 31).is_ok());
    }

    /// 137 on average at 6 % loss, and 130 without any.
    #[test]
    fn lt_has_as_many_rows_as_losses_take() {
        let rows = |lost| {
            let of_draw = |draw| {
                let setting = Setting {
                    n: 100,
                    lost,
                    draw,
                    time: Duration::ZERO,
                    ..setting()
                };
                measure(CodeId::Lt, &setting).expect("any rows do").repairs
            };
            (0..8).map(of_draw).sum::<usize>() / 8
        };
        assert!((125..136).contains(&rows(0)), "{}", rows(0));
        assert!((130..144).contains(&rows(6)), "{}", rows(6));
    }
}
