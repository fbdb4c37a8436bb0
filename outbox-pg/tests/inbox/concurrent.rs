//! Two deliveries of one event at once.

use super::*;

/// Waits until a session waits for another one's transaction.
async fn until_blocked(pool: &PgPool) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while number(pool, sql).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Bills, but lets the test look in before the first call ends.
struct Slow {
    started: Arc<Notify>,
    go: Arc<Notify>,
    calls: Arc<AtomicU32>,
    first_succeeds: bool,
}

impl TxHandler<OrderPlaced> for Slow {
    async fn handle(
        &self,
        event: OrderPlaced,
        tx: &mut PgConnection,
        ctx: Context,
    ) -> Result<(), HandlerError> {
        bill(event, tx, ctx).await?;
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            self.started.notify_one();
            self.go.notified().await;
            if !self.first_succeeds {
                return Err(HandlerError::retry("not this time"));
            }
        }
        Ok(())
    }
}

async fn two_at_once(first_succeeds: bool) -> (i64, u32) {
    let world = world().await;
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let calls = Arc::new(AtomicU32::new(0));
    let handler = inbox(&world).transactional(Slow {
        started: Arc::clone(&started),
        go: Arc::clone(&go),
        calls: Arc::clone(&calls),
        first_succeeds,
    });
    let handler = Arc::new(handler);
    let id = EventId::new();
    let deliver = || {
        let handler = Arc::clone(&handler);
        let ctx = context(id, "", 1);
        tokio::spawn(async move { handler.handle(OrderPlaced { order: 1 }, ctx).await.is_ok() })
    };

    let first = deliver();
    started.notified().await;
    let second = deliver();
    until_blocked(world.pool()).await;
    go.notify_one();

    assert_eq!(first.await.unwrap(), first_succeeds);
    assert!(second.await.unwrap());
    let effects = number(world.pool(), "SELECT count(*) FROM effects").await;
    (effects, calls.load(Ordering::SeqCst))
}

#[tokio::test]
async fn of_two_deliveries_at_once_the_second_waits_and_skips() {
    assert_eq!(two_at_once(true).await, (1, 1));
}

#[tokio::test]
async fn of_two_deliveries_at_once_the_second_goes_on_when_the_first_fails() {
    assert_eq!(two_at_once(false).await, (1, 2));
}
