//! A session that carries flows, and what comes to it from the other end.

use std::sync::Arc;
use std::time::Duration;

use sphinx_transport::Error;
use sphinx_transport::asynchronous::Session;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::datagrams::Datagrams;
use crate::exchange::{self, Asked};

/// How long a program's connection waits for a session.
const SESSION_TIME: Duration = Duration::from_secs(30);

/// A session. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) session: Session,
    pub(crate) datagrams: Datagrams,
}

impl Live {
    pub(crate) fn new(session: Session, connects: bool) -> Self {
        let datagrams = Datagrams::new(&session, connects);
        Self { session, datagrams }
    }

    /// Serves what the other end asks for, each in a task of its own, until the session ends: why it has.
    pub(crate) async fn serve<F>(
        &self,
        serve: impl Fn(Live, Asked) -> F + Send + Sync + 'static,
    ) -> Error
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let serve = Arc::new(serve);
        // All tasks end when this function does.
        let mut tasks = JoinSet::new();
        let datagrams = self.datagrams.clone();
        tasks.spawn(async move { datagrams.run().await });
        loop {
            let stream = match self.session.accept_bi().await {
                Ok(stream) => stream,
                Err(error) => return error,
            };
            while tasks.try_join_next().is_some() {}
            let (live, serve) = (self.clone(), Arc::clone(&serve));
            tasks.spawn(async move {
                // If the request cannot be read, the other end has been told already.
                if let Ok(asked) = exchange::asked(stream).await {
                    serve(live, asked).await;
                }
            });
        }
    }
}

/// The present session, for those who come with a connection.
#[derive(Clone)]
pub(crate) struct Link(watch::Receiver<Option<Live>>);

impl Link {
    pub(crate) fn new(current: watch::Receiver<Option<Live>>) -> Self {
        Self(current)
    }

    pub(crate) fn now(&self) -> Option<Live> {
        self.0.borrow().clone()
    }

    /// The session as soon as there is one, unless that takes too long.
    pub(crate) async fn live(&self) -> Option<Live> {
        let mut current = self.0.clone();
        let found = timeout(SESSION_TIME, current.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }
}
