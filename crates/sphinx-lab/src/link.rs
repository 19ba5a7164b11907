//! The links that are measured.

use std::{cell::RefCell, collections::BTreeMap, io, time::Duration};

use sphinx_link::{
    Aqm, Depth, Flows, LinkConfig, Loss, Rate, RateStep,
    front::FrontConfig,
    settings::{LinkSettings, ReadFile, SettingError},
};

use crate::machine::beginning;

/// Sets the seeds of the two directions apart.
const RETURN_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A link with the same rate and delay in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// Bits per second at the IP layer; with [`cellular`](LinkSpec::cellular), on average. Of a rate that varies with the
    /// seed, the mean of the course of seed 0: what a link is known by. Of a run, [`rate_until`](LinkSpec::rate_until) tells.
    pub rate: u64,
    /// Round-trip time of an empty link.
    pub rtt: Duration,
    /// Loss towards the receiver. A lost packet has used the link.
    pub forward: Loss,
    /// Loss towards the sender.
    pub back: Loss,
    /// The drop-tail queue of each direction; none: one bandwidth-delay product.
    pub queue: Option<Depth>,
    /// ECN-capable packets that find more than this waiting are marked.
    pub mark: Option<Depth>,
    /// The seed of a rate that varies as that of a mobile phone does.
    pub cellular: Option<u64>,
    /// What [`with_settings`](LinkSpec::with_settings) has made of it.
    pub adjusted: Option<Adjusted>,
}

/// A link after the emulator's own settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjusted {
    /// The settings in words.
    text: String,
    /// The files that they name, and the beginnings of their hashes.
    files: BTreeMap<String, String>,
    /// Towards the receiver and back, but for their seeds.
    directions: [LinkConfig; 2],
}

impl LinkSpec {
    /// 200 Mbit/s without loss.
    pub fn clean(rtt: Duration) -> LinkSpec {
        LinkSpec {
            rate: 200_000_000,
            rtt,
            forward: Loss::None,
            back: Loss::None,
            queue: None,
            mark: None,
            cellular: None,
            adjusted: None,
        }
    }

    /// The link with settings of [`LinkSettings`], such as `jitter` to `2ms,reorder` or `return.aqm` to
    /// `codel`. What they say of rate, delay, loss and queue replaces what was there. `read` reads the
    /// files that they name.
    ///
    /// # Errors
    ///
    /// [`SettingError`]; a rate without limit and a seed are among the values that are refused.
    pub fn with_settings(
        mut self,
        settings: &BTreeMap<String, String>,
        read: ReadFile<'_>,
    ) -> Result<LinkSpec, SettingError> {
        let refuse = |key, message: &str| SettingError::Value {
            key,
            message: message.to_owned(),
        };
        let mut parsed = LinkSettings::default();
        // Keys of one direction, such as "forward.rate", are applied after those of both; the map has them sorted by name.
        let (of_one, of_both): (Vec<_>, Vec<_>) =
            (settings.iter()).partition(|(key, _)| key.contains('.'));
        for (key, value) in of_both.into_iter().chain(of_one) {
            if key.ends_with("seed") {
                return Err(refuse("seed", "seeds are those of the scenario"));
            }
            if key.ends_with("radio") {
                let only = "`sphx lab link` and `sphx lab path` have it, scenarios do not";
                return Err(refuse("radio", only));
            }
            parsed.set(key, value)?;
        }
        let FrontConfig {
            left_to_right: mut forward,
            right_to_left: mut back,
            ..
        } = self.front(0);
        let files = RefCell::new(BTreeMap::new());
        let noted = |path: &str| -> io::Result<String> {
            let text = read(path)?;
            let hash = beginning(blake3::hash(text.as_bytes()));
            files.borrow_mut().insert(path.to_owned(), hash);
            Ok(text)
        };
        parsed.forward.change(&mut forward, &noted)?;
        parsed.back.change(&mut back, &noted)?;
        self.rate = forward
            .mean_bits_per_second()
            .filter(|mean| *mean > 0)
            .ok_or_else(|| refuse("rate", "a scenario needs a rate"))?;
        self.rtt = forward.delay + back.delay;
        self.forward = forward.loss.clone();
        self.back = back.loss.clone();
        let text: Vec<String> = settings
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        self.adjusted = Some(Adjusted {
            text: text.join(", "),
            files: files.into_inner(),
            directions: [forward, back],
        });
        Ok(self)
    }

    /// What fits into the link at once, in bytes.
    pub fn bandwidth_delay_product(&self) -> u64 {
        let bits = u128::from(self.rate) * self.rtt.as_nanos() / 1_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }

    /// Bits per second that it offers towards the receiver on average from its start until this time, with this seed.
    pub fn rate_until(&self, seed: u64, time: Duration) -> f64 {
        let forward = self.front(seed).left_to_right;
        match (&forward.rate, forward.bits_until(time)) {
            (Rate::Constant(_), _) | (_, None) => self.rate as f64,
            _ if time.is_zero() => self.rate as f64,
            (_, Some(bits)) => bits as f64 / time.as_secs_f64(),
        }
    }

    /// Long-term share of packets lost towards the receiver.
    pub fn forward_loss(&self) -> f64 {
        self.forward.mean()
    }

    /// The emulator's settings. One seed loses the same packets of each flow, by their index, in every
    /// run.
    pub fn front(&self, seed: u64) -> FrontConfig {
        let [forward, back] = match &self.adjusted {
            Some(adjusted) => adjusted.directions.clone(),
            None => self.directions(),
        };
        FrontConfig {
            left_to_right: LinkConfig { seed, ..forward },
            right_to_left: LinkConfig {
                seed: seed.wrapping_add(RETURN_SEED),
                ..back
            },
            ..FrontConfig::default()
        }
    }

    fn directions(&self) -> [LinkConfig; 2] {
        // Two packets always fit, however slow and short the link.
        let product = Depth::Bytes(self.bandwidth_delay_product().max(3000));
        let direction = LinkConfig {
            rate: match self.cellular {
                None => Rate::Constant(self.rate),
                Some(seed) => cellular(self.rate, seed),
            },
            queue: self.queue.unwrap_or(product),
            aqm: self.mark.map(Aqm::mark_above).unwrap_or_default(),
            delay: self.rtt / 2,
            flows: Flows::Apart,
            ..LinkConfig::default()
        };
        [&self.forward, &self.back].map(|loss| LinkConfig {
            loss: loss.clone(),
            ..direction.clone()
        })
    }

    /// The link in a few words.
    pub fn description(&self) -> String {
        let mut text = format!(
            "{} Mbit/s{}, RTT {} ms, {}",
            self.rate as f64 / 1e6,
            match self.cellular {
                None => "",
                Some(_) => " on average, varying as a mobile phone's",
            },
            self.rtt.as_secs_f64() * 1e3,
            describe_loss(&self.forward),
        );
        if self.back.mean() > 0.0 {
            let back = describe_loss(&self.back).replace(" loss", "");
            text += &format!(", {back} on the way back");
        }
        match self.queue {
            None => {}
            Some(Depth::Bytes(bytes)) => text += &format!(", queue {} kB", bytes as f64 / 1e3),
            Some(Depth::Packets(packets)) => text += &format!(", queue {packets} packets"),
            Some(Depth::Time(time)) => text += &format!(", queue {} ms", time.as_millis()),
        }
        if self.mark.is_some() {
            text += ", ECN marks";
        }
        if let Some(adjusted) = &self.adjusted {
            text += &format!("; {}", adjusted.text);
        }
        text
    }
}

impl LinkSpec {
    /// What [`description`](LinkSpec::description) leaves out or rounds, although it makes another link.
    pub(crate) fn details(&self) -> Vec<String> {
        let mut details = Vec::new();
        if let Loss::GilbertElliott(model) = &self.forward {
            let burst = 1.0 / model.bad_to_good;
            if (burst - burst.round()).abs() > 1e-9 {
                details.push(format!("bursts of {burst:.6}"));
            }
        }
        if let Some(Depth::Time(time)) = self.queue
            && time.subsec_nanos() % 1_000_000 != 0
        {
            details.push(format!("queue {} us", time.as_nanos() as f64 / 1e3));
        }
        match self.mark {
            None => {}
            Some(Depth::Bytes(bytes)) => details.push(format!("marks above {bytes} B")),
            Some(Depth::Packets(packets)) => {
                details.push(format!("marks above {packets} packets"));
            }
            Some(Depth::Time(time)) => {
                details.push(format!("marks above {} us", time.as_nanos() as f64 / 1e3));
            }
        }
        details.extend(self.cellular.map(|seed| format!("rate of seed {seed}")));
        let files = self.adjusted.iter().flat_map(|adjusted| &adjusted.files);
        details.extend(files.map(|(path, hash)| format!("{path} is {hash}")));
        details
    }
}

fn describe_loss(loss: &Loss) -> String {
    match loss {
        Loss::GilbertElliott(model) => format!(
            "{:.3} % loss in bursts of {:.0}",
            model.mean_loss() * 100.0,
            1.0 / model.bad_to_good
        ),
        Loss::Bytes(mean) => format!("errors every {}", sphinx_units::show_size(*mean)),
        Loss::Periods(periods) => {
            format!("{:.3} % loss by periods", periods.mean_loss() * 100.0)
        }
        // Shares such as 0.07 are not exact in binary.
        _ => format!("{} % loss", (loss.mean() * 1e8).round() / 1e6),
    }
}

/// From one change of a varying rate to the next.
const STEP: Duration = Duration::from_millis(200);
/// Steps until a varying rate repeats itself: two minutes.
const STEPS: u32 = 600;
/// How much of its deviation the logarithm of the rate keeps from step to step.
const RATE_CORRELATION: f64 = 0.93;
/// Standard deviation of the logarithm of the rate.
const DEVIATION: f64 = 0.55;
/// One step in so many begins a fade.
const FADE_ONE_IN: u64 = 75;
/// Steps that a fade lasts.
const FADE_STEPS: u32 = 6;
/// What a fade leaves of the rate.
const FADE: f64 = 0.08;

/// A rate that wanders (the logarithm is a first-order autoregressive process) and fades now and
/// then for a second, as traces from moving mobile phones do.
fn cellular(mean: u64, seed: u64) -> Rate {
    let mut random = Random(seed);
    let (mut deviation, mut fading) = (0.0, 0);
    let mut shape: Vec<f64> = (0..STEPS)
        .map(|_| {
            let fresh = (1.0 - RATE_CORRELATION * RATE_CORRELATION).sqrt() * DEVIATION;
            deviation = RATE_CORRELATION * deviation + fresh * random.normal();
            fading = match random.next() % FADE_ONE_IN {
                0 => FADE_STEPS,
                _ => u32::saturating_sub(fading, 1),
            };
            deviation.exp() * if fading > 0 { FADE } else { 1.0 }
        })
        .collect();
    let sum: f64 = shape.iter().sum();
    for value in &mut shape {
        *value *= f64::from(STEPS) / sum;
    }
    let steps = shape.iter().zip(0..).map(|(share, index)| RateStep {
        at: STEP * index,
        bits_per_second: (mean as f64 * share) as u64,
    });
    Rate::Steps {
        steps: steps.collect(),
        repeat: Some(STEP * STEPS),
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(RETURN_SEED);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Uniform from 0 to below 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Mean 0, deviation 1: the sum of twelve uniform values, less six.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_one_bandwidth_delay_product() {
        let link = LinkSpec::clean(Duration::from_millis(10));
        assert_eq!(link.bandwidth_delay_product(), 250_000);
        assert_eq!(link.front(1).left_to_right.queue, Depth::Bytes(250_000));
    }

    fn adjusted(settings: &[(&str, &str)]) -> Result<LinkSpec, SettingError> {
        let pairs = settings
            .iter()
            .map(|(key, value)| (String::from(*key), String::from(*value)));
        let read = |_: &str| Ok("10\n20\n".to_owned());
        LinkSpec::clean(Duration::from_millis(10)).with_settings(&pairs.collect(), &read)
    }

    #[test]
    fn settings_replace_what_was_there() {
        let link = adjusted(&[
            ("jitter", "2ms,reorder"),
            ("rate", "trace:lte"),
            ("return.loss", "5%"),
            ("rtt", "40ms"),
        ])
        .unwrap();
        assert_eq!((link.rate, link.rtt.as_millis()), (1_200_000, 40));
        assert_eq!((link.forward_loss(), link.back.mean()), (0.0, 0.05));
        let (front, other) = (link.front(3), link.front(4));
        assert_eq!(front.left_to_right.seed, 3);
        assert_ne!(front.right_to_left.seed, other.right_to_left.seed);
        assert!(matches!(front.left_to_right.rate, Rate::Trace(_)));
        // What was not set stays.
        assert_eq!(front.left_to_right.queue, Depth::Bytes(250_000));
        assert_eq!(front.left_to_right.flows, Flows::Apart);
        let text = link.description();
        assert!(text.contains("jitter=2ms,reorder"), "{text}");
    }

    #[test]
    fn what_is_of_one_direction_comes_last() {
        // The alphabet has `forward` before `loss` and `queue`, and `return` before `rtt`.
        let link = adjusted(&[
            ("forward.loss", "10%"),
            ("loss", "2%"),
            ("return.delay", "30ms"),
            ("rtt", "20ms"),
        ])
        .unwrap();
        assert_eq!((link.forward_loss(), link.back.mean()), (0.1, 0.02));
        assert_eq!(link.rtt.as_millis(), 40);
    }

    #[test]
    fn links_that_look_alike_have_details() {
        let clean = LinkSpec::clean(Duration::from_millis(10));
        assert_eq!(clean.details(), [""; 0]);
        let micros = |count| Some(Depth::Time(Duration::from_micros(count)));
        let marked = |mark, queue, cellular| LinkSpec {
            mark: micros(mark),
            queue: micros(queue),
            cellular: Some(cellular),
            ..clean.clone()
        };
        let first = marked(5000, 1000, 1);
        assert_eq!(first.details(), ["marks above 5000 us", "rate of seed 1"]);
        for other in [
            marked(500, 1000, 1),
            marked(5000, 1500, 1),
            marked(5000, 1000, 2),
        ] {
            assert_eq!(other.description(), first.description());
            assert_ne!(other.details(), first.details());
        }
        let traced = |trace: &'static str| {
            let settings = [("rate".to_owned(), "trace:lte".to_owned())];
            let read = move |_: &str| Ok(trace.to_owned());
            let link = clean.clone().with_settings(&settings.into(), &read);
            link.unwrap()
        };
        // As many packets in the same time.
        let (early, late) = (traced("1\n2\n20\n"), traced("18\n19\n20\n"));
        assert_eq!(early.description(), late.description());
        assert_ne!(early.details(), late.details());
    }

    #[test]
    fn a_rate_that_varies_is_another_one_in_each_run() {
        let seconds = Duration::from_secs;
        let link = adjusted(&[("rate", "routes:10mbit-100mbit,15s,50ms-200ms")]).unwrap();
        let first = link.rate_until(1, seconds(15));
        assert_ne!(first, link.rate_until(2, seconds(15)));
        // The first route has no pause, and the second one is another.
        assert_eq!(first, link.rate_until(1, seconds(1)));
        assert_ne!(first, link.rate_until(1, seconds(30)));
        let whole = link.rate_until(0, seconds(120));
        assert!((whole / link.rate as f64 - 1.0).abs() < 1e-6, "{whole}");
        assert_eq!(link.rate_until(0, Duration::ZERO), link.rate as f64);
        let always = LinkSpec::clean(seconds(1));
        assert_eq!(always.rate_until(1, seconds(7)), 200e6);
    }

    #[test]
    fn impossible_settings_are_refused() {
        for (key, value, words) in [
            ("seed", "3", "scenario"),
            ("return.seed", "3", "scenario"),
            ("rate", "unlimited", "needs a rate"),
            ("loss", "110%", "loss"),
            ("lost", "1%", "no setting"),
        ] {
            let error = adjusted(&[(key, value)]).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_varying_rate_keeps_its_mean_and_its_seed() {
        let Rate::Steps { steps, .. } = cellular(20_000_000, 3) else {
            panic!("steps");
        };
        let rates = || steps.iter().map(|step| step.bits_per_second as f64);
        let mean = rates().sum::<f64>() / steps.len() as f64;
        assert!((mean / 20e6 - 1.0).abs() < 1e-3, "{mean}");
        assert!(rates().fold(f64::MAX, f64::min) < 5e6);
        assert!(rates().fold(0.0, f64::max) > 30e6);
        assert_eq!(cellular(1000, 3), cellular(1000, 3));
        assert_ne!(cellular(1000, 3), cellular(1000, 4));
        let link = LinkSpec {
            cellular: Some(3),
            ..LinkSpec::clean(STEP)
        };
        assert_eq!(link.front(1).left_to_right.validate(), Ok(()));
    }
}
