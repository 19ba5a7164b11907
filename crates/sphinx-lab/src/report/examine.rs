//! Whether pages say what their runs do.

use std::{fs, io, path::Path, sync::atomic::AtomicBool};

use crate::{
    contestants::Programs,
    figures::{Figure, Studio},
    machine::Environment,
    runner::{Progress, ScenarioFailure},
};

/// What came of looking at a page.
#[derive(Debug)]
pub struct Examined {
    /// The figure that it is of.
    pub figure: Figure,
    /// Where it says something else than its runs on file, and what it falls short of: rows that were not measured, runs of several
    /// commits, few seeds.
    pub faults: Vec<String>,
}

/// Looks at every page of a directory that `sphx lab figure` wrote into. Nothing is run. With `redraw`, pages are written anew from
/// their runs first.
///
/// # Errors
///
/// [`ScenarioFailure`] if files cannot be read or written.
pub fn examine(
    directory: &Path,
    programs: &Programs,
    redraw: bool,
    stop: &AtomicBool,
) -> Result<Vec<Examined>, ScenarioFailure> {
    let environment = Environment::default();
    let mut all = Vec::new();
    for figure in Figure::ALL {
        let path = directory.join(format!("{}.md", figure.name()));
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(ScenarioFailure::File { path, error }),
        };
        let asked = Asked::of_page(&text);
        let mut studio = Studio {
            programs,
            directory,
            quick: asked.quick,
            seeds: asked.seeds,
            recall: true,
            environment: &environment,
            stop,
            progress: Progress::new(true),
        };
        let faults = match redraw {
            true => studio.draw(figure).map(|outcome| outcome.faults),
            false => studio.examine(figure),
        };
        let faults = match faults {
            Err(ScenarioFailure::File { path, error })
                if error.kind() == io::ErrorKind::NotFound =>
            {
                vec![format!("there are no runs: {}", path.display())]
            }
            faults => faults?,
        };
        all.push(Examined { figure, faults });
    }
    Ok(all)
}

/// What a page says to have been asked for. If that is not so, its runs say something else.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    quick: bool,
    seeds: Option<u64>,
}

impl Asked {
    fn of_page(text: &str) -> Asked {
        let command = text.lines().rev().find_map(|line| {
            let (_, rest) = line.split_once("Reproduce this: `")?;
            rest.split('`').next()
        });
        let mut words = command.unwrap_or_default().split_whitespace();
        let mut asked = Asked::default();
        while let Some(word) = words.next() {
            match word {
                "--quick" => asked.quick = true,
                "--seeds" => asked.seeds = words.next().and_then(|count| count.parse().ok()),
                _ => {}
            }
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BlockNumbers, Cell, Clock, Contestant, Run, Validity, report::JsonLines,
        run::tests::example, scenario::Scenario,
    };

    const COMMIT: &str = "0123456789ab";

    #[test]
    fn pages_tell_what_was_asked_for() {
        let page = "text\n\nReproduce this: `sphx lab figure snoop --quick --seeds 4`\n";
        let expected = Asked {
            quick: true,
            seeds: Some(4),
        };
        assert_eq!(Asked::of_page(page), expected);
        assert_eq!(Asked::of_page("nothing"), Asked::default());
    }

    /// How fast a contestant is, in Mbit/s: no two alike.
    fn speed(contestant: &str, seed: u64) -> f64 {
        let base = match contestant {
            "tcp-cubic" => 3.0,
            name => 100.0 + name.len() as f64,
        };
        base * (1.0 + seed as f64 / 1000.0)
    }

    fn run(cell: &Cell, contestant: &dyn Contestant, seed: u64) -> Run {
        let mut run = example(contestant.name(), seed);
        run.settings = contestant.settings();
        let contestant = contestant.name();
        run.cell.clone_from(&cell.name);
        run.description = cell.description();
        run.clock = cell.clock;
        run.goodput_mbit_s = speed(contestant, seed);
        if cell.clock == Clock::Virtual {
            run.cpu = None;
        }
        run.done.blocks = Some(BlockNumbers {
            count: 100,
            due: Some(100),
            mean_ms: 1e3 / speed(contestant, seed),
            p50_ms: Some(9.0),
            p99_ms: Some(20.0),
            max_ms: 30.0,
        });
        run.made.commit = Some(COMMIT.to_owned());
        run
    }

    /// A directory with a figure, as after `sphx lab figure … --quick`.
    struct Planted {
        directory: tempfile::TempDir,
        figure: Figure,
    }

    impl Planted {
        /// Figure 9, with all runs changed by `lie`, which drops those that it returns none for.
        fn new(lie: impl Fn(Run) -> Option<Run>) -> Planted {
            Planted::of(Figure::Goodput, lie)
        }

        fn of(figure: Figure, lie: impl Fn(Run) -> Option<Run>) -> Planted {
            let directory = tempfile::tempdir().unwrap();
            for (name, text) in figure.scenarios() {
                let scenario =
                    Scenario::parse(text, Path::new(""), &Programs::for_tests(), true).unwrap();
                let file = directory.path().join(format!("{name}.ndjson"));
                let mut lines = JsonLines::open(&file).unwrap().0;
                for cell in &scenario.cells {
                    for contestant in &scenario.contestants {
                        let seeds = scenario.seeds.iter();
                        let runs = seeds.map(|seed| run(cell, contestant.as_ref(), *seed));
                        runs.filter_map(&lie)
                            .for_each(|run| lines.run(&run).unwrap());
                    }
                }
            }
            let planted = Planted { directory, figure };
            // The page is one of these runs.
            let argument = figure.argument();
            fs::write(
                planted.page(),
                format!("Reproduce this: `sphx lab figure {argument} --quick`\n"),
            )
            .unwrap();
            planted.look(true);
            planted
        }

        fn page(&self) -> std::path::PathBuf {
            let name = format!("{}.md", self.figure.name());
            self.directory.path().join(name)
        }

        fn look(&self, redraw: bool) -> Vec<String> {
            let stop = AtomicBool::new(false);
            let all =
                examine(self.directory.path(), &Programs::for_tests(), redraw, &stop).unwrap();
            let [one] = all.try_into().unwrap();
            assert_eq!(one.figure, self.figure);
            one.faults
        }

        fn faults(&self) -> Vec<String> {
            self.look(false)
        }
    }

    fn is_row(run: &Run, contestant: &str) -> bool {
        run.cell == "r10-l6" && run.contestant == contestant
    }

    #[test]
    fn a_page_that_says_what_its_runs_do_has_no_fault() {
        let planted = Planted::new(Some);
        assert_eq!(planted.faults(), Vec::<String>::new());
        let page = fs::read_to_string(planted.page()).unwrap();
        assert!(
            page.contains("at least 5 times the goodput of TCP CUBIC"),
            "{page}"
        );
        assert!(page.contains(COMMIT) && page.contains("| 1–3 "), "{page}");
    }

    #[test]
    fn a_row_of_another_commit_fails() {
        let planted = Planted::new(|mut run| {
            if is_row(&run, "sphinx") {
                run.made.commit = Some("ba9876543210".to_owned());
            }
            Some(run)
        });
        let faults = planted.faults();
        assert!(
            faults[0].contains("several commits") && faults.len() == 1,
            "{faults:?}"
        );
    }

    #[test]
    fn a_row_of_one_seed_fails() {
        let planted = Planted::new(|run| (!is_row(&run, "sphinx") || run.seed == 1).then_some(run));
        assert_eq!(planted.faults(), ["1 seed instead of 3: sphinx in r10-l6"]);
        let page = fs::read_to_string(planted.page()).unwrap();
        assert!(
            page.contains("1 seed instead of 3") && page.contains("undecided"),
            "{page}"
        );
    }

    #[test]
    fn runs_with_other_options_are_not_those_of_a_row() {
        let planted = Planted::new(|mut run| {
            if is_row(&run, "sphinx-paper") {
                run.settings = "sphx 0.1.0 (build 01234567), --codec srlt".to_owned();
            }
            Some(run)
        });
        assert_eq!(planted.faults(), ["not measured: sphinx-paper in r10-l6"]);
    }

    #[test]
    fn a_starved_cell_fails() {
        let planted = Planted::new(|mut run| {
            if is_row(&run, "tcp-cubic") {
                run.validity = Validity::Starved;
            }
            Some(run)
        });
        let expected = "not measured, as the emulator was starved: tcp-cubic in r10-l6";
        assert_eq!(planted.faults(), [expected]);
        let page = fs::read_to_string(planted.page()).unwrap();
        assert!(page.contains("| not measured |"), "{page}");
    }

    /// Its latency is not that of the others of its row.
    #[test]
    fn a_run_that_was_cut_off_without_a_number_fails() {
        let claim = |planted: &Planted| {
            let page = fs::read_to_string(planted.page()).unwrap();
            let claim = "blocks over TCP CUBIC take at least 10 times";
            let row = page.lines().find(|line| line.contains(claim)).unwrap();
            row.to_owned()
        };
        let whole = Planted::of(Figure::Blocks, Some);
        assert_eq!(whole.faults(), Vec::<String>::new());
        assert!(claim(&whole).contains("| holds"), "{}", claim(&whole));
        let planted = Planted::of(Figure::Blocks, |mut run| {
            if run.cell == "blocks-r10-l6" && run.contestant == "sphinx" && run.seed == 2 {
                (run.done.complete, run.done.blocks) = (false, None);
            }
            Some(run)
        });
        let expected = "1 of 3 runs cut off without a number: sphinx in blocks-r10-l6";
        assert_eq!(planted.faults(), [expected]);
        assert!(
            claim(&planted).contains("| undecided"),
            "{}",
            claim(&planted)
        );
    }

    #[test]
    fn a_cell_that_is_not_there_fails() {
        let planted = Planted::new(|run| (!is_row(&run, "tcp-cubic")).then_some(run));
        assert_eq!(planted.faults(), ["not measured: tcp-cubic in r10-l6"]);
    }

    #[test]
    fn a_false_caption_fails() {
        let planted = Planted::new(Some);
        let page = fs::read_to_string(planted.page()).unwrap();
        fs::write(
            planted.page(),
            page.replace("other programs", "no programs")
                .replace("holds", "shines"),
        )
        .unwrap();
        let faults = planted.faults();
        assert!(
            faults[0].starts_with("fig9.md is not what its runs say"),
            "{faults:?}"
        );
        fs::write(planted.page(), page).unwrap();
        assert!(planted.faults().is_empty());
    }

    #[test]
    fn a_number_or_a_curve_of_something_else_fails() {
        for (file, from, to) in [
            ("fig9-goodput.csv", "100", "200"),
            ("fig9-goodput.svg", "circle", "ellipse"),
        ] {
            let planted = Planted::new(Some);
            let path = planted.directory.path().join(file);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{file}");
            fs::write(&path, text.replace(from, to)).unwrap();
            let faults = planted.faults();
            assert!(
                faults[0].starts_with(file) && faults.len() == 1,
                "{faults:?}"
            );
        }
    }

    #[test]
    fn runs_that_are_gone_are_missed() {
        let planted = Planted::new(Some);
        fs::remove_file(planted.directory.path().join("fig9.ndjson")).unwrap();
        assert!(planted.faults()[0].starts_with("there are no runs"));
    }
}
