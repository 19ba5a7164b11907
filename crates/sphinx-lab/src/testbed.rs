//! Two network namespaces joined by the emulator.

use sphinx_link::front::{End, Front, FrontCounters, FrontError};
use sphinx_netdev::netns::{Access, NoAccess, enter_user_namespace, probe};
use thiserror::Error;

use crate::{LinkSpec, Side};

/// A link under test: senders run at its left end, receivers at its right one. When this is dropped,
/// the link ends; the namespaces disappear with the last process in them.
#[derive(Debug)]
pub struct Testbed {
    front: Front,
}

/// Why there is no link to measure on.
#[derive(Debug, Error)]
pub enum TestbedError {
    /// Neither root nor user namespaces give access to TUN devices.
    #[error(transparent)]
    NoAccess(#[from] NoAccess),
    /// The process could not become the root of a user namespace after all.
    #[error("no user namespace: {0}")]
    UserNamespace(#[source] std::io::Error),
    /// The link could not be started.
    #[error(transparent)]
    Front(#[from] FrontError),
}

impl Testbed {
    /// Gets this process the rights that [`start`](Testbed::start) needs. To be called before the
    /// process has a second thread; it may change the process's user and network namespace.
    ///
    /// # Errors
    ///
    /// [`TestbedError::NoAccess`] and [`TestbedError::UserNamespace`].
    pub fn prepare_process() -> Result<(), TestbedError> {
        match probe()? {
            Access::Direct => Ok(()),
            Access::UserNamespace => enter_user_namespace().map_err(TestbedError::UserNamespace),
        }
    }

    /// Starts a fresh link; `parameters` are kernel parameters for both ends.
    ///
    /// # Errors
    ///
    /// [`TestbedError::Front`].
    pub fn start(
        link: &LinkSpec,
        seed: u64,
        parameters: Vec<(String, String)>,
    ) -> Result<Testbed, TestbedError> {
        let mut config = link.front(seed);
        config.parameters.extend(parameters);
        let front = Front::start(config)?;
        Ok(Testbed { front })
    }

    /// The end where senders or receivers run.
    pub fn end(&self, side: Side) -> &End {
        match side {
            Side::Sender => self.front.left(),
            Side::Receiver => self.front.right(),
        }
    }

    /// The link's totals so far.
    pub fn counters(&self) -> FrontCounters {
        self.front.counters()
    }

    /// What could not be set up but is not essential, in words.
    pub fn warnings(&self) -> &[String] {
        self.front.warnings()
    }
}
