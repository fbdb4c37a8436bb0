//! A model broker: one node, its log in memory, failing where a test says so.
//!
//! It applies Kafka's rules for the sequence numbers of producers, above all the one that makes order hard: a
//! partition that knows nothing of a producer takes any sequence number. librdkafka's own mock cluster checks none.
//! It handles the requests of a connection one after the other, as a broker does.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::event::{Id, recognise};
use super::wire::{Batch, Reader, put_text};

pub(crate) const TOPIC: &str = "counted";

/// Answers of a broker.
pub(crate) mod code {
    pub(crate) const UNKNOWN_SERVER_ERROR: i16 = -1;
    pub(crate) const NOT_LEADER: i16 = 6;
    pub(crate) const REQUEST_TIMED_OUT: i16 = 7;
    pub(crate) const MESSAGE_TOO_LARGE: i16 = 10;
    pub(crate) const NOT_ENOUGH_REPLICAS: i16 = 19;
    pub(crate) const INVALID_RECORD: i16 = 87;
    pub(super) const OUT_OF_ORDER_SEQUENCE: i16 = 45;
    pub(super) const INVALID_PRODUCER_EPOCH: i16 = 47;
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Answers with this code and writes nothing.
    Refuse(i16),
    /// Writes, then cuts the connection instead of answering.
    LoseAnswer,
    /// Waits before it writes, which it does even if the client is gone by then.
    Hold(Duration),
    /// Writes nothing, cuts every connection, and takes none for this long.
    Down(Duration),
}

/// Which requests a fault meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// Those that hold this event.
    Event(Id),
    /// The first of a producer on this partition.
    FirstOn(i32),
}

#[derive(Debug)]
struct Armed {
    at: At,
    fault: Fault,
    left: usize,
}

#[derive(Debug, Default)]
struct ProducerState {
    epoch: i16,
    last_sequence: i32,
    /// Epoch, first and last sequence number and offset of the last five batches: sent again, they are recognised.
    recent: VecDeque<(i16, i32, i32, i64)>,
}

#[derive(Debug, Default)]
struct State {
    log: Vec<Vec<Id>>,
    producers: HashMap<(i64, i32), ProducerState>,
    armed: Vec<Armed>,
    next_producer: i64,
    down_until: Option<Instant>,
    connections: CancellationToken,
    fired: usize,
    held: usize,
}

#[derive(Debug)]
pub(crate) struct ModelBroker {
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    port: u16,
    round_trip: Duration,
}

impl Drop for ModelBroker {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.state().connections.cancel();
    }
}

impl ModelBroker {
    pub(crate) async fn start(partitions: usize, round_trip: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                log: vec![Vec::new(); partitions],
                next_producer: 1000,
                ..State::default()
            }),
            port: listener.local_addr().unwrap().port(),
            round_trip,
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { shared, accepting }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.shared.port)
    }

    /// The fault fires on the next `times` requests to write that it meets.
    pub(crate) fn arm(&self, at: At, fault: Fault, times: usize) {
        self.shared.state().armed.push(Armed {
            at,
            fault,
            left: times,
        });
    }

    pub(crate) fn log(&self) -> Vec<Vec<Id>> {
        self.shared.state().log.clone()
    }

    /// Waits until no request is held any more.
    pub(crate) async fn settled(&self) {
        while self.shared.state().held > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many faults have fired.
    pub(crate) fn fired(&self) -> usize {
        self.shared.state().fired
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = shared.state();
        if state.down_until.is_some_and(|until| Instant::now() < until) {
            continue;
        }
        tokio::spawn(serve(stream, Arc::clone(&shared), state.connections.clone()));
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>, cut: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let (mut requests, mut answers) = stream.into_split();
    let (queue, mut queued) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let closing = cut.clone();
    tokio::spawn(async move {
        while let Some((due, frame)) = queued.recv().await {
            tokio::select! {
                () = closing.cancelled() => return,
                () = tokio::time::sleep_until(due) => {}
            }
            if answers.write_all(&frame).await.is_err() {
                return;
            }
        }
    });
    loop {
        let frame = tokio::select! {
            () = cut.cancelled() => return,
            frame = read_frame(&mut requests) => frame,
        };
        let Some(frame) = frame else { return };
        let arrived = Instant::now();
        let Some(body) = shared.handle(&frame).await else {
            return;
        };
        let mut answer = (body.len() as u32 + 4).to_be_bytes().to_vec();
        answer.extend(&frame[4..8]);
        answer.extend(body);
        if queue.send((arrived + shared.round_trip, answer)).is_err() {
            return;
        }
    }
}

async fn read_frame(requests: &mut tokio::net::tcp::OwnedReadHalf) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    requests.read_exact(&mut length).await.ok()?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    requests.read_exact(&mut frame).await.ok()?;
    Some(frame)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// `None`: cut the connection.
    async fn handle(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let mut request = Reader(frame);
        let (api, version, _correlation) = (request.int16(), request.int16(), request.int32());
        let _client = request.text();
        match api {
            0 => self.produce_request(&mut request).await,
            3 => Some(self.metadata()),
            18 => Some(versions(version)),
            22 => Some(self.new_producer()),
            _ => None,
        }
    }

    fn metadata(&self) -> Vec<u8> {
        let partitions = self.state().log.len() as i32;
        let mut out = Vec::new();
        // One broker, which is the controller.
        out.extend(1_i32.to_be_bytes());
        out.extend(1_i32.to_be_bytes());
        put_text(&mut out, "127.0.0.1");
        out.extend(i32::from(self.port).to_be_bytes());
        out.extend((-1_i16).to_be_bytes());
        out.extend(1_i32.to_be_bytes());
        // One topic, not internal.
        out.extend(1_i32.to_be_bytes());
        out.extend(0_i16.to_be_bytes());
        put_text(&mut out, TOPIC);
        out.push(0);
        out.extend(partitions.to_be_bytes());
        for partition in 0..partitions {
            out.extend(0_i16.to_be_bytes());
            // Its number, its leader, one replica, which is in sync.
            for field in [partition, 1, 1, 1, 1, 1] {
                out.extend(field.to_be_bytes());
            }
        }
        out
    }

    fn new_producer(&self) -> Vec<u8> {
        let mut state = self.state();
        state.next_producer += 1;
        let mut out = Vec::new();
        out.extend(0_i32.to_be_bytes());
        out.extend(0_i16.to_be_bytes());
        out.extend(state.next_producer.to_be_bytes());
        out.extend(0_i16.to_be_bytes());
        out
    }

    async fn produce_request(&self, request: &mut Reader<'_>) -> Option<Vec<u8>> {
        let (_transaction, _acks, _timeout) = (request.text(), request.int16(), request.int32());
        let mut out = Vec::new();
        let topics = request.int32();
        out.extend(topics.to_be_bytes());
        for _ in 0..topics {
            put_text(&mut out, &request.text().unwrap_or_default());
            let partitions = request.int32();
            out.extend(partitions.to_be_bytes());
            for _ in 0..partitions {
                let (partition, bytes) = (request.int32(), request.int32() as usize);
                let (code, offset) = self.produce(partition, &Batch::read(request.take(bytes))).await?;
                out.extend(partition.to_be_bytes());
                out.extend(code.to_be_bytes());
                for field in [offset, -1_i64, 0] {
                    out.extend(field.to_be_bytes());
                }
            }
        }
        out.extend(0_i32.to_be_bytes());
        Some(out)
    }

    async fn produce(&self, partition: i32, batch: &Batch<'_>) -> Option<(i16, i64)> {
        let ids: Vec<Id> = batch
            .values
            .iter()
            .map(|value| recognise(value).unwrap())
            .collect();
        let fault = self.state().fault(partition, batch.first_sequence, &ids);
        match fault {
            Some(Fault::Refuse(code)) => return Some((code, -1)),
            Some(Fault::Hold(time)) => {
                self.state().held += 1;
                tokio::time::sleep(time).await;
                self.state().held -= 1;
            }
            Some(Fault::Down(time)) => {
                let mut state = self.state();
                state.down_until = Some(Instant::now() + time);
                std::mem::take(&mut state.connections).cancel();
                return None;
            }
            Some(Fault::LoseAnswer) | None => {}
        }
        let written = self.state().append(partition, batch, ids);
        match fault {
            Some(Fault::LoseAnswer) => None,
            _ => Some(written),
        }
    }
}

impl State {
    fn fault(&mut self, partition: i32, first_sequence: i32, ids: &[Id]) -> Option<Fault> {
        let meets = |at: At| match at {
            At::Event(id) => ids.contains(&id),
            At::FirstOn(on) => on == partition && first_sequence == 0,
        };
        let armed = self
            .armed
            .iter_mut()
            .find(|armed| armed.left > 0 && meets(armed.at))?;
        armed.left -= 1;
        self.fired += 1;
        Some(armed.fault)
    }

    /// Writes a batch by the rules for sequence numbers: the answer's code, and the offset.
    fn append(&mut self, partition: i32, batch: &Batch<'_>, ids: Vec<Id>) -> (i16, i64) {
        let log = &mut self.log[partition as usize];
        let offset = log.len() as i64;
        let (first, last) = (batch.first_sequence, batch.first_sequence + ids.len() as i32 - 1);
        if batch.producer >= 0 {
            let known = self.producers.contains_key(&(batch.producer, partition));
            let producer = self.producers.entry((batch.producer, partition)).or_default();
            if known {
                let again = producer
                    .recent
                    .iter()
                    .find(|seen| (seen.0, seen.1, seen.2) == (batch.epoch, first, last));
                if let Some(seen) = again {
                    return (0, seen.3);
                }
                if batch.epoch < producer.epoch {
                    return (code::INVALID_PRODUCER_EPOCH, -1);
                }
                let expected = if batch.epoch > producer.epoch {
                    0
                } else {
                    producer.last_sequence + 1
                };
                if first != expected {
                    return (code::OUT_OF_ORDER_SEQUENCE, -1);
                }
            }
            (producer.epoch, producer.last_sequence) = (batch.epoch, last);
            producer.recent.push_back((batch.epoch, first, last, offset));
            if producer.recent.len() > 5 {
                producer.recent.pop_front();
            }
        }
        log.extend(ids);
        (0, offset)
    }
}

fn versions(version: i16) -> Vec<u8> {
    // Produce, fetch, offsets, metadata, versions, producer ids: lowest and highest version of each.
    const APIS: [(i16, i16, i16); 6] = [(0, 0, 7), (1, 0, 4), (2, 0, 1), (3, 0, 1), (18, 0, 0), (22, 0, 0)];
    const UNSUPPORTED_VERSION: i16 = 35;
    let mut out = Vec::new();
    out.extend((if version > 0 { UNSUPPORTED_VERSION } else { 0 }).to_be_bytes());
    out.extend((APIS.len() as i32).to_be_bytes());
    for (api, lowest, highest) in APIS {
        [api, lowest, highest]
            .iter()
            .for_each(|field| out.extend(field.to_be_bytes()));
    }
    out
}
