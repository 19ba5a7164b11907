//! `[[contestant]]`: what is compared.

use serde::Deserialize;

use super::value::Rate;
use crate::{
    Contestant,
    contestants::{Adapter, External, Programs, Quinn, Sphinx, Tcp, TcpSettings, Udp},
};

/// A contestant as the scenario has it; `name` has been given a default.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Written")]
pub(super) struct ContestantTable {
    pub(super) name: String,
    kind: Kind,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<String>,
    kind: KindName,
    /// For `sphinx`: options of `sphx perf client`.
    options: Option<String>,
    /// For `sphinx`: the only path that it uses of several.
    path: Option<String>,
    /// For `sphinx`: false if it is not told the deadline of messages.
    deadline: Option<bool>,
    /// For `sphinx`: true if its ends have met before.
    known: Option<bool>,
    /// For `tunnel`, `relay` and `file`: the commands of both ends.
    receiver: Option<String>,
    sender: Option<String>,
    /// For `udp`: the rate to send at.
    rate: Option<Rate>,
    /// For `tcp`, `mptcp` and `quinn`: the congestion control.
    congestion: Option<String>,
    /// For `quinn`: messages are datagrams.
    datagrams: Option<bool>,
    /// For `tcp`: whether SACK is on.
    sack: Option<bool>,
    /// For `tcp`: whether RACK is on.
    rack: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum KindName {
    Sphinx,
    Tcp,
    Mptcp,
    Quinn,
    Udp,
    Iperf3,
    Kcptun,
    Srt,
    Uftp,
    Tunnel,
    Relay,
    File,
}

#[derive(Debug)]
enum Kind {
    Sphinx {
        options: Vec<String>,
        knows_deadline: bool,
        is_known: bool,
        path: Option<String>,
    },
    Tcp(TcpSettings),
    Quinn {
        congestion: String,
        datagrams: bool,
    },
    Udp {
        rate: u64,
    },
    Known(&'static str),
    External {
        adapter: Adapter,
        receiver: String,
        sender: String,
    },
}

impl TryFrom<Written> for ContestantTable {
    type Error = String;

    fn try_from(written: Written) -> Result<ContestantTable, String> {
        let Written {
            name,
            kind,
            options,
            path,
            deadline,
            known,
            receiver,
            sender,
            rate,
            congestion,
            datagrams,
            sack,
            rack,
        } = written;
        let is_tcp = matches!(kind, KindName::Tcp | KindName::Mptcp);
        let is_external = matches!(kind, KindName::Tunnel | KindName::Relay | KindName::File);
        let has_congestion = is_tcp || kind == KindName::Quinn;
        for (key, is_given, belongs) in [
            ("options", options.is_some(), kind == KindName::Sphinx),
            ("path", path.is_some(), kind == KindName::Sphinx),
            ("deadline", deadline.is_some(), kind == KindName::Sphinx),
            ("known", known.is_some(), kind == KindName::Sphinx),
            ("receiver", receiver.is_some(), is_external),
            ("sender", sender.is_some(), is_external),
            ("rate", rate.is_some(), kind == KindName::Udp),
            ("congestion", congestion.is_some(), has_congestion),
            ("datagrams", datagrams.is_some(), kind == KindName::Quinn),
            ("sack", sack.is_some(), is_tcp),
            ("rack", rack.is_some(), is_tcp),
        ] {
            if is_given && !belongs {
                return Err(format!("this kind of contestant has no '{key}'"));
            }
        }
        let congestion = congestion.unwrap_or_else(|| "cubic".to_owned());
        let (default, kind) = match kind {
            KindName::Sphinx => {
                let options = options.unwrap_or_default();
                let options = options.split_whitespace().map(ToOwned::to_owned).collect();
                let kind = Kind::Sphinx {
                    options,
                    knows_deadline: deadline.unwrap_or(true),
                    is_known: known.unwrap_or(false),
                    path,
                };
                ("sphinx".to_owned(), kind)
            }
            KindName::Tcp | KindName::Mptcp => {
                let mptcp = kind == KindName::Mptcp;
                let prefix = if mptcp { "mptcp" } else { "tcp" };
                let settings = TcpSettings {
                    sack: sack.unwrap_or(true),
                    rack: rack.unwrap_or(true),
                    mptcp,
                    ..TcpSettings::new(&congestion)
                };
                (format!("{prefix}-{congestion}"), Kind::Tcp(settings))
            }
            KindName::Iperf3 => ("iperf3".to_owned(), Kind::Known("iperf3")),
            KindName::Kcptun => ("kcptun".to_owned(), Kind::Known("kcptun")),
            KindName::Srt => ("srt".to_owned(), Kind::Known("srt")),
            KindName::Uftp => ("uftp".to_owned(), Kind::Known("uftp")),
            KindName::Tunnel | KindName::Relay | KindName::File => {
                let adapter = match kind {
                    KindName::Tunnel => Adapter::Tunnel,
                    KindName::Relay => Adapter::Relay,
                    _ => Adapter::File,
                };
                let receiver = receiver.ok_or("it needs the 'receiver''s command")?;
                let sender = sender.ok_or("it needs the 'sender''s command")?;
                let first = receiver.split_whitespace().next().unwrap_or_default();
                let external = Kind::External {
                    adapter,
                    receiver: receiver.clone(),
                    sender,
                };
                (first.to_owned(), external)
            }
            KindName::Udp => {
                let Rate(rate) = rate.ok_or("plain UDP needs a 'rate'")?;
                ("udp".to_owned(), Kind::Udp { rate })
            }
            KindName::Quinn => {
                let datagrams = datagrams.unwrap_or(false);
                let suffix = if datagrams { "-datagrams" } else { "" };
                let name = format!("quinn-{congestion}{suffix}");
                let kind = Kind::Quinn {
                    congestion,
                    datagrams,
                };
                (name, kind)
            }
        };
        Ok(ContestantTable {
            name: name.unwrap_or(default),
            kind,
        })
    }
}

impl ContestantTable {
    /// Of several paths, the only one that it uses.
    pub(super) fn only_path(&self) -> Option<&str> {
        match &self.kind {
            Kind::Sphinx { path, .. } => path.as_deref(),
            _ => None,
        }
    }

    pub(super) fn build(self, programs: &Programs) -> Box<dyn Contestant> {
        let ContestantTable { name, kind } = self;
        match kind {
            Kind::Sphinx {
                options,
                knows_deadline,
                is_known,
                path,
            } => {
                let mut sphinx = Sphinx::new(&programs.sphx, &programs.peers, &name, options);
                if !knows_deadline {
                    sphinx = sphinx.without_deadline();
                }
                if is_known {
                    sphinx = sphinx.known();
                }
                if let Some(path) = path {
                    sphinx = sphinx.over_path(path);
                }
                Box::new(sphinx)
            }
            Kind::Tcp(settings) => Box::new(Tcp::with_settings(&programs.peers, &name, settings)),
            Kind::Known(kind) => match External::known(&programs.peers, kind, &name) {
                Some(known) => Box::new(known),
                None => unreachable!("every kind is known"),
            },
            Kind::External {
                adapter,
                receiver,
                sender,
            } => Box::new(External::new(
                &programs.peers,
                &name,
                adapter,
                &receiver,
                &sender,
            )),
            Kind::Udp { rate } => Box::new(Udp::new(&programs.peers, &name, rate)),
            Kind::Quinn {
                congestion,
                datagrams,
            } => {
                let quinn = Quinn::with_name(&programs.quinn, &name, &congestion);
                Box::new(match datagrams {
                    true => quinn.with_datagrams(),
                    false => quinn,
                })
            }
        }
    }
}
