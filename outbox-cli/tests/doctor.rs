//! What doctor sees, and what it says when it cannot see.

mod support;

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use support::World;

async fn verdict(world: &World, part: Option<&str>, check: &str) -> (String, String) {
    world.outbox_as(part, &["doctor", "--json"]).await.check(check)
}

#[tokio::test]
async fn old_transactions_of_other_roles_are_seen_or_it_is_said_that_they_cannot_be() {
    let world = World::new().await;
    world.create_role("jobs").await;
    let jobs = world.role("jobs");
    world.outbox(&["roles", "--relay", &jobs]).await.ok();
    let mut old = world.database.pool().begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid() FROM txid_current()")
        .fetch_one(&mut *old)
        .await
        .unwrap();
    let look = ["doctor", "--json", "--max-transaction", "0s"];

    let (blind, text) = world.outbox_as(Some("jobs"), &look).await.check("snapshots");
    assert_ne!(blind, "ok", "{text}");
    assert!(
        text.contains("cannot see the transactions of other roles")
            && text.contains(&format!("GRANT pg_read_all_stats TO {jobs}")),
        "{text}"
    );

    world.run(&format!("GRANT pg_read_all_stats TO {jobs}")).await;
    let (seen, text) = world.outbox_as(Some("jobs"), &look).await.check("snapshots");
    assert_eq!(seen, "look", "{text}");
    assert!(text.contains(&format!("backend {pid} ")), "{text}");
    assert!(!text.contains("cannot see"), "{text}");
    old.rollback().await.unwrap();
    world.drop_role("jobs").await;
}

#[tokio::test]
async fn autovacuum_that_is_off_is_seen_however_that_is_spelt() {
    let world = World::new().await;

    for off in ["off", "OFF", "false", "f", "no", "n", "0"] {
        world
            .run(&format!(
                "ALTER TABLE outbox.outbox_lease SET (autovacuum_enabled = {off})"
            ))
            .await;
        let (verdict, text) = verdict(&world, None, "autovacuum").await;
        assert_eq!(verdict, "wrong", "{off}: {text}");
        assert!(text.contains("it is off"), "{text}");
    }
    for on in ["on", "true", "1"] {
        world
            .run(&format!(
                "ALTER TABLE outbox.outbox_lease SET (autovacuum_enabled = {on})"
            ))
            .await;
        assert_eq!(verdict(&world, None, "autovacuum").await.0, "ok", "{on}");
    }
}

#[tokio::test]
async fn whoever_keeps_the_tables_or_makes_others_wait_for_them_is_named() {
    let world = World::new().await;
    world.create_role("jobs").await;
    let jobs = world.role("jobs");
    world.outbox(&["roles", "--relay", &jobs]).await.ok();
    let held = async |what: &str| {
        let mut session = PgConnection::connect(world.database.url()).await.unwrap();
        let sql = format!("BEGIN; {what}");
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut session)
            .await
            .unwrap();
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut session)
            .await
            .unwrap();
        (session, pid)
    };

    for (lock, wrong) in [
        ("LOCK TABLE outbox.outbox IN SHARE MODE", true),
        ("LOCK TABLE outbox.outbox_lease", true),
        ("SELECT FROM outbox.outbox", false),
    ] {
        let (session, pid) = held(lock).await;
        for part in [None, Some("jobs")] {
            let (verdict, text) = verdict(&world, part, "table lock").await;
            assert_eq!(verdict == "wrong", wrong, "{lock}: {text}");
            assert_eq!(text.contains(&format!("backend {pid} of")), wrong, "{text}");
        }
        session.close().await.unwrap();
    }

    // A reader alone bars nobody; a change of the table that waits for it bars all.
    let (reader, pid) = held("SELECT FROM outbox.outbox").await;
    let (mut changing, waiter) = held("SELECT").await;
    let change = "ALTER TABLE outbox.outbox ADD COLUMN note text";
    let changing = sqlx::raw_sql(change).execute(&mut changing);
    let look = async {
        let mut found = verdict(&world, None, "table lock").await;
        while found.0 != "wrong" {
            found = verdict(&world, None, "table lock").await;
        }
        found.1
    };
    let text = tokio::select! {
        done = changing => panic!("nobody was in its way: {done:?}"),
        text = look => text,
    };
    assert!(
        text.contains(&format!("backend {waiter} of")) && text.contains(&format!("behind backend {pid} ")),
        "{text}"
    );
    assert!(text.contains(&format!("pg_terminate_backend({pid})")), "{text}");
    // The server does not know yet that nobody waits for its answer.
    world
        .run(&format!("SELECT pg_terminate_backend({waiter}, 60000)"))
        .await;
    reader.close().await.unwrap();
    world.drop_role("jobs").await;
}

#[tokio::test]
async fn types_that_nobody_handles_are_found_whatever_the_ids_are() {
    let world = World::new().await;
    let insert = |id: &str, name: &str, events: u32| {
        format!(
            "INSERT INTO outbox.outbox (id, event_type, payload, status, processed_at) \
             SELECT {id}, '{name}', '1', 'completed', clock_timestamp() FROM generate_series(1, {events})"
        )
    };
    let (random, in_time) = ("gen_random_uuid()", "outbox.outbox_publish_id()");
    let look = ["doctor", "--json", "--handled", "Old"];

    // Ids that are none of time sort behind those that are.
    world.run(&insert(random, "Old", 30_000)).await;
    assert_eq!(world.outbox(&look).await.check("handlers").0, "ok");
    world.run(&insert(in_time, "NewInTime", 5)).await;
    world.run(&insert(random, "Old", 30_000)).await;
    world.run(&insert(random, "NewAtRandom", 7)).await;

    let (verdict, text) = world.outbox(&look).await.check("handlers");
    assert_eq!(verdict, "wrong", "{text}");
    for found in ["NewInTime (5 of 5 completed)", "NewAtRandom (7 of 7 completed)"] {
        assert!(text.contains(found), "{text}");
    }
}

#[tokio::test]
async fn of_a_standby_is_said_that_it_is_one_and_nothing_is_asked_that_it_refuses() {
    let world = World::new().await;
    world
        .run("CREATE FUNCTION public.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'")
        .await;
    let url = format!(
        "{}?options=-c%20search_path%3Dpublic%2Cpg_catalog",
        world.url(None)
    );

    let doctor = world.outbox_by(&url, &["doctor", "--json"]).await;

    assert_eq!(doctor.code, 1);
    let (verdict, text) = doctor.check("server");
    assert_eq!(verdict, "wrong", "{text}");
    assert!(text.contains("connect to the primary"), "{text}");
    assert!(!doctor.out.contains("claim plan"), "{}", doctor.out);
}

#[tokio::test]
async fn a_key_that_is_blocked_is_named_with_its_tenant() {
    let world = World::new().await;
    world
        .outbox(&["pause", "--key", "order-7", "--tenant", "acme"])
        .await
        .ok();

    let (verdict, text) = verdict(&world, None, "blocks").await;

    assert_eq!(verdict, "look");
    assert!(text.contains("key order-7 of tenant acme paused"), "{text}");
}

#[tokio::test]
async fn events_that_no_claim_looks_for_are_seen() {
    let world = World::new().await;
    assert_eq!(verdict(&world, None, "mark").await.0, "ok");
    let change = "INSERT INTO outbox.outbox (id, event_type, payload) VALUES (gen_random_uuid(), 'Placed', '1'); \
                  SELECT setval('outbox.outbox_mark', 1)";
    sqlx::raw_sql(change)
        .execute(world.database.pool())
        .await
        .unwrap();

    let (seen, text) = verdict(&world, None, "mark").await;

    assert_eq!(seen, "wrong");
    assert!(text.contains("1 pending events are below"), "{text}");
}

#[tokio::test]
async fn a_session_that_keeps_the_claim_lock_is_named() {
    let world = World::new().await;
    world.create_role("jobs").await;
    let jobs = world.role("jobs");
    world.outbox(&["roles", "--relay", &jobs]).await.ok();
    let mut keeper = PgConnection::connect(world.database.url()).await.unwrap();
    let lock = "SELECT pg_backend_pid() FROM pg_advisory_lock(outbox.outbox_lock_number(1))";
    let pid: i32 = sqlx::query_scalar(lock).fetch_one(&mut keeper).await.unwrap();

    // Whether there are claims that wait or not, and whether the role may see more of it or not.
    for waiting in [false, true] {
        let mut claim = PgConnection::connect(world.database.url()).await.unwrap();
        let claiming = async {
            if waiting {
                let wait = "SELECT pg_advisory_xact_lock(outbox.outbox_lock_number(1))";
                sqlx::raw_sql(wait).execute(&mut claim).await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        let look = async {
            for part in [None, Some("jobs")] {
                let (verdict, text) = verdict(&world, part, "claim lock").await;
                assert_eq!(verdict, "wrong", "{text}");
                assert!(text.contains(&format!("backend {pid} of")), "{text}");
                assert!(text.contains(&format!("pg_terminate_backend({pid})")), "{text}");
            }
        };
        tokio::select! {
            () = claiming => {}
            () = look => {}
        }
    }
    keeper.close().await.unwrap();

    // Until the server has noticed that they are gone.
    let free = async { while verdict(&world, None, "claim lock").await.0 != "ok" {} };
    tokio::time::timeout(Duration::from_secs(60), free).await.unwrap();
    world.drop_role("jobs").await;
}
