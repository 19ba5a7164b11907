//! Sessions over loopback, and what else tests need.

use sphinx_netdev::netns::{Access, Namespace, probe};
use sphinx_transport::asynchronous::{Server, Session, connect};
use sphinx_transport::{Options, Service, Ticket};

/// A network namespace in which this process is root; without one it says that the test is skipped.
pub(crate) fn own_namespace() -> Option<Namespace> {
    match probe() {
        Ok(Access::Direct) => Some(Namespace::new().expect("a namespace")),
        Ok(Access::UserNamespace) => {
            sphinx_testing::skipped!("needs root");
            None
        }
        Err(error) => {
            sphinx_testing::skipped!("{error}");
            None
        }
    }
}

/// An endpoint, with which its sessions end.
pub(crate) struct Loopback {
    server: Server,
    ticket: Ticket,
}

impl Loopback {
    pub(crate) fn new() -> Self {
        let (listen, options) = (([127, 0, 0, 1], 0).into(), Options::default());
        let server = Server::bind(listen, Service::Tunnel, &options).expect("a port");
        let ticket = server.as_blocking().ticket(&["127.0.0.1".to_owned()]);
        Self {
            server,
            ticket: ticket.expect("a ticket"),
        }
    }

    /// Another session: the client's end, and the server's.
    pub(crate) async fn session(&self) -> (Session, Session) {
        let client = connect(&self.ticket, Service::Tunnel, &Options::default()).await;
        let accepted = self.server.accept().await.expect("a session");
        (client.expect("a session"), accepted)
    }
}
