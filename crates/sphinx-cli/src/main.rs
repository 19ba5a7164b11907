//! The sphx command.

#![forbid(unsafe_code)]

fn main() -> ! {
    sphinx_cli::run()
}
