//! Changing events by the command: what is refused rather than guessed, and what is recorded.

mod support;

use support::World;

async fn failed_events(world: &World, events: u32) {
    let sql = format!(
        "INSERT INTO outbox.outbox (id, event_type, payload, status, retry_count, error, processed_at) \
         SELECT gen_random_uuid(), 'OrderPlaced', '1', 'failed', 10, 'carrier API answers 503', clock_timestamp() \
         FROM generate_series(1, {events})"
    );
    world.run(&sql).await;
}

/// An action that was begun and not carried out.
async fn interrupted(world: &World, verb: &str) -> String {
    let begin = format!(
        "SELECT outbox.outbox_begin_action('{verb}', '{{\"error\": \"503\"}}', 'carrier is back', 'ada')::text"
    );
    world.text(&begin).await
}

#[tokio::test]
async fn an_action_goes_on_as_it_was_begun_or_not_at_all() {
    let world = World::new().await;
    failed_events(&world, 3).await;
    let action = interrupted(&world, "redrive").await;
    let id = world.text("SELECT min(id::text) FROM outbox.outbox").await;

    for beside in [
        &["--type", "OrderShipped"][..],
        &["--tenant", "acme"],
        &["--key", "order-7"],
        &["--error", "504"],
        &["--older-than", "1h"],
        &["--newer-than", "1h"],
        &["--reason", "other"],
        &["--all"],
        &[id.as_str()],
    ] {
        let args = [&["redrive", "--action", action.as_str()][..], beside].concat();
        let refused = world.outbox(&args).await;
        assert_eq!(refused.code, 2, "{refused:?}");
        let was = format!("action {action} was begun as redrive with {{\"error\": \"503\"}}");
        assert!(refused.err.contains(&was), "{}", refused.err);
    }
    let other = world.outbox(&["discard", "--action", action.as_str()]).await;
    assert_eq!(other.code, 2, "{other:?}");
    let told = format!(
        "was begun as redrive with {{\"error\": \"503\"}}; go on with: outbox redrive --action {action}"
    );
    assert!(other.err.contains(&told), "{}", other.err);
    assert_eq!(world.count("failed").await, 3, "nothing was changed");

    world.outbox(&["redrive", "--action", &action]).await.ok();
    assert_eq!(world.count("pending").await, 3);
}

#[tokio::test]
async fn an_empty_part_of_the_error_is_refused() {
    let world = World::new().await;
    failed_events(&world, 1).await;

    for command in ["redrive", "discard", "list"] {
        let refused = world.outbox(&[command, "--error", ""]).await;
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.err.contains("--error"), "{}", refused.err);
    }
    assert_eq!(world.count("failed").await, 1);
}

#[tokio::test]
async fn reopening_and_pruning_are_recorded_like_every_change() {
    let world = World::new().await;
    world
        .run(
            "INSERT INTO outbox.outbox (id, event_type, payload, status, processed_at) \
             SELECT gen_random_uuid(), 'OrderPlaced', '1', 'completed', clock_timestamp() FROM generate_series(1, 5)",
        )
        .await;

    let reopen = "reopen --type OrderPlaced --newer-than 1h --yes --reason unhandled";
    world.outbox(&reopen.split(' ').collect::<Vec<_>>()).await.ok();
    let prune = "prune --older-than 0s --failed-too --yes --reason obsolete";
    world.outbox(&prune.split(' ').collect::<Vec<_>>()).await.ok();

    let audit = "SELECT string_agg(concat_ws(' ', action, actor, reason, events), ', ' ORDER BY number) \
                 FROM outbox.outbox_audit WHERE finished_at IS NOT NULL";
    assert_eq!(
        world.text(audit).await,
        "reopen ada unhandled 5, prune ada obsolete 5"
    );
}
