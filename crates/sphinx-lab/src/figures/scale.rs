//! Figure 9 at the scale of the paper: five pairs at once, in real time, or as a model of it.

use std::{process::Command, sync::atomic::AtomicBool, thread, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sphinx_codes::svg::{Chart, Series, Style};
use sphinx_link::Loss;
use sphinx_sim::Processor;

use super::{
    Check, Sheet, Studio,
    campaign::{self, Case, NoRun},
    claim::Sample,
    curves::{in_interval, place, shown},
    paths::seeds,
    sheet::Sentence,
};
use crate::{
    Cell, Clock, Contestant, Experiment, LinkSpec, Simulated, Validity, Workload,
    contestants::{Programs, Sphinx, Tcp},
    machine::Made,
    runner::ScenarioFailure,
};

/// Processors without which five pairs, their workers and the links between them only measure the machine.
pub const CORES_MIN: usize = 8;

/// Senders and receivers, each pair over a link of its own.
const PAIRS: u64 = 5;
/// Rate, in bit/s, and round trip of each pair's link.
const RATE: u64 = 1_000_000_000;
const RTT: Duration = Duration::from_millis(10);
/// Loss rates in millionths.
const LOSSES: [u32; 4] = [0, 20_000, 60_000, 100_000];
const LOSSES_QUICK: [u32; 1] = [60_000];
/// The loss rate for which the paper gives numbers, in millionths.
const PUBLISHED: u32 = 60_000;
/// Bytes that a pair carries: 5000 blocks of 100 kB, as published.
const BYTES: u64 = 500_000_000;
/// The same in the model: 200 blocks, since virtual time takes long.
const BYTES_MODEL: u64 = 20_000_000;
const BYTES_QUICK: u64 = 10_000_000;
/// When a transfer is cut off.
const LIMIT: Duration = Duration::from_secs(10);
/// The amount that `sphx perf cost` moves.
const COST_BYTES: &str = "100MB";

const PAPER: &str = "semi-random LT";
const WORKERS: &str = "semi-random LT, workers";
const OURS: &str = "sphinx";
const CUBIC: &str = "tcp-cubic";

/// A contestant: its name, the mode of the paper if it uses that, and whether it has a worker beside its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Compared {
    name: &'static str,
    paper: Option<&'static str>,
    workers: bool,
}

const COMPARED: [Compared; 6] = [
    Compared {
        name: PAPER,
        paper: Some("--paper=window=32"),
        workers: false,
    },
    Compared {
        name: "traditional LT",
        paper: Some("--paper=window=32,code=lt"),
        workers: false,
    },
    Compared {
        name: "Reed–Solomon",
        paper: Some("--paper=window=32,code=rs"),
        workers: false,
    },
    Compared {
        name: "semi-random LT, no ICM",
        paper: Some("--paper=window=32,icm=off"),
        workers: false,
    },
    Compared {
        name: WORKERS,
        paper: Some("--paper=window=32"),
        workers: true,
    },
    Compared {
        name: OURS,
        paper: None,
        workers: false,
    },
];

impl Compared {
    /// Options of the protocol.
    fn options(&self) -> Vec<String> {
        let paper = self.paper.into_iter();
        paper
            .flat_map(|paper| [paper, "--cc=fixed:950mbit"])
            .map(str::to_owned)
            .collect()
    }

    fn contestant(&self, programs: &Programs) -> Sphinx {
        let mut options = self.options();
        // As published: a processor each for the distributor and the worker.
        options.push(format!("--workers={}", u8::from(self.workers)));
        Sphinx::new(&programs.sphx, &programs.peers, self.name, options)
    }
}

fn percent(loss: u32) -> f64 {
    f64::from(loss) / 1e4
}

fn cell(loss: u32, bytes: u64, clock: Clock) -> Cell {
    Cell {
        name: format!("l{}", percent(loss)),
        link: LinkSpec {
            rate: RATE,
            forward: match loss {
                0 => Loss::None,
                loss => Loss::Bernoulli(f64::from(loss) / 1e6),
            },
            ..LinkSpec::clean(RTT)
        },
        paths: Vec::new(),
        receive_buffer: None,
        workload: Workload::Bulk { bytes },
        clock,
    }
}

/// The seed of the link of one of the five pairs.
fn seed_of(seed: u64, pair: u64) -> u64 {
    seed * PAIRS + pair
}

fn losses(studio: &Studio<'_>) -> &'static [u32] {
    match studio.quick {
        true => &LOSSES_QUICK,
        false => &LOSSES,
    }
}

/// How long real pairs take at most; in virtual time it is the machine that decides.
pub(super) fn duration(quick: bool) -> Duration {
    let (cells, seeds) = match quick {
        true => (LOSSES_QUICK.len(), 3),
        false => (LOSSES.len(), 10),
    };
    LIMIT * (cells * seeds * (COMPARED.len() + 1)) as u32
}

/// Five pairs, real ones.
struct Sent {
    name: &'static str,
    loss: u32,
    seed: u64,
    bytes: u64,
}

/// The result of a run with several pairs.
#[derive(Debug, Deserialize, Serialize)]
struct Came {
    contestant: String,
    loss: u32,
    seed: u64,
    /// Goodput of each pair.
    goodput_mbit_s: Vec<f64>,
    /// IP bytes for a byte delivered, of all.
    wire_ratio: f64,
    /// The latest packets of all five links: one of a hundred was later.
    late_p99_ms: f64,
}

impl Case for Sent {
    type Run = Came;

    fn row(&self) -> String {
        format!("{}, {} % loss", self.name, percent(self.loss))
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn extent(&self) -> String {
        format!("{} bytes", self.bytes)
    }

    fn is_of(&self, run: &Came) -> bool {
        (run.contestant.as_str(), run.loss, run.seed) == (self.name, self.loss, self.seed)
    }

    fn run(&self, studio: &Studio<'_>) -> Result<Came, NoRun> {
        let cell = cell(self.loss, self.bytes, Clock::Real);
        let experiment = Experiment {
            limit: LIMIT,
            made: Made::default(),
        };
        let programs = studio.programs;
        let compared = COMPARED.iter().find(|one| one.name == self.name);
        let contestant: Box<dyn Contestant + Sync> = match compared {
            Some(compared) => Box::new(compared.contestant(programs)),
            None => Box::new(Tcp::new(&programs.peers, "cubic")),
        };
        contestant.check()?;
        let one = |pair| {
            let seed = seed_of(self.seed, pair);
            experiment.run(&cell, contestant.as_ref(), seed, studio.stop)
        };
        let runs: Vec<_> = thread::scope(|scope| {
            let one = &one;
            let threads: Vec<_> = (0..PAIRS)
                .map(|pair| scope.spawn(move || one(pair)))
                .collect();
            let joined = threads.into_iter().map(|thread| {
                let ended = thread.join().map_err(|_| "a thread panicked".to_owned())?;
                ended.map_err(|error| error.to_string())
            });
            joined.collect::<Result<_, String>>()
        })?;
        if runs.iter().any(|run| run.validity == Validity::Starved) {
            return Err(NoRun::Starved);
        }
        let sum = |of: fn(&crate::Run) -> u64| runs.iter().map(of).sum::<u64>() as f64;
        Ok(Came {
            contestant: self.name.to_owned(),
            loss: self.loss,
            seed: self.seed,
            goodput_mbit_s: runs.iter().map(|run| run.goodput_mbit_s).collect(),
            wire_ratio: sum(|run| run.wire.forward_bytes) / sum(|run| run.done.bytes).max(1.0),
            late_p99_ms: (runs.iter().map(|run| run.lateness.p99_ms)).fold(0.0, f64::max),
        })
    }

    fn result(run: &Came) -> String {
        format!("{:.0} Mbit/s", run.goodput_mbit_s.iter().sum::<f64>())
    }
}

/// What a packet costs.
struct Priced {
    compared: Compared,
    loss: u32,
    seed: u64,
}

/// What `sphx perf cost` says of an end, nanoseconds for each packet that the sender sends.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct Part {
    engine: f64,
    kernel: f64,
    work: f64,
}

/// The cost of a packet at both ends, as `sphx perf cost` measures it.
#[derive(Debug, Deserialize, Serialize)]
struct Price {
    contestant: String,
    loss: u32,
    seed: u64,
    payload_bytes: f64,
    sender: Part,
    receiver: Part,
}

impl Case for Priced {
    type Run = Price;

    fn row(&self) -> String {
        format!(
            "costs: {}, {} % loss",
            self.compared.name,
            percent(self.loss)
        )
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn extent(&self) -> String {
        COST_BYTES.to_owned()
    }

    fn is_of(&self, run: &Price) -> bool {
        let of_run = (run.contestant.as_str(), run.loss, run.seed);
        of_run == (self.compared.name, self.loss, self.seed)
    }

    fn run(&self, studio: &Studio<'_>) -> Result<Price, NoRun> {
        let mut command = Command::new(&studio.programs.sphx);
        command.args([
            "perf", "cost", "--json", "--bytes", COST_BYTES, "--mtu", "1500",
        ]);
        command.arg(format!("--loss={}%", percent(self.loss)));
        command.args(self.compared.paper);
        if self.compared.workers {
            command.arg("--workers");
        }
        let output = command.output().map_err(|error| error.to_string())?;
        let mut lines = output.stdout.split(|byte| *byte == b'\n');
        let cost = lines.find_map(|line| {
            let event: Value = serde_json::from_slice(line).ok()?;
            (event["event"] == "cost").then_some(event)
        });
        let cost = cost.ok_or("sphx perf cost has failed")?;
        let number = |value: &Value| value.as_f64().ok_or("sphx perf cost says something else");
        let part = |end: &str| {
            let end = &cost[end];
            Ok::<_, String>(Part {
                engine: number(&end["engine"])?,
                kernel: number(&end["kernel"])?,
                work: number(&end["work"])?,
            })
        };
        Ok(Price {
            contestant: self.compared.name.to_owned(),
            loss: self.loss,
            seed: self.seed,
            payload_bytes: number(&cost["payload_bytes"])?,
            sender: part("sender_ns")?,
            receiver: part("receiver_ns")?,
        })
    }

    fn result(run: &Price) -> String {
        let [sender, receiver] = [run.sender, run.receiver].map(Part::interval);
        format!("{sender:.0} ns a packet at the sender, {receiver:.0} at the receiver")
    }
}

impl Part {
    /// Time from one packet to the next: that of the slower one of engine and worker, which have a processor each.
    fn interval(self) -> f64 {
        (self.engine + self.kernel).max(self.work)
    }
}

/// Five pairs in virtual time, with these costs.
struct Modelled {
    compared: Compared,
    loss: u32,
    seed: u64,
    bytes: u64,
    /// Nanoseconds for each packet sent, and for each received.
    costs: [u64; 2],
}

/// The result of a run with several pairs.
#[derive(Debug, Deserialize, Serialize)]
struct Model {
    contestant: String,
    loss: u32,
    seed: u64,
    send_ns: u64,
    receive_ns: u64,
    /// Goodput of each pair.
    goodput_mbit_s: Vec<f64>,
    /// IP bytes for a byte delivered, of all.
    wire_ratio: f64,
    /// Share of the time that the busiest of the five senders' processors, and of the receivers', had something to do.
    sender_busy: f64,
    receiver_busy: f64,
}

impl Model {
    /// Goodput of all pairs together, Gbit/s.
    fn goodput(&self) -> f64 {
        self.goodput_mbit_s.iter().sum::<f64>() / 1e3
    }
}

impl Case for Modelled {
    type Run = Model;

    fn row(&self) -> String {
        format!(
            "model: {}, {} % loss",
            self.compared.name,
            percent(self.loss)
        )
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn extent(&self) -> String {
        format!("{} bytes", self.bytes)
    }

    /// Whether the run is of this case; runs with other costs of a packet are not.
    fn is_of(&self, run: &Model) -> bool {
        let of_run = (run.contestant.as_str(), run.loss, run.seed);
        let is_charged = [run.send_ns, run.receive_ns] == self.costs;
        of_run == (self.compared.name, self.loss, self.seed) && is_charged
    }

    fn run(&self, studio: &Studio<'_>) -> Result<Model, NoRun> {
        Ok(self.simulate(studio.stop)?)
    }

    fn result(run: &Model) -> String {
        format!("{:.2} Gbit/s", run.goodput())
    }
}

impl Modelled {
    fn simulate(&self, stop: &AtomicBool) -> Result<Model, String> {
        let settings = Simulated::parse(&self.compared.options())?;
        let cell = cell(self.loss, self.bytes, Clock::Virtual);
        let [send, receive] = self.costs;
        let processors = [
            Processor { send, receive: 0 },
            Processor { send: 0, receive },
        ];
        let mut model = Model {
            contestant: self.compared.name.to_owned(),
            loss: self.loss,
            seed: self.seed,
            send_ns: send,
            receive_ns: receive,
            goodput_mbit_s: Vec::new(),
            wire_ratio: 0.0,
            sender_busy: 0.0,
            receiver_busy: 0.0,
        };
        let (mut sent, mut delivered) = (0, 0);
        for pair in 0..PAIRS {
            let seed = seed_of(self.seed, pair);
            let ran = settings.run_charged(&cell, LIMIT, seed, stop, processors);
            let (done, wires, [sender, receiver]) = ran.ok_or("interrupted")?;
            model.goodput_mbit_s.push(done.goodput_mbit_s());
            model.sender_busy = model.sender_busy.max(sender);
            model.receiver_busy = model.receiver_busy.max(receiver);
            sent += wires.iter().map(|wire| wire.forward_bytes).sum::<u64>();
            delivered += done.bytes;
        }
        model.wire_ratio = sent as f64 / (delivered as f64).max(1.0);
        Ok(model)
    }
}

/// A table with a row for each contestant and a column for each loss rate.
fn by_loss(
    names: &[&str],
    losses: &[u32],
    head: &str,
    value: impl Fn(&str, u32) -> String,
) -> (Vec<String>, Vec<Vec<String>>) {
    let mut header = vec![head.to_owned()];
    header.extend(losses.iter().map(|loss| format!("{} %", percent(*loss))));
    let row = |name: &&str| {
        let mut row = vec![(*name).to_owned()];
        row.extend(losses.iter().map(|loss| value(name, *loss)));
        row
    };
    (header, names.iter().map(row).collect())
}

/// What the paper says, as far as these runs say something of it.
fn sentences(sheet: &mut Sheet, of: impl Fn(&str) -> Sample) {
    let sentence = |about, name: &str, remark| Sentence {
        about,
        published: "ahead",
        check: Some(Check::at_least("", &of(PAPER), 1.0, &of(name))),
        remark,
    };
    let mut all = vec![
        sentence(
            "semi-random LT against traditional LT",
            "traditional LT",
            "",
        ),
        sentence("semi-random LT against Reed–Solomon", "Reed–Solomon", ""),
        sentence("with ICM against without", "semi-random LT, no ICM", ""),
    ];
    all.push(Sentence {
        about: "with workers against without",
        published: "ahead",
        check: Some(Check::at_least("", &of(WORKERS), 1.0, &of(PAPER))),
        remark: "nothing can be gained where one processor does not fill the link",
    });
    sheet.sentences(&all);
}

fn drawn(title: &str, names: &[&str], losses: &[u32], of: impl Fn(&str, u32) -> Sample) -> Chart {
    let series = names.iter().map(|name| {
        let mut one = Series::new(name, Style::Line, Vec::new());
        for loss in losses {
            place(&mut one, percent(*loss), &of(name, *loss));
        }
        one
    });
    Chart {
        title: title.to_owned(),
        x_label: "packet loss rate (%)".to_owned(),
        y_label: "goodput of five pairs (Gbit/s)".to_owned(),
        is_x_logarithmic: false,
        is_y_logarithmic: false,
        series: series.collect(),
    }
}

const ABOUT_LINKS: &str = "Five pairs at once, each over a link of its own of 1 Gbit/s, RTT 10 ms, random loss; the paper's had one of 10 Gbit/s together. \
     In its mode blocks leave at 950 Mbit/s, with 32 of them on their way. The paper shaped its links with netem and moved packets with DPDK: netem is a queue of the \
     kernel, past which DPDK goes, so that its own set-up cannot be built as it is described.";

/// Real pairs; false after an interruption.
pub(super) fn draw_real(
    studio: &mut Studio<'_>,
    sheet: &mut Sheet,
) -> Result<bool, ScenarioFailure> {
    let losses = losses(studio);
    let bytes = if studio.quick { BYTES_QUICK } else { BYTES };
    let mut names: Vec<&'static str> = COMPARED.iter().map(|one| one.name).collect();
    names.push(CUBIC);
    let mut cases = Vec::new();
    for loss in losses.iter().copied() {
        for seed in 1..=seeds(studio) {
            // Side by side in time, so that a change of the machine meets all contestants.
            cases.extend(names.iter().map(|name| Sent {
                name,
                loss,
                seed,
                bytes,
            }));
        }
    }
    let Some(runs) = campaign::measure(("fig9-paper", cases), 1, studio, sheet)? else {
        return Ok(false);
    };
    let of = |name: &str, loss, pick: fn(&Came) -> f64| {
        let these = { runs.iter() }.filter(|run| run.contestant == name && run.loss == loss);
        Sample::of_seeds(these.map(|run| (run.seed, pick(run))))
    };
    let goodput = |run: &Came| run.goodput_mbit_s.iter().sum::<f64>() / 1e3;
    sheet.title(
        "Figure 9 at the scale of the paper",
        &format!(
            "Real traffic. {ABOUT_LINKS} Each pair carries {} MB; medians over the seeds, in Gbit/s of all five.",
            bytes / 1_000_000
        ),
    );
    sheet.chart(
        "goodput",
        &drawn(
            "Five pairs at once, 1 Gbit/s each",
            &names,
            losses,
            |name, loss| of(name, loss, goodput),
        ),
    );
    let (header, rows) = by_loss(&names, losses, "Gbit/s", |name, loss| {
        in_interval(&of(name, loss, goodput), 2)
    });
    sheet.summary(&header, &rows);
    let (header, rows) = by_loss(&names, losses, "IP bytes for a byte", |name, loss| {
        shown(&of(name, loss, |run| run.wire_ratio), 3)
    });
    sheet.summary(&header, &rows);
    sheet.paragraph("What the paper says, at 6 % loss:");
    sentences(sheet, |name| of(name, PUBLISHED, goodput));
    sheet.check(Check::at_least(
        "at 6 % loss, five pairs of the paper's Sphinx have at least 5 times the goodput of TCP CUBIC",
        &of(PAPER, PUBLISHED, goodput),
        5.0,
        &of(CUBIC, PUBLISHED, goodput),
    ));
    let mut csv = "contestant,loss,seed,pair,goodput_mbit_s\n".to_owned();
    for run in &runs {
        for (pair, goodput) in run.goodput_mbit_s.iter().enumerate() {
            let (name, loss) = (&run.contestant, percent(run.loss));
            csv += &format!("{name},{loss},{},{pair},{goodput:.3}\n", run.seed);
        }
    }
    sheet.data("goodput", &csv);
    Ok(true)
}

/// The model; false after an interruption.
pub(super) fn draw_model(
    studio: &mut Studio<'_>,
    sheet: &mut Sheet,
) -> Result<bool, ScenarioFailure> {
    let losses = losses(studio);
    let bytes = match studio.quick {
        true => BYTES_QUICK,
        false => BYTES_MODEL,
    };
    let mut cases = Vec::new();
    for loss in losses.iter().copied() {
        for seed in 1..=seeds(studio) {
            cases.extend(COMPARED.map(|compared| Priced {
                compared,
                loss,
                seed,
            }));
        }
    }
    let Some(prices) = campaign::measure(("fig9-model-costs", cases), 1, studio, sheet)? else {
        return Ok(false);
    };
    let price = |name: &str, loss, pick: fn(&Price) -> f64| {
        let these = { prices.iter() }.filter(|run| run.contestant == name && run.loss == loss);
        Sample::of_seeds(these.map(|run| (run.seed, pick(run))))
    };
    let send = |run: &Price| run.sender.interval();
    // The receiver's cost is counted by what the sender has sent, of which it gets only what the link has not lost.
    let receive = |run: &Price| run.receiver.interval() / (1.0 - f64::from(run.loss) / 1e6);
    let mut cases = Vec::new();
    for loss in losses.iter().copied() {
        for compared in COMPARED {
            let ns = |pick| price(compared.name, loss, pick).median();
            let (Some(send), Some(receive)) = (ns(send), ns(receive)) else {
                continue;
            };
            let costs = [send, receive].map(|ns| ns.round() as u64);
            cases.extend((1..=seeds(studio)).map(|seed| Modelled {
                compared,
                loss,
                seed,
                bytes,
                costs,
            }));
        }
    }
    let Some(runs) = campaign::measure(("fig9-model", cases), 2, studio, sheet)? else {
        return Ok(false);
    };
    let of = |name: &str, loss, pick: fn(&Model) -> f64| {
        let these = { runs.iter() }.filter(|run| run.contestant == name && run.loss == loss);
        Sample::of_seeds(these.map(|run| (run.seed, pick(run))))
    };
    let names = COMPARED.map(|one| one.name);
    sheet.title(
        "Figure 9 at the scale of the paper: a model",
        &format!(
            "**A model, not a measurement.** {ABOUT_LINKS} Here all this is virtual time, in which each end has one processor that takes for each packet what \
             `sphx perf cost` measured on this machine, sockets over loopback included, one packet after the other; with workers two, of which the slower decides. What five \
             pairs do to each other's caches and to the memory of a machine is not in it. Each pair carries {} MB instead of the paper's 500, so that beginning and end weigh more. \
             Medians over the seeds, in Gbit/s of all five. `sphx lab figure 9 --scale paper` measures the same, given {CORES_MIN} processors.",
            bytes / 1_000_000
        ),
    );
    sheet.chart(
        "goodput",
        &drawn(
            "A model: five pairs at once, 1 Gbit/s each",
            &names,
            losses,
            |name, loss| of(name, loss, Model::goodput),
        ),
    );
    let (header, rows) = by_loss(&names, losses, "Gbit/s", |name, loss| {
        in_interval(&of(name, loss, Model::goodput), 2)
    });
    sheet.summary(&header, &rows);
    let (header, rows) = by_loss(&names, losses, "IP bytes for a byte", |name, loss| {
        shown(&of(name, loss, |run| run.wire_ratio), 3)
    });
    sheet.summary(&header, &rows);
    sheet.paragraph("What was charged, nanoseconds for each packet sent and for each received (the longer of engine, with its kernel, and worker), and how busy that kept the busiest of five:");
    let (header, rows) = by_loss(&names, losses, "sender and receiver", |name, loss| {
        let ns = |pick| shown(&price(name, loss, pick), 0);
        let busy = |pick: fn(&Model) -> f64| shown(&of(name, loss, pick).map(|it| 100.0 * it), 0);
        format!(
            "{} and {} ns, {} and {} %",
            ns(send),
            ns(receive),
            busy(|run| run.sender_busy),
            busy(|run| run.receiver_busy)
        )
    });
    sheet.summary(&header, &rows);
    sheet.paragraph("What such a processor would carry if the link did not hold it up, Gbit/s of data for one pair, by the slower end:");
    let (header, rows) = by_loss(&names, losses, "Gbit/s", |name, loss| {
        let carries = price(name, loss, |run| {
            let slower = run.sender.interval().max(run.receiver.interval());
            run.payload_bytes * 8.0 / slower
        });
        shown(&carries, 2)
    });
    sheet.summary(&header, &rows);
    sheet.paragraph("What the paper says, at 6 % loss:");
    sentences(sheet, |name| of(name, PUBLISHED, Model::goodput));
    let mut csv = "contestant,loss,seed,send_ns,receive_ns,goodput_gbit_s,wire_ratio,sender_busy,receiver_busy\n".to_owned();
    for run in &runs {
        csv += &format!(
            "{},{},{},{},{},{:.4},{:.4},{:.3},{:.3}\n",
            run.contestant,
            percent(run.loss),
            run.seed,
            run.send_ns,
            run.receive_ns,
            run.goodput(),
            run.wire_ratio,
            run.sender_busy,
            run.receiver_busy
        );
    }
    sheet.data("goodput", &csv);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modelled(costs: [u64; 2]) -> Model {
        let case = Modelled {
            compared: COMPARED[0],
            loss: 20_000,
            seed: 1,
            bytes: 4_000_000,
            costs,
        };
        let model = case.simulate(&AtomicBool::new(false));
        let model = model.expect("nobody stops it");
        assert!(case.is_of(&model));
        model
    }

    /// 20 µs for each packet of 1000 bytes are 0.4 Gbit/s a pair, at either end; a microsecond is nothing.
    #[test]
    fn the_slower_end_decides() {
        let free = modelled([1, 1]);
        assert!(free.goodput() > 2.5, "{free:?}");
        let cheap = modelled([1000, 1000]);
        assert!(cheap.goodput() > 0.98 * free.goodput(), "{cheap:?}");
        assert!((0.05..0.2).contains(&cheap.sender_busy), "{cheap:?}");
        for costs in [[20_000, 1000], [1000, 20_000]] {
            let slow = modelled(costs);
            assert!((1.2..2.0).contains(&slow.goodput()), "{slow:?}");
            let busy = match costs[0] {
                20_000 => slow.sender_busy,
                _ => slow.receiver_busy,
            };
            assert!(busy > 0.85, "{slow:?}");
        }
    }

    #[test]
    fn a_worker_is_beside_its_engine() {
        let part = Part {
            engine: 300.0,
            kernel: 200.0,
            work: 400.0,
        };
        assert_eq!(part.interval(), 500.0);
        let busy = Part {
            work: 700.0,
            ..part
        };
        assert_eq!(busy.interval(), 700.0);
    }

    #[test]
    fn all_that_is_compared_has_virtual_time() {
        for compared in COMPARED {
            let parsed = Simulated::parse(&compared.options());
            assert!(parsed.is_ok(), "{}: {parsed:?}", compared.name);
        }
    }
}
