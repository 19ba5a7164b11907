//! Requests and answers over one QUIC connection, each exchange on a bidirectional stream of its own,
//! as HTTP/3 has them.

use std::{
    io::{self, BufRead, BufReader, Read},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use serde_json::Value;
use tokio::{
    runtime::{Handle, Runtime},
    time::timeout,
};

use super::{
    CLOSING, NAME, any_address, client_config, endpoint, in_time, refused, runtime, server_config,
};
use crate::peers::{
    PEER_TIMEOUT, PeerError, PeerTask,
    http::{self, Client, Line},
    tried,
};

/// Longest request.
const REQUEST_BYTES: usize = 4096;
/// Bytes of an answer that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// Answers requests until the client closes the connection.
///
/// # Errors
///
/// [`PeerError`].
pub fn serve(task: &PeerTask, listening: &dyn Fn(SocketAddr)) -> Result<Value, PeerError> {
    let server = server_config(task)?;
    let objects = Arc::new(http::Server::new(task));
    runtime()?.block_on(async {
        let (endpoint, _) = endpoint(task.address, Some(server))?;
        listening(tried("address", endpoint.local_addr())?);
        let connection = in_time(task, async {
            let incoming = endpoint.accept().await.ok_or(PeerError::Closed(0))?;
            refused("accept", incoming.await)
        })
        .await?;
        let requests = async {
            while let Ok((answer, request)) = connection.accept_bi().await {
                let objects = objects.clone();
                // A client that has gone away needs no answer.
                tokio::spawn(async move { exchange(answer, request, &objects).await.ok() });
            }
        };
        // A client that dies does not close its connection, so the wait is bounded.
        let _ = timeout(task.limit + PEER_TIMEOUT, requests).await;
        Ok(objects.done())
    })
}

async fn exchange(
    mut answer: SendStream,
    mut request: RecvStream,
    objects: &http::Server,
) -> Result<(), PeerError> {
    let request = refused("request", request.read_to_end(REQUEST_BYTES).await)?;
    let mut bytes = Vec::new();
    tried(
        "answer",
        http::answer(&mut &request[..], &mut bytes, objects),
    )?;
    refused("answer", answer.write_all(&bytes).await)?;
    refused("answer", answer.finish())
}

/// Makes the requests of a task.
///
/// # Errors
///
/// [`PeerError`].
pub fn ask(task: &PeerTask) -> Result<Value, PeerError> {
    let config = client_config(task)?;
    let runtime = runtime()?;
    let (mut endpoint, socket_bytes) =
        runtime.block_on(async { endpoint(any_address(task.address), None) })?;
    endpoint.set_default_client_config(config);
    let client = QuicClient {
        runtime,
        endpoint,
        server: task.address,
        connected: Mutex::default(),
    };
    let done = http::use_client(task, &client).map(|mut done| {
        done["socket_bytes"] = socket_bytes.into();
        done
    });
    client.stop();
    let idle = client.endpoint.wait_idle();
    // The close has to leave before the process does.
    let _ = client
        .runtime
        .block_on(async { timeout(CLOSING, idle).await });
    done
}

/// One connection, made with the first request.
struct QuicClient {
    runtime: Runtime,
    endpoint: Endpoint,
    server: SocketAddr,
    connected: Mutex<Option<Connection>>,
}

impl Client for QuicClient {
    fn line(&self) -> Result<Box<dyn Line + '_>, PeerError> {
        let mut connected = self
            .connected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let connection = match &*connected {
            Some(connection) => connection.clone(),
            None => {
                let connection = self.runtime.block_on(async {
                    let connecting = refused("connect", self.endpoint.connect(self.server, NAME))?;
                    refused("connect", connecting.await)
                })?;
                connected.insert(connection).clone()
            }
        };
        Ok(Box::new(QuicLine {
            runtime: self.runtime.handle(),
            connection,
        }))
    }

    fn stop(&self) {
        self.endpoint.close(VarInt::from_u32(0), b"");
    }
}

struct QuicLine<'a> {
    runtime: &'a Handle,
    connection: Connection,
}

impl Line for QuicLine<'_> {
    fn ask(&mut self, request: &[u8]) -> io::Result<Box<dyn BufRead + '_>> {
        let answer = self.runtime.block_on(async {
            let (mut stream, answer) = self.connection.open_bi().await?;
            stream.write_all(request).await?;
            stream.finish().map_err(io::Error::other)?;
            Ok::<_, io::Error>(answer)
        })?;
        let reading = Reading {
            runtime: self.runtime,
            answer,
        };
        Ok(Box::new(BufReader::with_capacity(READ_BYTES, reading)))
    }
}

/// A stream as the standard library reads.
struct Reading<'a> {
    runtime: &'a Handle,
    answer: RecvStream,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.runtime.block_on(self.answer.read(buffer))?;
        // `None` is the end of the stream.
        Ok(read.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::{Workload, peers::tests::task, web::Web};

    #[test]
    fn pages_arrive() {
        let web = Web {
            pages: 2,
            objects: 20,
            seed: 3,
        };
        let directory = tempfile::tempdir().unwrap();
        let server = PeerTask {
            congestion: "cubic".into(),
            directory: Some(directory.path().to_owned()),
            ..task(Workload::Web(web))
        };
        let (answered, done) = thread::scope(|scope| {
            let (ready, address) = mpsc::channel();
            let task = &server;
            let serving = scope.spawn(move || serve(task, &|at| ready.send(at).unwrap()));
            let client = PeerTask {
                address: address.recv().unwrap(),
                ..server.clone()
            };
            let done = ask(&client).unwrap();
            (serving.join().unwrap().unwrap(), done)
        });
        assert_eq!(done["bytes"], web.bytes());
        assert_eq!(done["complete"], true);
        assert_eq!(done["web"]["pages"], 2);
        assert!(done["socket_bytes"].as_u64() > Some(0), "{done}");
        assert_eq!(answered["bytes"], web.bytes());
    }
}
