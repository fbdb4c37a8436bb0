//! Behind a pgbouncer in transaction mode: what doctor says, and that commands work. And what doctor says without one.

mod support;

use std::sync::Arc;

use outbox::{PgSource, Registry, Relay};
use outbox_dev::Pooler;
use support::{Said, World, ship};

fn verdict(doctor: &Said, check: &str) -> String {
    doctor.check(check).0
}

#[tokio::test]
#[ignore = "needs the program pgbouncer; .ci/run installs it and runs this"]
async fn doctor_sees_a_pooler_in_transaction_mode_and_commands_work_through_it() {
    let world = World::new().await;
    let pooler = Pooler::start(&world.database).await.unwrap();
    let source = PgSource::builder(pooler.connect_options(&world.database))
        .pooler()
        .start()
        .await
        .unwrap();
    let shipping = Arc::new(Registry::new().on("shipping", ship).build().unwrap());
    let relay = Relay::builder(Arc::new(source), shipping)
        .build()
        .unwrap()
        .spawn();
    world.publish(10).await;
    world.until("completed", 10).await;

    // Not by luck: the answer must not depend on which session a statement meets.
    for _ in 0..5 {
        world.publish(50).await;
        let doctor = world
            .outbox_by(&pooler.url(&world.database), &["doctor", "--json"])
            .await;
        let (pooled, text) = doctor.check("pooler");
        assert_eq!(pooled, "look", "{text}");
        assert!(
            text.contains("transaction mode") && text.contains("pooler()"),
            "{text}"
        );
        let (listen, text) = doctor.check("listen");
        assert_eq!(listen, "look", "{text}");
        assert!(text.contains("not tried"), "{text}");
        for check in [
            "server",
            "schema",
            "rights",
            "visibility",
            "failed",
            "claim plan",
            "autovacuum",
        ] {
            assert_eq!(verdict(&doctor, check), "ok", "{check}: {}", doctor.out);
        }
        // Nothing is wrong; a relay behind a pooler may not be seen.
        doctor.ok();
    }
    let through = pooler.url(&world.database);
    for args in [
        &["status"][..],
        &["list"],
        &["pause", "--type", "OrderShipped"],
        &["resume", "--type", "OrderShipped"],
        &["reopen", "--type", "OrderPlaced", "--newer-than", "1h", "--yes"],
        &["redrive", "--all", "--yes", "--step", "20"],
    ] {
        world.outbox_by(&through, args).await.ok();
    }
    world.until("completed", 260).await;
    let direct = world.outbox(&["doctor", "--json"]).await;
    assert_eq!(verdict(&direct, "pooler"), "ok", "{}", direct.out);
    assert_eq!(verdict(&direct, "listen"), "ok", "{}", direct.out);
    relay.shutdown().await.unwrap();
}
