//! Hundreds of streams need no threads. A test of its own, because it counts the threads of the process.

use std::fs;

use sphinx_transport::asynchronous::{Server, connect};
use sphinx_transport::{Options, Service};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

const STREAMS: usize = 300;

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[tokio::test(flavor = "current_thread")]
async fn streams_of_tasks_have_no_threads() {
    let options = Options::default();
    let listen = ([127, 0, 0, 1], 0).into();
    let server = Server::bind(listen, Service::Application, &options).unwrap();
    let ticket = server.as_blocking().ticket(&["127.0.0.1".to_owned()]);
    let ticket = ticket.unwrap();
    let (client, server) = tokio::join!(
        connect(&ticket, Service::Application, &options),
        server.accept(),
    );
    let (client, server) = (client.unwrap(), server.unwrap());
    let before = threads();

    let mut readers = JoinSet::new();
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let mut stream = client.open_uni().await.unwrap();
        stream.write_all(&[number as u8; 1000]).await.unwrap();
        stream.flush().await.unwrap();
        streams.push(stream);
    }
    for number in 0..STREAMS {
        let mut stream = server.accept_uni().await.unwrap();
        readers.spawn(async move {
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap();
            assert!(received == [number as u8; 2000], "stream {number}");
        });
    }
    // All of them are open, and all readers wait.
    tokio::task::yield_now().await;
    assert_eq!(threads(), before);

    let mut writers = JoinSet::new();
    for (number, mut stream) in streams.into_iter().enumerate() {
        writers.spawn(async move {
            stream.write_all(&[number as u8; 1000]).await.unwrap();
            stream.wait_delivered().await.unwrap();
        });
    }
    writers.join_all().await;
    assert_eq!(threads(), before);
    readers.join_all().await;
}
