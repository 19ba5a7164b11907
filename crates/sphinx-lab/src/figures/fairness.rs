//! Several paths of one session in one bottleneck, beside a flow that they have to share it with.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use sphinx_link::{Depth, LinkConfig, Loss};
use sphinx_proto::cc::{CcKind, Couple};
use sphinx_sim::{MS, SEC, Scenario, Shared, far, link};

use super::{
    Check, Sheet, Studio,
    campaign::{self, Case, NoRun},
    claim::Sample,
    curves::{in_interval, shown},
};
use crate::runner::ScenarioFailure;

/// Counting begins and ends at these times, in seconds of virtual time.
const FROM: u64 = 10;
const UNTIL: u64 = 50;
const UNTIL_QUICK: u64 = 20;
/// Bytes to send: more than any session can carry in the time.
const ENDLESS: u64 = 1 << 40;

/// A bottleneck, and who is there.
#[derive(Clone, Copy)]
struct Place {
    name: &'static str,
    mbit: u64,
    rtt_ms: u64,
    /// The queue, in round trips.
    queue: f64,
    /// Lost by the channel, in packets of a million.
    loss: u32,
    /// How much longer the second path is, and the third one.
    farther_ms: [u64; 2],
    cubics: usize,
    /// Each path has a bottleneck of its own, each with as many others.
    is_apart: bool,
}

const MEETING: Place = Place {
    name: "20 Mbit/s, 40 ms",
    mbit: 20,
    rtt_ms: 40,
    queue: 1.0,
    loss: 0,
    farther_ms: [0, 0],
    cubics: 1,
    is_apart: false,
};

const PLACES: [Place; 10] = [
    MEETING,
    Place {
        name: "50 Mbit/s, 20 ms",
        mbit: 50,
        rtt_ms: 20,
        ..MEETING
    },
    Place {
        name: "a queue of half a round trip",
        queue: 0.5,
        ..MEETING
    },
    Place {
        name: "a queue of 4 round trips",
        queue: 4.0,
        ..MEETING
    },
    Place {
        name: "1 % lost",
        loss: 10_000,
        ..MEETING
    },
    Place {
        name: "further paths 30 and 60 ms farther",
        farther_ms: [30, 60],
        ..MEETING
    },
    Place {
        name: "two CUBIC flows",
        cubics: 2,
        ..MEETING
    },
    Place {
        name: "nobody else",
        cubics: 0,
        ..MEETING
    },
    Place {
        name: "apart, CUBIC on each",
        is_apart: true,
        ..MEETING
    },
    Place {
        name: "apart, nobody else",
        cubics: 0,
        is_apart: true,
        ..MEETING
    },
];

/// The ways to use paths that are compared: name, number of paths, coupling.
const COMPARED: [(&str, usize, Couple); 5] = [
    ("one path", 1, Couple::Off),
    ("two, off", 2, Couple::Off),
    ("two, auto", 2, Couple::Auto),
    ("three, off", 3, Couple::Off),
    ("three, auto", 3, Couple::Auto),
];

struct Shares {
    place: Place,
    who: (&'static str, usize, Couple),
    seed: u64,
    until: u64,
}

/// The result of one run.
#[derive(Debug, Deserialize, Serialize)]
struct Share {
    place: String,
    contestant: String,
    seed: u64,
    /// Goodput of the session with these paths, and of all others together.
    goodput_mbit_s: f64,
    others_mbit_s: f64,
    /// How full the queue in front of the (first) bottleneck was, in the mean, milliseconds.
    queue_ms: f64,
}

impl Case for Shares {
    type Run = Share;

    fn row(&self) -> String {
        format!("{}, {}", self.place.name, self.who.0)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn extent(&self) -> String {
        format!("{FROM} s to {} s", self.until)
    }

    fn is_of(&self, run: &Share) -> bool {
        (run.place.as_str(), run.contestant.as_str(), run.seed)
            == (self.place.name, self.who.0, self.seed)
    }

    fn run(&self, studio: &Studio<'_>) -> Result<Share, NoRun> {
        Ok(self.simulate(|| studio.stop.load(Ordering::SeqCst))?)
    }

    fn result(run: &Share) -> String {
        format!(
            "{:.1} Mbit/s, others {:.1}",
            run.goodput_mbit_s, run.others_mbit_s
        )
    }
}

impl Shares {
    fn bottleneck(&self, index: usize) -> (LinkConfig, LinkConfig) {
        let place = &self.place;
        let loss = match place.loss {
            0 => Loss::None,
            loss => Loss::Bernoulli(f64::from(loss) / 1e6),
        };
        let seed = self.seed + 1000 * index as u64;
        let (mut there, back) = link(place.mbit, place.rtt_ms, loss, seed);
        let trip = (place.mbit * place.rtt_ms * 125) as f64;
        there.queue = Depth::Bytes((place.queue * trip) as u64);
        (there, back)
    }

    /// Our session first, with the bottlenecks of its paths, and then the others, with theirs.
    fn sessions(&self, bottlenecks: usize) -> Vec<(Scenario, Vec<usize>)> {
        let (_, paths, couple) = self.who;
        let mut ours = Scenario::new(far(0)).bulk(ENDLESS);
        (ours.seed, ours.couple) = (self.seed, couple);
        for ms in &self.place.farther_ms[..paths - 1] {
            ours = ours.path(0, far(*ms));
        }
        let places = (0..paths).map(|path| path % bottlenecks).collect();
        let mut sessions = vec![(ours, places)];
        for bottleneck in 0..bottlenecks {
            for index in 0..self.place.cubics {
                let mut cubic = Scenario::new(far(0)).bulk(ENDLESS);
                cubic.cc = CcKind::Cubic;
                cubic.seed = self.seed + 100 * (1 + bottleneck + 8 * index) as u64;
                sessions.push((cubic, vec![bottleneck]));
            }
        }
        sessions
    }

    fn simulate(&self, is_stopped: impl Fn() -> bool) -> Result<Share, String> {
        let bottlenecks = if self.place.is_apart { self.who.1 } else { 1 };
        let commons: Vec<_> = (0..bottlenecks)
            .map(|index| self.bottleneck(index))
            .collect();
        let mut shared = Shared::over(&commons, &self.sessions(bottlenecks));
        let received = |shared: &Shared| -> Vec<u64> {
            let sessions = shared.sessions.iter();
            sessions.map(|[_, server]| server.bytes_received).collect()
        };
        shared.run_until(FROM * SEC);
        let before = received(&shared);
        let (mut queued, mut readings) = (0, 0);
        while shared.now < self.until * SEC {
            if is_stopped() {
                return Err("interrupted".to_owned());
            }
            shared.run_until(shared.now + 5 * MS);
            queued += shared.queue_bytes(0);
            readings += 1;
        }
        let rate = |(after, before): (u64, &u64)| {
            (after - before) as f64 * 8e-6 / (self.until - FROM) as f64
        };
        let after = received(&shared).into_iter();
        let mut rates = after.zip(&before).map(rate);
        let ours = rates.next().unwrap_or(0.0);
        let queued = queued as f64 / f64::from(readings.max(1));
        Ok(Share {
            place: self.place.name.to_owned(),
            contestant: self.who.0.to_owned(),
            seed: self.seed,
            goodput_mbit_s: ours,
            others_mbit_s: rates.fold(0.0, |sum, rate| sum + rate),
            queue_ms: queued * 8e-3 / self.place.mbit as f64,
        })
    }
}

pub(super) fn draw(studio: &mut Studio<'_>, sheet: &mut Sheet) -> Result<bool, ScenarioFailure> {
    let places = if studio.quick {
        &PLACES[..1]
    } else {
        &PLACES[..]
    };
    let until = if studio.quick { UNTIL_QUICK } else { UNTIL };
    let seeds = studio.seeds.unwrap_or(if studio.quick { 3 } else { 5 });
    let mut cases = Vec::new();
    for place in places.iter().copied() {
        for seed in 1..=seeds {
            cases.extend(COMPARED.map(|who| Shares {
                place,
                who,
                seed,
                until,
            }));
        }
    }
    let Some(runs) = campaign::measure(("multipath-fairness", cases), 2, studio, sheet)? else {
        return Ok(false);
    };
    let of = |place: &Place, who: &str, pick: fn(&Share) -> f64| {
        let is_it = |run: &&Share| run.place == place.name && run.contestant == who;
        Sample::of_seeds(runs.iter().filter(is_it).map(|run| (run.seed, pick(run))))
    };
    let ours: fn(&Share) -> f64 = |run| run.goodput_mbit_s;
    let others: fn(&Share) -> f64 = |run| run.others_mbit_s;
    sheet.title(
        "Several paths in one bottleneck",
        &format!(
            "What one session gets over one, two or three paths that meet in a bottleneck, beside a CUBIC flow there that begins at the same time, in virtual time; a bottleneck of {} and a \
             queue of one round trip where nothing else is said. `off`: the paths know nothing of each other. `auto` (`--couple auto`): of those that meet, one carries what there is. `apart`: each \
             path has a bottleneck of its own. All are sessions of Sphinx: the default rate control on the paths, CUBIC's for the others. Counted from {FROM} s to {until} s; medians over the seeds.",
            MEETING.name
        ),
    );
    for (label, decimals, cubics_min, pick) in [
        ("Mbit/s of the session", 2, 0, ours),
        ("of the others", 2, 1, others),
        ("mean queue, ms", 1, 0, |run: &Share| run.queue_ms),
    ] {
        let mut header = vec![label.to_owned()];
        header.extend(COMPARED.map(|(name, ..)| name.to_owned()));
        let places = places.iter().filter(|place| place.cubics >= cubics_min);
        let rows = places.map(|place| {
            let mut row = vec![place.name.to_owned()];
            row.extend(COMPARED.map(|(who, ..)| shown(&of(place, who, pick), decimals)));
            row
        });
        sheet.summary(&header, &rows.collect::<Vec<_>>());
    }
    let (meeting, apart): (Vec<&Place>, Vec<&Place>) =
        places.iter().partition(|place| !place.is_apart);
    let beside: Vec<&&Place> = meeting.iter().filter(|place| place.cubics > 0).collect();
    for (label, pick) in [
        ("of what one path has", ours),
        ("others: of what one path leaves them", others),
    ] {
        let mut header = vec![label.to_owned()];
        header.extend(COMPARED[1..].iter().map(|(name, ..)| (*name).to_owned()));
        let rows = beside.iter().map(|place| {
            let one = of(place, COMPARED[0].0, pick);
            let share = |who| of(place, who, pick).zip(&one, |all, one| all / one);
            let mut row = vec![place.name.to_owned()];
            row.extend(
                COMPARED[1..]
                    .iter()
                    .map(|(who, ..)| in_interval(&share(who), 2)),
            );
            row
        });
        sheet.summary(&header, &rows.collect::<Vec<_>>());
    }
    let mut csv = "place,contestant,seed,goodput_mbit_s,others_mbit_s,queue_ms\n".to_owned();
    for run in &runs {
        csv += &format!(
            "\"{}\",\"{}\",{},{:.3},{:.3},{:.2}\n",
            run.place,
            run.contestant,
            run.seed,
            run.goodput_mbit_s,
            run.others_mbit_s.abs(),
            run.queue_ms
        );
    }
    sheet.data("", &csv);
    for who in ["two, auto", "three, auto"] {
        let places = beside.iter().map(|place| {
            let [all, one] = [who, "one path"].map(|who| of(place, who, ours));
            (place.name.to_owned(), all, one)
        });
        let claim = format!("{who}: beside CUBIC at most 1.25 times what one path has");
        sheet.check(Check::nowhere_above(&claim, 1.25, places));
        let places = beside.iter().map(|place| {
            let [one, all] = ["one path", who].map(|who| of(place, who, others));
            (place.name.to_owned(), all, one)
        });
        let claim = format!("{who}: CUBIC keeps at least 0.7 of what one path leaves it");
        sheet.check(Check::everywhere(&claim, 0.7, places));
    }
    let alike = apart
        .into_iter()
        .chain(meeting.iter().copied().filter(|place| place.cubics == 0));
    let alike = alike.flat_map(|place| {
        [("two, auto", "two, off"), ("three, auto", "three, off")].map(|(auto, off)| {
            let [auto_has, off_has] = [auto, off].map(|who| of(place, who, ours));
            (format!("{}, {auto}", place.name), auto_has, off_has)
        })
    });
    sheet.check(Check::everywhere(
        "paths that do not meet, or have nobody beside them, keep 0.97 of what they have without",
        0.97,
        alike,
    ));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulated(place: Place, who: usize) -> Share {
        let case = Shares {
            place,
            who: COMPARED[who],
            seed: 1,
            until: FROM + 2,
        };
        let share = case.simulate(|| false).expect("nobody stops it");
        assert!(case.is_of(&share));
        share
    }

    #[test]
    fn all_paths_lead_to_where_the_others_are_or_to_links_of_their_own() {
        let alone = Place {
            cubics: 0,
            mbit: 5,
            ..MEETING
        };
        let meeting = simulated(alone, 3);
        // In two seconds also what had waited for older data before them.
        assert!((4.0..6.0).contains(&meeting.goodput_mbit_s), "{meeting:?}");
        let apart = Place {
            is_apart: true,
            ..alone
        };
        let apart = simulated(apart, 3);
        assert!((12.0..15.0).contains(&apart.goodput_mbit_s), "{apart:?}");
        let both = simulated(Place { mbit: 5, ..MEETING }, 0);
        let sum = both.goodput_mbit_s + both.others_mbit_s;
        assert!(
            (4.0..6.0).contains(&sum) && both.others_mbit_s > 0.0,
            "{both:?}"
        );
    }

    #[test]
    fn a_run_can_be_stopped() {
        let case = Shares {
            place: MEETING,
            who: COMPARED[0],
            seed: 1,
            until: FROM + 1,
        };
        assert!(case.simulate(|| true).is_err());
    }
}
