//! The checker passes what is right, and catches each kind of fault by name.

use outbox_chaos::history::{Ending, Policy, Record, Rule, What, check};
use uuid::Uuid;

const A: Uuid = Uuid::from_u128(1);
const B: Uuid = Uuid::from_u128(2);
const C: Uuid = Uuid::from_u128(3);

/// Puts a history together; each step is a millisecond after the one before.
#[derive(Default, Clone)]
struct Script(Vec<Record>);

impl Script {
    fn by(mut self, process: &str, what: What) -> Self {
        let at_us = (self.0.len() as i64 + 1) * 1_000;
        self.0.push(Record {
            at_us,
            process: process.to_owned(),
            what,
        });
        self
    }

    fn published(self, event: Uuid, key: Option<&str>) -> Self {
        self.published_to_end(event, key, Policy::GoOn, "completed")
    }

    fn published_to_fail(self, event: Uuid, key: Option<&str>, policy: Policy) -> Self {
        self.published_to_end(event, key, policy, "failed")
    }

    fn published_to_end(self, event: Uuid, key: Option<&str>, policy: Policy, ends: &str) -> Self {
        let key = key.map(str::to_owned);
        let intended = What::Intended {
            event,
            payload: "{}".to_owned(),
            key,
            ends: ends.to_owned(),
            policy,
            delayed: false,
        };
        self.by("publisher", intended)
            .by("publisher", What::Committed { event })
    }

    fn started(self, relay: &str, event: Uuid) -> Self {
        self.by(
            relay,
            What::Started {
                event,
                attempt: 1,
                payload: "{}".to_owned(),
            },
        )
    }

    fn ended(self, relay: &str, event: Uuid, how: Ending) -> Self {
        self.by(relay, What::Ended { event, how })
    }

    fn handled(self, relay: &str, event: Uuid) -> Self {
        self.started(relay, event).ended(relay, event, Ending::Done)
    }

    fn settled(self, relay: &str, event: Uuid) -> Self {
        self.by(
            relay,
            What::Settled {
                event,
                outcome: "completed".to_owned(),
            },
        )
    }

    fn killed(self, victim: &str) -> Self {
        self.by(
            "run",
            What::Faulted {
                victim: victim.to_owned(),
                fault: "SIGKILL".to_owned(),
            },
        )
    }

    fn row(self, event: Uuid, status: &str, retry_count: i32) -> Self {
        let seq = event.as_u128() as i64;
        self.by(
            "run",
            What::Row {
                event,
                status: status.to_owned(),
                retry_count,
                seq,
                error: None,
            },
        )
    }

    fn broken(self) -> Vec<Rule> {
        check(&self.0)
            .violations
            .iter()
            .map(|violation| violation.rule)
            .collect()
    }
}

fn right() -> Script {
    Script::default()
        .published(A, None)
        .handled("r1", A)
        .settled("r1", A)
}

#[test]
fn a_right_history_passes() {
    assert_eq!(right().row(A, "completed", 0).broken(), []);
}

#[test]
fn a_duplicate_after_a_kill_passes_and_is_counted() {
    let script = Script::default()
        .published(A, None)
        .handled("r1", A)
        .killed("r1")
        .handled("r2", A);

    let verdict = check(&script.row(A, "completed", 0).0);

    assert_eq!(verdict.violations, []);
    assert_eq!(
        (verdict.summary.again_after_done, verdict.summary.again_after_cut),
        (1, 0)
    );
}

#[test]
fn a_retry_after_a_failure_passes() {
    let script = Script::default()
        .published(A, None)
        .started("r1", A)
        .ended("r1", A, Ending::Failed)
        .handled("r2", A);

    assert_eq!(script.row(A, "completed", 1).broken(), []);
}

#[test]
fn a_lost_event_is_caught() {
    assert_eq!(Script::default().published(A, None).broken(), [Rule::NothingLost]);
    assert_eq!(
        Script::default().published(A, None).row(A, "pending", 0).broken(),
        [Rule::NothingLost]
    );
}

#[test]
fn a_completion_without_a_handler_is_caught() {
    assert_eq!(
        Script::default()
            .published(A, None)
            .row(A, "completed", 0)
            .broken(),
        [Rule::NothingLost]
    );
}

#[test]
fn an_event_that_nobody_published_is_caught() {
    assert_eq!(
        right().row(A, "completed", 0).handled("r1", B).broken(),
        [Rule::NothingInvented]
    );
}

#[test]
fn a_rolled_back_event_that_is_delivered_is_caught() {
    let intended = What::Intended {
        event: A,
        payload: "{}".to_owned(),
        key: None,
        ends: "completed".to_owned(),
        policy: Policy::GoOn,
        delayed: false,
    };
    let script = Script::default()
        .by("publisher", intended)
        .by("publisher", What::RolledBack { event: A });

    assert_eq!(script.handled("r1", A).broken(), [Rule::NothingInvented]);
}

#[test]
fn another_payload_than_the_published_one_is_caught() {
    let script = Script::default().published(A, None);
    let other = What::Started {
        event: A,
        attempt: 1,
        payload: "{ }".to_owned(),
    };
    let script = script.by("r1", other).ended("r1", A, Ending::Done);

    assert_eq!(script.row(A, "completed", 0).broken(), [Rule::Unaltered]);
}

#[test]
fn a_duplicate_without_a_reason_is_caught() {
    let twice = Script::default()
        .published(A, None)
        .handled("r1", A)
        .handled("r2", A);
    let beside = Script::default()
        .published(A, None)
        .started("r1", A)
        .handled("r2", A)
        .ended("r1", A, Ending::Done);
    let wrong_victim = Script::default()
        .published(A, None)
        .handled("r1", A)
        .killed("r3")
        .handled("r2", A);

    for script in [twice, beside, wrong_victim] {
        assert_eq!(
            script.row(A, "completed", 0).broken(),
            [Rule::DuplicatesHaveAReason]
        );
    }
}

#[test]
fn a_delivery_after_a_confirmed_completion_is_caught_even_after_a_kill() {
    let script = right().killed("r1").handled("r2", A).row(A, "completed", 0);

    assert_eq!(script.broken(), [Rule::CompletedIsFinal]);
}

#[test]
fn an_event_that_overtakes_its_key_is_caught() {
    let keyed = || Script::default().published(A, Some("k")).published(B, Some("k"));
    let rows = |script: Script| script.row(A, "completed", 0).row(B, "completed", 0).broken();

    assert_eq!(rows(keyed().handled("r1", A).handled("r1", B)), []);
    assert_eq!(rows(keyed().handled("r1", B).handled("r2", A)), [Rule::Order]);
    let beside = keyed()
        .started("r1", A)
        .handled("r2", B)
        .ended("r1", A, Ending::Done);
    assert_eq!(
        rows(beside),
        [Rule::Order, Rule::Order],
        "before it, and beside it"
    );
}

#[test]
fn an_event_that_overtakes_one_further_ahead_is_caught_although_the_one_between_was_given_up() {
    let script = Script::default()
        .published(A, Some("k"))
        .published_to_fail(B, Some("k"), Policy::GoOn)
        .published(C, Some("k"));
    let rejected = |script: Script| script.started("r1", B).ended("r1", B, Ending::Failed);
    let rows = |script: Script| {
        let script = script.row(A, "completed", 0).row(B, "failed", 1);
        script.row(C, "completed", 0).broken()
    };

    assert_eq!(
        rows(rejected(script.clone().handled("r1", A)).handled("r1", C)),
        []
    );
    assert_eq!(
        rows(rejected(script).handled("r2", C).handled("r1", A)),
        [Rule::Order, Rule::Order]
    );
}

#[test]
fn a_relay_that_was_held_still_may_end_a_delivery_long_after_another_has() {
    let script = Script::default()
        .published(A, Some("k"))
        .published(B, Some("k"))
        .started("r1", A)
        .killed("r1")
        .handled("r2", A)
        .handled("r2", B)
        .ended("r1", A, Ending::Done);

    assert_eq!(script.row(A, "completed", 0).row(B, "completed", 0).broken(), []);
}

#[test]
fn a_reject_lets_its_followers_go_on_although_its_relay_dies_before_it_is_recorded() {
    let mut history = Script::default()
        .published_to_fail(A, Some("k"), Policy::GoOn)
        .published(B, Some("k"))
        .started("r1", A)
        .ended("r1", A, Ending::Failed)
        .started("r1", B)
        .killed("r1")
        .started("r2", A)
        .ended("r2", A, Ending::Failed)
        .handled("r2", B)
        .settled("r2", B)
        .row(A, "failed", 1)
        .row(B, "completed", 0);
    for record in &mut history.0 {
        match &mut record.what {
            What::Intended { event, payload, .. } | What::Started { event, payload, .. } if *event == A => {
                r#"{"n":1,"act":"reject","key":"k"}"#.clone_into(payload);
            }
            _ => {}
        }
    }

    assert_eq!(history.broken(), []);
}

#[test]
fn what_parks_or_stops_its_key_is_waited_for() {
    let rejected = |policy| {
        let script = Script::default()
            .published_to_fail(A, Some("k"), policy)
            .published(B, Some("k"));
        script.started("r1", A).ended("r1", A, Ending::Failed)
    };
    let rows = |script: Script| script.row(A, "failed", 1).row(B, "completed", 0).broken();
    let resumed = What::Resumed { key: "k".to_owned() };
    let discarded = What::Discarded { event: A };

    assert_eq!(rows(rejected(Policy::GoOn).handled("r1", B)), []);
    for policy in [Policy::Park, Policy::Stop] {
        assert_eq!(
            rows(rejected(policy).handled("r1", B)),
            [Rule::Order],
            "{policy:?}"
        );
        let freed = rejected(policy).by("run", discarded.clone());
        assert_eq!(rows(freed.handled("r1", B)), [], "{policy:?}");
    }
    assert_eq!(
        rows(rejected(Policy::Stop).by("run", resumed.clone()).handled("r1", B)),
        []
    );
    assert_eq!(
        rows(rejected(Policy::Park).by("run", resumed).handled("r1", B)),
        [Rule::Order]
    );
}

#[test]
fn a_busy_key_that_holds_up_others_is_caught() {
    let id = |n: u128| Uuid::from_u128(1_000 + n);
    let scene = |beside: bool| {
        let mut script = Script::default().published(A, Some("hot"));
        for n in 0..150 {
            let key = format!("other-{}", n % 15);
            script = script.published(id(n), Some(&key));
        }
        script = script.started("r1", A);
        if beside {
            script = script.handled("r2", id(0));
        }
        // Each step is a millisecond: a long delivery.
        for n in 0..1_000 {
            script = script.by(
                "run",
                What::Healed {
                    victim: format!("nobody-{n}"),
                },
            );
        }
        script = script.ended("r1", A, Ending::Done).row(A, "completed", 0);
        for n in u128::from(beside)..150 {
            script = script.handled("r2", id(n));
        }
        for n in 0..150 {
            script = script.row(id(n), "completed", 0);
        }
        script.broken()
    };

    assert_eq!(scene(true), []);
    assert_eq!(scene(false), [Rule::Flow]);
}

#[test]
fn a_charge_without_a_failed_try_is_caught() {
    assert_eq!(right().row(A, "completed", 1).broken(), [Rule::Charges]);
}
