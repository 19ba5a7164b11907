//! The engine's flags, and what they make of its options.

use std::iter;
use std::time::Duration;

use clap::Args;
use sphinx_transport::{self as transport, ErrorKind, Family, Options};

use super::report_interval;
use crate::failure::{Outcome, fail_hint};
use crate::report::Settings;
use crate::units;

const IO_HELP: &str = "\
How packets get to the network: udp, by the kernel; or past it, at one interface: \
xdp:IF[:QUEUES][,copy|zerocopy][,native|generic], or a card that DPDK has: \
\"dpdk:EAL ARGS -- ADDRESS/LENGTH[,gw=ADDRESS] [mtu=BYTES]\"";

/// Flags of every command that makes a session.
#[derive(Args, Debug)]
#[command(next_help_heading = "Engine")]
pub(crate) struct CommonArgs {
    /// How packets get to the network.
    #[arg(long, value_name = "IO", default_value = "udp", value_parser = io, help = IO_HELP)]
    pub(crate) io: transport::Io,
    #[arg(long, value_name = "N", default_value = "auto", value_parser = workers, help = workers_help())]
    pub(crate) workers: Count,
    /// Processors to run on, such as 0-2,4: the first one for the thread that has the socket, the others for the workers
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub(crate) cpus: Option<Cpus>,
    /// Look for packets this long before sleeping, which takes a processor: 50us; at most 10ms [default: off]
    #[arg(long, value_name = "DURATION", value_parser = busy_poll)]
    pub(crate) busy_poll: Option<Duration>,
    #[arg(long, value_name = "CODE", default_value = "auto", value_parser = codec, help = format!("Erasure code: {}", transport::Codec::expected()))]
    pub(crate) codec: transport::Codec,
    /// What redundancy is chosen for: auto, bulk, latency; or, for messages of perf client, their deadline: live
    #[arg(long, value_name = "P", default_value = "auto", value_parser = profile)]
    pub(crate) profile: Profile,
    /// Share of blocks that may need a second round where repair is sent ahead: less costs more bytes
    #[arg(long, value_name = "SHARE", default_value = "0.2%", value_parser = units::failure_share)]
    pub(crate) epsilon: f64,
    /// When losses are repaired: default (at once), paper (its block rule) or off (by timer)
    #[arg(long, value_name = "MODE", default_value = "default", value_parser = icm)]
    pub(crate) icm: transport::Icm,
    #[arg(long, value_name = "CC", default_value = "auto", value_parser = cc, help = cc_help())]
    pub(crate) cc: transport::Cc,
    /// Congestion marks of what this end sends:
    ///   auto      classic
    ///   l4s       ECT(1) and a response to the share of marks, for queues of low latency, with --cc bbr
    ///   classic   ECT(0)
    ///   off       none
    #[arg(long, value_name = "ECN", default_value = "auto", value_parser = ecn, verbatim_doc_comment)]
    pub(crate) ecn: transport::EcnMode,
    /// Send no more than this, headers and repair included, whatever rate control allows: 20mbit
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub(crate) limit: Option<u64>,
    /// Most memory, in each direction, for what has arrived and is not read, or is written and has not arrived; at least 4MiB [default: 256MiB, or an
    /// eighth of the machine's if that is less]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: Option<u64>,
    /// Bound of what a session has received and not read yet, at least 16KiB: it does not grow then [default: what --memory allows]
    #[arg(long, value_name = "SIZE", value_parser = recv_window)]
    pub(crate) recv_window: Option<u64>,
    /// Give up connecting after this long
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = units::period_positive)]
    pub(crate) connect_timeout: Duration,
    /// Give up a session in which nothing is heard, or nothing of what is to be sent comes further, for this long
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = units::period_positive)]
    pub(crate) idle_timeout: Duration,
    /// Neither use nor keep what sessions learn about the path to a peer (rate, round trip, loss, MTU), nor what later ones begin with at once
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Use IPv4 only
    #[arg(short = '4', conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// Use IPv6 only
    #[arg(short = '6')]
    pub(crate) ipv6: bool,
    /// One JSON object per line on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Time between two reports of progress, where it is no bar on a terminal; 10ms or more
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = report_interval, help_heading = "Output")]
    pub(crate) interval_report: Duration,
    /// No progress and no summary, only errors
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Say more: every file
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Output")]
    pub(crate) verbose: u8,
}

/// What redundancy is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Engine(transport::Profile),
    /// The deadline of what is sent: it has to have one.
    Live,
}

pub(crate) fn io(text: &str) -> Result<transport::Io, String> {
    text.parse()
}

/// How many threads there are of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Auto,
    Number(usize),
}

impl Count {
    /// `auto`, or a number that is not less than `least` nor more than `most`.
    fn parse(text: &str, least: usize, most: usize) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(number)) if (least..=most).contains(&number) => Ok(Self::Number(number)),
            _ => Err(format!(
                "expected auto or a number, at least {least} and at most {most}"
            )),
        }
    }

    /// The number that was given.
    fn given(self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Number(number) => Some(number),
        }
    }
}

pub(crate) fn workers(text: &str) -> Result<Count, String> {
    Count::parse(text, 0, transport::WORKERS_MAX)
}

fn shards(text: &str) -> Result<Count, String> {
    Count::parse(text, 1, transport::SHARDS_MAX)
}

fn shards_help() -> String {
    format!(
        "Threads that have a socket of the same port (--io udp), or a queue of the card (--io xdp, dpdk), and its sessions, up to {}, each with its --workers and its part of --memory; auto: as many as the processors suffice for, and one with --once or past the kernel",
        transport::SHARDS_MAX
    )
}

/// Flags of the commands that listen, beside those of [`CommonArgs`].
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ServingArgs {
    // The heading is set on this option alone: one on the struct would also apply to the options that a command declares after it.
    #[arg(long, value_name = "N", default_value = "1", value_parser = shards, help = shards_help(), help_heading = "Engine")]
    pub(crate) shards: Count,
}

impl ServingArgs {
    /// The options with as many shards, and workers for each of them, as were asked for.
    pub(crate) fn apply(self, common: &CommonArgs, options: Options) -> Options {
        let is_one = options.once || options.io != transport::Io::Udp;
        let shards = self.shards.given().or(is_one.then_some(1));
        let (shards, workers) =
            transport::auto_shards(shards, common.workers.given(), &options.cpus);
        Options {
            shards,
            workers,
            ..options
        }
    }
}

fn workers_help() -> String {
    format!(
        "Threads that code, seal and open, beside the one that has the socket: 0 (that one does it), up to {}, or auto (0 with fewer than four processors)",
        transport::WORKERS_MAX
    )
}

/// Processors, in the order in which they were named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus(Vec<usize>);

/// Processors that a list names at most.
const CPUS_MAX: usize = 1024;

pub(crate) fn cpus(text: &str) -> Result<Cpus, String> {
    const EXPECTED: &str = "expected processors, such as 0-2,4";
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse().map_err(|_| EXPECTED.to_owned());
        let (first, last): (usize, usize) = (number(first)?, number(last)?);
        if first > last || last >= CPUS_MAX {
            return Err(EXPECTED.to_owned());
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(format!("processor {cpu} is named twice"));
            }
            cpus.push(cpu);
        }
    }
    Ok(Cpus(cpus))
}

pub(crate) fn busy_poll(text: &str) -> Result<Duration, String> {
    match units::duration_positive(text)? {
        time if time <= transport::BUSY_POLL_MAX => Ok(time),
        _ => Err("expected at most 10ms".to_owned()),
    }
}

pub(crate) fn codec(text: &str) -> Result<transport::Codec, String> {
    match transport::Codec::by_name(text) {
        Some(codec) => Ok(codec),
        None => Err(format!("expected {}", transport::Codec::expected())),
    }
}

pub(crate) fn profile(text: &str) -> Result<Profile, String> {
    Ok(Profile::Engine(match text {
        "auto" => transport::Profile::Auto,
        "bulk" => transport::Profile::Bulk,
        "latency" => transport::Profile::Latency,
        "live" => return Ok(Profile::Live),
        _ => return Err("expected auto, bulk, latency or live".to_owned()),
    }))
}

pub(crate) fn icm(text: &str) -> Result<transport::Icm, String> {
    Ok(match text {
        "default" => transport::Icm::Default,
        "paper" => transport::Icm::Paper,
        "off" => transport::Icm::Off,
        _ => return Err("expected default, paper or off".to_owned()),
    })
}

/// Least that a session's window needs is less, but not much.
const MEMORY_MIN: u64 = 4 << 20;

pub(crate) fn memory(text: &str) -> Result<u64, String> {
    match units::size_positive(text)? {
        bytes @ MEMORY_MIN.. => Ok(bytes),
        _ => Err("expected at least 4MiB".to_owned()),
    }
}

/// A packet and its block must fit it several times.
const RECV_WINDOW_MIN: u64 = 16 << 10;

pub(crate) fn recv_window(text: &str) -> Result<u64, String> {
    match units::size_positive(text)? {
        bytes @ RECV_WINDOW_MIN.. => Ok(bytes),
        _ => Err("expected at least 16KiB".to_owned()),
    }
}

pub(crate) fn bundle(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(most @ 0..=transport::BUNDLE_MAX) => Ok(most),
        _ => Err(format!(
            "expected a number of messages, at most {}",
            transport::BUNDLE_MAX
        )),
    }
}

/// What the paper's mode is without any key.
pub(crate) const PAPER_DEFAULT: &str = "code=srlt";

pub(crate) fn paper(text: &str) -> Result<Box<transport::Paper>, String> {
    if text.is_empty() {
        return Err("expected KEY=VALUE,..., or --paper alone".to_owned());
    }
    // The keys of --paper write "all" as 1, as the paper does; `units::fraction` refuses a bare 1.
    let share = |text: &str| match text {
        "1" => Ok(1.0),
        _ => units::fraction(text),
    };
    transport::Paper::parse(text, share, units::duration_positive).map(Box::new)
}

pub(crate) fn cc(text: &str) -> Result<transport::Cc, String> {
    let named = transport::Cc::parse(text, units::rate)?;
    named.ok_or_else(|| format!("expected {}", transport::Cc::expected()))
}

pub(crate) fn ecn(text: &str) -> Result<transport::EcnMode, String> {
    let known = transport::EcnMode::ALL;
    let named = known.into_iter().find(|mode| mode.name() == text);
    named.ok_or_else(|| {
        let names = known.map(transport::EcnMode::name);
        format!("expected {}", names.join(", "))
    })
}

/// A line for each controller.
fn cc_help() -> String {
    let lines = transport::Cc::all().map(|(name, does)| format!("\n  {name:11} {does}"));
    iter::once("Rate control:".to_owned())
        .chain(lines)
        .collect()
}

impl CommonArgs {
    /// What is said, and how.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            verbose: self.verbose,
            progress_interval: self.interval_report,
            // A reader of the reports that takes nothing is given up before either end gives the session up.
            patience: Some(self.idle_timeout / 2),
            ..Settings::new(self.json, self.quiet)
        }
    }

    /// The engine's options; `profile` is what `auto` means for this command.
    ///
    /// # Errors
    /// They do not go together.
    pub(crate) fn options(&self, profile: transport::Profile) -> Outcome<Options> {
        if self.ecn == transport::EcnMode::L4s && self.cc != transport::Cc::Bbr {
            return Err(fail_hint(
                ErrorKind::Usage,
                format!(
                    "--ecn l4s is for --cc bbr: {} has no response to the share of marks",
                    self.cc.name()
                ),
                "leave one of the two out",
            ));
        }
        let default = Options::default();
        let cpus = self.cpus.as_ref().map_or(&[][..], |cpus| &cpus.0);
        Ok(Options {
            io: self.io.clone(),
            family: match (self.ipv4, self.ipv6) {
                (true, _) => Family::V4,
                (_, true) => Family::V6,
                _ => Family::Any,
            },
            profile: match self.profile {
                Profile::Engine(transport::Profile::Auto) | Profile::Live => profile,
                Profile::Engine(chosen) => chosen,
            },
            codec: self.codec,
            icm: self.icm,
            epsilon: self.epsilon,
            cc: self.cc,
            ecn: self.ecn,
            // On the command line rates are in bits per second, here in bytes per second.
            limit: self.limit.map(|bits| (bits / 8).max(1)),
            memory: self.memory.unwrap_or(default.memory),
            recv_window: self.recv_window,
            workers: self
                .workers
                .given()
                .unwrap_or_else(|| transport::auto_workers(cpus)),
            cpus: cpus.to_vec(),
            busy_poll: self.busy_poll.unwrap_or_default(),
            connect_timeout: self.connect_timeout,
            idle_timeout: self.idle_timeout,
            path_memory: if self.no_cache {
                None
            } else {
                transport::path_memory_file()
            },
            ..default
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use proptest::prelude::*;

    #[test]
    fn only_one_rate_control_answers_to_the_share_of_marks() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            common: CommonArgs,
        }
        let ecn = |words: &[&str]| {
            let line = Line::try_parse_from([&["sphx"], words].concat()).expect("a line");
            let options = line.common.options(transport::Profile::Auto);
            options.map(|options| options.ecn)
        };
        let l4s = transport::EcnMode::L4s;
        assert_eq!(ecn(&["--ecn", "l4s"]).expect("they go together"), l4s);
        assert_eq!(
            ecn(&["--ecn", "l4s", "--cc", "bbr"]).expect("the same"),
            l4s
        );
        for cc in ["cubic", "aimd-ecn", "scavenger", "fixed:5mbit"] {
            let refused = ecn(&["--ecn", "l4s", "--cc", cc]).expect_err(cc);
            assert_eq!(refused.kind, ErrorKind::Usage);
            let name = cc.split(':').next().expect("one at least");
            assert!(refused.message.contains(name), "{refused}");
            assert!(ecn(&["--ecn", "classic", "--cc", cc]).is_ok());
        }
    }

    #[test]
    fn values() {
        assert_eq!(cc("fixed:190mbit"), Ok(transport::Cc::Fixed(23_750_000)));
        assert_eq!(cc("cubic"), Ok(transport::Cc::Cubic));
        assert_eq!(ecn("l4s"), Ok(transport::EcnMode::L4s));
        assert!(ecn("on").unwrap_err().contains("classic"));
        assert_eq!(cc("scavenger"), Ok(transport::Cc::Scavenger));
        assert!(cc("fast").unwrap_err().contains("scavenger"));
        assert_eq!(memory("4MiB"), Ok(4 << 20));
        assert!(memory("4MB").is_err());
        assert_eq!(recv_window("16KiB"), Ok(16 << 10));
        assert!(recv_window("16kB").is_err());
        assert_eq!(busy_poll("50us"), Ok(Duration::from_micros(50)));
        for text in ["50", "0", "11ms"] {
            assert!(busy_poll(text).is_err(), "{text}");
        }
        assert_eq!((bundle("0"), bundle("8")), (Ok(0), Ok(8)));
        assert!(bundle("9").unwrap_err().contains("at most 8"));
        assert!(bundle("-1").is_err() && bundle("1kB").is_err());
        assert!(matches!(io("xdp:eth0:0-1,copy"), Ok(transport::Io::Xdp(_))));
        assert!(cfg!(feature = "dpdk") || io("dpdk:-l 0 -- 10.0.0.1/24").is_err());
        assert!(io("xdp:").is_err() && io("xdp:eth0,fast").is_err() && io("tcp").is_err());
        assert_eq!(icm("paper"), Ok(transport::Icm::Paper));
        assert!(icm("on").is_err());
        assert_eq!(workers("auto"), Ok(Count::Auto));
        assert_eq!(shards("auto"), Ok(Count::Auto));
        for number in [0, 1, 64] {
            assert_eq!(workers(&number.to_string()), Ok(Count::Number(number)));
        }
        assert_eq!(shards("64"), Ok(Count::Number(64)));
        assert!(shards("0").unwrap_err().contains("at least 1"));
        for text in ["65", "-1", "two", ""] {
            assert!(workers(text).unwrap_err().contains("at most 64"), "{text}");
        }
        assert_eq!(cpus("0-2,4"), Ok(Cpus(vec![0, 1, 2, 4])));
        assert_eq!(cpus("3,1"), Ok(Cpus(vec![3, 1])));
        for text in [
            "",
            "2-1",
            "1,",
            "1-",
            "-1",
            "a",
            "1024",
            "0-99999999999",
            "0,0-1",
        ] {
            assert!(cpus(text).is_err(), "{text}");
        }
        assert!(cc("fixed:").is_err());
        assert_eq!(codec("srlt"), Ok(transport::Codec::SemiRandomLt));
    }

    proptest! {
        #[test]
        fn total(text in ".*") {
            let _ = (io(&text), workers(&text), shards(&text), cpus(&text), icm(&text));
            let _ = (codec(&text), profile(&text), cc(&text));
        }
    }
}
