//! Headers and replies on streams.

use std::net::SocketAddr;
use std::time::Duration;

use sphinx_transport::asynchronous::{RecvStream, SendStream, Session};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::wire::{HEADER_MAX, Refusal, Reply, Request, Status, Target};

/// How long the header of a stream may take after the stream has begun.
const HEADER_TIME: Duration = Duration::from_secs(30);

/// A stream and what it is for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) send: SendStream,
    pub(crate) recv: RecvStream,
}

fn lost(error: impl ToString) -> Refusal {
    Refusal::new(Status::Other, error.to_string())
}

/// Opens a stream for `request`; its reply is still to come.
pub(crate) async fn ask(
    session: &Session,
    request: &Request,
) -> Result<(SendStream, RecvStream), Refusal> {
    let (mut send, recv) = session.open_bi().await.map_err(lost)?;
    send.write_all(&request.to_bytes()).await.map_err(lost)?;
    Ok((send, recv))
}

/// Has the other end connect to `target`, and waits until it has: the stream, and from where.
pub(crate) async fn open(
    session: &Session,
    target: &Target,
) -> Result<((SendStream, RecvStream), Option<SocketAddr>), Refusal> {
    let (mut send, mut recv) = ask(session, &Request::Connect(target.clone())).await?;
    send.flush().await.map_err(lost)?;
    let from = reply(&mut recv).await?;
    Ok(((send, recv), from))
}

/// Waits for the reply to a request.
pub(crate) async fn reply(recv: &mut RecvStream) -> Result<Option<SocketAddr>, Refusal> {
    let bytes = frame(recv).await?;
    Reply::parse(&bytes).map_err(lost)?.0
}

/// Reads what a stream of the peer is for.
///
/// # Errors
/// It cannot be known, and the peer has been told.
pub(crate) async fn asked(
    (mut send, mut recv): (SendStream, RecvStream),
) -> Result<Asked, Refusal> {
    let read = timeout(HEADER_TIME, frame(&mut recv)).await;
    let read = read.unwrap_or_else(|_| Err(lost("no header came")));
    let request = read.and_then(|bytes| {
        let parsed = Request::parse(&bytes);
        parsed.map_err(|error| Refusal::new(Status::Unsupported, error.to_string()))
    });
    match request {
        Ok(request) => Ok(Asked {
            request,
            send,
            recv,
        }),
        Err(refusal) => {
            refuse(&mut send, &refusal).await;
            Err(refusal)
        }
    }
}

/// Answers that what was asked for is done.
pub(crate) async fn accept(
    send: &mut SendStream,
    address: Option<SocketAddr>,
) -> Result<(), Refusal> {
    let bytes = Reply(Ok(address)).to_bytes();
    send.write_all(&bytes).await.map_err(lost)?;
    send.flush().await.map_err(lost)
}

/// Writes what follows a reply.
pub(crate) async fn write(send: &mut SendStream, bytes: &[u8]) -> Result<(), Refusal> {
    send.write_all(bytes).await.map_err(lost)?;
    send.flush().await.map_err(lost)
}

/// Answers that what was asked for is not done, and why.
pub(crate) async fn refuse(send: &mut SendStream, refusal: &Refusal) {
    let bytes = Reply(Err(refusal.clone())).to_bytes();
    // A peer that has gone wants no answer.
    if send.write_all(&bytes).await.is_ok() {
        let _ = send.finish().await;
    }
}

/// Reads a length (two bytes), and as many bytes behind it.
pub(crate) async fn frame(recv: &mut RecvStream) -> Result<Vec<u8>, Refusal> {
    let len = usize::from(recv.read_u16().await.map_err(lost)?);
    if len > HEADER_MAX {
        return Err(Refusal::new(Status::Unsupported, "a header is too long"));
    }
    let mut bytes = vec![0; len];
    recv.read_exact(&mut bytes).await.map_err(lost)?;
    Ok(bytes)
}
