//! `sphx config`.

use super::Context;
use crate::args::config::{ConfigArgs, ConfigCommand, ShowArgs, WhichArgs};
use crate::config::{self, File, Kind, Origin};
use crate::failure::{Outcome, usage};
use crate::report::Event;
use crate::state::show;

pub(crate) fn run(args: &ConfigArgs, context: &Context) -> Outcome<()> {
    match &args.command {
        ConfigCommand::Check(which) => check(which, context),
        ConfigCommand::Show(args) => shown(args, context),
    }
}

fn file(which: &WhichArgs) -> Outcome<Option<File>> {
    match &which.server {
        Some(path) => config::read_file(Kind::Server, path).map(Some),
        None => config::user_file(),
    }
}

fn check(which: &WhichArgs, context: &Context) -> Outcome<()> {
    let Some(file) = file(which)? else {
        let path = config::default_user_file().unwrap_or_default();
        return Err(usage(format!("there is no file {}", show(&path))));
    };
    config::check(which.kind(), &crate::grammar(), &file)?;
    #[cfg(feature = "tunnel")]
    if which.kind() == Kind::Server {
        config::suffices(&crate::grammar(), &file)?;
    }
    #[cfg(feature = "tunnel")]
    for said in file.said.iter().filter(|said| said.name == "authorized") {
        for path in &said.values {
            crate::state::clients::Clients::read(path.as_ref())?;
        }
    }
    let path = show(&file.path);
    context.reporter.event(
        Event::new("config")
            .with("file", path.as_str())
            .with("good", true),
    );
    context.reporter.note(&format!("{path} can be followed"));
    Ok(())
}

fn shown(args: &ShowArgs, context: &Context) -> Outcome<()> {
    let kind = args.which.kind();
    let grammar = crate::grammar();
    let file = file(&args.which)?;
    if let Some(file) = &file {
        config::check(kind, &grammar, file)?;
    }
    let environment = config::environment_of(kind);
    let of_file = file.as_ref().map_or(&[][..], |file| &file.said);
    let mut all = Vec::new();
    for (name, default) in config::defaults(kind, &grammar) {
        let said = environment
            .iter()
            .chain(of_file)
            .find(|said| said.name == name);
        all.push(match said {
            Some(said) => (name, said.values.clone(), said.origin.clone()),
            None => (name, default, Origin::Default),
        });
    }
    let of_servers = of_file
        .iter()
        .filter(|said| said.name.starts_with("tunnel."));
    all.extend(
        of_servers.map(|said| (said.name.clone(), said.values.clone(), said.origin.clone())),
    );
    for (name, values, origin) in all {
        let origin = match origin {
            Origin::Default => "default".to_owned(),
            Origin::Environment(name) => format!("${name}"),
            Origin::File(line) => {
                let path = file
                    .as_ref()
                    .map_or_else(String::new, |file| show(&file.path));
                format!("{path}:{line}")
            }
        };
        let event = Event::new("setting").with("name", name.as_str());
        let event = event
            .with("values", values.clone())
            .with("origin", origin.as_str());
        context.reporter.event(event);
        if !context.reporter.json() {
            let value = match &values[..] {
                [] => "-".to_owned(),
                values => values.join(" "),
            };
            let origin = if args.origin {
                format!("  # {origin}")
            } else {
                String::new()
            };
            context.reporter.data(&format!("{name} = {value}{origin}"));
        }
    }
    context.reporter.end_data();
    // Whoever reads it may take as much as he likes.
    Ok(())
}
