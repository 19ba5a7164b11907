//! What tests of all crates share.

#![forbid(unsafe_code)]

use std::{
    fmt::Arguments,
    io::{self, Write},
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

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
