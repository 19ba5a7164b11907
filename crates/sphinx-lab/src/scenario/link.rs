//! `[link]`: every combination of its rates, round-trip times and losses is a link.

use std::collections::BTreeMap;

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
    rate: Values<Rate>,
    rtt: Values<Time>,
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
        self.rtt = rtt.cloned().unwrap_or_else(|| self.rtt.clone());
        self.rate = rate.cloned().unwrap_or_else(|| self.rate.clone());
    }
}

/// The links with their names: `r10-l6` is an RTT of 10 ms and 6 % loss; the rate is named where there
/// are several. `read` reads traces.
pub(super) fn expand(
    tables: Vec<LinkTable>,
    read: ReadFile<'_>,
) -> Result<Vec<(String, LinkSpec)>, ScenarioError> {
    let mut links = Vec::new();
    for table in &tables {
        let none = Values(vec![Share(0.0)]);
        let losses = table.loss.as_ref().unwrap_or(&none);
        let many_rates = table.rate.0.len() > 1;
        for Rate(rate) in &table.rate.0 {
            for Time(rtt) in &table.rtt.0 {
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
                        false => link
                            .with_settings(&table.set, read)
                            .map_err(|error| ScenarioError::Sense(error.to_string()))?,
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
