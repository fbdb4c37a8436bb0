//! Ending claims.

use std::collections::BTreeMap;

use outbox_core::{ClaimToken, KeyPolicy, Outcome, PartName, Position, Settled, Settlement};
use serde_json::{Value, json};
use sqlx::{PgConnection, Row};

use crate::sql::Sql;

/// The statement that settles, and how.
#[derive(Debug, Clone)]
pub(super) struct Settle {
    pub(super) settle: Sql,
    /// A crash of the server may forget settlements; the events are then delivered again.
    pub(super) asynchronous: bool,
    /// Completed events are deleted.
    pub(super) delete: bool,
}

/// Settlements as lists that run side by side.
#[derive(Default)]
struct Columns {
    claims: BTreeMap<i64, Done>,
    rest: Vec<Value>,
}

/// The completed events of one claim.
#[derive(Default)]
struct Done {
    secret: i64,
    seqs: Vec<i64>,
}

impl Settle {
    /// Records outcomes in one statement.
    pub(super) async fn run(
        &self,
        connection: &mut PgConnection,
        settlements: Vec<Settlement>,
    ) -> Result<Settled, sqlx::Error> {
        let columns = Columns::collect(settlements);
        let claims = columns.claims.values();
        let rest = (!columns.rest.is_empty()).then(|| Value::Array(columns.rest).to_string());
        let lost = self
            .settle
            .query()
            .bind(columns.claims.keys().copied().collect::<Vec<_>>())
            .bind(claims.clone().map(|done| done.secret).collect::<Vec<_>>())
            .bind(claims.clone().map(Done::count).collect::<Vec<_>>())
            .bind(claims.flat_map(|done| &done.seqs).copied().collect::<Vec<_>>())
            .bind(rest)
            .bind(self.asynchronous)
            .bind(self.delete)
            .fetch_all(connection)
            .await?;
        let lost = lost
            .iter()
            .map(|row| {
                let number: i64 = row.try_get(0)?;
                let secret = columns.claims.get(&number).map_or(0, |done| done.secret);
                Ok((ClaimToken::from_parts(number, secret), Position(row.try_get(1)?)))
            })
            .collect::<Result<_, sqlx::Error>>()?;
        Ok(Settled::except(lost))
    }
}

impl Done {
    fn count(&self) -> i32 {
        i32::try_from(self.seqs.len()).unwrap_or(i32::MAX)
    }
}

impl Columns {
    fn collect(settlements: Vec<Settlement>) -> Self {
        let mut columns = Self::default();
        for Settlement {
            token,
            position,
            id,
            outcome,
        } in settlements
        {
            let done = columns.claims.entry(token.number()).or_default();
            done.secret = token.secret();
            if outcome == Outcome::Completed {
                done.seqs.push(position.0);
                continue;
            }
            let mut one = json!({ "lease": token.number(), "id": id.as_uuid(), "seq": position.0 });
            if let (Value::Object(one), Value::Object(more)) = (&mut one, rest(outcome)) {
                one.extend(more);
            }
            columns.rest.push(one);
        }
        // In the order of a claim, so that the server sees at once when all of it is completed.
        for done in columns.claims.values_mut() {
            done.seqs.sort_unstable();
        }
        columns
    }
}

/// An outcome that is no completion, as `settle.sql` takes it.
fn rest(outcome: Outcome) -> Value {
    let names = |done: Vec<PartName>| done.iter().map(ToString::to_string).collect::<Vec<_>>();
    match outcome {
        Outcome::Retry { after, error, done } => {
            json!({ "kind": "retry", "after_ms": after.as_millis() as u64, "error": error, "done": names(done) })
        }
        Outcome::Failed { error, done, key } => {
            let key_policy = match key {
                KeyPolicy::GoOn => "go_on",
                KeyPolicy::Stop => "stop",
                KeyPolicy::Park => "park",
            };
            json!({ "kind": "failed", "after_ms": 0, "error": error, "done": names(done), "key_policy": key_policy })
        }
        Outcome::Released { after, done } => {
            json!({ "kind": "released", "after_ms": after.as_millis() as u64, "done": names(done) })
        }
        Outcome::Completed => json!({}),
    }
}
