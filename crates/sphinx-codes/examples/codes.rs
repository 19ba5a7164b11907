//! The subcommand `codes` as a program of its own:
//! `cargo run --release -p sphinx-codes --features peers --example codes -- bench`.

use std::error::Error;

use clap::Parser;
use sphinx_codes::cli::{self, CodesArgs};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    codes: CodesArgs,
    /// One JSON object per line instead of tables
    #[arg(long, global = true)]
    json: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cli = Cli::parse();
    cli::run(&cli.codes, cli.json, &mut std::io::stdout().lock())
}
