//! The keys of `--paper`, and their encoding in the parameters of the handshake.

use std::time::Duration;

use sphinx_fec::CodeId;

use crate::Nanos;
use crate::session::BASE_DATAGRAM;
use crate::wire::{OVERHEAD, Reader, VARINT_MAX, WireError, block_symbols_max, put_varint};

/// Version of the settings on the wire.
const VERSION: u64 = 1;
const MILLION: f64 = 1e6;
/// A symbol fits a packet that every path carries.
pub(super) const SYMBOL_MAX: u16 = BASE_DATAGRAM - OVERHEAD as u16;
const SYMBOL_MIN: u16 = 16;
/// Symbols of `rs` and their repairs.
const RS_SYMBOLS: u32 = 256;

/// Which value δ of the paper's rule takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta {
    /// A fixed share, in millionths.
    Share(u32),
    /// The deviation of the receiver's reports.
    Measured,
}

/// What an unrecovered block gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resend {
    /// Its missing originals, and packets over these.
    Missing,
    /// The whole block once more.
    Block,
}

/// Which feedback lets the sender compensate at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Triggers {
    /// Block-SACKs with a gap.
    pub block: bool,
    /// Symbol-SACKs, by the rule.
    pub symbol: bool,
}

/// Settings of the paper's mode. Shares are in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paper {
    /// `srlt`, `lt`, `rs` or `fft-rs`.
    pub code: CodeId,
    /// Symbols of a block.
    pub n: u16,
    /// Bytes of a symbol.
    pub symbol: u16,
    /// T of the paper's rule, in millionths.
    pub threshold: u32,
    /// δ of the paper's rule.
    pub delta: Delta,
    /// Packets over which the receiver counts losses.
    pub period: u32,
    /// What triggers compensation at once.
    pub icm: Triggers,
    /// What compensation sends.
    pub resend: Resend,
    /// Share of the missing originals that is sent again.
    pub part: u32,
    /// A Symbol-SACK must report on more blocks than this,
    pub blocks: u16,
    /// and on more symbols of the latest one.
    pub symbols: u16,
    /// After how much time without a packet of it a block that is not decoded is compensated in any case, microseconds.
    pub timer_us: u64,
    /// Blocks on their way; at the beginning, where the window adapts.
    pub window: u16,
    /// Packet loss rate before the first report.
    pub initial: u32,
    /// Share of repairs of `rs` and `fft-rs`.
    pub redundancy: u32,
}

impl Default for Paper {
    fn default() -> Self {
        Self {
            code: CodeId::Srlt,
            n: 100,
            symbol: 1000,
            threshold: 500_000,
            delta: Delta::Share(0),
            period: 1000,
            icm: Triggers {
                block: true,
                symbol: true,
            },
            resend: Resend::Missing,
            part: 1_000_000,
            blocks: 2,
            symbols: 3,
            timer_us: 200_000,
            window: 16,
            initial: 20_000,
            redundancy: 140_000,
        }
    }
}

/// A share that is given in millionths.
pub(super) fn share(millionths: u32) -> f64 {
    f64::from(millionths) / MILLION
}

impl Paper {
    /// From `KEY=VALUE,…`, which may be empty; `share` and `duration` understand what people write.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(
        text: &str,
        share: fn(&str) -> Result<f64, String>,
        duration: fn(&str) -> Result<Duration, String>,
    ) -> Result<Self, String> {
        let mut paper = Self::default();
        let mut seen = Vec::new();
        for setting in text.split(',').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("{setting}: expected KEY=VALUE"))?;
            if seen.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key);
            let millionths = || match share(value) {
                Ok(share) => Ok((share * MILLION).round().clamp(0.0, f64::from(u32::MAX)) as u32),
                Err(why) => Err(format!("{setting}: {why}")),
            };
            let expected = |what: &str| format!("{setting}: expected {what}");
            match key {
                "code" => {
                    paper.code = match value {
                        "srlt" => CodeId::Srlt,
                        "lt" => CodeId::Lt,
                        "rs" => CodeId::Rs,
                        "fft-rs" => CodeId::FftRs,
                        _ => return Err(expected("srlt, lt, rs or fft-rs")),
                    }
                }
                "n" => paper.n = number(setting, value)?,
                "symbol" => paper.symbol = number(setting, value)?,
                "period" => paper.period = number(setting, value)?,
                "blocks" => paper.blocks = number(setting, value)?,
                "symbols" => paper.symbols = number(setting, value)?,
                "window" => paper.window = number(setting, value)?,
                "threshold" => paper.threshold = millionths()?,
                "part" => paper.part = millionths()?,
                "initial" => paper.initial = millionths()?,
                "redundancy" => paper.redundancy = millionths()?,
                "delta" if value == "measured" => paper.delta = Delta::Measured,
                "delta" => paper.delta = Delta::Share(millionths()?),
                "icm" => {
                    let (block, symbol) = match value {
                        "both" => (true, true),
                        "block" => (true, false),
                        "symbol" => (false, true),
                        "off" => (false, false),
                        _ => return Err(expected("both, block, symbol or off")),
                    };
                    paper.icm = Triggers { block, symbol };
                }
                "resend" => {
                    paper.resend = match value {
                        "missing" => Resend::Missing,
                        "block" => Resend::Block,
                        _ => return Err(expected("missing or block")),
                    }
                }
                "timer" => {
                    let timer = duration(value).map_err(|why| format!("{setting}: {why}"))?;
                    paper.timer_us = u64::try_from(timer.as_micros()).unwrap_or(u64::MAX);
                }
                _ => {
                    return Err(format!(
                        "{key}: expected code, n, symbol, threshold, delta, period, icm, resend, part, blocks, symbols, timer, \
                         window, initial or redundancy"
                    ));
                }
            }
        }
        paper.check()?;
        Ok(paper)
    }

    /// Whether all is in its range.
    ///
    /// # Errors
    /// What is not, in words.
    pub fn check(&self) -> Result<(), String> {
        let symbols = block_symbols_max(usize::from(self.symbol)) as u16;
        let within = |is: bool, what: String| is.then_some(()).ok_or(what);
        within(
            matches!(
                self.code,
                CodeId::Srlt | CodeId::Lt | CodeId::Rs | CodeId::FftRs
            ),
            "code: srlt, lt, rs or fft-rs".to_owned(),
        )?;
        within(
            (SYMBOL_MIN..=SYMBOL_MAX).contains(&self.symbol),
            format!(
                "symbol: from {SYMBOL_MIN} to {SYMBOL_MAX} bytes, so that one fits a packet on every path"
            ),
        )?;
        within(
            (2..=symbols).contains(&self.n),
            format!("n: from 2 to {symbols} symbols of {} bytes", self.symbol),
        )?;
        within(
            (300_000..=990_000).contains(&self.threshold),
            "threshold: from 0.3 to 0.99".to_owned(),
        )?;
        let delta = match self.delta {
            Delta::Share(share) => share,
            Delta::Measured => 0,
        };
        within(
            delta <= 500_000,
            "delta: at most 50%, or measured".to_owned(),
        )?;
        within(
            (50..=1_000_000).contains(&self.period),
            "period: from 50 to 1000000 packets".to_owned(),
        )?;
        within(
            (1..=1_000_000).contains(&self.part),
            "part: above 0 and at most 1".to_owned(),
        )?;
        within(
            (1_000..=60_000_000).contains(&self.timer_us),
            "timer: from 1ms to 60s".to_owned(),
        )?;
        within(
            (1..=4096).contains(&self.window),
            "window: from 1 to 4096 blocks".to_owned(),
        )?;
        within(self.initial <= 500_000, "initial: at most 50%".to_owned())?;
        within(
            self.redundancy <= 1_000_000,
            "redundancy: at most 100%".to_owned(),
        )?;
        let repairs = f64::from(self.n) * share(self.redundancy);
        within(
            self.code != CodeId::Rs || f64::from(self.n) + repairs <= f64::from(RS_SYMBOLS),
            format!("code=rs: n and its repairs are at most {RS_SYMBOLS} symbols"),
        )?;
        within(
            self.code != CodeId::FftRs || self.symbol.is_multiple_of(2),
            "code=fft-rs: symbols have an even number of bytes".to_owned(),
        )
    }

    /// The time of [`timer_us`](Self::timer_us).
    pub(super) fn timer(&self) -> Nanos {
        self.timer_us * 1000
    }

    /// The value of the parameter of an end that wants the mode (§2.1).
    pub fn encode(&self) -> Vec<u8> {
        let (delta, measured) = match self.delta {
            Delta::Share(share) => (share, 0),
            Delta::Measured => (0, 1),
        };
        let mut out = Vec::with_capacity(40);
        for value in [
            VERSION,
            u64::from(self.code.to_wire()),
            u64::from(self.n),
            u64::from(self.symbol),
            u64::from(self.threshold),
            u64::from(delta),
            u64::from(measured | u8::from(self.icm.block) << 1 | u8::from(self.icm.symbol) << 2)
                | u64::from(self.resend == Resend::Block) << 3,
            u64::from(self.period),
            u64::from(self.part),
            u64::from(self.blocks),
            u64::from(self.symbols),
            self.timer_us.min(VARINT_MAX),
            u64::from(self.window),
            u64::from(self.initial),
            u64::from(self.redundancy),
        ] {
            put_varint(&mut out, value);
        }
        out
    }

    /// The value of the parameter of an end that knows the mode, and does not ask for it.
    pub fn known() -> Vec<u8> {
        vec![VERSION as u8]
    }

    /// From such a value; `None`: the end knows the mode, or another version of it, and does not ask for it.
    ///
    /// # Errors
    /// If it is malformed or out of range.
    pub fn decode(value: &[u8]) -> Result<Option<Self>, WireError> {
        const BAD: WireError = WireError::Invalid("settings of the paper's mode");
        fn next<T: TryFrom<u64>>(r: &mut Reader<'_>) -> Result<T, WireError> {
            T::try_from(r.varint()?).map_err(|_| BAD)
        }
        let mut r = Reader::new(value);
        if r.varint()? != VERSION || r.is_empty() {
            return Ok(None);
        }
        let r = &mut r;
        let code = CodeId::from_wire(next(r)?).ok_or(BAD)?;
        let (n, symbol, threshold) = (next(r)?, next(r)?, next(r)?);
        let (delta, flags): (u32, u8) = (next(r)?, next(r)?);
        let paper = Self {
            code,
            n,
            symbol,
            threshold,
            delta: match flags & 1 {
                0 => Delta::Share(delta),
                _ => Delta::Measured,
            },
            icm: Triggers {
                block: flags & 2 != 0,
                symbol: flags & 4 != 0,
            },
            resend: match flags & 8 {
                0 => Resend::Missing,
                _ => Resend::Block,
            },
            period: next(r)?,
            part: next(r)?,
            blocks: next(r)?,
            symbols: next(r)?,
            timer_us: next(r)?,
            window: next(r)?,
            initial: next(r)?,
            redundancy: next(r)?,
        };
        let is_whole = r.is_empty() && flags < 16 && (flags & 1 == 0 || delta == 0);
        (is_whole && paper.check().is_ok())
            .then_some(Some(paper))
            .ok_or(BAD)
    }
}

fn number<T: std::str::FromStr>(setting: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{setting}: expected a whole number in its range"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Paper, String> {
        let share = |text: &str| text.parse().map_err(|_| "expected a share".to_owned());
        let duration = |text: &str| {
            let ms = text.strip_suffix("ms").and_then(|ms| ms.parse().ok());
            ms.map(Duration::from_millis)
                .ok_or_else(|| "expected a duration".to_owned())
        };
        Paper::parse(text, share, duration)
    }

    #[test]
    fn keys() {
        assert_eq!(parse(""), Ok(Paper::default()));
        let paper = parse("code=lt,n=64,delta=measured,icm=block,resend=block,timer=11ms,part=0.5")
            .expect("good keys");
        assert_eq!(
            (paper.code, paper.n, paper.delta),
            (CodeId::Lt, 64, Delta::Measured)
        );
        assert_eq!(
            (paper.resend, paper.timer_us, paper.part),
            (Resend::Block, 11_000, 500_000)
        );
        assert_eq!(Paper::decode(&paper.encode()), Ok(Some(paper)));
        for bad in [
            "n",
            "n=1",
            "n=1025",
            "symbol=1163",
            "threshold=0.2",
            "threshold=1",
            "code=xor",
            "icm=on",
            "window=0",
            "part=0",
            "timer=0ms",
            "period=1",
            "n=5,n=6",
            "N=5",
            "n=-1",
            "code=rs,n=240",
            "code=fft-rs,symbol=999",
            "timer=1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_another_end_would_refuse_is_out_of_range() {
        let usual = Paper::default();
        for code in CodeId::ALL {
            let paper = Paper { code, ..usual };
            let is_taken = Paper::decode(&paper.encode()).is_ok();
            assert_eq!(paper.check().is_ok(), is_taken, "{code:?}");
        }
        for paper in [
            Paper { n: 0, ..usual },
            Paper { symbol: 0, ..usual },
            Paper { window: 0, ..usual },
        ] {
            assert!(paper.check().is_err() && Paper::decode(&paper.encode()).is_err());
        }
    }

    #[test]
    fn an_end_that_knows_the_mode_only() {
        assert_eq!(Paper::decode(&Paper::known()), Ok(None));
        assert_eq!(Paper::decode(&[2, 9, 9]), Ok(None));
        assert!(Paper::decode(&[]).is_err() && Paper::decode(&[1, 2]).is_err());
    }

    #[test]
    fn vector() {
        let bytes = [
            1, 2, 0x40, 100, 0x43, 0xe8, 0x80, 7, 0xa1, 0x20, 0, 6, 0x43, 0xe8, 0x80, 15, 0x42,
            0x40, 2, 3, 0x80, 3, 0x0d, 0x40, 16, 0x80, 0, 0x4e, 0x20, 0x80, 2, 0x22, 0xe0,
        ];
        assert_eq!(Paper::default().encode(), bytes);
    }

    proptest! {
        #[test]
        fn total(value in prop::collection::vec(any::<u8>(), 0..48), text in "[a-z]{1,9}=[0-9a-z.%]{0,6}") {
            if let Ok(Some(paper)) = Paper::decode(&value) {
                prop_assert_eq!(Paper::decode(&paper.encode()), Ok(Some(paper)));
            }
            let _ = parse(&text);
        }
    }
}
