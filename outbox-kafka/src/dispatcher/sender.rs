//! The one task that sends: it feeds the pipeline to a producer and acts on what the producer reports.

mod outcome;
mod placing;
mod recovery;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::AdminClient;
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::careful::CarefulLane;
use super::instance::{Instance, InstanceConfig, Report};
use super::job::{JobId, Request};
use super::pipeline::{LaneId, Pipeline, Ticket};
use super::topics::Topics;
use super::verdict::{Fault, fault};
use crate::TopicName;
use crate::client_log::ClientLog;

/// How often deadlines and cancellations are looked at.
const SWEEP: Duration = Duration::from_millis(50);
/// How often an instance that has failed is looked at.
const COLLECT: Duration = Duration::from_millis(10);
/// How long verdicts are waited for after a failure. What comes later is sent again.
const COLLECT_MAX: Duration = Duration::from_secs(2);
/// How many reports are taken at once.
const REPORTS_MAX: usize = 4096;

/// A job in the sender's hands.
#[derive(Debug)]
struct Hand {
    request: Request,
    lanes: Arc<[LaneId]>,
    partitions: Vec<i32>,
}

impl Hand {
    fn topic(&self, index: usize) -> Option<&TopicName> {
        self.request.records.get(index).map(|record| &record.topic)
    }
}

/// What the producer is used for at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Records are sent.
    Open,
    /// Nothing is sent until all is acknowledged: the instance is to be replaced by one with other limits.
    Draining,
    /// A record failed, or nothing is heard: nothing is sent any more, and verdicts are collected.
    Collecting { until: Instant, purged: bool },
    /// The new instance waits, because the ones before it came to nothing.
    Resting { until: Instant },
}

/// The state of the task.
pub(super) struct Sender {
    config: InstanceConfig,
    topics: Topics,
    pipeline: Pipeline,
    careful: CarefulLane,
    hands: BTreeMap<JobId, Hand>,
    next_job: JobId,
    /// Jobs that wait for the cluster to tell about a topic.
    asking: Vec<JobId>,
    phase: Phase,
    instance: Option<Instance>,
    /// Takes over at once when the instance has failed.
    spare: Option<Instance>,
    careful_instance: Option<Instance>,
    reports: mpsc::UnboundedSender<Report>,
    careful_reports: mpsc::UnboundedSender<Report>,
    batch_bytes_max: usize,
    /// How many instances in a row have had nothing acknowledged.
    vain_instances: u32,
    last_error: Option<Code>,
    in_outage: bool,
    unkeyed: u32,
    next_sweep: Instant,
}

/// Sends what comes by `requests` until that channel is closed.
pub(super) async fn run(
    config: InstanceConfig,
    admin: Arc<AdminClient<ClientLog>>,
    mut requests: mpsc::Receiver<Request>,
) {
    let (reports_to, mut reports) = mpsc::unbounded_channel();
    let (careful_to, mut careful_reports) = mpsc::unbounded_channel();
    let mut sender = Sender::new(config, admin, reports_to, careful_to);
    let mut batch = Vec::new();
    loop {
        let wake = sender.step(Instant::now());
        tokio::select! {
            _ = reports.recv_many(&mut batch, REPORTS_MAX) => {
                let now = Instant::now();
                batch.drain(..).for_each(|report| sender.report(report, now));
            }
            Some(report) = careful_reports.recv() => sender.careful_report(&report, Instant::now()),
            request = requests.recv() => match request {
                Some(request) => sender.admit(request, Instant::now()),
                // The dispatcher is gone, and with it everyone who waits for an answer.
                None => return sender.discard(),
            },
            () = sender.topics.answered() => sender.place_again(Instant::now()),
            () = tokio::time::sleep_until(wake), if !sender.hands.is_empty() => {}
        }
    }
}

impl Sender {
    fn new(
        config: InstanceConfig,
        admin: Arc<AdminClient<ClientLog>>,
        reports: mpsc::UnboundedSender<Report>,
        careful_reports: mpsc::UnboundedSender<Report>,
    ) -> Self {
        Self {
            batch_bytes_max: config.batch_bytes_max,
            config,
            topics: Topics::new(admin),
            pipeline: Pipeline::default(),
            careful: CarefulLane::default(),
            hands: BTreeMap::new(),
            next_job: 0,
            asking: Vec::new(),
            phase: Phase::Open,
            instance: None,
            spare: None,
            careful_instance: None,
            reports,
            careful_reports,
            vain_instances: 0,
            last_error: None,
            in_outage: false,
            unkeyed: 0,
            next_sweep: Instant::now(),
        }
    }

    /// Does what can be done without waiting, and says when to look again.
    fn step(&mut self, now: Instant) -> Instant {
        if now >= self.next_sweep {
            self.sweep(now);
            self.next_sweep = now + SWEEP;
        }
        self.recover(now);
        self.offer(now);
        self.offer_careful();
        match self.phase {
            Phase::Collecting { .. } => now + COLLECT,
            Phase::Resting { until } => until.min(self.next_sweep),
            Phase::Open | Phase::Draining => self.next_sweep,
        }
    }

    /// Hands the producer what it may have.
    fn offer(&mut self, now: Instant) {
        if self.phase != Phase::Open {
            return;
        }
        let Some(instance) = &self.instance else {
            if !self.hands.is_empty() {
                self.open(now);
            }
            return;
        };
        let (hands, mut trouble) = (&self.hands, None);
        self.pipeline.offer(now, |ticket| {
            let Some(hand) = hands.get(&ticket.job) else {
                return false;
            };
            let sent = instance.send(
                &hand.request.records[ticket.index],
                hand.partitions[ticket.index],
                ticket,
            );
            match sent {
                Ok(()) => true,
                // Back-pressure: the same record again, once there is room.
                Err(Code::QueueFull) => false,
                Err(code) => {
                    trouble = Some((ticket, code));
                    false
                }
            }
        });
        if let Some((ticket, code)) = trouble {
            self.fail(ticket, code, now);
            self.pipeline.halt();
        }
    }

    /// Hands the careful producer its next record.
    fn offer_careful(&mut self) {
        let Some(ticket) = self.careful.offer() else {
            return;
        };
        if self.careful_instance.is_none() {
            self.careful_instance = self.build_careful();
        }
        let sent = match (&self.careful_instance, self.hands.get(&ticket.job)) {
            (Some(instance), Some(hand)) => instance.send(
                &hand.request.records[ticket.index],
                hand.partitions[ticket.index],
                ticket,
            ),
            _ => Err(Code::Fail),
        };
        if let Err(code) = sent {
            let result = Err(code);
            // As if the producer had reported it: the way of a failure is the same.
            let _ = self.careful_reports.send(Report { ticket, result });
        }
    }

    /// Takes what the producer says about a record.
    fn report(&mut self, report: Report, now: Instant) {
        let Report { ticket, result } = report;
        match result {
            Ok(()) => {
                if ticket.generation == self.pipeline.generation() {
                    self.is_alive();
                }
                let progress = self.pipeline.acknowledged(ticket, now);
                self.progress(progress);
            }
            Err(code) if ticket.generation == self.pipeline.generation() => {
                self.pipeline.failed(ticket, now);
                self.fail(ticket, code, now);
            }
            Err(_) => {}
        }
    }

    /// A record of this generation was not written: nothing more is sent, whoever's fault it is.
    fn fail(&mut self, ticket: Ticket, code: Code, now: Instant) {
        let fault = fault(code);
        if fault != Fault::Transport {
            self.pipeline.suspect(ticket);
        }
        if fault == Fault::Topic {
            self.forget_topic(ticket);
        }
        if !matches!(code, Code::PurgeQueue | Code::PurgeInflight) {
            self.last_error = Some(code);
        }
        if !matches!(self.phase, Phase::Collecting { .. }) {
            tracing::debug!(error = %code, in_flight = self.pipeline.in_flight(), "a record failed, a new producer takes over");
            self.phase = Phase::Collecting {
                until: now + COLLECT_MAX,
                purged: false,
            };
        }
    }

    /// The topic of a record is not what we take it for.
    fn forget_topic(&mut self, ticket: Ticket) {
        let hand = self.hands.get(&ticket.job);
        if let Some(topic) = hand.and_then(|hand| hand.topic(ticket.index)) {
            self.topics.forget(topic);
        }
    }

    fn discard(self) {
        let instances = [self.instance, self.spare, self.careful_instance];
        instances.into_iter().flatten().for_each(Instance::discard);
    }
}
