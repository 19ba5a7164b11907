//! What is asked for, as people write it.

use std::fmt;
use std::str::FromStr;

/// The longest name that an interface has.
const NAME_BYTES_MAX: usize = 15;
/// Queues of one interface that can be used.
const QUEUES_MAX: u32 = 64;

/// An interface whose packets go past the kernel: `IF[:QUEUES][,copy|zerocopy][,native|generic]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// The interface.
    pub interface: String,
    /// Its queues.
    pub queues: Queues,
    /// How packets get into the shared memory; `None` for the best that the driver has.
    pub transfer: Option<Transfer>,
    /// Where the program runs; `None` for the best that the driver has.
    pub attach: Option<Attach>,
}

/// Queues of an interface for what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// All queues of the interface.
    All,
    /// From the first to the second of these numbers.
    Range(u32, u32),
}

/// How packets get into the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// The kernel copies them.
    Copy,
    /// The card writes them there, and reads them.
    ZeroCopy,
}

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// In the kernel's network stack, before anything else there: any driver.
    Generic,
    /// In the driver.
    Native,
}

impl FromStr for XdpConfig {
    type Err = String;

    /// Reads what stands behind `xdp:`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let place = parts.next().unwrap_or_default();
        let (interface, queues) = match place.split_once(':') {
            Some((interface, queues)) => (interface, parse_queues(queues)?),
            None => (place, Queues::All),
        };
        let is_name = !interface.is_empty()
            && interface.len() <= NAME_BYTES_MAX
            && !interface.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
        if !is_name || interface == "." || interface == ".." {
            return Err("expected xdp:IF, with the name of an interface: xdp:eth0".to_owned());
        }
        let mut config = Self {
            interface: interface.to_owned(),
            queues,
            transfer: None,
            attach: None,
        };
        for part in parts {
            let is_again = match part {
                "copy" => config.transfer.replace(Transfer::Copy).is_some(),
                "zerocopy" => config.transfer.replace(Transfer::ZeroCopy).is_some(),
                "native" => config.attach.replace(Attach::Native).is_some(),
                "generic" => config.attach.replace(Attach::Generic).is_some(),
                _ => {
                    return Err(format!(
                        "expected copy, zerocopy, native or generic, not \"{part}\""
                    ));
                }
            };
            if is_again {
                return Err(
                    "expected at most one of copy and zerocopy, and of native and generic"
                        .to_owned(),
                );
            }
        }
        if (config.transfer, config.attach) == (Some(Transfer::ZeroCopy), Some(Attach::Generic)) {
            return Err("zerocopy needs the driver: it is native".to_owned());
        }
        Ok(config)
    }
}

fn parse_queues(text: &str) -> Result<Queues, String> {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse()
            .ok()
            .filter(|queue: &u32| is_number && *queue < QUEUES_MAX)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(Queues::Range(first, last)),
        _ => Err(format!(
            "expected a queue below {QUEUES_MAX}, or a range of them: xdp:eth0:0-3"
        )),
    }
}

impl fmt::Display for XdpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.interface)?;
        match self.queues {
            Queues::All => {}
            Queues::Range(first, last) if first == last => write!(f, ":{first}")?,
            Queues::Range(first, last) => write!(f, ":{first}-{last}")?,
        }
        match self.transfer {
            Some(Transfer::Copy) => f.write_str(",copy")?,
            Some(Transfer::ZeroCopy) => f.write_str(",zerocopy")?,
            None => {}
        }
        match self.attach {
            Some(Attach::Generic) => f.write_str(",generic"),
            Some(Attach::Native) => f.write_str(",native"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_parts_are_understood_in_either_order() {
        let config: XdpConfig = "eth0:0-3,native,copy".parse().unwrap();
        assert_eq!(
            (config.interface.as_str(), config.queues),
            ("eth0", Queues::Range(0, 3))
        );
        assert_eq!(
            (config.transfer, config.attach),
            (Some(Transfer::Copy), Some(Attach::Native))
        );
        assert_eq!(config.to_string(), "eth0:0-3,copy,native");
        let plain: XdpConfig = "veth1".parse().unwrap();
        assert_eq!(
            (plain.queues, plain.transfer, plain.attach),
            (Queues::All, None, None)
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for text in [
            "",
            ":0",
            "eth0:",
            "eth0:3-1",
            "eth0:64",
            "eth0:+1",
            "eth0:a",
            "eth0,",
            "eth0,fast",
            "eth0,copy,zerocopy",
            "eth0,native,native",
            "eth0,zerocopy,generic",
            "a/b",
            "a b",
            "..",
            "a-name-too-long0",
        ] {
            assert!(text.parse::<XdpConfig>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_and_read_again(text in "[a-z.:0-9]{0,9}(:[0-9-]{0,5})?(,[a-z]{0,8}){0,3}|.*") {
            if let Ok(config) = text.parse::<XdpConfig>() {
                prop_assert_eq!(config.to_string().parse(), Ok(config));
            }
        }
    }
}
