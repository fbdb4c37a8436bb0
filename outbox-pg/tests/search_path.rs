//! What others create in a schema on the relay's path does not take the place of what our statements mean.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use outbox_core::{Outcome, Source};
use support::{World, claim, event, outcome};

/// Of the name and the arguments of the server's own, and found before it.
const TRAP: &str = "
    CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'called what another role made';
    END
    $$;
    DO $$
    BEGIN
        EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database());
    END
    $$";

async fn claims_and_settles(source: &impl Source, world: &World) {
    world.publish(event("1")).await;
    let claimed = claim(source, 1).await;
    let settled = source
        .settle(vec![outcome(&claimed[0], Outcome::Completed)])
        .await;
    assert!(settled.unwrap().lost.is_empty());
}

#[tokio::test]
async fn a_relay_calls_nothing_that_another_role_made() {
    let world = World::new().await;
    world.run(TRAP).await;

    let source = world.source().poll_only().start().await.unwrap();
    claims_and_settles(&source, &world).await;

    let pooled = world.source().poll_only().pooler().start().await.unwrap();
    claims_and_settles(&pooled, &world).await;
}
