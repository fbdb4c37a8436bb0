//! Changing events by the command: what is refused rather than guessed, and what is recorded.

mod support;

use support::World;

async fn failed_events(world: &World, events: u32) {
    let sql = format!(
        "INSERT INTO outbox.outbox (id, event_type, payload, status, class, retry_count, error, processed_at) \
         SELECT gen_random_uuid(), 'OrderPlaced', '1', 'failed', 'failed', 10, 'carrier API answers 503', clock_timestamp() \
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
async fn an_id_that_no_event_has_is_said_and_nothing_is_changed() {
    let world = World::new().await;
    failed_events(&world, 1).await;
    let id = world.text("SELECT min(id::text) FROM outbox.outbox").await;
    let nobody = "00000000-0000-0000-0000-000000000001";

    for verb in ["redrive", "discard"] {
        for last in ["--dry-run", "--yes"] {
            let said = world.outbox(&[verb, &id, nobody, last]).await;
            assert_eq!(said.code, 5, "{said:?}");
            assert!(said.err.contains(nobody), "{}", said.err);
        }
    }
    assert_eq!(world.count("failed").await, 1);
    world.outbox(&["redrive", &id, "--yes"]).await.ok();
    // It is there, and there is nothing to do.
    world.outbox(&["redrive", &id, "--yes"]).await.ok();
}

#[tokio::test]
async fn programs_are_told_of_a_change_in_the_same_words_when_there_was_nothing_to_change() {
    let world = World::new().await;
    failed_events(&world, 1).await;
    let names = async |args: &str| -> Vec<String> {
        let args = [args, " --json"].concat();
        let said = world.outbox(&args.split(' ').collect::<Vec<_>>()).await.ok();
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_ne!(said["dry_run"], true, "{said}");
        said.as_object().unwrap().keys().cloned().collect()
    };

    let redrive = "redrive --all --yes";
    let (some, none) = (names(redrive).await, names(redrive).await);
    assert_eq!(some, none);
    world
        .run(
            "UPDATE outbox.outbox SET status = 'completed', class = 'done', processed_at = clock_timestamp()",
        )
        .await;
    let reopen = "reopen --type OrderPlaced --newer-than 1h --yes";
    let (some, none) = (names(reopen).await, names(reopen).await);
    assert_eq!(some, none);
}

#[tokio::test]
async fn whoever_loses_the_connection_under_way_has_been_told_how_to_go_on() {
    let world = World::new().await;
    failed_events(&world, 10_000).await;
    let running = tokio::spawn(
        world
            .command(&["redrive", "--all", "--yes", "--step", "1"], None)
            .output(),
    );
    while world.count("pending").await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // Between two steps it would only connect anew.
    while !running.is_finished() {
        world
            .run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE application_name = 'outbox-cli' AND datname = current_database()",
            )
            .await;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }

    let output = running.await.unwrap().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    let (_, go_on) = said.split_once("go on with: outbox ").expect(&said);
    let go_on = go_on.lines().next().unwrap();
    let rest = [go_on, " --json"].concat();
    let rest = world.outbox(&rest.split(' ').collect::<Vec<_>>()).await.ok();
    assert!(rest.contains("\"finished\": true"), "{rest}");
    assert_eq!(world.count("pending").await, 10_000);
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
