//! Rows stay pending.

use outbox::{PgSource, StartError};
use sqlx::{Connection, PgConnection};

use crate::support::World;
use crate::{found, shipping, told};

#[tokio::test]
async fn rows_stay_pending_because_no_relay_runs() {
    let world = World::new().await;
    world.publish(3).await;
    assert!(world.figure("outbox_oldest_pending_seconds", "").await > 0.0);
    assert_eq!(world.figure("dispatcher_events_total", "").await, 0.0);

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG relay");
    assert!(text.contains("start the relay"), "{text}");
    let status = told(&world, None, "outbox status", &[]).await.ok();
    assert!(status.contains("pending"), "{status}");

    let relay = world.start(shipping(), None, 10).await;

    world.until("completed", 3).await;
    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "ok relay");
    doctor.ok();
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn rows_stay_pending_because_the_relay_was_killed() {
    let world = World::new().await;
    world.publish(3).await;
    // What it held when it was killed, a minute later.
    let claim = "SELECT FROM outbox.outbox_claim(gen_random_uuid(), 1, 2, 1000000, interval '30 s', '{}')";
    world.run(claim).await;
    world
        .run("UPDATE outbox.outbox_lease SET until = until - interval '90 s'")
        .await;

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "WRONG claims");
    let text = found(&doctor, "WRONG relay");
    assert!(text.contains("start the relay"), "{text}");

    let relay = world.start(shipping(), None, 10).await;
    world.until("completed", 3).await;
    told(&world, None, "outbox doctor", &[]).await.ok();
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn rows_stay_pending_because_a_session_keeps_the_claim_lock() {
    let world = World::new().await;
    let mut keeper = world.database.pool().begin().await.unwrap();
    let lock = "SELECT pg_backend_pid() FROM pg_advisory_xact_lock(outbox.outbox_lock_number(1))";
    let pid: i32 = sqlx::query_scalar(lock).fetch_one(&mut *keeper).await.unwrap();

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG claim lock");
    assert!(text.contains(&format!("pg_terminate_backend({pid})")), "{text}");

    keeper.rollback().await.unwrap();
    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "ok claim lock");
}

#[tokio::test]
async fn rows_stay_pending_because_a_session_keeps_the_tables() {
    let world = World::new().await;
    world.publish(3).await;
    let mut keeper = world.database.pool().begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *keeper)
        .await
        .unwrap();
    sqlx::raw_sql("LOCK TABLE outbox.outbox")
        .execute(&mut *keeper)
        .await
        .unwrap();

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG table lock");
    assert!(text.contains(&format!("pg_terminate_backend({pid})")), "{text}");

    keeper.rollback().await.unwrap();
    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "ok table lock");
}

#[tokio::test]
async fn rows_stay_pending_because_the_relay_that_is_connected_takes_none() {
    let world = World::new().await;
    world.publish(3).await;
    // One that hangs, or that is another outbox's.
    let options = world.database.connect_options().application_name("outbox-relay");
    let hanging = PgConnection::connect_with(&options).await.unwrap();

    let limit = [("30s", "0s")];
    let doctor = told(&world, None, "outbox doctor --max-lag 30s", &limit).await;
    let text = found(&doctor, "WRONG lag");
    assert!(
        text.contains("holds no claim") && text.contains("outbox_poll_failed"),
        "{text}"
    );

    hanging.close().await.unwrap();
    let relay = world.start(shipping(), None, 10).await;
    world.until("completed", 3).await;
    told(&world, None, "outbox doctor --max-lag 30s", &limit)
        .await
        .ok();
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn rows_stay_pending_because_row_security_hides_them_from_the_relay() {
    let world = World::new().await;
    world.create_role("jobs").await;
    let jobs = world.role("jobs");
    world
        .outbox(&["roles", "--relay", &jobs, "--tenants", "on"])
        .await
        .ok();
    world.run("DROP POLICY outbox_relay ON outbox.outbox").await;
    world
        .run("BEGIN; SET LOCAL app.current_tenant = 'acme'; \
              INSERT INTO outbox.outbox (id, event_type, payload) VALUES (gen_random_uuid(), 'OrderPlaced', '{\"customer\": \"personal-4711\"}'); COMMIT")
        .await;

    // The relay refuses to run blind, and so does the command.
    let options = world.url(Some("jobs")).parse().unwrap();
    let refused = PgSource::builder(options).start().await.unwrap_err();
    assert!(matches!(refused, StartError::Blind { .. }), "{refused}");
    assert_eq!(told(&world, Some("jobs"), "outbox status", &[]).await.code, 4);
    let doctor = told(&world, Some("jobs"), "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG visibility");
    assert!(text.contains(&format!("outbox roles --relay {jobs}")), "{text}");

    told(&world, None, "outbox roles --relay jobs", &[("jobs", &jobs)])
        .await
        .ok();
    let relay = world.start(shipping(), Some("jobs"), 10).await;

    world.until("completed", 1).await;
    told(&world, Some("jobs"), "outbox doctor", &[]).await.ok();
    relay.shutdown().await.unwrap();
    world.drop_role("jobs").await;
}

#[tokio::test]
async fn rows_stay_pending_because_the_relay_may_not_do_its_work() {
    let world = World::new().await;
    world.create_role("jobs").await;
    let jobs = world.role("jobs");
    world.publish(3).await;

    let options = world.url(Some("jobs")).parse().unwrap();
    let refused = PgSource::builder(options).start().await.unwrap_err();
    assert!(matches!(refused, StartError::Rights { .. }), "{refused}");
    let doctor = told(&world, Some("jobs"), "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG rights");
    assert!(text.contains(&format!("outbox roles --relay {jobs}")), "{text}");

    told(&world, None, "outbox roles --relay jobs", &[("jobs", &jobs)])
        .await
        .ok();
    let relay = world.start(shipping(), Some("jobs"), 10).await;

    world.until("completed", 3).await;
    told(&world, Some("jobs"), "outbox doctor", &[]).await.ok();
    relay.shutdown().await.unwrap();
    world.drop_role("jobs").await;
}

#[tokio::test]
async fn rows_stay_pending_because_their_type_is_paused() {
    let world = World::new().await;
    world.outbox(&["pause", "--type", "OrderPlaced"]).await.ok();
    let relay = world.start(shipping(), None, 10).await;
    world.publish(3).await;

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    let text = found(&doctor, "look blocks");
    assert!(
        text.contains("OrderPlaced") && text.contains("outbox resume"),
        "{text}"
    );
    assert_eq!(world.count("pending").await, 3);

    told(
        &world,
        None,
        "outbox resume --type TYPE",
        &[("TYPE", "OrderPlaced")],
    )
    .await
    .ok();

    world.until("completed", 3).await;
    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "ok blocks");
    relay.shutdown().await.unwrap();
}
