//! What will be run.

use anyhow::{Context, Result, bail};
use sphinx_lab::{
    Cell, CellSet, Contestant,
    contestants::{self, Program},
    scenario::Scenario,
};

use super::args::Arguments;

/// The chosen cells, contestants and seeds.
pub(crate) fn scenario(arguments: &Arguments) -> Result<Scenario> {
    let scenario = Scenario {
        title: "Sphinx beside kernel TCP and QUIC".to_owned(),
        about: String::new(),
        cells: choose_cells(arguments)?,
        contestants: choose_contestants(arguments)?,
        seeds: arguments.seeds.clone(),
        repetitions: 1,
        limit: arguments.limit,
    };
    Ok(scenario.checked()?)
}

/// What there is to choose from.
pub(crate) fn names(scenario: &Scenario) -> String {
    let mut text = String::new();
    for contestant in &scenario.contestants {
        text += &format!("{:16} {}\n", contestant.name(), contestant.settings());
    }
    for cell in &scenario.cells {
        text += &format!("{:16} {}\n", cell.name, cell.description());
    }
    text
}

fn choose_cells(arguments: &Arguments) -> Result<Vec<Cell>> {
    let cells = |set: CellSet| set.cells(arguments.bytes, arguments.block_time);
    if arguments.cells.is_empty() {
        return Ok(cells(arguments.set));
    }
    let all = cells(CellSet::Full);
    let names = arguments.cells.iter();
    names
        .map(|name| {
            let cell = all.iter().find(|cell| cell.name == *name);
            cell.cloned()
                .with_context(|| format!("no cell '{name}'; --set full --list shows all"))
        })
        .collect()
}

fn choose_contestants(arguments: &Arguments) -> Result<Vec<Box<dyn Contestant>>> {
    let program = std::env::current_exe().context("this program's own path")?;
    let sphx = match &arguments.sphx {
        Some(path) => path.clone(),
        None => program.with_file_name("sphx"),
    };
    let program = Program::new(&program, &["peer"]);
    let mut all = contestants::all(&program, &sphx);
    for variant in &arguments.sphinx {
        let options = variant.options.clone();
        all.push(Box::new(contestants::Sphinx::new(
            &sphx,
            &program,
            &variant.name,
            options,
        )));
    }
    let wanted = &arguments.contestants;
    for name in wanted {
        if !all.iter().any(|contestant| contestant.name() == name) {
            bail!("no contestant '{name}'; --list shows all");
        }
    }
    all.retain(|contestant| {
        wanted.is_empty() || wanted.iter().any(|name| name == contestant.name())
    });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn nothing_is_run_twice() {
        for (words, reason) in [
            (["--seeds", "1,2,1"], "there are two seeds 1"),
            (["--cells", "r10-l6,r10-l6"], "two cells called 'r10-l6'"),
            (
                ["--sphinx", "sphinx=--cc bbr"],
                "two contestants called 'sphinx'",
            ),
        ] {
            let line = ["bench-link"].into_iter().chain(words);
            let refused = scenario(&Arguments::parse_from(line)).unwrap_err();
            assert!(refused.to_string().contains(reason), "{refused}");
        }
    }
}
