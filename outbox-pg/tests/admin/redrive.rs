//! Dead letters: redriven or discarded, in order, and through interruptions.

use std::time::Duration;

use outbox_core::{EventId, KeyPolicy, OrderingKey, Outcome, TenantId};
use outbox_pg::PgSource;
use outbox_pg::admin::{FailedFilter, ListFilter, Status};

use crate::support::{self, World, claim, event, payload};
use crate::{admin, counted, drain, failed, keyed, settle};

#[tokio::test]
async fn a_redriven_event_starts_a_new_cycle_and_keeps_what_is_done() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let id = world.publish(event("1")).await;
    let part = outbox_core::PartName::new("mail").unwrap();
    let retry = Outcome::Retry {
        after: Duration::ZERO,
        error: "once".to_owned(),
        done: vec![part.clone()],
    };
    settle(&source, &claim(&source, 1).await[0], retry).await;
    let end = Outcome::Failed {
        error: "twice".to_owned(),
        done: vec![part.clone()],
        key: KeyPolicy::GoOn,
    };
    settle(&source, &claim(&source, 1).await[0], end).await;
    assert_eq!(drain(&source).await, [""; 0]);

    let action = admin(&world)
        .redrive(&FailedFilter::ids([id]), "fixed")
        .await
        .unwrap();
    let progress = action.run().await.unwrap();

    assert!(progress.finished);
    assert_eq!(progress.changed, 1);
    let again = claim(&source, 10).await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].attempt, 1);
    assert_eq!(again[0].done, [part]);
    assert_eq!(world.count("error = 'twice' AND processed_at IS NULL").await, 1);
}

#[tokio::test]
async fn a_reopened_event_is_delivered_to_all_its_handlers_again() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(event("1")).await;
    let retry = Outcome::Retry {
        after: Duration::ZERO,
        error: "once".to_owned(),
        done: vec![outbox_core::PartName::new("mail").unwrap()],
    };
    settle(&source, &claim(&source, 1).await[0], retry).await;
    assert_eq!(drain(&source).await, ["1"]);

    world
        .run("SELECT outbox.outbox_reopen('Counted', '1 hour')")
        .await;
    let action = admin(&world).redrive(&FailedFilter::all(), "").await.unwrap();
    action.run().await.unwrap();

    let again = claim(&source, 10).await;
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].attempt, again[0].done.as_slice()), (1, [].as_slice()));
}

#[tokio::test]
async fn only_failed_events_are_redriven() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let done = world.publish(event("1")).await;
    drain(&source).await;
    let pending = world.publish(event("2")).await;

    let filter = FailedFilter::ids([done, pending]);
    let progress = admin(&world)
        .redrive(&filter, "")
        .await
        .unwrap()
        .run()
        .await
        .unwrap();

    assert_eq!(progress.changed, 0);
    assert_eq!(world.count("status = 'completed'").await, 1);
    assert_eq!(world.count("class = 'fresh' AND status = 'pending'").await, 1);
}

#[tokio::test]
async fn followers_of_a_parked_event_follow_it_when_it_is_redriven() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let first = world.publish(keyed(1, "k")).await;
    settle(&source, &claim(&source, 1).await[0], failed(KeyPolicy::Park)).await;
    for n in 2..5 {
        world.publish(keyed(n, "k")).await;
    }
    world.publish(keyed(100, "other")).await;
    assert_eq!(
        drain(&source).await,
        ["100"],
        "a parked key holds back its own followers only"
    );

    let resumed = admin(&world)
        .resume_key(&TenantId::default(), &OrderingKey::new("k").unwrap(), "")
        .await
        .unwrap();
    assert_eq!(resumed.parked_by, Some(first));
    assert_eq!(
        drain(&source).await,
        [""; 0],
        "resuming does not overtake a parked event"
    );

    admin(&world)
        .redrive(&FailedFilter::all(), "")
        .await
        .unwrap()
        .run()
        .await
        .unwrap();
    assert_eq!(drain(&source).await, ["1", "2", "3", "4"]);
    assert_eq!(admin(&world).status().await.unwrap().blocked, 0);
}

#[tokio::test]
async fn followers_of_a_parked_event_go_on_when_it_is_discarded() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let first = world.publish(keyed(1, "k")).await;
    settle(&source, &claim(&source, 1).await[0], failed(KeyPolicy::Park)).await;
    world.publish(keyed(2, "k")).await;
    assert_eq!(drain(&source).await, [""; 0]);

    let discard = admin(&world)
        .discard(&FailedFilter::ids([first]), "obsolete")
        .await
        .unwrap();
    assert_eq!(discard.run().await.unwrap().changed, 1);

    assert_eq!(drain(&source).await, ["2"]);
    assert_eq!(
        world
            .count("status = 'failed' AND discarded_at IS NOT NULL")
            .await,
        1
    );
    let all = admin(&world)
        .preview_redrive(&FailedFilter::all(), 0)
        .await
        .unwrap();
    assert_eq!(all.events, 0, "what was discarded is redriven only by id");
    let by_id = admin(&world)
        .redrive(&FailedFilter::ids([first]), "after all")
        .await
        .unwrap();
    assert_eq!(by_id.run().await.unwrap().changed, 1);
    assert_eq!(drain(&source).await, ["1"]);
}

/// Publishes three events of one key, of which the first two are claimed together, and fail.
async fn two_that_park(world: &World, source: &PgSource) -> [EventId; 2] {
    let two = [
        world.publish(keyed(1, "k")).await,
        world.publish(keyed(2, "k")).await,
    ];
    support::settle(source, &claim(source, 2).await, failed(KeyPolicy::Park)).await;
    world.publish(keyed(3, "k")).await;
    two
}

#[tokio::test]
async fn a_key_is_parked_behind_each_of_its_failed_events() {
    for redriven in 0..2 {
        let world = World::new().await;
        let (source, admin) = (world.quiet_source().await, admin(&world));
        let two = two_that_park(&world, &source).await;

        let blocks = admin.status().await.unwrap().blocks;
        assert_eq!(blocks.len(), 1, "one key");
        let shown = (blocks[0].events, blocks[0].event_id);
        assert_eq!(shown, (2, Some(two[0].as_uuid())));
        admin
            .pruner(Duration::ZERO)
            .failed_too()
            .run_once()
            .await
            .unwrap();
        assert_eq!(world.count("status = 'failed'").await, 2, "each holds up the key");

        let filter = FailedFilter::ids([two[redriven]]);
        admin.redrive(&filter, "").await.unwrap().run().await.unwrap();
        assert_eq!(drain(&source).await, [""; 0], "the other is not decided about");
        let other = two[1 - redriven];
        let key = OrderingKey::new("k").unwrap();
        let resumed = admin.resume_key(&TenantId::default(), &key, "").await.unwrap();
        assert_eq!(resumed.parked_by, Some(other), "resuming does not overtake it");
        let pending = admin.list(&ListFilter::new(Status::Pending)).await.unwrap();
        let details = admin.show(pending[0].id).await.unwrap();
        assert_eq!(details[0].blocked_by, ["key parked"]);
        let discard = admin.discard(&FailedFilter::ids([other]), "").await.unwrap();
        discard.run().await.unwrap();

        assert_eq!(drain(&source).await, [(redriven + 1).to_string().as_str(), "3"]);
        assert_eq!(admin.status().await.unwrap().blocked, 0);
    }
}

#[tokio::test]
async fn a_failed_event_that_was_deleted_by_hand_is_waited_for_no_longer_than_until_its_key_is_resumed() {
    let world = World::new().await;
    let (source, admin) = (world.quiet_source().await, admin(&world));
    let two = two_that_park(&world, &source).await;
    let key = OrderingKey::new("k").unwrap();

    for (n, gone) in two.iter().enumerate() {
        world
            .run(&format!("DELETE FROM outbox.outbox WHERE id = '{gone}'"))
            .await;
        let resumed = admin.resume_key(&TenantId::default(), &key, "").await.unwrap();
        assert_eq!(resumed.parked_by, two.get(n + 1).copied());
    }

    assert_eq!(drain(&source).await, ["3"]);
}

#[tokio::test]
async fn a_stopped_key_goes_on_when_it_is_resumed() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(keyed(1, "k")).await;
    settle(&source, &claim(&source, 1).await[0], failed(KeyPolicy::Stop)).await;
    world.publish(keyed(2, "k")).await;
    world.publish(keyed(3, "k")).await;
    assert_eq!(drain(&source).await, [""; 0]);

    let key = OrderingKey::new("k").unwrap();
    let resumed = admin(&world)
        .resume_key(&TenantId::default(), &key, "")
        .await
        .unwrap();

    assert!(resumed.was_blocked);
    assert_eq!(drain(&source).await, ["2", "3"]);
}

#[tokio::test]
async fn redriven_events_of_a_key_come_in_publish_order_before_what_waits() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    for n in 1..=6 {
        world.publish(keyed(n, "k")).await;
    }
    // 1 and 2 fail, 3 is delivered, 4 is in the hands of a relay, 5 and 6 wait.
    for _ in 0..2 {
        settle(&source, &claim(&source, 1).await[0], failed(KeyPolicy::GoOn)).await;
    }
    settle(&source, &claim(&source, 1).await[0], Outcome::Completed).await;
    let fourth = claim(&source, 1).await;
    assert_eq!(payload(&fourth[0]), "4");

    let redrive = admin(&world).redrive(&FailedFilter::all(), "").await.unwrap();
    redrive.step_events(1).run().await.unwrap();
    assert!(claim(&source, 10).await.is_empty(), "4 is still in flight");
    settle(&source, &fourth[0], Outcome::Completed).await;

    assert_eq!(drain(&source).await, ["1", "2", "5", "6"]);
}

#[tokio::test]
async fn a_hundred_thousand_failed_events_are_redriven_through_an_interruption() {
    let world = World::new().await;
    world
        .run(
            "INSERT INTO outbox.outbox (id, event_type, ordering_key, payload, status, class, retry_count, error, processed_at)
             SELECT gen_random_uuid(), 'Counted', 'k' || n % 1000, '1', 'failed', 'failed', 10, 'gateway timeout ' || n, now()
             FROM generate_series(1, 100000) AS n;
             INSERT INTO outbox.outbox (id, event_type, payload, status, class, error, processed_at)
             SELECT gen_random_uuid(), 'Other', '1', 'failed', 'failed', 'gateway timeout', now() FROM generate_series(1, 10) AS n",
        )
        .await;
    let admin = admin(&world);
    let filter = FailedFilter::all().of_type(counted()).with_error("TIMEOUT");
    let preview = admin.preview_redrive(&filter, 3).await.unwrap();
    assert_eq!(preview.events, 100_000);
    assert_eq!(preview.types[0].2.len(), 3);
    assert_eq!(
        world.count("status = 'failed'").await,
        100_010,
        "a preview changes nothing"
    );

    let mut action = admin
        .redrive(&filter, "gateway is back")
        .await
        .unwrap()
        .step_events(2000);
    let number = action.number();
    for _ in 0..3 {
        assert!(!action.step().await.unwrap().finished);
    }
    // The operator's program dies in the middle of a step.
    let cut = tokio::time::timeout(Duration::from_millis(5), action.run()).await;
    assert!(cut.is_err());
    let rest = admin.action(number).step_events(2000).run().await.unwrap();

    assert!(rest.finished && rest.changed < 100_000);
    assert_eq!(
        world.count("status = 'pending' AND retry_count = 0").await,
        100_000
    );
    assert_eq!(world.count("status = 'failed'").await, 10);
    let again = admin.action(number).run().await.unwrap();
    assert_eq!(again.changed, 0, "a finished action does nothing more");
    let audited: (i64, String, String) = sqlx::query_as(
        "SELECT events, actor, reason FROM outbox.outbox_audit WHERE number = $1 AND finished_at IS NOT NULL",
    )
    .bind(number)
    .fetch_one(world.pool())
    .await
    .unwrap();
    assert_eq!(audited, (100_000, "ada".to_owned(), "gateway is back".to_owned()));
    // The first of each key is due, and the others stand behind it.
    assert_eq!(
        world.count("status = 'pending' AND class = 'waiting'").await,
        1000
    );
}

#[tokio::test]
async fn an_unknown_action_is_an_error() {
    let world = World::new().await;
    let error = admin(&world).action(7).run().await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "the outbox has no action number 7 (SQLSTATE 42704)");
}
