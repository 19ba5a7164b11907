//! `[link]`: every combination of its rates, round-trip times and losses is a link; or a link as people have them.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use sphinx_link::{Depth, GilbertElliott, Loss, settings::ReadFile};

use super::{
    ScenarioError, units,
    value::{Rate, Share, Time, Values},
};
use crate::LinkSpec;

/// As it is written.
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
    burst: Option<f64>,
    back_loss: Option<Share>,
    queue: Option<Queue>,
    mark: Option<Queue>,
    cellular: Option<u64>,
    /// Settings of the emulator, in its language.
    #[serde(default)]
    set: BTreeMap<String, String>,
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
    /// The link of a kind that [`MODELS`](sphinx_link::settings::MODELS) has, with its name.
    fn as_people_have_them(
        &self,
        kind: &str,
        read: ReadFile<'_>,
    ) -> Result<(String, LinkSpec), ScenarioError> {
        let is_said = self.rate.is_some()
            || self.rtt.is_some()
            || self.loss.is_some()
            || self.burst.is_some()
            || self.back_loss.is_some()
            || self.queue.is_some()
            || self.mark.is_some()
            || self.cellular.is_some();
        if is_said {
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

/// The links with their names: `r10-l6` is an RTT of 10 ms and 6 % loss; the rate is named where there
/// are several. `read` reads traces.
pub(super) fn expand(
    tables: Vec<LinkTable>,
    read: ReadFile<'_>,
) -> Result<Vec<(String, LinkSpec)>, ScenarioError> {
    let mut links = Vec::new();
    for table in &tables {
        if let Some(kind) = &table.like {
            links.push(table.as_people_have_them(kind, read)?);
            continue;
        }
        let (Some(rates), Some(rtts)) = (&table.rate, &table.rtt) else {
            let text = "a link needs `rate` and `rtt`, or `like`".to_owned();
            return Err(ScenarioError::Sense(text));
        };
        let none = Values(vec![Share(0.0)]);
        let losses = table.loss.as_ref().unwrap_or(&none);
        let many_rates = rates.0.len() > 1;
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
                    if let Some(burst) = table.burst {
                        name += &format!("x{burst}");
                    }
                    if let Some(Share(back)) = table.back_loss {
                        name += &format!("-back{}", (back * 1e8).round() / 1e6);
                    }
                    let link = LinkSpec {
                        rate: *rate,
                        rtt: *rtt,
                        forward: losses_of(*loss, table.burst),
                        back: losses_of(table.back_loss.map_or(0.0, |share| share.0), None),
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
    }
    Ok(links)
}

fn losses_of(share: f64, burst: Option<f64>) -> Loss {
    match (share, burst) {
        (0.0, _) => Loss::None,
        (_, Some(burst)) if burst > 1.0 => {
            Loss::GilbertElliott(GilbertElliott::bursts(share.min(0.99), burst))
        }
        _ => Loss::Bernoulli(share),
    }
}
