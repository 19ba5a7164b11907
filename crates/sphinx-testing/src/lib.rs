//! What tests of all crates share.

#![forbid(unsafe_code)]

use std::{
    fmt::Arguments,
    io::{self, Write},
    path::Path,
    process::Command,
    thread,
};

/// Says on standard error that the test that runs is skipped, and why: in the words of `format!`. It is seen in tests that pass, too.
#[macro_export]
macro_rules! skipped {
    ($($why:tt)+) => {
        $crate::say_skipped(::std::format_args!($($why)+))
    };
}

/// What [`skipped!`] does.
#[doc(hidden)]
pub fn say_skipped(why: Arguments<'_>) {
    // The test harness names threads after their tests, if there are several.
    let thread = thread::current();
    let test = thread.name().filter(|name| *name != "main");
    let line = line(test, &why.to_string());
    // Of a test that passes, the test harness throws away what `eprintln!` prints; not what is written here.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// One line, whole, so that lines of other tests do not come between its parts.
fn line(test: Option<&str>, why: &str) -> String {
    let words: Vec<_> = why.split_whitespace().collect();
    let test = test.map(|test| format!("{test}: ")).unwrap_or_default();
    format!("skipped: {test}{}\n", words.join(" "))
}

/// What `call` returns when nothing interrupts it. The whole process may be stopped for a while, as machines are: then what waits on a socket for a
/// limited time fails, with no handler of a signal anywhere (signal(7)).
///
/// # Errors
///
/// Those of `call`, but for `Interrupted`.
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Writes a program of `sh`, which anybody may start from then on. By a process of its own: a program that is open for writing does not start ("Text file
/// busy"), and every process that another test starts while this one writes would hold the file open for a moment.
///
/// # Errors
///
/// Those of starting `sh`; and whatever keeps it from writing.
pub fn write_program(path: &Path, text: &str) -> io::Result<()> {
    let written = Command::new("sh")
        .args([
            "-c",
            "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"",
        ])
        .arg(path)
        .arg(text)
        .status()?;
    match written.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{}: {written}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_written_as_it_is() {
        let name = format!("sphinx testing's {}", std::process::id());
        let path = std::env::temp_dir().join(name);
        write_program(&path, "printf '%s\\n' \"$1\" \"100%\"").expect("a program");
        let output = Command::new(&path).arg("a b").output();
        std::fs::remove_file(&path).expect("a program");
        assert_eq!(output.expect("it starts").stdout, b"a b\n100%\n");
        write_program(&path.join("none"), "").expect_err("there is no such directory");
    }

    #[test]
    fn what_is_skipped_is_one_line_with_the_name_of_the_test() {
        assert_eq!(line(None, "no ssh"), "skipped: no ssh\n");
        assert_eq!(line(Some("a::b"), "no\n ip\n"), "skipped: a::b: no ip\n");
    }

    /// Run by the test below.
    #[test]
    #[ignore = "says that it is skipped"]
    fn one_that_is_skipped() {
        skipped!("there is no {}", "moon");
    }

    #[test]
    fn it_is_seen_though_the_test_passes() {
        let mut tests = Command::new(std::env::current_exe().expect("this program"));
        tests.args([
            "--exact",
            "tests::one_that_is_skipped",
            "--ignored",
            "--test-threads=2",
        ]);
        let output = tests.output().expect("the test harness");
        assert!(output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            said,
            "skipped: tests::one_that_is_skipped: there is no moon\n"
        );
    }
}
