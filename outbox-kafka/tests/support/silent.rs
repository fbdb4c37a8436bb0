//! A proxy behind which a consumer hears nothing more, and is told nothing: its requests for records are swallowed, its
//! connections stay open, and its group takes it for alive.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox_dev::{DevKafka, KafkaOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// The number of the request for records in Kafka's protocol.
const FETCH: [u8; 2] = [0, 1];

/// Listens on a loopback port until dropped.
pub(crate) struct Silent {
    readers: Arc<Readers>,
    listener: AbortHandle,
}

/// The connections that ask for records.
struct Readers {
    /// So many requests of the first one are answered.
    answered: usize,
    count: AtomicUsize,
    swallowed: AtomicUsize,
}

impl Silent {
    /// A broker behind it. The first connection that asks for records gets so many answers to that, and then none; others
    /// get all.
    pub(crate) async fn before_a_broker(answered: usize) -> (Self, DevKafka) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let told = listener.local_addr().unwrap().port();
        // As the script of the broker chooses them: below those that the kernel gives out.
        let (own, controller) = (15_000 + told % 5_000, 25_000 + told % 5_000);
        let properties = format!(
            "listeners=PLAINTEXT://127.0.0.1:{own},CONTROLLER://127.0.0.1:{controller}\n\
             controller.quorum.bootstrap.servers=127.0.0.1:{controller}"
        );
        let readers = Arc::new(Readers {
            answered,
            count: AtomicUsize::new(0),
            swallowed: AtomicUsize::new(0),
        });
        let listening = tokio::spawn(listen(listener, own, Arc::clone(&readers)));
        let silent = Self {
            readers,
            listener: listening.abort_handle(),
        };
        let options = KafkaOptions::default()
            .with_advertised_port(told)
            .with_properties(&properties);
        (silent, DevKafka::start_with(options).await.unwrap())
    }

    /// How many connections have asked for records.
    pub(crate) fn readers(&self) -> usize {
        self.readers.count.load(Ordering::SeqCst)
    }

    /// How many requests for records were swallowed.
    pub(crate) fn swallowed(&self) -> usize {
        self.readers.swallowed.load(Ordering::SeqCst)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn listen(listener: TcpListener, target: u16, readers: Arc<Readers>) {
    // Dropped with the listener, and with it every connection.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(connection(client, target, Arc::clone(&readers)));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(client: TcpStream, target: u16, readers: Arc<Readers>) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let (mut number, mut asked) = (None, 0);
        loop {
            let length = from_client.read_u32().await?;
            let mut request = vec![0; length as usize];
            from_client.read_exact(&mut request).await?;
            if request.starts_with(&FETCH) {
                let number = *number.get_or_insert_with(|| readers.count.fetch_add(1, Ordering::SeqCst));
                asked += 1;
                if number == 0 && asked > readers.answered {
                    readers.swallowed.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
            }
            to_server.write_u32(length).await?;
            to_server.write_all(&request).await?;
        }
    };
    // Either end closing closes both.
    tokio::select! {
        ended = requests => ended,
        ended = tokio::io::copy(&mut from_server, &mut to_client) => ended.map(drop),
    }
}
