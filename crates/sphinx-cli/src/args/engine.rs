//! Values of the engine's flags, those that are not built yet included: these are understood, so that
//! the answer is "not built yet", but named nowhere.

use sphinx_transport::{self as transport, Family, Options};

use super::CommonArgs;
use crate::units;

/// A value that the engine takes, or the name of one that comes later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice<T> {
    Built(T),
    Later(String),
}

impl<T> Choice<T> {
    pub(crate) fn later(&self) -> Option<&str> {
        match self {
            Self::Built(_) => None,
            Self::Later(name) => Some(name),
        }
    }
}

impl<T: Copy + Default> Choice<T> {
    fn value(&self) -> T {
        match self {
            Self::Built(value) => *value,
            Self::Later(_) => T::default(),
        }
    }
}

pub(crate) type Io = Choice<()>;
pub(crate) type Workers = Choice<()>;
pub(crate) type Codec = Choice<transport::Codec>;
pub(crate) type Profile = Choice<transport::Profile>;
pub(crate) type Icm = Choice<transport::Icm>;
pub(crate) type Cc = Choice<transport::Cc>;

pub(crate) fn io(text: &str) -> Result<Io, String> {
    let later = ["xdp:", "dpdk:"];
    match text {
        "udp" => Ok(Choice::Built(())),
        _ if later.iter().any(|prefix| text.starts_with(prefix)) => Ok(later_value(text)),
        "xdp" | "dpdk" => Ok(later_value(text)),
        _ => Err("expected udp".to_owned()),
    }
}

pub(crate) fn workers(text: &str) -> Result<Workers, String> {
    match (text, text.parse::<u16>()) {
        ("auto", _) | (_, Ok(1)) => Ok(Choice::Built(())),
        (_, Ok(2..)) => Ok(later_value(text)),
        _ => Err("expected auto or 1".to_owned()),
    }
}

pub(crate) fn codec(text: &str) -> Result<Codec, String> {
    Ok(Choice::Built(match text {
        "auto" => transport::Codec::Auto,
        "rlc" => transport::Codec::Rlc,
        "window" => transport::Codec::Window,
        "rs" => transport::Codec::Rs,
        "fft-rs" => transport::Codec::FftRs,
        "srlt" => transport::Codec::SemiRandomLt,
        "lt" => transport::Codec::Lt,
        "none" => transport::Codec::None,
        _ => return Err("expected auto, rlc, window, rs, fft-rs, srlt, lt or none".to_owned()),
    }))
}

pub(crate) fn profile(text: &str) -> Result<Profile, String> {
    Ok(Choice::Built(match text {
        "auto" => transport::Profile::Auto,
        "bulk" => transport::Profile::Bulk,
        "latency" => transport::Profile::Latency,
        "live" => return Ok(later_value(text)),
        _ => return Err("expected auto, bulk or latency".to_owned()),
    }))
}

pub(crate) fn icm(text: &str) -> Result<Icm, String> {
    Ok(Choice::Built(match text {
        "default" => transport::Icm::Default,
        "paper" => transport::Icm::Paper,
        "off" => transport::Icm::Off,
        _ => return Err("expected default, paper or off".to_owned()),
    }))
}

pub(crate) fn epsilon(text: &str) -> Result<f64, String> {
    match units::fraction(text)? {
        share if (1e-9..=0.5).contains(&share) => Ok(share),
        _ => Err("expected a share above 0 and at most 50%, such as 1%".to_owned()),
    }
}

pub(crate) fn cc(text: &str) -> Result<Cc, String> {
    if matches!(text, "cubic" | "scavenger") {
        return Ok(later_value(text));
    }
    match transport::Cc::parse(text, units::rate)? {
        Some(cc) => Ok(Choice::Built(cc)),
        None => Err(format!("expected {}", transport::Cc::expected())),
    }
}

fn later_value<T>(text: &str) -> Choice<T> {
    Choice::Later(text.to_owned())
}

impl CommonArgs {
    /// The engine's options; `profile` is what `auto` means for this command.
    pub(crate) fn options(&self, profile: transport::Profile) -> Options {
        Options {
            family: match (self.ipv4, self.ipv6) {
                (true, _) => Family::V4,
                (_, true) => Family::V6,
                _ => Family::Any,
            },
            profile: match self.profile.value() {
                transport::Profile::Auto => profile,
                chosen => chosen,
            },
            codec: self.codec.value(),
            icm: self.icm.value(),
            epsilon: self.epsilon,
            cc: self.cc.value(),
            connect_timeout: self.connect_timeout,
            idle_timeout: self.idle_timeout,
            path_memory: if self.no_cache {
                None
            } else {
                transport::path_memory_file()
            },
            ..Options::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values() {
        assert_eq!(
            cc("fixed:190mbit"),
            Ok(Choice::Built(transport::Cc::Fixed(23_750_000)))
        );
        assert_eq!(cc("cubic").unwrap().later(), Some("cubic"));
        assert_eq!(io("xdp:eth0").unwrap().later(), Some("xdp:eth0"));
        assert_eq!(icm("paper"), Ok(Choice::Built(transport::Icm::Paper)));
        assert!(icm("on").is_err());
        assert_eq!(workers("1"), Ok(Choice::Built(())));
        assert_eq!(workers("2").unwrap().later(), Some("2"));
        assert!(workers("0").is_err());
        assert!(cc("fixed:").is_err());
        assert_eq!(epsilon("1%"), Ok(0.01));
        for text in ["0", "60%", "-1%", "nan", "some"] {
            assert!(epsilon(text).is_err(), "{text}");
        }
        assert_eq!(
            codec("srlt"),
            Ok(Choice::Built(transport::Codec::SemiRandomLt))
        );
    }

    proptest! {
        #[test]
        fn total(text in ".*") {
            let _ = (io(&text), workers(&text), icm(&text));
            let _ = (codec(&text), profile(&text), cc(&text), epsilon(&text));
        }
    }
}
