//! Hearing of new events, and what it costs not to.

use std::time::Duration;

use outbox::{ClaimRequest, Listening, Source};
use outbox_dev::{Mode, Proxy};
use tokio::time::Instant;

use crate::world::{POLL, SLEEPER, Seen, World, attentive, nonzero, numbered, relay};

/// Well under a second, were the machine not shared by all tests.
const SOON: Duration = Duration::from_secs(2);

/// Publishes while the relay is idle, and returns how long the fastest of some events took.
async fn fastest_of_five(world: &World, idle: impl AsyncFn()) -> Duration {
    let mut fastest = Duration::MAX;
    for n in 0..5 {
        idle().await;
        let began = Instant::now();
        world.publish(numbered(n)).await;
        world.until("status = 'completed'", n as i64 + 1).await;
        assert!(began.elapsed() < SOON, "event {n} took {:?}", began.elapsed());
        fastest = fastest.min(began.elapsed());
    }
    fastest
}

#[tokio::test]
async fn a_sleeping_relay_that_listens_handles_an_event_in_well_under_a_second() {
    let world = World::new().await;
    let running = world.attentive_relay().await;

    let fastest = fastest_of_five(&world, async || world.until_asleep().await).await;

    assert!(fastest < Duration::from_millis(300), "{fastest:?}");
    assert_eq!(running.health().listening(), Listening::Up);
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_idle_relay_that_only_polls_handles_an_event_in_well_under_a_second() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let running = attentive(source, Seen::default().dispatcher());

    let idle = async || tokio::time::sleep(Duration::from_millis(300)).await;
    let fastest = fastest_of_five(&world, idle).await;

    assert!(fastest < Duration::from_millis(600), "{fastest:?}");
    assert_eq!(running.health().listening(), Listening::PollOnly);
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn with_notify_off_the_relay_polls() {
    let world = World::new().await;
    world.set_default("outbox.wake = 'never'").await;
    world.pool().set_connect_options(world.database.connect_options());
    let source = world.quiet_source().await;
    let running = attentive(source, Seen::default().dispatcher());

    let idle = async || tokio::time::sleep(Duration::from_millis(300)).await;
    let fastest = fastest_of_five(&world, idle).await;

    assert!(fastest < Duration::from_millis(600), "{fastest:?}");
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_terminated_listener_costs_at_most_the_fallback() {
    let world = World::new().await;
    let running = world.attentive_relay().await;

    for n in 0..3 {
        world.until_asleep().await;
        world
            .run(&format!("SELECT pg_terminate_backend(pid) {SLEEPER}"))
            .await;
        let began = Instant::now();
        world.publish(numbered(n)).await;
        world.until("status = 'completed'", n as i64 + 1).await;
        assert!(began.elapsed() < SOON, "event {n} took {:?}", began.elapsed());
    }

    world.until_asleep().await;
    assert_eq!(running.health().listening(), Listening::Up);
    running.shutdown().await.unwrap();
}

/// A world whose relay goes through a proxy.
async fn behind_a_proxy() -> (World, Proxy) {
    let world = World::new().await;
    let direct = world.database.connect_options();
    let proxy = Proxy::start(format!("{}:{}", direct.get_host(), direct.get_port()))
        .await
        .unwrap();
    (world, proxy)
}

#[tokio::test]
async fn a_listener_whose_packets_are_dropped_costs_at_most_the_fallback() {
    let (world, proxy) = behind_a_proxy().await;
    let through = world
        .database
        .connect_options()
        .host("127.0.0.1")
        .port(proxy.address().port());
    let source = outbox::PgSource::builder(through).start().await.unwrap();
    let running = attentive(source, Seen::default().dispatcher());

    let deaf = async || {
        proxy.set(Mode::Forward);
        world.until_asleep().await;
        proxy.set(Mode::BlackHoleListeners);
    };
    let fastest = fastest_of_five(&world, deaf).await;

    assert!(fastest < Duration::from_millis(600), "{fastest:?}");
    // In the end the connection is given up.
    while running.health().listening() != Listening::Down {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    proxy.set(Mode::Forward);
    world.until_asleep().await;
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_fallback_of_for_ever_leaves_the_listener_alive() {
    let world = World::new().await;
    let source = world.source().fallback(Duration::MAX).start().await.unwrap();
    let running = attentive(source, Seen::default().dispatcher());

    fastest_of_five(&world, async || world.until_asleep().await).await;

    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn where_nothing_can_listen_the_relay_polls() {
    let (world, proxy) = behind_a_proxy().await;
    proxy.set(Mode::BlackHoleListeners);
    let through = world
        .database
        .connect_options()
        .host("127.0.0.1")
        .port(proxy.address().port());
    let source = outbox::PgSource::builder(through).start().await.unwrap();
    let running = attentive(source, Seen::default().dispatcher());

    let idle = async || tokio::time::sleep(Duration::from_millis(300)).await;
    let fastest = fastest_of_five(&world, idle).await;

    assert!(fastest < Duration::from_millis(600), "{fastest:?}");
    assert_eq!(running.health().listening(), Listening::Down);
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn when_one_of_several_sleeping_relays_dies_another_takes_its_watch() {
    let world = World::new().await;
    let mut relays = Vec::new();
    for _ in 0..3 {
        let source = world.source().start().await.unwrap();
        let running = relay(source, Seen::default().dispatcher())
            .poll_timeout(POLL)
            .build()
            .unwrap();
        relays.push(tokio::spawn(running.run_until(std::future::pending())));
    }

    // The first to start is most likely the one with the lock; in the end each had it.
    for (n, relay) in relays.drain(..2).enumerate() {
        world.until_asleep().await;
        // Long enough that the others have fallen asleep on the strength of that lock.
        tokio::time::sleep(Duration::from_millis(500)).await;
        relay.abort();
        let _ = relay.await;
        let began = Instant::now();
        world.publish(numbered(n as u64)).await;
        world.until("status = 'completed'", n as i64 + 1).await;
        // The ping at which a sleeper without the lock tries for it comes every two seconds.
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "event {n} took {:?}",
            began.elapsed()
        );
    }
    relays.remove(0).abort();
}

#[tokio::test]
async fn a_sleeping_relay_wakes_when_a_schedule_falls_due() {
    let world = World::new().await;
    let running = world.attentive_relay().await;
    world.until_asleep().await;

    let delays = [1_500, 3_500];
    let began = Instant::now();
    for (n, delay) in (0..).zip(delays) {
        world
            .publish(numbered(n).with_delay(Duration::from_millis(delay)))
            .await;
    }

    for (n, delay) in (1..).zip(delays) {
        world.until("status = 'completed'", n).await;
        let took = began.elapsed();
        assert!(
            took >= Duration::from_millis(delay),
            "{took:?} instead of {delay} ms"
        );
        assert!(
            took < Duration::from_millis(delay) + SOON,
            "{took:?} instead of {delay} ms"
        );
    }
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_sleeping_relay_wakes_when_the_lease_of_a_lost_one_ends() {
    let world = World::new().await;
    world.publish(numbered(0)).await;
    let lost = world.quiet_source().await;
    let lease = Duration::from_secs(3);
    assert_eq!(
        lost.claim(ClaimRequest::new(nonzero(1), lease))
            .await
            .unwrap()
            .len(),
        1
    );
    let began = Instant::now();
    drop(lost);
    let running = world.attentive_relay().await;

    world.until("status = 'completed'", 1).await;

    assert!(began.elapsed() < lease + SOON, "{:?}", began.elapsed());
    running.shutdown().await.unwrap();
}
