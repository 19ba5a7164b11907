//! The library, once per process.

use std::ffi::{CStr, CString};
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::error::DpdkError;
use crate::port;

/// Whether it has been started, and with what; and whether somebody has its port.
#[derive(Debug)]
struct State {
    arguments: Vec<String>,
    is_taken: bool,
    /// The card, if it has been given back.
    device: Option<CString>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The right to use the library's port, of which one in the process has it at a time.
#[derive(Debug)]
pub(crate) struct Eal(());

impl Eal {
    /// Starts the library, or takes it up again. It can be started once in a process, with one set of arguments.
    pub(crate) fn take(arguments: &[String]) -> Result<Self, DpdkError> {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            Some(state) if state.is_taken || state.arguments != arguments => {
                return Err(DpdkError::Busy);
            }
            Some(state) => state.is_taken = true,
            None => {
                start(arguments).map_err(DpdkError::Eal)?;
                *state = Some(State {
                    arguments: arguments.to_vec(),
                    is_taken: true,
                    device: None,
                });
            }
        }
        Ok(Self(()))
    }

    /// The card has been given back, and is found again by that name.
    pub(crate) fn note_device(&self, device: &CStr) {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = &mut *state {
            state.device = (!device.is_empty()).then(|| device.to_owned());
        }
    }

    /// What finds the card again that was given back. It is kept: the card may be busy for a moment.
    pub(crate) fn device(&self) -> Option<CString> {
        let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        state.as_ref()?.device.clone()
    }
}

impl Drop for Eal {
    fn drop(&mut self) {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = &mut *state {
            state.is_taken = false;
        }
    }
}

/// The first argument stands for the program's name.
fn start(arguments: &[String]) -> io::Result<()> {
    let words = std::iter::once("sphx").chain(arguments.iter().map(String::as_str));
    let words: Result<Vec<CString>, _> = words.map(CString::new).collect();
    let words = words.map_err(|_| io::ErrorKind::InvalidInput)?;
    // It binds the calling thread to a processor, and with it what that thread starts.
    let processors = sched_getaffinity(None)?;
    let started = port::start_eal(words);
    sched_setaffinity(None, &processors)?;
    started
}
