//! What comes through the pipe, and what people write for another machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use sphinx_fuzz::Input;

use super::{Place, messages, start};

/// A greeting behind noise, frames behind a greeting, a place, and the path of a program with an option.
pub fn ssh(data: &[u8]) {
    let input = &mut Input::new(data);
    let kind = input.byte() % 4;
    let rest = input.take(usize::MAX);
    match kind {
        0 => {
            let _ = messages::find_greeting(&mut &rest[..]);
            let greeted = [rest, &messages::greeting()[..]].concat();
            let mut greeted = &greeted[..];
            // Noise that is a greeting itself ends it sooner.
            if messages::find_greeting(&mut greeted).is_err() {
                let magic = messages::greeting().len() - 1;
                assert!(rest.len() >= magic, "a greeting was missed");
            }
        }
        1 => {
            let mut frames = rest;
            while let Ok(Some(frame)) = messages::read(&mut frames) {
                let written = messages::put(&frame).expect("what was read can be written");
                assert_eq!(messages::read(&mut &written[..]), Ok(Some(frame)));
            }
        }
        2 => {
            if let Ok(Place { host, path }) = Place::parse(OsStr::from_bytes(rest)) {
                assert!(rest.ends_with(&path));
                if let Some(host) = host {
                    let safe = |c: char| !c.is_control() && !" '\"`$\\;&|<>*?".contains(c);
                    assert!(
                        !host.destination.starts_with('-') && host.destination.chars().all(safe)
                    );
                }
            }
        }
        _ if rest.contains(&0) => {}
        _ => {
            let option = String::from_utf8_lossy(rest).into_owned();
            let option = std::slice::from_ref(&option);
            let line = start::remote_line(Some(OsStr::from_bytes(rest)), option).expect("no NUL");
            let words = shlex::bytes::split(line.as_bytes()).expect("a line");
            assert_eq!(words.len(), 4);
            assert_eq!((&words[1][..], &words[3][..]), (rest, option[0].as_bytes()));
        }
    }
}
