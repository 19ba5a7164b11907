//! The applications at the ends: no threads, but what they wait for and what wakes them is as it is
//! between threads. A wake-up that is forgotten leaves them asleep.

mod datagrams;
mod reading;
mod writing;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sphinx_driver::{Application, SharedSlicer, Slicer};
use sphinx_proto::StreamId;

pub use datagrams::{Carried, Heard, Say};
pub(crate) use datagrams::{Listener, Talker, carry};
pub(crate) use reading::Readers;
pub(crate) use writing::Writers;

/// One look in so many finds a slicer being written to.
const BUSY_ODDS: u32 = 7;

/// How a driver reaches an application in the same thread.
pub struct Local;

impl Application for Local {
    type Signal = Signal;
    type Slicer = LocalSlicer;
}

/// Raised by the driver's news, lowered by who waited for them.
#[derive(Clone, Default)]
pub struct Signal(Rc<Cell<bool>>);

impl Signal {
    /// Wakes who waits.
    pub fn raise(&self) {
        self.0.set(true);
    }

    /// Whether it has been raised since the last call.
    pub fn take(&self) -> bool {
        self.0.take()
    }
}

/// A slicer of which every seventh look of the driver finds that it is being written to, as it may be
/// between threads.
#[derive(Clone)]
pub struct LocalSlicer {
    slicer: Rc<RefCell<Slicer>>,
    looks: Rc<Cell<u32>>,
}

impl LocalSlicer {
    /// The slicer of a new stream.
    pub fn new(stream: StreamId) -> Self {
        Self {
            slicer: Rc::new(RefCell::new(Slicer::new(stream))),
            looks: Rc::default(),
        }
    }

    /// Lets the writer use the slicer.
    pub fn with<R>(&self, write: impl FnOnce(&mut Slicer) -> R) -> R {
        write(&mut self.slicer.borrow_mut())
    }
}

impl SharedSlicer for LocalSlicer {
    fn try_with<R>(&self, look: impl FnOnce(&mut Slicer) -> R) -> Option<R> {
        self.looks.set(self.looks.get() + 1);
        let is_busy = self.looks.get().is_multiple_of(BUSY_ODDS);
        (!is_busy).then(|| look(&mut self.slicer.borrow_mut()))
    }
}
