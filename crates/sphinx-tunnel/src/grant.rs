//! What one client may do, which may change while it is connected.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::permit::Permit;

/// What one client may have at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Streams: connections, flows of datagrams, listeners; those among them that listeners accept.
    pub streams: usize,
    /// Flows of datagrams among these streams.
    pub flows: usize,
    /// Connections to targets that have not answered yet, all together. Half of them may be to one target: more are refused, so that one that
    /// never answers holds up only itself.
    pub pending: usize,
    /// Bytes a second, each way; `None`: as many as there is room for.
    pub rate: Option<u64>,
    /// Bytes that its session may hold here in each direction; `None`: its share of what all may.
    pub memory: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 4096,
            flows: 4096,
            pending: 2048,
            rate: None,
            memory: None,
        }
    }
}

/// Adds a client to those that a server knows: what it is from then on called, or why not.
type Enrol = dyn Fn() -> Result<(), String> + Send + Sync;

/// What a client may do, and how much of it.
#[derive(Clone)]
pub struct Grant {
    name: String,
    permit: Arc<Permit>,
    limits: Limits,
    address: Option<IpAddr>,
    enrol: Option<Arc<Enrol>>,
}

impl Grant {
    /// For a client that is called `name` in events.
    pub fn new(name: impl Into<String>, permit: Permit, limits: Limits) -> Self {
        Self {
            name: name.into(),
            permit: Arc::new(permit),
            limits,
            address: None,
            enrol: None,
        }
    }

    /// With an address of its own for IP packets, which nobody else has.
    #[must_use]
    pub fn with_address(self, address: Option<IpAddr>) -> Self {
        Self { address, ..self }
    }

    /// For somebody with an invitation: may have itself added to those that the server knows, and nothing else.
    pub fn invitation(
        name: impl Into<String>,
        enrol: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            enrol: Some(Arc::new(enrol)),
            ..Self::new(name, Permit::default(), Limits::default())
        }
    }

    /// What the client is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many streams and bytes the client may have.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Rules for what the client may do.
    pub fn permit(&self) -> &Arc<Permit> {
        &self.permit
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    pub(crate) fn enrol(&self) -> Option<Arc<Enrol>> {
        self.enrol.clone()
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("name", &self.name)
            .field("permit", &self.permit)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A grant that can be changed while its client is connected. Clones are the same.
#[derive(Debug, Clone)]
pub struct Granted(Arc<Mutex<Arc<Grant>>>);

impl Granted {
    /// A grant, as it holds at the beginning.
    pub fn new(grant: Grant) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(grant))))
    }

    /// From now on this holds, for what begins from now on. Rate and memory hold for new sessions.
    pub fn set(&self, grant: Grant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(grant);
    }

    /// Whether both are clones of the same one.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The grant that holds now.
    pub fn now(&self) -> Arc<Grant> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
