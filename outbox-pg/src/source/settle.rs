//! Ending claims.

use std::collections::BTreeMap;

use outbox_core::{ClaimToken, KeyPolicy, Outcome, PartName, Position, Settled, Settlement};
use serde_json::{Value, json};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

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
    secrets: BTreeMap<i64, i64>,
    done_lease: Vec<i64>,
    done_ids: Vec<Uuid>,
    done_seqs: Vec<i64>,
    rest: Vec<Value>,
}

impl Settle {
    /// Records outcomes in one statement.
    pub(super) async fn run(
        &self,
        connection: &mut PgConnection,
        settlements: Vec<Settlement>,
    ) -> Result<Settled, sqlx::Error> {
        let columns = Columns::collect(settlements);
        let (numbers, secrets): (Vec<i64>, Vec<i64>) = columns.secrets.iter().unzip();
        let rest = (!columns.rest.is_empty()).then(|| Value::Array(columns.rest).to_string());
        let lost = self
            .settle
            .query()
            .bind(numbers)
            .bind(secrets)
            .bind(columns.done_lease)
            .bind(columns.done_ids)
            .bind(columns.done_seqs)
            .bind(rest)
            .bind(self.asynchronous)
            .bind(self.delete)
            .fetch_all(connection)
            .await?;
        let lost = lost
            .iter()
            .map(|row| {
                let number: i64 = row.try_get(0)?;
                let secret = columns.secrets.get(&number).copied().unwrap_or_default();
                Ok((ClaimToken::from_parts(number, secret), Position(row.try_get(1)?)))
            })
            .collect::<Result<_, sqlx::Error>>()?;
        Ok(Settled::except(lost))
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
            columns.secrets.insert(token.number(), token.secret());
            if outcome == Outcome::Completed {
                columns.done_lease.push(token.number());
                columns.done_ids.push(id.as_uuid());
                columns.done_seqs.push(position.0);
                continue;
            }
            let mut one = json!({ "lease": token.number(), "id": id.as_uuid(), "seq": position.0 });
            if let (Value::Object(one), Value::Object(more)) = (&mut one, rest(outcome)) {
                one.extend(more);
            }
            columns.rest.push(one);
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
