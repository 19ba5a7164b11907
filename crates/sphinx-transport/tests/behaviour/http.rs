//! HTTP by a well-kept crate, over streams with two directions and a link that loses packets.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sphinx_transport::asynchronous::{RecvStream, SendStream, Session};
use tokio::io::{AsyncWriteExt, Join};

use crate::support::*;

const REQUESTS: usize = 100;
/// Connections at a time.
const CONNECTIONS: usize = 4;

type Connection = TokioIo<Join<RecvStream, SendStream>>;

fn connection((sending, receiving): (SendStream, RecvStream)) -> Connection {
    TokioIo::new(tokio::io::join(receiving, sending))
}

/// Answers with the body of the request, backwards.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let mut body = request.into_body().collect().await?.to_bytes().to_vec();
    body.reverse();
    Ok(Response::new(body.into()))
}

/// The session is the caller's too: it must not end before its streams.
async fn serve(server: Session) {
    for _ in 0..CONNECTIONS {
        let connection = connection(server.accept_bi().await.unwrap());
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(connection, service_fn(answer));
        tokio::spawn(async move { serving.await.unwrap() });
    }
}

async fn ask(connection: Connection, number: usize) {
    let (mut sender, conversation) = hyper::client::conn::http1::handshake(connection)
        .await
        .unwrap();
    let conversation = tokio::spawn(conversation);
    for request in 0..REQUESTS / CONNECTIONS {
        let mut body = content((number * 1000 + request) as u64, request * 1777);
        let request = Request::post("/")
            .header("host", "sphinx")
            .body(Full::<Bytes>::from(body.clone()))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        body.reverse();
        assert!(answer == body, "another body");
    }
    drop(sender);
    conversation.await.unwrap().unwrap();
}

#[test]
fn http_crosses_a_link_that_loses_packets() {
    bounded(|| {
        let pair = pair(link(0.05, 1), link(0.05, 2));
        let (client, server) = (Session::from(pair.client), Session::from(pair.server));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let serving = tokio::spawn(serve(server.clone()));
            let mut asking = Vec::new();
            for number in 0..CONNECTIONS {
                // One by one: which stream answers which is told by their order.
                let connection = connection(client.open_bi().await.unwrap());
                asking.push(tokio::spawn(ask(connection, number)));
            }
            for asking in asking {
                asking.await.unwrap();
            }
            serving.await.unwrap();
        });
    });
}

/// Tokio's own helpers: what `select!` and `timeout` drop is not lost, and `copy` ends with a stream that is whole.
#[test]
fn streams_go_with_what_tokio_brings() {
    bounded(|| {
        let pair = pair(link(0.05, 3), link(0.05, 4));
        let (client, server) = (Session::from(pair.client), Session::from(pair.server));
        let data = content(1, 800_000);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let received = runtime.block_on(async {
            let sending = async {
                let mut stream = client.open_uni().await.unwrap();
                tokio::io::copy(&mut &data[..], &mut stream).await.unwrap();
                stream.shutdown().await.unwrap();
                stream.wait_delivered().await.unwrap();
            };
            let receiving = async {
                let mut stream = server.accept_uni().await.unwrap();
                let mut received = Vec::new();
                let mut buf = [0; 30_000];
                loop {
                    let read = tokio::time::timeout(Duration::from_micros(300), async {
                        tokio::select! {
                            biased;
                            read = stream.read(&mut buf) => Some(read.unwrap()),
                            () = tokio::task::yield_now() => None,
                        }
                    });
                    match read.await {
                        Ok(Some(0)) => return received,
                        Ok(Some(read)) => received.extend_from_slice(&buf[..read]),
                        Ok(None) | Err(_) => {}
                    }
                }
            };
            tokio::join!(sending, receiving).1
        });
        assert!(received == data);
    });
}
