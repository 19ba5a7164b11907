//! `[link]`: every combination of its rates, round-trip times and losses is a link; or a link as people have them, or several paths.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use sphinx_link::{Depth, GilbertElliott, Loss, settings::ReadFile};
use sphinx_proto::PATHS_MAX;

use super::{
    ScenarioError, units,
    value::{Rate, Share, Size, Time, Values},
};
use crate::{LinkSpec, PathSpec, several};

/// The smallest buffer that a receiver of Sphinx can be bounded to.
const RECEIVE_BUFFER_MIN: u64 = 16 << 10;

/// A `[link]` table as it is written in the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct LinkTable {
    /// In front of the names of its cells.
    #[serde(default)]
    name: String,
    /// A link as people have them: it has its own rate, round trip, losses and queue.
    like: Option<String>,
    rate: Option<Values<Rate>>,
    rtt: Option<Values<Time>>,
    loss: Option<Values<Share>>,
    /// Mean number of packets lost in a row; independent losses without.
    burst: Option<Burst>,
    back_loss: Option<Share>,
    queue: Option<Queue>,
    mark: Option<Queue>,
    cellular: Option<u64>,
    /// Settings of the emulator, in its language.
    #[serde(default)]
    set: BTreeMap<String, String>,
    /// Instead: several paths, each written as a link.
    #[serde(default)]
    path: Vec<LinkTable>,
    /// Cost of a byte, where the table is one of several paths.
    cost: Option<u32>,
    /// Bytes that the receive buffer may hold; one cell for each value.
    receive_buffer: Option<Values<Size>>,
}

/// What cells are made of, workloads aside.
#[derive(Debug)]
pub(super) struct Ground {
    /// Name of the link, with the values that differ from cell to cell.
    pub(super) name: String,
    /// What several paths are together, or the one that there is.
    pub(super) link: LinkSpec,
    pub(super) paths: Vec<PathSpec>,
    pub(super) receive_buffer: Option<u64>,
}

/// How many packets are lost in a row on average: 1 or more.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "f64")]
struct Burst(f64);

impl TryFrom<f64> for Burst {
    type Error = String;

    fn try_from(packets: f64) -> Result<Burst, String> {
        match packets.is_finite() && packets >= 1.0 {
            true => Ok(Burst(packets)),
            false => Err(format!(
                "no burst has {packets} packets on average: write 1 or more"
            )),
        }
    }
}

/// `250kB` or `20ms` of waiting packets.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Queue(Depth);

impl TryFrom<String> for Queue {
    type Error = String;

    fn try_from(text: String) -> Result<Queue, String> {
        let time = units::duration_positive(&text).map(Depth::Time);
        match units::size(&text).map(Depth::Bytes).or(time) {
            Ok(depth) => Ok(Queue(depth)),
            Err(_) => Err(format!(
                "'{text}' is not understood: write a size such as 250kB, or a time such as 20ms"
            )),
        }
    }
}

impl LinkTable {
    pub(super) fn hurry(
        &mut self,
        loss: Option<&Values<Share>>,
        rtt: Option<&Values<Time>>,
        rate: Option<&Values<Rate>>,
    ) {
        if let (Some(loss), Some(_)) = (loss, &self.loss) {
            self.loss = Some(loss.clone());
        }
        if self.rtt.is_some() {
            self.rtt = rtt.or(self.rtt.as_ref()).cloned();
        }
        if self.rate.is_some() {
            self.rate = rate.or(self.rate.as_ref()).cloned();
        }
    }
}

impl LinkTable {
    pub(super) fn has_loss(&self) -> bool {
        self.loss.is_some()
    }

    pub(super) fn has_rtt(&self) -> bool {
        self.rtt.is_some()
    }

    pub(super) fn has_rate(&self) -> bool {
        self.rate.is_some()
    }

    fn says_what_it_is_like(&self) -> bool {
        self.rate.is_some()
            || self.rtt.is_some()
            || self.loss.is_some()
            || self.burst.is_some()
            || self.back_loss.is_some()
            || self.queue.is_some()
            || self.mark.is_some()
            || self.cellular.is_some()
    }

    /// The paths, of which each is one link.
    fn paths(&self, read: ReadFile<'_>) -> Result<Vec<PathSpec>, ScenarioError> {
        let refuse = |text: String| Err(ScenarioError::Sense(text));
        if self.like.is_some() || self.says_what_it_is_like() || !self.set.is_empty() {
            return refuse("a link of several paths says of each path what it is like".to_owned());
        }
        if !(2..=PATHS_MAX).contains(&self.path.len()) {
            return refuse(format!("a link has 2 to {PATHS_MAX} paths, or no 'path'"));
        }
        let mut paths: Vec<PathSpec> = Vec::new();
        for table in &self.path {
            let (name, cost) = (table.name.clone(), table.cost.unwrap_or(0));
            let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if !is_word || paths.iter().any(|path| path.name == name) {
                return refuse("a path needs a name of its own, of letters and digits".to_owned());
            }
            if !table.path.is_empty() || table.receive_buffer.is_some() {
                let text = format!("path {name}: neither 'path' nor 'receive-buffer' is of a path");
                return refuse(text);
            }
            match &links(table, read)?[..] {
                [(_, link)] => paths.push(PathSpec {
                    name,
                    link: link.clone(),
                    cost,
                }),
                _ => {
                    return refuse(format!(
                        "path {name} has one rate, one round trip and one loss"
                    ));
                }
            }
        }
        Ok(paths)
    }

    /// The link of a kind that [`MODELS`](sphinx_link::settings::MODELS) has, with its name.
    fn as_people_have_them(
        &self,
        kind: &str,
        read: ReadFile<'_>,
    ) -> Result<(String, LinkSpec), ScenarioError> {
        if self.says_what_it_is_like() {
            let text = format!(
                "a link like {kind} has its own rate, round trip, losses and queue: change them with \
                 `set`, as in set = {{ rtt = \"30ms\" }}"
            );
            return Err(ScenarioError::Sense(text));
        }
        let mut settings = self.set.clone();
        settings.insert("like".to_owned(), kind.to_owned());
        let link = adjusted(LinkSpec::clean(Duration::ZERO), &settings, read)?;
        let name = match self.name.is_empty() {
            true => kind.to_owned(),
            false => self.name.clone(),
        };
        Ok((name, link))
    }
}

fn adjusted(
    link: LinkSpec,
    settings: &BTreeMap<String, String>,
    read: ReadFile<'_>,
) -> Result<LinkSpec, ScenarioError> {
    link.with_settings(settings, read)
        .map_err(|error| ScenarioError::Sense(error.to_string()))
}

/// What the tables say, with the names of cells: `r10-l6` is an RTT of 10 ms and 6 % loss; the rate is named where there
/// are several, and so is what receivers may hold. `read` reads traces.
pub(super) fn expand(
    tables: &[LinkTable],
    read: ReadFile<'_>,
) -> Result<Vec<Ground>, ScenarioError> {
    let mut grounds = Vec::new();
    for table in tables {
        if table.cost.is_some() {
            return Err(ScenarioError::Sense("only a path has a 'cost'".to_owned()));
        }
        let found = match table.path.is_empty() {
            true => (links(table, read)?.into_iter())
                .map(|(name, link)| (name, link, Vec::new()))
                .collect(),
            false => {
                let paths = table.paths(read)?;
                vec![(table.name.clone(), several::together(&paths), paths)]
            }
        };
        let buffers = match &table.receive_buffer {
            None => vec![None],
            Some(sizes) => sizes.0.iter().map(|size| Some(size.0)).collect(),
        };
        for (name, link, paths) in found {
            for receive_buffer in &buffers {
                grounds.push(Ground {
                    name: with_buffer(&name, *receive_buffer)?,
                    link: link.clone(),
                    paths: paths.clone(),
                    receive_buffer: *receive_buffer,
                });
            }
        }
    }
    Ok(grounds)
}

fn with_buffer(name: &str, buffer: Option<u64>) -> Result<String, ScenarioError> {
    let name = match (name, buffer) {
        ("", None) => "paths".to_owned(),
        (_, None) => name.to_owned(),
        (_, Some(bytes)) if bytes < RECEIVE_BUFFER_MIN => {
            let text = "a receive buffer has at least 16KiB";
            return Err(ScenarioError::Sense(text.to_owned()));
        }
        ("", Some(bytes)) => format!("b{}", bytes >> 10),
        (_, Some(bytes)) => format!("{name}-b{}", bytes >> 10),
    };
    Ok(name)
}

/// The links of a table with their names.
fn links(table: &LinkTable, read: ReadFile<'_>) -> Result<Vec<(String, LinkSpec)>, ScenarioError> {
    if let Some(kind) = &table.like {
        return Ok(vec![table.as_people_have_them(kind, read)?]);
    }
    let (Some(rates), Some(rtts)) = (&table.rate, &table.rtt) else {
        let text = "a link needs `rate` and `rtt`, or `like`".to_owned();
        return Err(ScenarioError::Sense(text));
    };
    let none = Values(vec![Share(0.0)]);
    let losses = table.loss.as_ref().unwrap_or(&none);
    let many_rates = rates.0.len() > 1;
    let mut links = Vec::new();
    for Rate(rate) in &rates.0 {
        for Time(rtt) in &rtts.0 {
            for Share(loss) in &losses.0 {
                let mut name = String::new();
                if !table.name.is_empty() {
                    name += &format!("{}-", table.name);
                }
                if many_rates {
                    name += &format!("{}m-", *rate as f64 / 1e6);
                }
                let percent = (loss * 1e8).round() / 1e6;
                name += &format!("r{}-l{percent}", rtt.as_secs_f64() * 1e3);
                if let Some(Burst(burst)) = table.burst {
                    name += &format!("x{burst}");
                }
                if let Some(Share(back)) = table.back_loss {
                    name += &format!("-back{}", (back * 1e8).round() / 1e6);
                }
                let link = LinkSpec {
                    rate: *rate,
                    rtt: *rtt,
                    forward: losses_of(*loss, table.burst)?,
                    back: losses_of(table.back_loss.map_or(0.0, |share| share.0), None)?,
                    queue: table.queue.map(|queue| queue.0),
                    mark: table.mark.map(|queue| queue.0),
                    cellular: table.cellular,
                    adjusted: None,
                };
                let link = match table.set.is_empty() {
                    true => link,
                    false => adjusted(link, &table.set, read)?,
                };
                links.push((name, link));
            }
        }
    }
    Ok(links)
}

fn losses_of(share: f64, burst: Option<Burst>) -> Result<Loss, ScenarioError> {
    let burst = match burst {
        Some(Burst(burst)) if share > 0.0 && burst > 1.0 => burst,
        _ if share > 0.0 => return Ok(Loss::Bernoulli(share)),
        _ => return Ok(Loss::None),
    };
    let refuse = |text: String| Err(ScenarioError::Sense(text));
    if share >= 1.0 {
        return refuse(
            "where all packets are lost, there are no bursts: leave out `burst`".to_owned(),
        );
    }
    let model = GilbertElliott::bursts(share, burst);
    // Between two bursts there is a packet at least.
    if model.good_to_bad > 1.0 {
        let percent = (share * 1e8).round() / 1e6;
        let least = (share / (1.0 - share)).ceil();
        return refuse(format!(
            "where {percent} % are lost, `burst` is {least} or more, not {burst}"
        ));
    }
    Ok(Loss::GilbertElliott(model))
}
