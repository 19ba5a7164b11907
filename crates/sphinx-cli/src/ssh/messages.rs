//! The frames of the pipe, and the greeting before them.

use std::io::{self, Read};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Outcome, fail, protocol};
use crate::files::{Rules, SyncRequest};
use sphinx_transport::{ErrorKind, Service};

/// The first bytes of each end. They are unlike anything that a login shell prints.
const MAGIC: [u8; 16] = *b"\x00\xffsphx over ssh\n";
/// Version of what follows.
const VERSION: u8 = 3;
/// Most bytes that a login shell may print before that.
const NOISE_BYTES_MAX: usize = 64 << 10;
/// Most bytes of files in one message; other messages may be longer.
pub(super) const DATA_BYTES_MAX: usize = 64 << 10;
/// Longest message: it holds as many names as a command line can.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

const REQUEST: u8 = 0x01;
const OFFER: u8 = 0x02;
const FAILED: u8 = 0x03;
const CARRIER: u8 = 0x04;
const LISTENING: u8 = 0x05;
const DATA: u8 = 0x10;
const FINISH: u8 = 0x11;
const CLOSE: u8 = 0x12;

/// What the other end is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) task: Task,
    pub(crate) rules: CopyRules,
    /// The request, if it is a synchronization.
    #[serde(default)]
    pub(crate) sync: Option<SyncRequest>,
    /// The ticket of an endpoint at the end that asks, if it could make one.
    pub(crate) ticket: Option<String>,
}

/// What is asked for with a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyRules {
    /// Directories may be copied, too.
    pub(crate) recursive: bool,
    pub(crate) preserve: bool,
    pub(crate) partial: bool,
}

impl CopyRules {
    /// What a receiver lets a copy do: what cp does.
    pub(crate) fn of_receiver(self) -> Rules {
        Rules {
            overwrite: true,
            merge: true,
            allow_dotfiles: true,
            partial: self.partial,
            exact_modes: self.preserve,
            max_bytes: None,
            max_entries: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Receives `names` into, or the only one of them as, `destination`.
    Receive {
        destination: Vec<u8>,
        names: Vec<Vec<u8>>,
        /// The only one of them has come under the name of `destination` before, all of it perhaps.
        #[serde(default)]
        again: bool,
    },
    Send {
        sources: Vec<Named>,
    },
    /// Serves one measurement.
    Measure,
}

impl Task {
    pub(crate) fn service(&self) -> Service {
        match self {
            Self::Receive { .. } | Self::Send { .. } => Service::Files,
            Self::Measure => Service::Perf,
        }
    }
}

/// A source that is sent, and the name that it gets at the receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) path: Vec<u8>,
    pub(crate) name: Vec<u8>,
}

/// The end that was started may be reached, whatever it will be asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Listening {
    /// The ticket of an endpoint at the end that answers, if it could make one.
    pub(crate) ticket: Option<String>,
}

/// The end that was started can do it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The name that the only thing sent to it is to have there; its own, if none.
    pub(crate) name: Option<Vec<u8>>,
}

/// The end that was started cannot do it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failed {
    pub(crate) why: Why,
    pub(crate) message: String,
    pub(crate) hint: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Why {
    /// A directory, without that having been asked for.
    Directory,
    /// Something else than a directory, where one is synchronized.
    NoDirectory,
    Usage,
    Io,
    Protocol,
    #[serde(other)]
    Other,
}

/// What carries the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Carrier {
    /// A session with the endpoint of the end that was started.
    ToStarted,
    /// A session with the endpoint of the end that asks.
    ToAsking,
    /// The pipe through ssh itself.
    Ssh,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Close {
    pub(super) code: u64,
    pub(super) reason: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Frame {
    Listening(Listening),
    Request(Request),
    Offer(Offer),
    Failed(Failed),
    Carrier(Carrier),
    Data(Vec<u8>),
    Finish,
    Close(Close),
}

/// What an end begins with.
pub(super) fn greeting() -> [u8; MAGIC.len() + 1] {
    let mut greeting = [VERSION; MAGIC.len() + 1];
    greeting[..MAGIC.len()].copy_from_slice(&MAGIC);
    greeting
}

/// Reads up to the end of the greeting, behind whatever a login shell has to say.
///
/// # Errors
/// [`ErrorKind::PeerLost`] where none comes.
pub(super) fn find_greeting(input: &mut impl Read) -> Outcome<()> {
    let none = || fail(ErrorKind::PeerLost, "there is no greeting");
    let mut seen = 0;
    let mut matched = 0;
    while matched < MAGIC.len() {
        let byte = read_byte(input)?.ok_or_else(none)?;
        // The first byte is in the magic but once: whatever does not fit can only be a new beginning.
        matched = match byte == MAGIC[matched] {
            true => matched + 1,
            false => usize::from(byte == MAGIC[0]),
        };
        seen += 1;
        if seen > NOISE_BYTES_MAX + MAGIC.len() {
            return Err(none());
        }
    }
    match read_byte(input)?.ok_or_else(none)? {
        VERSION => Ok(()),
        other => Err(protocol(format!(
            "the other end speaks version {other} of what goes over ssh, and this one {VERSION}"
        ))
        .with_hint("use the same version of sphx at both ends")),
    }
}

fn read_byte(input: &mut impl Read) -> Outcome<Option<u8>> {
    let mut byte = [0];
    loop {
        match input.read(&mut byte) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(lost(&error)),
        }
    }
}

/// Reads the next frame; nothing at the end.
pub(super) fn read(input: &mut impl Read) -> Outcome<Option<Frame>> {
    let Some(kind) = read_byte(input)? else {
        return Ok(None);
    };
    let mut length = [0; 4];
    (input.read_exact(&mut length)).map_err(|error| lost(&error))?;
    let length = u32::from_be_bytes(length) as usize;
    let most = match kind {
        REQUEST | OFFER | FAILED | CARRIER | LISTENING | CLOSE => MESSAGE_BYTES_MAX,
        DATA => DATA_BYTES_MAX,
        FINISH => 0,
        _ => return Err(protocol("a frame that is not known")),
    };
    if length > most {
        return Err(protocol("a frame is too long"));
    }
    // Memory is taken for what has come, not for what is announced.
    let mut body = Vec::new();
    (input.by_ref().take(length as u64).read_to_end(&mut body)).map_err(|error| lost(&error))?;
    if body.len() < length {
        return Err(lost(&io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Some(match kind {
        REQUEST => Frame::Request(parse(&body)?),
        OFFER => Frame::Offer(parse(&body)?),
        FAILED => Frame::Failed(parse(&body)?),
        CARRIER => Frame::Carrier(parse(&body)?),
        LISTENING => Frame::Listening(parse(&body)?),
        CLOSE => Frame::Close(parse(&body)?),
        DATA => Frame::Data(body),
        _ => Frame::Finish,
    }))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Outcome<T> {
    serde_json::from_slice(body)
        .map_err(|error| protocol(format!("a message is not understood: {error}")))
}

/// A frame as it is written.
pub(super) fn put(frame: &Frame) -> Outcome<Vec<u8>> {
    Ok(match frame {
        Frame::Listening(listening) => framed(LISTENING, &json(listening)?),
        Frame::Request(request) => framed(REQUEST, &json(request)?),
        Frame::Offer(offer) => framed(OFFER, &json(offer)?),
        Frame::Failed(failed) => framed(FAILED, &json(failed)?),
        Frame::Carrier(carrier) => framed(CARRIER, &json(carrier)?),
        Frame::Close(close) => framed(CLOSE, &json(close)?),
        Frame::Data(data) => framed(DATA, data),
        Frame::Finish => framed(FINISH, &[]),
    })
}

fn json(message: &impl Serialize) -> Outcome<Vec<u8>> {
    match serde_json::to_vec(message) {
        Ok(json) if json.len() <= MESSAGE_BYTES_MAX => Ok(json),
        Ok(_) => Err(fail(ErrorKind::Usage, "there are too many names")),
        Err(error) => Err(protocol(format!("a message cannot be written: {error}"))),
    }
}

/// Data as it is written; at most [`DATA_BYTES_MAX`] of it.
pub(super) fn framed_data(data: &[u8]) -> Vec<u8> {
    framed(DATA, data)
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(5 + body.len());
    frame.push(kind);
    // Bodies are far shorter.
    frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

pub(super) fn lost(error: &io::Error) -> crate::failure::Failure {
    let message = match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "the ssh connection has ended".to_owned()
        }
        _ => format!("the ssh connection has failed: {error}"),
    };
    fail(ErrorKind::PeerLost, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_found_behind_noise() {
        let noises: [&[u8]; 5] = [
            b"",
            b"Welcome!\r\n",
            b"\x00",
            b"\x00\xffsphx over s",
            b"\x00\x00\xff",
        ];
        for noise in noises {
            let bytes = [noise, &greeting(), b"rest"].concat();
            let mut input = &bytes[..];
            find_greeting(&mut input).expect("a greeting");
            assert_eq!(input, b"rest");
        }
        let much = vec![b'x'; NOISE_BYTES_MAX];
        find_greeting(&mut &[&much[..], &greeting()].concat()[..]).expect("a greeting");
        for (bytes, kind) in [
            ([&much[..], b"x", &greeting()].concat(), ErrorKind::PeerLost),
            (
                b"bash: sphx: command not found\n".to_vec(),
                ErrorKind::PeerLost,
            ),
            (greeting()[..16].to_vec(), ErrorKind::PeerLost),
            ([&MAGIC[..], &[9]].concat(), ErrorKind::Protocol),
        ] {
            assert_eq!(find_greeting(&mut &bytes[..]).unwrap_err().kind, kind);
        }
    }

    #[test]
    fn frames_come_back() {
        let request = Request {
            task: Task::Send {
                sources: vec![Named {
                    path: b"caf\xe9/'; rm".to_vec(),
                    name: b"x".to_vec(),
                }],
            },
            rules: CopyRules {
                recursive: true,
                ..CopyRules::default()
            },
            sync: Some(SyncRequest::default()),
            ticket: None,
        };
        let again = Request {
            task: Task::Receive {
                destination: b"d".to_vec(),
                names: vec![b"d".to_vec()],
                again: true,
            },
            ..request.clone()
        };
        let frames = [
            Frame::Listening(Listening {
                ticket: Some("t".to_owned()),
            }),
            Frame::Request(request),
            Frame::Request(again),
            Frame::Offer(Offer::default()),
            Frame::Failed(Failed {
                why: Why::Directory,
                message: "m".to_owned(),
                hint: String::new(),
            }),
            Frame::Carrier(Carrier::ToAsking),
            Frame::Data(vec![1, 2]),
            Frame::Finish,
            Frame::Close(Close {
                code: 6,
                reason: "r".to_owned(),
            }),
        ];
        for frame in frames {
            let bytes = put(&frame).expect("a frame");
            let mut input = &bytes[..];
            assert_eq!(read(&mut input), Ok(Some(frame)));
            assert_eq!(read(&mut input), Ok(None));
            for cut in 1..bytes.len() {
                assert!(read(&mut &bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn what_is_too_long_or_unknown_is_refused() {
        for bytes in [
            framed(0x7f, b""),
            framed(FINISH, b"x"),
            vec![DATA, 0xff, 0xff, 0xff, 0xff],
            vec![REQUEST, 0xff, 0xff, 0xff, 0xff],
            framed(CARRIER, b"{}"),
        ] {
            let failure = read(&mut &bytes[..]).unwrap_err();
            assert_eq!(failure.kind, ErrorKind::Protocol, "{bytes:?}");
        }
        // Reasons that a later version may have.
        let bytes = framed(FAILED, br#"{"why":"new","message":"","hint":""}"#);
        let read = read(&mut &bytes[..]).expect("a frame");
        assert!(matches!(
            read,
            Some(Frame::Failed(Failed {
                why: Why::Other,
                ..
            }))
        ));
    }
}
