//! Links as people write them: `rate=200mbit`, `loss=burst:5%,8`, `return.delay=20ms`.
//!
//! [`SETTINGS`] is the whole language: command-line flags, configuration files and control messages
//! use the same keys and values. All parsers are total.

mod models;
mod queue;
mod value;

use std::{collections::BTreeMap, io};

pub use models::{MODELS, Model};
use thiserror::Error;

use crate::{ConfigError, Flows, LinkConfig};

/// Sets the seeds of the two directions apart.
const RETURN_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// One thing that can be set for each direction of a link.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name.
    pub key: &'static str,
    /// What a value looks like, in one word.
    pub value_name: &'static str,
    /// The value that holds where the setting is not given.
    pub default: &'static str,
    /// What it does, and every form of its value.
    pub help: &'static str,
}

/// All settings, in the order in which a packet meets them.
pub const SETTINGS: [Setting; 21] = [
    Setting {
        key: "mtu",
        value_name: "BYTES",
        default: "none",
        help: "Drop larger packets silently (a hop whose MTU the ends do not know)",
    },
    Setting {
        key: "policer",
        value_name: "RATE,BURST",
        default: "none",
        help: "Drop what exceeds a token bucket, before the queue: 10mbit,30kB",
    },
    Setting {
        key: "queue",
        value_name: "DEPTH",
        default: "1000p",
        help: "What may wait: 100p (packets), 250kB or 50ms (of the present rate)",
    },
    Setting {
        key: "priority",
        value_name: "DSCP",
        default: "none",
        help: "Packets with this DSCP, such as 46, overtake all others in the queue",
    },
    Setting {
        key: "compress",
        value_name: "acks:BYTES",
        default: "none",
        help: "TCP segments that only acknowledge count for so many bytes in the queue and on the link, as where headers are compressed: acks:6B",
    },
    Setting {
        key: "ecn",
        value_name: "RULE",
        default: "keep",
        help: "What becomes of ECN codepoints before the queue: keep, clear, classic (ECT(1) becomes ECT(0)), mark (all become CE), \
               drop (packets with one are dropped)",
    },
    Setting {
        key: "aqm",
        value_name: "AQM",
        default: "none",
        help: "Queue management: codel[:target=5ms,interval=100ms], red:MIN,MAX[,p=10%,weight=0.2%] or \
               step:DEPTH; with ,drop ,mark (others are dropped) or ,mark-only (others pass); or \
               dualpi2[:target=15ms,step=1ms,tupdate=16ms,alpha=0.16,beta=3.2,k=2]",
    },
    Setting {
        key: "rate",
        value_name: "RATE",
        default: "unlimited",
        help: "How fast packets leave the queue: 200mbit, unlimited, \
               steps:0s=10mbit,5s=2mbit[,repeat=10s], trace:FILE (mahimahi), or one that varies at random: \
               fading:MEDIAN,FACTOR,TIME[,GRANT], turns:GAP,PACKETS, routes:SLOWEST-FASTEST,EVERY,PAUSE",
    },
    Setting {
        key: "wake",
        value_name: "IDLE,DELAY",
        default: "none",
        help: "After so long without a packet, the link needs so long to wake up: 10s,100ms",
    },
    Setting {
        key: "radio",
        value_name: "TURNAROUND,SLOT[,HOPS]",
        default: "none",
        help: "One channel for both directions, which take turns: before each packet pass the turnaround and up to 15 \
               slots of backoff at random, and each of the hops sends it once: 2ms,100us,3",
    },
    Setting {
        key: "loss",
        value_name: "LOSS",
        default: "0",
        help: "What the channel loses: 2%, burst:5%,8 (mean loss, mean burst in packets), \
               gilbert:P,R[,LOSS_GOOD,LOSS_BAD], bytes:64KiB (mean distance of errors), \
               periods:GOOD,BAD[,LOSS_GOOD,LOSS_BAD] (times such as 2s or 1ms-20s), packets:0,7-9 or trace:FILE \
               (0s and 1s)",
    },
    Setting {
        key: "blackout",
        value_name: "TIMES",
        default: "none",
        help: "When everything is lost: 10s-12s[,20s-21s…][,repeat=60s]",
    },
    Setting {
        key: "corrupt",
        value_name: "SHARE[,BITS]",
        default: "0",
        help: "Flip bits of so many packets: 0.1% or 0.1%,3",
    },
    Setting {
        key: "duplicate",
        value_name: "SHARE",
        default: "0",
        help: "Deliver so many packets twice",
    },
    Setting {
        key: "delay",
        value_name: "DURATION",
        default: "0ms",
        help: "Propagation delay, one way",
    },
    Setting {
        key: "jitter",
        value_name: "DURATION[,reorder]",
        default: "0ms",
        help: "Random extra delay from 0 to this; packets keep their order unless ',reorder' is added",
    },
    Setting {
        key: "retries",
        value_name: "SHARE,INTERVAL,TRIES",
        default: "0",
        help: "The link itself sends again what it loses: each try fails with this probability, each further one takes \
               so long, and after so many a packet is lost: 10%,8ms,4",
    },
    Setting {
        key: "shift",
        value_name: "EVERY,DURATION",
        default: "none",
        help: "Extra delay from 0 to this, another one each time after so long: 15s,20ms",
    },
    Setting {
        key: "reorder",
        value_name: "SHARE,DURATION",
        default: "0",
        help: "Hold so many packets back for so long, so that others overtake them: 1%,10ms",
    },
    Setting {
        key: "seed",
        value_name: "N",
        default: "1",
        help: "Seed of all random decisions: the same seed loses the same packets",
    },
    Setting {
        key: "flows",
        value_name: "apart|together",
        default: "apart",
        help: "Whether packets are counted flow by flow for these decisions, or all together",
    },
];

/// Reads a file that a setting names.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> io::Result<String>;

/// Why settings cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// A file that cannot be read.
    #[error("{key}: cannot read {path}: {error}")]
    File {
        /// The setting.
        key: &'static str,
        /// The file.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// There is no such setting.
    #[error("there is no setting '{0}'; there are {names}", names = names())]
    Unknown(String),
    /// A value that is not understood or impossible.
    #[error("{key}: {message}")]
    Value {
        /// The setting.
        key: &'static str,
        /// What is wrong, and what is expected.
        message: String,
    },
    /// Something that does not set anything.
    #[error("'{0}' sets nothing: write KEY=VALUE, such as loss=2% or return.loss=0")]
    NoValue(String),
}

fn names() -> String {
    let keys: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    keys.join(", ")
}

/// The key of a setting that exists.
fn known(key: &str) -> Result<&'static str, SettingError> {
    let setting = SETTINGS.iter().find(|setting| setting.key == key);
    setting
        .map(|setting| setting.key)
        .ok_or_else(|| SettingError::Unknown(key.to_owned()))
}

/// The settings of one direction, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<&'static str, String>);

impl Settings {
    /// Sets one, whatever it was before. The value is not looked at yet.
    ///
    /// # Errors
    ///
    /// [`SettingError::Unknown`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        self.0.insert(known(key)?, value.trim().to_owned());
        Ok(())
    }

    /// Sets a setting that has not been set yet.
    fn set_if_unset(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        let entry = self.0.entry(known(key)?);
        entry.or_insert_with(|| value.to_owned());
        Ok(())
    }

    /// All settings with their values, the defaults included.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        SETTINGS.iter().map(|setting| {
            let value = self
                .0
                .get(setting.key)
                .map_or(setting.default, String::as_str);
            (setting.key, value)
        })
    }

    /// Changes what they set, and nothing else, in a valid configuration.
    ///
    /// # Errors
    ///
    /// [`SettingError::Value`] and [`SettingError::File`].
    pub fn change(&self, config: &mut LinkConfig, read: ReadFile<'_>) -> Result<(), SettingError> {
        for (&key, text) in &self.0 {
            apply(config, key, text, read)?;
            // Validated after each setting, so that an error is about this one.
            config.validate().map_err(|error| SettingError::Value {
                key,
                message: error.to_string(),
            })?;
        }
        Ok(())
    }
}

/// The settings of both directions: forward is from left to right, return from right to left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// From left to right.
    pub forward: Settings,
    /// From right to left.
    pub back: Settings,
}

impl LinkSettings {
    /// Sets `key=value` for both directions, `forward.key=value` or `return.key=value` for one.
    ///
    /// # Errors
    ///
    /// [`SettingError::NoValue`] and [`SettingError::Unknown`].
    pub fn set_text(&mut self, text: &str) -> Result<(), SettingError> {
        let parts = text.split_once('=');
        let (key, value) = parts.ok_or_else(|| SettingError::NoValue(text.to_owned()))?;
        self.set(key.trim(), value)
    }

    /// Sets `key`, `forward.key` or `return.key`; or `rtt`, twice the delay of both; or `like`, what one of [`MODELS`]
    /// says of everything that is set neither before nor after it.
    ///
    /// # Errors
    ///
    /// [`SettingError::Unknown`], and [`SettingError::Value`] for an `rtt` that is no time and a model that does not exist.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        if key == "like" {
            let message = |message| SettingError::Value {
                key: "like",
                message,
            };
            let model = models::find(value.trim()).map_err(message)?;
            return model
                .settings
                .iter()
                .try_for_each(|(key, value)| self.each(key, value, Settings::set_if_unset));
        }
        self.each(key, value, Settings::set)
    }

    /// Sets something in the directions that the key is about.
    fn each(
        &mut self,
        key: &str,
        value: &str,
        set: impl Fn(&mut Settings, &str, &str) -> Result<(), SettingError>,
    ) -> Result<(), SettingError> {
        if key == "rtt" {
            let rtt = sphinx_units::duration(value).map_err(|message| SettingError::Value {
                key: "rtt",
                message,
            })?;
            let delay = format!("{}ms", (rtt / 2).as_nanos() as f64 / 1e6);
            return self.each("delay", &delay, set);
        }
        if let Some(key) = key.strip_prefix("forward.") {
            return set(&mut self.forward, key, value);
        }
        if let Some(key) = key.strip_prefix("return.") {
            return set(&mut self.back, key, value);
        }
        set(&mut self.forward, key, value)?;
        set(&mut self.back, key, value)
    }

    /// What they describe: forward and return. With equal seeds the two directions still make
    /// different decisions.
    ///
    /// # Errors
    ///
    /// [`SettingError::Value`] and [`SettingError::File`].
    pub fn configs(&self, read: ReadFile<'_>) -> Result<[LinkConfig; 2], SettingError> {
        let mut configs = [1, RETURN_SEED.wrapping_add(1)].map(|seed| LinkConfig {
            seed,
            flows: Flows::Apart,
            ..LinkConfig::default()
        });
        self.change(&mut configs, read)?;
        Ok(configs)
    }

    /// Changes what they set, and nothing else, in what [`configs`](LinkSettings::configs) has given.
    ///
    /// # Errors
    ///
    /// [`SettingError::Value`] and [`SettingError::File`]; something may have been changed then.
    pub fn change(
        &self,
        [forward, back]: &mut [LinkConfig; 2],
        read: ReadFile<'_>,
    ) -> Result<(), SettingError> {
        self.forward.change(forward, read)?;
        back.seed = back.seed.wrapping_sub(RETURN_SEED);
        self.back.change(back, read)?;
        back.seed = back.seed.wrapping_add(RETURN_SEED);
        match forward.radio == back.radio {
            true => Ok(()),
            false => Err(SettingError::Value {
                key: "radio",
                message: ConfigError::RadioOfOne.to_string(),
            }),
        }
    }
}

fn apply(
    config: &mut LinkConfig,
    key: &'static str,
    text: &str,
    read: ReadFile<'_>,
) -> Result<(), SettingError> {
    let result = match key {
        "mtu" => value::optional(text, sphinx_units::packet_size).map(|mtu| config.mtu = mtu),
        "policer" => value::optional(text, queue::policer).map(|policer| config.policer = policer),
        "priority" => value::priority(text).map(|dscp| config.priority = dscp),
        "compress" => {
            value::optional(text, value::compress).map(|bytes| config.compressed_ack = bytes)
        }
        "queue" => queue::depth(text).map(|depth| config.queue = depth),
        "ecn" => value::ecn(text).map(|rule| config.ecn = rule),
        "aqm" => queue::aqm(text).map(|aqm| config.aqm = aqm),
        "rate" | "loss" => {
            if let Some(path) = text.strip_prefix("trace:") {
                let content = read(path).map_err(|error| SettingError::File {
                    key,
                    path: path.to_owned(),
                    error,
                })?;
                value::trace(config, key, path, &content)
            } else if key == "rate" {
                value::rate(text).map(|rate| config.rate = rate)
            } else {
                value::loss(text).map(|loss| config.loss = loss)
            }
        }
        "blackout" => value::blackouts(text).map(|(blackouts, repeat)| {
            (config.blackouts, config.blackouts_repeat) = (blackouts, repeat);
        }),
        "corrupt" => value::corruption(text).map(|corruption| config.corruption = corruption),
        "duplicate" => sphinx_units::fraction(text).map(|share| config.duplication = share),
        "delay" => sphinx_units::duration(text).map(|delay| config.delay = delay),
        "jitter" => value::jitter(text).map(|jitter| config.jitter = jitter),
        "retries" => value::retries(text).map(|retries| config.retries = retries),
        "shift" => value::optional(text, value::shift).map(|shift| config.shift = shift),
        "wake" => value::optional(text, value::wake).map(|wake| config.wake = wake),
        "radio" => value::optional(text, value::radio).map(|radio| config.radio = radio),
        "reorder" => value::reorder(text).map(|reorder| config.reorder = reorder),
        "seed" => value::number(text).map(|seed| config.seed = seed),
        "flows" => value::flows(text).map(|flows| config.flows = flows),
        _ => return Err(SettingError::Unknown(key.to_owned())),
    };
    result.map_err(|message| SettingError::Value { key, message })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Aqm, Blackout, CoDel, Corruption, Depth, DualPi2, EcnRule, GilbertElliott, Jitter, Loss,
        Order, Periods, Policer, Radio, Rate, RateStep, RateTrace, Red, Reorder, Retries, Signal,
        Span, Varying,
    };

    fn read(path: &str) -> io::Result<String> {
        match path {
            "slow" => Ok("5\n10\n".into()),
            "bad" => Ok("5\n4\n".into()),
            "lossy" => Ok("0001".into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn config(text: &str) -> Result<LinkConfig, SettingError> {
        let mut settings = LinkSettings::default();
        settings.set_text(text)?;
        let [forward, back] = settings.configs(&read)?;
        assert_eq!(back.seed, forward.seed.wrapping_add(RETURN_SEED));
        Ok(forward)
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn defaults_are_what_the_table_says() {
        let none = LinkSettings::default().configs(&read).unwrap();
        let mut all = LinkSettings::default();
        for setting in SETTINGS {
            all.set(setting.key, setting.default).unwrap();
        }
        assert_eq!(all.configs(&read).unwrap(), none);
        assert_eq!(none[0].flows, Flows::Apart);
    }

    #[test]
    fn what_is_changed_later_is_as_if_it_had_been_set_first() {
        let set = |settings: &mut LinkSettings, texts: &[&str]| {
            for text in texts {
                settings.set_text(text).unwrap();
            }
        };
        let first = ["rate=trace:slow", "loss=1%", "seed=7", "radio=2ms,100us"];
        let then = ["loss=trace:lossy", "return.seed=9", "rtt=20ms"];
        let (mut all, mut changes) = (LinkSettings::default(), LinkSettings::default());
        set(&mut all, &first);
        let mut configs = all.configs(&read).unwrap();
        set(&mut changes, &then);
        // What is not changed is not read again.
        let once = |path: &str| match path {
            "lossy" => read(path),
            _ => panic!("{path}"),
        };
        changes.change(&mut configs, &once).unwrap();
        set(&mut all, &then);
        assert_eq!(configs, all.configs(&read).unwrap());

        let mut radio = LinkSettings::default();
        set(&mut radio, &["return.radio=1ms,100us"]);
        let error = radio.change(&mut configs, &read).unwrap_err().to_string();
        assert!(error.starts_with("radio: "), "{error}");
    }

    #[test]
    fn queues() {
        let queue = |text: &str| config(&format!("queue={text}")).unwrap().queue;
        assert_eq!(queue("100p"), Depth::Packets(100));
        assert_eq!(queue("7 packets"), Depth::Packets(7));
        assert_eq!(queue("250kB"), Depth::Bytes(250_000));
        assert_eq!(queue("64KiB"), Depth::Bytes(65_536));
        assert_eq!(queue("50ms"), Depth::Time(ms(50)));
        let aqm = |text: &str| config(&format!("aqm={text}")).unwrap().aqm;
        assert_eq!(aqm("codel"), Aqm::CoDel(CoDel::default()));
        assert_eq!(
            aqm("codel:target=1ms,mark,interval=20ms"),
            Aqm::CoDel(CoDel {
                target: ms(1),
                interval: ms(20),
                signal: Signal::Mark
            })
        );
        assert_eq!(
            aqm("red:10p,30p,p=5%,weight=0.01,mark-only"),
            Aqm::Red(Red {
                probability: 0.05,
                weight: 0.01,
                signal: Signal::MarkOnly,
                ..Red::new(Depth::Packets(10), Depth::Packets(30))
            })
        );
        assert_eq!(aqm("dualpi2"), Aqm::DualPi2(DualPi2::default()));
        assert_eq!(
            aqm("dualpi2:step=500us,k=1.5,target=5ms"),
            Aqm::DualPi2(DualPi2 {
                target: ms(5),
                step: Duration::from_micros(500),
                coupling: 1.5,
                ..DualPi2::default()
            })
        );
        assert_eq!(aqm("step:5ms"), Aqm::mark_above(Depth::Time(ms(5))));
        assert_eq!(
            aqm("step:5p,drop"),
            Aqm::Step {
                threshold: Depth::Packets(5),
                signal: Signal::Drop
            }
        );
        let policer = Policer {
            bits_per_second: 10_000_000,
            burst_bytes: 30_000,
        };
        assert_eq!(
            config("policer=10mbit,30kB").unwrap().policer,
            Some(policer)
        );
        assert_eq!(config("mtu=1400").unwrap().mtu, Some(1400));
    }

    #[test]
    fn rates_and_times() {
        let rate = |text: &str| config(&format!("rate={text}")).unwrap().rate;
        assert_eq!(rate("200mbit"), Rate::Constant(200_000_000));
        assert_eq!(rate("0"), Rate::Constant(0));
        assert_eq!(rate("unlimited"), Rate::Unlimited);
        let trace = RateTrace::parse("5\n10\n").unwrap();
        assert_eq!(rate("trace:slow"), Rate::Trace(trace));
        let steps = [(0, 10_000_000), (5, 0)].map(|(seconds, bits_per_second)| RateStep {
            at: Duration::from_secs(seconds),
            bits_per_second,
        });
        assert_eq!(
            rate("steps:0s=10mbit,5s=0,repeat=10s"),
            Rate::Steps {
                steps: steps.into(),
                repeat: Some(Duration::from_secs(10))
            }
        );
        let link = config("blackout=10s-12s,20s-20.5s,repeat=1m").unwrap();
        let blackout = |start, end| Blackout {
            start: ms(start),
            end: ms(end),
        };
        assert_eq!(
            link.blackouts,
            [blackout(10_000, 12_000), blackout(20_000, 20_500)]
        );
        assert_eq!(link.blackouts_repeat, Some(Duration::from_secs(60)));
        assert_eq!(config("delay=5ms").unwrap().delay, ms(5));
        let jitter = |order| Jitter { max: ms(2), order };
        assert_eq!(config("jitter=2ms").unwrap().jitter, jitter(Order::Kept));
        assert_eq!(
            config("jitter=2ms,reorder").unwrap().jitter,
            jitter(Order::Free)
        );
        let reorder = Reorder {
            probability: 0.01,
            hold: ms(10),
        };
        assert_eq!(config("reorder=1%,10ms").unwrap().reorder, reorder);
    }

    #[test]
    fn losses() {
        let loss = |text: &str| config(&format!("loss={text}")).unwrap().loss;
        assert_eq!(loss("2%"), Loss::Bernoulli(0.02));
        assert_eq!(
            loss("burst:5%,8"),
            Loss::GilbertElliott(GilbertElliott::bursts(0.05, 8.0))
        );
        let gilbert = |loss_in_good, loss_in_bad| {
            Loss::GilbertElliott(GilbertElliott {
                good_to_bad: 0.01,
                bad_to_good: 0.25,
                loss_in_good,
                loss_in_bad,
            })
        };
        assert_eq!(loss("gilbert:1%,25%"), gilbert(0.0, 1.0));
        assert_eq!(loss("gilbert:1%,25%,0.1%,50%"), gilbert(0.001, 0.5));
        assert_eq!(loss("bytes:64KiB"), Loss::Bytes(65_536));
        let periods = |good: (u64, u64), bad: (u64, u64), loss_in_good, loss_in_bad| {
            let span = |(shortest, longest)| Span {
                shortest: ms(shortest),
                longest: ms(longest),
            };
            Loss::Periods(Periods {
                good: span(good),
                bad: span(bad),
                loss_in_good,
                loss_in_bad,
            })
        };
        assert_eq!(
            loss("periods:2s,50ms"),
            periods((2000, 2000), (50, 50), 0.0, 1.0)
        );
        assert_eq!(
            loss("periods:1ms-20s,5ms-10ms,0.1%,50%"),
            periods((1, 20_000), (5, 10), 0.001, 0.5)
        );
        assert_eq!(config("priority=46").unwrap().priority, Some(46));
        assert_eq!(loss("packets:0,7-9"), Loss::Packets(vec![0, 7, 8, 9]));
        assert!(matches!(loss("trace:lossy"), Loss::Trace(trace) if trace.packets() == 4));
        let corruption = |bits| Corruption {
            probability: 0.001,
            bits,
        };
        assert_eq!(config("corrupt=0.1%").unwrap().corruption, corruption(1));
        assert_eq!(config("corrupt=0.1%,3").unwrap().corruption, corruption(3));
        assert_eq!(config("duplicate=1%").unwrap().duplication, 0.01);
        assert_eq!(config("flows=together").unwrap().flows, Flows::Together);
        assert_eq!(config("ecn=clear").unwrap().ecn, EcnRule::Clear);
        assert_eq!(config("ecn=keep").unwrap().ecn, EcnRule::Keep);
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        for (text, reason) in [
            (
                "los=2%",
                "there is no setting 'los'; there are mtu, policer",
            ),
            ("return.los=2%", "there is no setting 'los'"),
            ("loss", "'loss' sets nothing: write KEY=VALUE"),
            ("loss=2", "loss: '2' has no unit: did you mean 2%?"),
            ("loss=1", "loss: '1' has no unit: did you mean 1%?"),
            ("delay=20", "delay: '20' has no unit: did you mean 20ms?"),
            ("rate=20", "rate: '20' has no unit: did you mean 20mbit?"),
            (
                "policer=1mbit,30",
                "policer: '30' has no unit: did you mean 30B?",
            ),
            (
                "blackout=10-12s",
                "blackout: '10' has no unit: did you mean 10s?",
            ),
            ("loss=burst:5%", "loss: write burst:MEAN_LOSS,MEAN_BURST"),
            (
                "loss=burst:90%,1",
                "loss: loss.good_to_bad must be between 0 and 1",
            ),
            ("loss=burst:100%,8", "loss: "),
            (
                "loss=burst:5%,inf",
                "loss: 'inf' is not a number of packets",
            ),
            ("loss=gilbert:1%", "loss: write gilbert:P,R"),
            (
                "loss=bytes:0B",
                "loss: errors must be at least 1 byte apart",
            ),
            ("loss=bytes:64", "loss: '64' has no unit: did you mean 64B?"),
            ("loss=periods:2s", "loss: write periods:GOOD,BAD"),
            (
                "loss=periods:2s,0.5ms",
                "loss: periods must be between 1 ms and 60 s",
            ),
            (
                "loss=periods:2s-1s,5ms",
                "loss: periods must be between 1 ms and 60 s",
            ),
            ("priority=64", "priority: a DSCP is a number from 0 to 63"),
            ("priority=high", "priority: 'high' is not a whole number"),
            ("loss=packets:9-7", "loss: '9-7' ends before it begins"),
            ("loss=packets:0-99999999999", "loss: more than"),
            ("loss=trace:nowhere", "loss: cannot read nowhere: "),
            ("loss=trace:slow", "loss: slow: line 1: '5' is neither 0"),
            ("rate=trace:bad", "rate: bad: line 2: this time is before"),
            ("rate=5MB/s", "rate: '5MB/s' counts bytes"),
            ("rate=steps:1s=1mbit", "rate: rate steps must begin at 0"),
            ("rate=steps:1mbit", "rate: '1mbit' is no step"),
            (
                "queue=100",
                "queue: write 100p (packets), 250kB (bytes) or 50ms",
            ),
            ("aqm=pie", "aqm: 'pie' is none of"),
            ("aqm=red:5p", "aqm: write red:MIN,MAX"),
            ("aqm=red:9p,5p", "aqm: RED needs two thresholds"),
            ("aqm=codel:speed=3", "aqm: 'speed=3' is no part of"),
            ("aqm=dualpi2:drop", "aqm: 'drop' is no part of"),
            ("aqm=dualpi2:k=-1", "aqm: DualPI2 has gains from 0"),
            ("policer=1mbit", "policer: write RATE,BURST"),
            ("blackout=5s", "blackout: '5s' is no time span"),
            (
                "blackout=5s-4s",
                "blackout: a blackout must end after it starts",
            ),
            ("reorder=1%", "reorder: write SHARE,DURATION"),
            ("jitter=1ms,shuffle", "jitter: 'shuffle' is not 'reorder'"),
            ("seed=x", "seed: 'x' is not a whole number"),
            ("flows=many", "flows: write apart or together"),
            ("ecn=red", "ecn: write keep, clear"),
            ("mtu=-1", "mtu: "),
        ] {
            let error = config(text).expect_err(text).to_string();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }

    #[test]
    fn links_by_name() {
        for model in MODELS {
            let text = format!("like={}", model.name);
            let config = config(&text).expect(model.name);
            assert!(
                config
                    .mean_bits_per_second()
                    .is_some_and(|rate| rate > 1_000_000)
            );
        }
        let both = |texts: [&str; 2]| {
            let mut settings = LinkSettings::default();
            for text in texts {
                settings.set_text(text).unwrap();
            }
            settings
        };
        // Whatever comes first.
        let settings = both(["like=lte", "return.queue=9kB"]);
        assert_eq!(settings, both(["return.queue=9kB", "like=lte"]));
        let [forward, back] = settings.configs(&read).unwrap();
        assert_eq!(back.queue, Depth::Bytes(9000));
        assert_eq!(forward.queue, Depth::Bytes(2_000_000));
        assert_eq!(
            both(["like=geo", "rtt=10ms"]).configs(&read).unwrap()[1].delay,
            ms(5)
        );
        let error = config("like=dialup").unwrap_err().to_string();
        assert!(
            error.starts_with("like: 'dialup' is none of wifi, lte"),
            "{error}"
        );
    }

    #[test]
    fn rates_that_vary_and_what_a_link_does_by_itself() {
        let rate = |text: &str| match config(&format!("rate={text}")).unwrap().rate {
            Rate::Varying(varying) => varying,
            other => panic!("{other:?}"),
        };
        let fading = |grant| Varying::Fading {
            median: 20_000_000,
            factor: 1.5,
            time: ms(500),
            grant: ms(grant),
        };
        assert_eq!(rate("fading:20mbit, 1.5, 500ms"), fading(1));
        assert_eq!(rate("fading:20mbit,1.5,500ms,10ms"), fading(10));
        let gap = |shortest, longest| Span {
            shortest: ms(shortest),
            longest: ms(longest),
        };
        assert_eq!(
            rate("turns:1ms-8ms,28p"),
            Varying::Turns {
                gap: gap(1, 8),
                packets: 28
            }
        );
        assert_eq!(
            rate("routes:8mbit-25mbit,15s,50ms"),
            Varying::Routes {
                rates: (8_000_000, 25_000_000),
                every: Duration::from_secs(15),
                pause: gap(50, 50)
            }
        );
        let link = config("retries=10%,8ms,4").unwrap();
        assert_eq!(
            link.retries,
            Retries {
                probability: 0.1,
                interval: ms(8),
                limit: 4
            }
        );
        let link = config("shift=15s,20ms").unwrap();
        assert_eq!(link.shift.map(|shift| shift.max), Some(ms(20)));
        let link = config("wake=10s,100ms").unwrap();
        assert_eq!(link.wake.map(|wake| wake.delay), Some(ms(100)));
        assert_eq!(config("compress=acks:6B").unwrap().compressed_ack, Some(6));
        assert_eq!(config("compress=none").unwrap().compressed_ack, None);
        let radio = |text| config(text).unwrap().radio;
        let hops = |hops| Radio {
            turnaround: ms(2),
            slot: Duration::from_micros(100),
            hops,
        };
        assert_eq!(radio("radio=2ms,100us"), Some(hops(1)));
        assert_eq!(radio("radio=2ms, 100us, 3"), Some(hops(3)));
        assert_eq!(radio("radio=none"), None);
        for (text, reason) in [
            ("radio=2ms", "radio: write TURNAROUND,SLOT"),
            ("radio=2ms,100us,0", "radio: turnaround and slot"),
            ("radio=2s,100us", "radio: turnaround and slot"),
            ("forward.radio=2ms,1ms", "radio: a radio is one channel"),
            ("rate=fading:20mbit", "rate: write fading:MEDIAN"),
            ("rate=fading:20mbit,0.5,1s", "rate: rates from 10 kbit/s"),
            ("rate=fading:20mbit,x,1s", "rate: 'x' is not a factor"),
            ("rate=turns:1ms", "rate: write turns:GAP"),
            ("rate=turns:8ms-1ms,2p", "rate: rates from 10 kbit/s"),
            ("rate=routes:9mbit-8mbit,15s,50ms", "rate: rates from"),
            ("rate=routes:9mbit,15s,16s", "rate: rates from"),
            ("retries=10%", "retries: write SHARE,INTERVAL,TRIES"),
            ("retries=10%,8ms,2000", "retries: at most 1000 tries"),
            ("shift=15s", "shift: write EVERY,DURATION"),
            ("wake=10s", "wake: write IDLE,DELAY"),
            ("compress=6B", "compress: write acks:BYTES"),
            ("compress=all:6B", "compress: write acks:BYTES"),
            ("compress=acks:0", "compress: 1B is the least"),
        ] {
            let error = config(text).expect_err(text).to_string();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }

    #[test]
    fn directions() {
        let mut settings = LinkSettings::default();
        for text in ["loss=2%", "return.loss=0", "forward.delay = 5ms", "seed=7"] {
            settings.set_text(text).unwrap();
        }
        let [forward, back] = settings.configs(&read).unwrap();
        assert_eq!(
            (forward.loss, back.loss),
            (Loss::Bernoulli(0.02), Loss::None)
        );
        assert_eq!((forward.delay, back.delay), (ms(5), ms(0)));
        assert_eq!((forward.seed, back.seed != 7), (7, true));
        settings.set_text("rtt=5ms").unwrap();
        let [forward, back] = settings.configs(&read).unwrap();
        assert_eq!((forward.delay, back.delay), (ms(5) / 2, ms(5) / 2));
        assert!(
            settings
                .forward
                .iter()
                .any(|pair| pair == ("delay", "2.5ms"))
        );
        let told: Vec<_> = settings.back.iter().collect();
        assert_eq!(told.len(), SETTINGS.len());
        assert!(told.contains(&("loss", "0")) && told.contains(&("rate", "unlimited")));
    }
}
