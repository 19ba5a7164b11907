//! The thread of a link, as its owner sees it; and links between interfaces that exist.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Instant, SystemTime},
};

use sphinx_netdev::ethernet::{self, Ethernet};

use super::{
    Direction, FrontCounters, FrontError, Observer, Stage,
    engine::{Engine, Setup, Shared},
    port::Port,
};
use crate::{ConfigError, LinkConfig, Radio, Record};

/// A running link. When this is dropped, it ends.
#[derive(Debug)]
pub struct LinkThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
    started: SystemTime,
    radio: Option<Radio>,
}

/// Who is in the link's thread besides the link.
pub(super) struct Guests {
    pub(super) observer: Option<Box<dyn Observer>>,
    pub(super) stage: Option<Box<dyn Stage>>,
}

impl Guests {
    /// An observer, if there is one, and no stage: nothing changes packets.
    pub(super) fn seeing(observer: Option<Box<dyn Observer>>) -> Guests {
        Guests {
            observer,
            stage: None,
        }
    }
}

/// Joins two Ethernet interfaces that exist, of this namespace: what arrives at the left one leaves at
/// the right one, and back, as it was. The machine should have no addresses on them and not forward
/// between them. IP packets to single hosts go through the links; all other frames (ARP, neighbour discovery,
/// multicast, broadcast) pass at once and count as `ignored`. VLAN tags are lost, and so is what fills up frames
/// that are too short.
///
/// # Errors
///
/// See [`FrontError`]: interfaces that do not exist, are not up, or are not allowed to be opened.
pub fn join(
    [left, right]: [&str; 2],
    links: [LinkConfig; 2],
    observer: Option<Box<dyn Observer>>,
) -> Result<LinkThread, FrontError> {
    let (left, right) = (Ethernet::open(left)?, Ethernet::open(right)?);
    let mtu = left.mtu().max(right.mtu());
    let ports = [left, right].map(Port::Ethernet);
    LinkThread::start(
        ports,
        links,
        ethernet::HEADER_BYTES,
        mtu,
        Guests::seeing(observer),
    )
}

impl LinkThread {
    /// Packets have `header` bytes in front of the IP header: none, if there is a stage.
    pub(super) fn start(
        interfaces: [Port; 2],
        links: [LinkConfig; 2],
        header: usize,
        mtu: usize,
        Guests {
            mut observer,
            stage,
        }: Guests,
    ) -> Result<LinkThread, FrontError> {
        for link in &links {
            link.validate()?;
        }
        let radio = links[0].radio;
        if links[1].radio != radio {
            return Err(ConfigError::RadioOfOne.into());
        }
        let shared = Arc::new(Shared::new()?);
        let (start, started) = (Instant::now(), SystemTime::now());
        if let Some(observer) = &mut observer {
            observer.start(started);
        }
        let setup = Setup {
            interfaces,
            links,
            header,
            mtu,
            start,
            observer,
            stage,
        };
        let thread = thread::Builder::new().name("sphinx-link".into()).spawn({
            let shared = Arc::clone(&shared);
            move || Engine::new(setup, shared)?.run()
        })?;
        Ok(LinkThread {
            shared,
            thread: Some(thread),
            started,
            radio,
        })
    }

    /// When time 0 of the link was.
    pub fn started(&self) -> SystemTime {
        self.started
    }

    /// The totals, at most 2 ms old.
    pub fn counters(&self) -> FrontCounters {
        self.shared.counters()
    }

    /// Moves the records of a direction to the end of `into`, oldest first, except those of the last
    /// 2 ms. [`LinkConfig::records`] limits how many are kept between two calls.
    pub fn take_records(&self, direction: Direction, into: &mut Vec<Record>) {
        self.shared.take_records(direction as usize, into);
    }

    /// Changes one direction under way, as [`Link::reconfigure`](crate::Link::reconfigure) does,
    /// within a millisecond. Times of schedules still count from the start.
    ///
    /// # Errors
    ///
    /// Any [`ConfigError`] of [`LinkConfig::validate`], and another radio; the link is then unchanged.
    pub fn reconfigure(&self, direction: Direction, config: LinkConfig) -> Result<(), ConfigError> {
        config.validate()?;
        if config.radio != self.radio {
            return Err(ConfigError::RadioOfOne);
        }
        self.shared.reconfigure(direction as usize, config);
        Ok(())
    }

    /// Ends the link; packets still inside are gone. Its totals and records can still be taken.
    ///
    /// # Errors
    ///
    /// What ended the link's thread before its time, if anything.
    pub fn halt(&mut self) -> io::Result<()> {
        self.shared.stop();
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the link's thread panicked")),
        }
    }
}

impl Drop for LinkThread {
    fn drop(&mut self) {
        // The result is for callers of `halt`.
        let _ = self.halt();
    }
}
