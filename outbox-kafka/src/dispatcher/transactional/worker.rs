//! The one task that writes: a transaction at a time, with whatever waits when it begins.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use outbox_core::{Failure, FailureKind};
use rdkafka::admin::AdminClient;
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::queue::{Part, Queue};
use super::session::{End, Objections, Session};
use crate::client_log::ClientLog;
use crate::dispatcher::instance::{Instance, InstanceConfig};
use crate::dispatcher::job::{JobId, Request, late};
use crate::dispatcher::topics::{Knowledge, Topics};
use crate::dispatcher::verdict::{Fault, fault};
use crate::{TopicName, partition_of};

/// How often deadlines are looked at.
const SWEEP: Duration = Duration::from_millis(50);
/// Between two producers that came to nothing.
const REST: Duration = Duration::from_secs(1);

/// The topics of the transaction under way, and the producer that writes it.
#[derive(Default)]
struct UnderWay {
    topics: HashSet<TopicName>,
    instance: Weak<Instance>,
    /// It comes to nothing, because of a topic.
    ended_early: bool,
}

/// Everything but the producer, so that it goes on while the producer is waited for.
struct Worker {
    config: InstanceConfig,
    requests: mpsc::Receiver<Request>,
    /// The dispatcher is gone, and with it everyone who waits for an answer.
    closed: bool,
    topics: Topics,
    queue: Queue,
    under_way: UnderWay,
    next_sweep: Instant,
    unkeyed: u32,
    /// Why nothing is delivered at present.
    trouble: String,
}

/// Writes what comes by `requests` until that channel is closed.
pub(super) async fn run(
    config: InstanceConfig,
    transactional_id: String,
    admin: Arc<AdminClient<ClientLog>>,
    requests: mpsc::Receiver<Request>,
) {
    let mut worker = Worker::new(config, admin, requests);
    let mut session = None;
    while !worker.closed {
        worker.place();
        if worker.queue.is_empty() {
            worker.attend().await;
        } else if session.is_none() {
            session = worker.open(&transactional_id).await;
        } else if let Some(large) =
            session.take_if(|open| open.batch_bytes_max > worker.config.batch_bytes_max)
        {
            large.discard();
        } else if let Some(open) = session.take() {
            session = worker.transact(open).await;
        }
    }
    if let Some(session) = session {
        session.discard();
    }
}

impl Worker {
    fn new(
        config: InstanceConfig,
        admin: Arc<AdminClient<ClientLog>>,
        requests: mpsc::Receiver<Request>,
    ) -> Self {
        Self {
            requests,
            closed: false,
            topics: Topics::new(admin),
            queue: Queue::new(config.queue_messages_max),
            under_way: UnderWay::default(),
            next_sweep: Instant::now(),
            unkeyed: 0,
            config,
            trouble: "no answer came from the cluster".to_owned(),
        }
    }

    /// Takes requests and keeps deadlines until the future ends.
    async fn meanwhile<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                ended = &mut future => return ended,
                () = self.attend() => {}
            }
        }
    }

    /// Takes the next thing that comes: a request, a word about a topic, or the time to look at deadlines.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    async fn attend(&mut self) {
        tokio::select! {
            request = self.requests.recv(), if !self.closed => match request {
                Some(request) => self.queue.push(request),
                None => self.closed = true,
            },
            () = self.topics.answered() => self.end_early(),
            () = tokio::time::sleep_until(self.next_sweep), if !self.queue.is_empty() => {
                self.sweep(Instant::now());
            }
        }
    }

    /// Keeps deadlines, and asks about the topics of what takes long.
    fn sweep(&mut self, now: Instant) {
        self.next_sweep = now + SWEEP;
        for record in self.queue.slow(self.config.delivery_timeout, now) {
            self.topics.doubt(&record.topic, now);
        }
        let (topics, why) = (&self.topics, &self.trouble);
        self.queue
            .sweep(now, |record| late(topics.trouble(&record.topic), why));
    }

    /// Ends the transaction under way when one of its topics has turned out to be in trouble: it would come to nothing,
    /// and the others in it still have time for another.
    fn end_early(&mut self) {
        let in_trouble = |topic| self.topics.trouble(topic).is_some();
        if self.under_way.topics.iter().any(in_trouble) {
            self.under_way.topics.clear();
            self.under_way.ended_early = true;
            if let Some(instance) = self.under_way.instance.upgrade() {
                instance.purge_all();
            }
        }
    }

    /// Charges the records whose topic is in trouble.
    fn cut(&mut self) {
        let topics = &self.topics;
        self.queue.cut(|record| {
            let why = topics.trouble(&record.topic)?;
            Some(Failure::new(FailureKind::Retry, why))
        });
    }

    /// Finds out where the records of new runs go, and ends those that have lost their place.
    fn place(&mut self) {
        self.cut();
        let now = Instant::now();
        for id in self.queue.unplaced() {
            // Records that their topic will probably refuse: they would take others along.
            let mut large = Vec::new();
            if let Some((partitions, cut)) = self.partitions(id, &mut large, now) {
                self.queue.place(id, partitions, cut);
                large.drain(..).for_each(|part| self.queue.alone(part));
            }
        }
    }

    /// `None`: the cluster is being asked.
    fn partitions(
        &mut self,
        id: JobId,
        large: &mut Vec<Part>,
        now: Instant,
    ) -> Option<(Vec<i32>, Option<Failure>)> {
        let mut partitions = Vec::new();
        for record in self.queue.records(id) {
            let facts = match self.topics.about(&record.topic, now) {
                Knowledge::Known(facts) => facts,
                Knowledge::Asked => return None,
                Knowledge::Trouble(why) => {
                    return Some((partitions, Some(Failure::new(FailureKind::Retry, why))));
                }
            };
            if let Some(most) = facts.batch_bytes_max() {
                if record.size() > most {
                    large.push((id, partitions.len()));
                }
                self.config.batch_bytes_max = self.config.batch_bytes_max.min(most);
            }
            let (size, most) = (record.size(), self.config.message_bytes_max);
            if size > most {
                let why = format!("the record has up to {size} bytes; message_bytes_max is {most}");
                return Some((partitions, Some(Failure::new(FailureKind::Reject, why))));
            }
            let partition = match &record.key {
                Some(key) => partition_of(key.as_bytes(), facts.partitions),
                None => {
                    self.unkeyed = self.unkeyed.wrapping_add(1);
                    self.unkeyed % facts.partitions
                }
            };
            partitions.push(i32::try_from(partition).unwrap_or(0));
        }
        Some((partitions, None))
    }

    /// A producer that has the id; `None` after a rest if there is none to be had.
    async fn open(&mut self, transactional_id: &str) -> Option<Session> {
        let session = match Session::make(&self.config, transactional_id) {
            Ok(session) => session,
            Err(error) => return self.rest(error.to_string()).await,
        };
        let acquired = self.meanwhile(session.acquire()).await;
        match acquired {
            Ok(()) => Some(session),
            Err(trouble) => {
                session.discard();
                self.rest(trouble.to_string()).await
            }
        }
    }

    async fn rest<T>(&mut self, why: String) -> Option<T> {
        tracing::warn!(error = %why, "a transactional kafka producer is of no use, a new one takes over");
        self.trouble = why;
        self.meanwhile(tokio::time::sleep(REST)).await;
        None
    }

    /// Writes what is ready; gives the producer back if it is of further use.
    async fn transact(&mut self, mut session: Session) -> Option<Session> {
        let parts = self.queue.next();
        if parts.is_empty() {
            self.meanwhile(tokio::time::sleep(SWEEP)).await;
            return Some(session);
        }
        if let Err(trouble) = self.meanwhile(session.begin()).await {
            return self.lose(session, &parts, trouble.to_string()).await;
        }
        let (sent, failures) = self.send(&session, &parts);
        self.under_way = UnderWay {
            topics: self.queue.topics(&sent),
            instance: session.purger(),
            ended_early: false,
        };
        let end = self.meanwhile(session.end(sent.len(), failures)).await;
        let ended_early = std::mem::take(&mut self.under_way).ended_early;
        match end {
            End::Committed => self.queue.committed(&sent),
            End::TakenBack(objections) => {
                tracing::debug!(records = parts.len(), ?objections, "a transaction was taken back");
                if !self.is_a_topics(&sent, &objections) {
                    self.forget_topics(&objections.records);
                    self.queue.taken_back(&parts, &objections.records);
                }
            }
            // Those whose topic it was are charged, and the others go again while they have time.
            End::Unknown(why, objections) if ended_early || self.is_a_topics(&sent, &objections) => {
                tracing::debug!(error = %why, "a topic's trouble has ended a transaction, a new producer takes over");
                session.discard();
                return None;
            }
            End::Unknown(why, _) => return self.lose(session, &parts, why).await,
        }
        Some(session)
    }

    /// Whether the coordinator objected to a topic. It does not say to which: if there were several, each goes alone.
    fn is_a_topics(&mut self, sent: &[Part], objections: &Objections) -> bool {
        let Some(code) = objections.whole.filter(|code| fault(*code) == Fault::Topic) else {
            return false;
        };
        let topics = self.queue.topics(sent);
        let mut each = topics.iter();
        if let (Some(topic), None) = (each.next(), each.next()) {
            self.topics.refused(topic, code, Instant::now());
        }
        self.queue.suspect(topics);
        true
    }

    /// Hands records over, up to one that the client does not take: which it took, and what it said of that one.
    fn send(&self, session: &Session, parts: &[Part]) -> (Vec<Part>, Vec<(Part, Code)>) {
        let mut sent = Vec::new();
        for part in parts {
            let Some((record, partition)) = self.queue.record(*part) else {
                continue;
            };
            match session.send(record, partition, *part) {
                Ok(()) => sent.push(*part),
                // The client is full, perhaps of bytes: the transaction ends here, and the rest is the next one's.
                Err(Code::QueueFull) if !sent.is_empty() => break,
                Err(code) => return (sent, vec![(*part, code)]),
            }
        }
        (sent, Vec::new())
    }

    /// The topics of records that failed may not be what we take them for.
    fn forget_topics(&mut self, failures: &[(Part, Code)]) {
        for (part, code) in failures {
            if fault(*code) == Fault::Topic
                && let Some((record, _)) = self.queue.record(*part)
            {
                self.topics.forget(&record.topic);
            }
        }
    }

    async fn lose(&mut self, session: Session, parts: &[Part], why: String) -> Option<Session> {
        session.discard();
        self.queue.outage(parts, &why);
        self.rest(why).await
    }
}
