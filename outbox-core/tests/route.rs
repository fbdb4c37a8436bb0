//! Dispatchers made of dispatchers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use outbox_core::{
    AggregateType, ConfigError, Delivered, Delivery, Dispatcher, Envelope, EventId, EventType, Failure,
    FailureKind, FanOut, KeyPolicy, Limits, PartName, Payload, Policy, Router, RunResult,
};
use tokio::time::Instant;

/// What a scripted dispatcher fails with, and the parts it says are done.
type Answer = Result<Delivered, (FailureKind, Vec<&'static str>)>;

/// Says what it is told to say, and remembers what it was asked.
#[derive(Default)]
struct Scripted {
    answers: Mutex<Vec<Answer>>,
    /// Event types, and the parts that were done.
    asked: Mutex<Vec<(String, Vec<String>)>>,
    runs: Mutex<Vec<usize>>,
    pipelines: bool,
    policy: Policy,
    prepared: Mutex<usize>,
}

impl Scripted {
    /// Fails like this first, and delivers from then on.
    fn failing(answers: &[(FailureKind, &[&'static str])]) -> Arc<Self> {
        let answers = answers
            .iter()
            .rev()
            .map(|(kind, done)| Err((*kind, done.to_vec())))
            .collect();
        Arc::new(Self {
            answers: Mutex::new(answers),
            ..Self::default()
        })
    }

    fn asked(&self) -> Vec<(String, Vec<String>)> {
        self.asked.lock().unwrap().clone()
    }

    fn types(&self) -> Vec<String> {
        self.asked()
            .into_iter()
            .map(|(event_type, _)| event_type)
            .collect()
    }
}

#[async_trait]
impl Dispatcher for Scripted {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        let done = delivery.done.iter().map(ToString::to_string).collect();
        self.asked
            .lock()
            .unwrap()
            .push((delivery.envelope.event_type.to_string(), done));
        let answer = self
            .answers
            .lock()
            .unwrap()
            .pop()
            .unwrap_or(Ok(Delivered::Handled));
        answer.map_err(|(kind, done)| Failure::new(kind, "scripted").with_done(parts(&done)))
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        self.runs.lock().unwrap().push(run.len());
        let mut results = Vec::new();
        for delivery in run {
            results.push(self.dispatch(delivery).await);
        }
        results
    }

    fn pipelines(&self) -> bool {
        self.pipelines
    }

    fn policy(&self, _: &EventType) -> Policy {
        self.policy.clone()
    }

    fn prepare(&self, _: &Limits) -> Result<(), ConfigError> {
        *self.prepared.lock().unwrap() += 1;
        Ok(())
    }
}

fn parts(names: &[&str]) -> Vec<PartName> {
    names.iter().map(|name| PartName::new(name).unwrap()).collect()
}

fn delivery(event_type: &str, aggregate_type: Option<&str>) -> Delivery {
    let event_type = EventType::new(event_type).unwrap();
    let payload = Payload::from_json("{}");
    let mut envelope = Envelope::new(EventId::new(), event_type, payload, Timestamp::UNIX_EPOCH);
    envelope.aggregate_type = aggregate_type.map(|name| AggregateType::new(name).unwrap());
    Delivery::new(Arc::new(envelope), Instant::now() + Duration::from_secs(10))
}

/// The next try, with what the last one left.
fn again(delivery: &Delivery, failure: &Failure) -> Delivery {
    let mut next = delivery.clone();
    next.done = failure.done.clone().into();
    next
}

fn names(failure: &Failure) -> Vec<&str> {
    failure.done.iter().map(PartName::as_str).collect()
}

fn event_type(name: &str) -> EventType {
    EventType::new(name).unwrap()
}

#[tokio::test]
async fn an_event_goes_by_its_type_else_by_its_aggregate_else_to_the_rest() {
    let [by_type, by_aggregate, rest] = [(); 3].map(|()| Arc::new(Scripted::default()));
    let router = Router::new(rest.clone())
        .event_type(event_type("Placed"), by_type.clone())
        .aggregate_type(AggregateType::new("order").unwrap(), by_aggregate.clone());

    for (name, aggregate) in [
        ("Placed", Some("order")),
        ("Paid", Some("order")),
        ("Paid", Some("user")),
        ("Tick", None),
    ] {
        router.dispatch(&delivery(name, aggregate)).await.unwrap();
    }

    assert_eq!(by_type.types(), ["Placed"]);
    assert_eq!(by_aggregate.types(), ["Paid"]);
    assert_eq!(rest.types(), ["Paid", "Tick"]);
}

#[tokio::test]
async fn a_run_goes_stretch_by_stretch_and_only_as_far_as_its_target_pipelines() {
    let pipelined = Arc::new(Scripted {
        pipelines: true,
        ..Scripted::default()
    });
    let rest = Arc::new(Scripted::default());
    let router = Router::new(rest.clone()).event_type(event_type("A"), pipelined.clone());
    let run = ["A", "A", "B", "B", "A"].map(|name| delivery(name, None));

    let mut at = 0;
    while at < run.len() {
        let results = router.dispatch_run(&run[at..]).await;
        assert!(results.iter().all(Result::is_ok) && !results.is_empty());
        at += results.len();
    }

    assert!(router.pipelines());
    assert_eq!(*pipelined.runs.lock().unwrap(), [2, 1]);
    assert_eq!((rest.types().len(), rest.runs.lock().unwrap().len()), (2, 0));
}

#[tokio::test]
async fn a_router_asks_the_targets_policy_and_prepares_each_target_once() {
    let strict = Arc::new(Scripted {
        policy: Policy::default().with_key(KeyPolicy::Stop),
        ..Scripted::default()
    });
    let rest = Arc::new(Scripted::default());
    let router = Router::new(rest.clone())
        .event_type(event_type("A"), strict.clone())
        .event_type(event_type("B"), strict.clone());

    router
        .prepare(&Limits::new(Duration::from_secs(30), Duration::from_secs(20), 10))
        .unwrap();

    assert_eq!(router.policy(&event_type("A")).key, KeyPolicy::Stop);
    assert_eq!(router.policy(&event_type("C")).key, KeyPolicy::GoOn);
    assert_eq!(
        (*strict.prepared.lock().unwrap(), *rest.prepared.lock().unwrap()),
        (1, 1)
    );
}

fn fan_out(here: &Arc<Scripted>, kafka: &Arc<Scripted>) -> FanOut {
    let targets: Vec<(PartName, Arc<dyn Dispatcher>)> = vec![
        (PartName::new("here").unwrap(), here.clone()),
        (PartName::new("kafka").unwrap(), kafka.clone()),
    ];
    FanOut::new(targets).unwrap()
}

#[tokio::test]
async fn a_target_that_took_the_event_is_not_asked_again() {
    let here = Scripted::failing(&[(FailureKind::Retry, &["mail"])]);
    let kafka = Arc::new(Scripted::default());
    let fan_out = fan_out(&here, &kafka);
    let first = delivery("A", None);

    let failure = fan_out.dispatch(&first).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Retry);
    assert_eq!(names(&failure), ["here/mail", "kafka"]);
    assert_eq!(failure.error.to_string(), "here: scripted");

    let delivered = fan_out.dispatch(&again(&first, &failure)).await.unwrap();
    assert_eq!(delivered, Delivered::Handled);
    assert_eq!(kafka.asked().len(), 1);
    assert_eq!(here.asked()[1].1, ["mail"]);
}

#[tokio::test]
async fn a_rejection_waits_for_the_others_and_is_forgotten_with_the_failure() {
    let here = Scripted::failing(&[(FailureKind::Reject, &["mail"])]);
    let kafka = Scripted::failing(&[(FailureKind::Outage, &[])]);
    let fan_out = fan_out(&here, &kafka);
    let first = delivery("A", None);

    let failure = fan_out.dispatch(&first).await.unwrap_err();
    assert_eq!(
        (failure.kind, names(&failure)),
        (FailureKind::Outage, vec!["here/mail", "!here\nscripted"])
    );

    let failed = fan_out.dispatch(&again(&first, &failure)).await.unwrap_err();
    assert_eq!(
        (failed.kind, names(&failed)),
        (FailureKind::Reject, vec!["here/mail", "kafka"])
    );
    let why = "here: refused the event in an earlier try: scripted";
    assert_eq!(failed.error.to_string(), why);
    assert_eq!(here.asked().len(), 1);

    // Redriven: only the one that refused tries again, and only what it had not done.
    fan_out.dispatch(&again(&first, &failed)).await.unwrap();
    assert_eq!(
        (here.asked()[1].1.clone(), kafka.asked().len()),
        (vec!["mail".to_owned()], 2)
    );
}

#[tokio::test]
async fn parts_from_before_the_fan_out_still_count() {
    let (here, kafka) = (Arc::new(Scripted::default()), Arc::new(Scripted::default()));
    let mut delivery = delivery("A", None);
    delivery.done = parts(&["mail"]).into();

    fan_out(&here, &kafka).dispatch(&delivery).await.unwrap();

    assert_eq!(here.asked()[0].1, ["mail"]);
}

#[tokio::test]
async fn a_run_stops_at_the_first_event_that_a_target_fails() {
    let here = Scripted::failing(&[(FailureKind::Retry, &[])]);
    let kafka = Arc::new(Scripted::default());

    let results = fan_out(&here, &kafka)
        .dispatch_run(&["A", "B"].map(|name| delivery(name, None)))
        .await;

    assert_eq!(results.len(), 1);
    assert_eq!(kafka.types(), ["A"]);
}

#[test]
fn targets_need_names_that_can_be_told_apart() {
    let target = |name: &str| {
        (
            PartName::new(name).unwrap(),
            Arc::new(Scripted::default()) as Arc<dyn Dispatcher>,
        )
    };
    let cases = [
        (vec![], "one at least"),
        (vec![target("a"), target("a")], "name of its own"),
        (vec![target("a/b")], "no slash"),
        (vec![target("!a")], "exclamation"),
        (vec![target(&"a".repeat(61))], "60 bytes"),
    ];

    for (targets, reason) in cases {
        let refusal = FanOut::new(targets).unwrap_err().to_string();
        assert!(refusal.contains(reason), "{refusal}");
    }
}
