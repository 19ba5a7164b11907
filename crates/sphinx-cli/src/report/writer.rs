//! What reaches standard output and standard error, byte by byte.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Bytes that a queued item takes beside its text.
const ITEM_BYTES: usize = 128;

/// Something to write.
#[derive(Debug)]
pub(super) enum Item {
    /// A line on standard output.
    Data(String),
    /// A line on standard error.
    Note(String),
    /// The state of a progress bar.
    Bar {
        id: u64,
        template: &'static str,
        length: u64,
        position: u64,
        message: String,
    },
    /// Removes the bar.
    Clear { id: u64 },
    /// Nothing more comes on standard output: its reader sees its end.
    End,
}

impl Item {
    /// The memory that it takes while it waits.
    pub(super) fn bytes(&self) -> usize {
        let text = match self {
            Self::Data(text) | Self::Note(text) | Self::Bar { message: text, .. } => text.len(),
            Self::Clear { .. } | Self::End => 0,
        };
        ITEM_BYTES + text
    }
}

/// Writes items. Bars are only touched here: drawing them may block as any writing.
pub(super) struct Writer {
    bars: MultiProgress,
    shown: HashMap<u64, ProgressBar>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            // To standard error, and hidden where that is no terminal.
            bars: MultiProgress::new(),
            shown: HashMap::new(),
        }
    }

    pub(super) fn write(&mut self, item: Item) -> io::Result<()> {
        match item {
            Item::Data(line) => self.bars.suspend(|| write_line(io::stdout(), line)),
            Item::Note(line) => self.bars.suspend(|| write_line(io::stderr(), line)),
            Item::Bar {
                id,
                template,
                length,
                position,
                message,
            } => {
                let bar = self.shown.entry(id).or_insert_with(|| {
                    let style = ProgressStyle::with_template(template);
                    let bar = self.bars.add(ProgressBar::new(length));
                    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                    bar
                });
                bar.set_length(length);
                bar.set_position(position);
                bar.set_message(message);
                Ok(())
            }
            Item::Clear { id } => {
                if let Some(bar) = self.shown.remove(&id) {
                    bar.finish_and_clear();
                }
                Ok(())
            }
            Item::End => {
                // Replaced rather than closed: another file must not get descriptor 1. Without /dev/null standard output stays
                // open until the process ends.
                if let Ok(nowhere) = OpenOptions::new().write(true).open("/dev/null") {
                    rustix::stdio::dup2_stdout(nowhere)?;
                }
                Ok(())
            }
        }
    }
}

/// Writes a line at once and past the standard library's lock, which nobody may hold while the other
/// end does not read.
fn write_line(to: impl AsFd, mut line: String) -> io::Result<()> {
    line.push('\n');
    let mut left = line.as_bytes();
    while !left.is_empty() {
        match rustix::io::write(&to, left) {
            Ok(n) => left = &left[n..],
            Err(Errno::INTR) => {}
            // Somebody who shares it has made it non-blocking.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&to, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
