//! Claiming, and reading what was claimed.

use std::collections::{HashMap, HashSet};

use outbox_core::{
    AggregateId, AggregateType, ClaimRequest, ClaimToken, Claimed, Envelope, EventId, EventType, Headers,
    OrderingKey, PartName, Payload, Position, TenantId, Undecodable,
};
use sqlx::postgres::{PgRow, PgValueRef};
use sqlx::{PgConnection, Row, ValueRef};
use uuid::Uuid;

use super::session::commit_and_go_on;
use crate::instant::from_value;
use crate::sql::Sql;

/// The statements of a claim.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) claim: Sql,
    /// Reads rows where they were when they were claimed.
    pub(super) read_at: Sql,
    /// Reads rows wherever they are now.
    pub(super) read: Sql,
    /// The claim is in a transaction, which has to end before what was claimed is read.
    pub(super) pooler: bool,
}

impl Claim {
    /// Leases events, then reads them. `surely`: there are some, so the claim need not ask first.
    pub(super) async fn run(
        &self,
        connection: &mut PgConnection,
        worker: Uuid,
        request: ClaimRequest,
        surely: bool,
    ) -> Result<Vec<Claimed>, sqlx::Error> {
        let secret = i64::from_ne_bytes(fastrand::u64(..).to_ne_bytes());
        let excluded: Vec<String> = request.excluded_types.iter().map(ToString::to_string).collect();
        let leases = self
            .claim
            .query()
            .bind(worker)
            .bind(secret)
            .bind(i32::try_from(request.max_events.get()).unwrap_or(i32::MAX))
            .bind(i64::try_from(request.max_bytes).unwrap_or(i64::MAX))
            .bind(request.lease.as_millis() as f64)
            .bind(excluded)
            .bind(surely)
            .fetch_all(&mut *connection)
            .await?;
        if leases.is_empty() {
            return Ok(Vec::new());
        }

        if self.pooler {
            commit_and_go_on(connection).await?;
        }
        let taken = Taken::collect(&leases, secret)?;
        let read_at = self.read_at.query().bind(taken.leases.clone());
        let mut claimed = taken.decode(&read_at.fetch_all(&mut *connection).await?)?;
        if claimed.len() < taken.seqs.len() {
            let (ids, seqs) = taken.without(&claimed);
            let read = self.read.query().bind(ids).bind(seqs);
            claimed.extend(taken.decode(&read.fetch_all(connection).await?)?);
            claimed.sort_unstable_by_key(|event| event.position);
        }
        Ok(claimed)
    }
}

/// What a claim took.
#[derive(Debug, Default)]
struct Taken {
    secret: i64,
    leases: Vec<i64>,
    ids: Vec<Uuid>,
    seqs: Vec<i64>,
    lease_of: HashMap<i64, i64>,
}

impl Taken {
    fn collect(leases: &[PgRow], secret: i64) -> Result<Self, sqlx::Error> {
        let mut taken = Self {
            secret,
            ..Self::default()
        };
        for lease in leases {
            let number: i64 = lease.try_get(0)?;
            let seqs: Vec<i64> = lease.try_get(2)?;
            taken.leases.push(number);
            taken.ids.extend(lease.try_get::<Vec<Uuid>, _>(1)?);
            taken.lease_of.extend(seqs.iter().map(|seq| (*seq, number)));
            taken.seqs.extend(seqs);
        }
        Ok(taken)
    }

    /// The events among these rows that were taken, each once, oldest first.
    fn decode(&self, rows: &[PgRow]) -> Result<Vec<Claimed>, sqlx::Error> {
        let mut claimed = Vec::with_capacity(rows.len());
        for row in rows {
            let seq: i64 = row.try_get(0)?;
            if let Some(number) = self.lease_of.get(&seq) {
                let token = ClaimToken::from_parts(*number, self.secret);
                claimed.push(decode(row, token, Position(seq))?);
            }
        }
        claimed.sort_unstable_by_key(|event| event.position);
        claimed.dedup_by_key(|event| event.position);
        Ok(claimed)
    }

    /// What else was taken.
    fn without(&self, claimed: &[Claimed]) -> (Vec<Uuid>, Vec<i64>) {
        let found: HashSet<i64> = claimed.iter().map(|event| event.position.0).collect();
        let taken = self.ids.iter().zip(&self.seqs);
        taken.filter(|(_, seq)| !found.contains(seq)).unzip()
    }
}

/// One row of `read.sql`. What is wrong with the event goes into it; what is wrong with the statement is an error.
fn decode(row: &PgRow, token: ClaimToken, position: Position) -> Result<Claimed, sqlx::Error> {
    let id = EventId::from_uuid(row.try_get(1)?);
    let retry_count: i32 = row.try_get(10)?;
    let claim_count: i32 = row.try_get(11)?;
    let done = done(row);
    let read = envelope(row, id).and_then(|envelope| match &done {
        Ok(_) => Ok(envelope),
        Err(why) => Err(wrong(Some(envelope.event_type), &why.reason)),
    });
    let mut claimed = match read {
        Ok(envelope) => Claimed::new(token, position, envelope),
        Err(why) => Claimed::undecodable(token, position, id, why),
    };
    claimed.attempt = u32::try_from(retry_count).unwrap_or(0).saturating_add(1);
    claimed.lost_claims = u32::try_from(claim_count).unwrap_or(0);
    claimed.done = done.unwrap_or_default();
    Ok(claimed)
}

/// The handlers that are done with the event. Only the owner can have written what this refuses.
fn done(row: &PgRow) -> Result<Vec<PartName>, Undecodable> {
    let done: Option<Vec<Option<String>>> =
        row.try_get(12).map_err(|error| wrong(None, &error.to_string()))?;
    let names = done.unwrap_or_default().into_iter();
    names
        .map(|name| name.ok_or_else(|| wrong(None, "done_parts holds a NULL")))
        .filter_map(|name| name.map(|name| PartName::stored(&name).ok()).transpose())
        .collect()
}

fn envelope(row: &PgRow, id: EventId) -> Result<Envelope, Undecodable> {
    let event_type = name(row, 2, EventType::new)?.ok_or_else(|| wrong(None, "event type is NULL"))?;
    let told = |mut why: Undecodable| {
        why.event_type = Some(event_type.clone());
        why
    };
    let payload = Payload::from_json(json(row, 7).map_err(told)?);
    let created_at = row
        .try_get_raw(9)
        .ok()
        .and_then(|value| from_value(&value))
        .ok_or_else(|| {
            wrong(
                Some(event_type.clone()),
                "created_at is no instant up to the year 9999",
            )
        })?;
    let mut envelope = Envelope::new(id, event_type.clone(), payload, created_at);
    envelope.aggregate_type = name(row, 3, AggregateType::new).map_err(told)?;
    envelope.aggregate_id = name(row, 4, AggregateId::new).map_err(told)?;
    envelope.ordering_key = name(row, 5, OrderingKey::new).map_err(told)?;
    envelope.tenant_id = name(row, 6, TenantId::new).map_err(told)?.unwrap_or_default();
    envelope.headers = serde_json::from_str::<Headers>(json(row, 8).map_err(told)?).map_err(|error| {
        let place = (error.line(), error.column());
        wrong(
            Some(event_type),
            &format!(
                "headers are no object of texts (line {}, column {})",
                place.0, place.1
            ),
        )
    })?;
    Ok(envelope)
}

/// A text column as one of the checked names; NULL is none.
fn name<T, E: std::fmt::Display>(
    row: &PgRow,
    column: usize,
    check: impl Fn(String) -> Result<T, E>,
) -> Result<Option<T>, Undecodable> {
    let text: Option<String> = row
        .try_get(column)
        .map_err(|error| wrong(None, &error.to_string()))?;
    text.map(check)
        .transpose()
        .map_err(|error| wrong(None, &error.to_string()))
}

/// A json column's text, byte for byte.
fn json(row: &PgRow, column: usize) -> Result<&str, Undecodable> {
    let value: PgValueRef<'_> = row
        .try_get_raw(column)
        .map_err(|error| wrong(None, &error.to_string()))?;
    if value.is_null() {
        return Err(wrong(None, "payload or headers are NULL"));
    }
    value.as_str().map_err(|error| wrong(None, &error.to_string()))
}

fn wrong(event_type: Option<EventType>, reason: &str) -> Undecodable {
    Undecodable {
        reason: reason.to_owned(),
        event_type,
    }
}
