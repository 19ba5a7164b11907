//! What is to be run: the command line on top of a configuration file.

use std::{
    cell::RefCell, collections::BTreeMap, ffi::OsString, fs::File, io, io::Read, path::PathBuf,
};

use sphinx_link::{LinkConfig, settings::LinkSettings};
use toml::{Table, Value};

use super::{LinkError, RunArgs, place};
use crate::toml_error::in_one_line;

/// Longest configuration or trace file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// MTU of the interfaces.
const INTERFACE_MTU: usize = 1500;

/// What to run at an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// A line for the shell.
    Script(String),
    /// A command with its arguments.
    Words(Vec<OsString>),
}

/// A link and what to run on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(super) name: String,
    pub(super) settings: LinkSettings,
    /// What the settings describe, forward and return, once all are known.
    pub(super) configs: [LinkConfig; 2],
    pub(super) left: Option<Program>,
    pub(super) right: Option<Program>,
    pub(super) pcap: Option<PathBuf>,
    pub(super) log: Option<PathBuf>,
    pub(super) interface_mtu: usize,
    pub(super) agents: Vec<String>,
    /// Interfaces to join, instead of namespaces.
    pub(super) interfaces: Option<[String; 2]>,
    /// Standard output of the commands goes to standard error.
    pub(super) output_is_taken: bool,
}

impl Plan {
    /// Puts together what the arguments and the file they name say.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or understood, a setting that does not exist, a name that cannot be
    /// one.
    pub fn new(args: RunArgs) -> Result<Plan, LinkError> {
        let mut plan = match &args.config {
            None => Plan::from_toml("")?,
            Some(path) => {
                let shown = path.display().to_string();
                let text = read_file(&shown)
                    .map_err(|error| LinkError::io("read the configuration", &shown, &error))?;
                Plan::from_toml(&text).map_err(|error| LinkError {
                    message: format!("{shown}: {}", error.message),
                    ..error
                })?
            }
        };
        for (key, value) in &args.settings.0 {
            plan.settings.set(key, value)?;
        }
        let words = (!args.words.is_empty()).then_some(Program::Words(args.words));
        plan.left = args.left.map(Program::Script).or(words).or(plan.left);
        plan.right = args.right.map(Program::Script).or(plan.right);
        plan.name = args.name.unwrap_or(plan.name);
        plan.pcap = args.pcap.or(plan.pcap);
        plan.log = args.log.or(plan.log);
        plan.interface_mtu = args.interface_mtu.unwrap_or(plan.interface_mtu);
        if !args.agent.is_empty() {
            plan.agents = args.agent;
        }
        plan.output_is_taken = args.json;
        plan.interfaces = args.interfaces;
        if plan.interfaces.is_some() && (plan.left.is_some() || plan.right.is_some()) {
            return Err(LinkError::usage(
                "between interfaces there are no ends to run commands at",
            ));
        }
        if plan.interfaces.is_some() && !plan.agents.is_empty() {
            let why = "between interfaces there is no place for an agent: run 'sphx pep run' there";
            return Err(LinkError::usage(why));
        }
        place::check_name(&plan.name)?;
        // What is wrong shall be said before anything is created.
        let files = Files::default();
        plan.configs = plan.settings.configs(&|path| files.read(path))?;
        Ok(plan)
    }

    /// Reads a configuration file. Values are not looked at yet.
    ///
    /// # Errors
    ///
    /// Text that is not TOML, with the line; settings that do not exist.
    pub fn from_toml(text: &str) -> Result<Plan, LinkError> {
        let table: Table =
            toml::from_str(text).map_err(|error| LinkError::usage(in_one_line(text, &error)))?;
        let mut plan = Plan {
            name: place::NAME.to_owned(),
            settings: LinkSettings::default(),
            configs: [LinkConfig::default(), LinkConfig::default()],
            left: None,
            right: None,
            pcap: None,
            log: None,
            interface_mtu: INTERFACE_MTU,
            agents: Vec::new(),
            interfaces: None,
            output_is_taken: false,
        };
        let mut directions = Vec::new();
        let mut of_one = Vec::new();
        for (key, value) in table {
            match (key.as_str(), value) {
                ("name", value) => plan.name = scalar(&key, value)?,
                ("left", value) => plan.left = Some(Program::Script(scalar(&key, value)?)),
                ("right", value) => plan.right = Some(Program::Script(scalar(&key, value)?)),
                ("pcap", value) => plan.pcap = Some(scalar(&key, value)?.into()),
                ("log", value) => plan.log = Some(scalar(&key, value)?.into()),
                ("interface-mtu", value) => {
                    let bytes = scalar(&key, value)?;
                    plan.interface_mtu = sphinx_units::packet_size(&bytes)
                        .map_err(|message| LinkError::usage(format!("{key}: {message}")))?;
                }
                ("agent", Value::Array(agents)) => {
                    let agents = agents.into_iter().map(|agent| scalar(&key, agent));
                    plan.agents = agents.collect::<Result<_, _>>()?;
                }
                ("agent", value) => plan.agents = vec![scalar(&key, value)?],
                // Settings of one direction are applied after those of both.
                ("forward" | "return", Value::Table(table)) => directions.push((key, table)),
                // A quoted key such as "forward.rate" is of one direction, too. It is kept for later, as tables sort their keys by name.
                (_, value) if key.contains('.') => of_one.push((key, value)),
                (_, value) => plan.settings.set(&key, &scalar(&key, value)?)?,
            }
        }
        for (direction, table) in directions {
            let keys = table.into_iter();
            of_one.extend(keys.map(|(key, value)| (format!("{direction}.{key}"), value)));
        }
        for (key, value) in of_one {
            let value = scalar(&key, value)?;
            plan.settings.set(&key, &value)?;
        }
        Ok(plan)
    }

    /// What `--agent` says, in the words of `sphx pep`: the agent stands between the left end and the link.
    pub fn agents(&self) -> &[String] {
        &self.agents
    }
}

/// The text of a value: as it is, or of a number where that is enough.
fn scalar(key: &str, value: Value) -> Result<String, LinkError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => Err(LinkError::usage(format!("{key}: write text or a number"))),
    }
}

/// The files that settings name, each read once for both directions: a pipe has nothing to read the second time.
#[derive(Default)]
pub(crate) struct Files(RefCell<BTreeMap<String, String>>);

impl Files {
    pub(crate) fn read(&self, path: &str) -> io::Result<String> {
        if let Some(text) = self.0.borrow().get(path) {
            return Ok(text.clone());
        }
        let text = read_file(path)?;
        self.0.borrow_mut().insert(path.to_owned(), text.clone());
        Ok(text)
    }
}

/// Reads a text file of bounded size.
fn read_file(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_describes_a_link() {
        let plan = Plan::from_toml(
            "name = 'sat'\nright = 'iperf3 -s'\nrate = '20mbit'\nloss = 0.02\nseed = 7\n\
             interface-mtu = 1400\n[return]\nrate = '2mbit'\nrtt = '600ms'\n",
        );
        // A round trip is of both directions.
        assert!(plan.unwrap_err().message.contains("no setting 'rtt'"));
        let plan = Plan::from_toml(
            "name = 'sat'\nright = 'iperf3 -s'\nrate = '20mbit'\nloss = 0.02\nseed = 7\n\
             interface-mtu = 1400\nrtt = '600ms'\n[return]\nrate = '2mbit'\n",
        )
        .unwrap();
        assert_eq!((plan.name.as_str(), plan.interface_mtu), ("sat", 1400));
        assert_eq!(plan.right, Some(Program::Script("iperf3 -s".into())));
        let mut settings = LinkSettings::default();
        for text in [
            "rate=20mbit",
            "loss=0.02",
            "seed=7",
            "rtt=600ms",
            "return.rate=2mbit",
        ] {
            settings.set_text(text).unwrap();
        }
        assert_eq!(plan.settings, settings);
    }

    #[test]
    fn what_is_of_one_direction_comes_last_however_it_is_written() {
        let of = |text: &str| Plan::from_toml(text).unwrap().settings;
        let mut settings = LinkSettings::default();
        for text in ["loss=2%", "rtt=20ms", "forward.loss=10%"] {
            settings.set_text(text).unwrap();
        }
        let both = "loss = '2%'\nrtt = '20ms'\n";
        assert_eq!(of(&format!("{both}[forward]\nloss = '10%'\n")), settings);
        assert_eq!(of(&format!("{both}forward.loss = '10%'\n")), settings);
        assert_eq!(of(&format!("{both}'forward.loss' = '10%'\n")), settings);
    }

    #[test]
    fn mistakes_in_a_file_are_told_with_their_place() {
        for (text, reason) in [
            ("rate = ", "line 1"),
            ("\nrate = = 3\n", "line 2"),
            ("rate = true\n", "rate: write text or a number"),
            ("rate = [1]\n", "rate: write text or a number"),
            ("forward = 3\n", "there is no setting 'forward'"),
            (
                "interface-mtu = 'x'\n",
                "interface-mtu: 'x' is not understood",
            ),
            ("speed = 3\n", "there is no setting 'speed'"),
            ("[backward]\nloss = 1\n", "backward: write text or a number"),
            ("[return]\nspeed = 1\n", "there is no setting 'speed'"),
        ] {
            let error = Plan::from_toml(text).unwrap_err();
            assert!(error.message.contains(reason), "{text}: {}", error.message);
        }
    }
}
