//! Events, page by page.

use outbox::admin::{EventSummary, ListFilter, Status};
use outbox::{EventType, OrderingKey, Position, TenantId};
use serde_json::{Value, json};

use crate::cli::{List, StatusName, Target};
use crate::exit::{CliError, Exit};
use crate::output;

pub(super) async fn run(target: &Target, args: &List) -> Result<Exit, CliError> {
    let filter = filter(args)?;
    let events = target.admin().await?.list(&filter).await?;
    if target.json {
        output::json(&events.iter().map(as_json).collect::<Vec<_>>())?;
        return Ok(Exit::Success);
    }
    output::line(&table(&events))?;
    if let Some(last) = events.last().filter(|_| events.len() >= args.limit as usize) {
        output::line(&format!("\nmore: --after {}", last.position.0))?;
    }
    Ok(Exit::Success)
}

fn filter(args: &List) -> Result<ListFilter, CliError> {
    let status = match args.status {
        StatusName::Pending => Status::Pending,
        StatusName::Completed => Status::Completed,
        StatusName::Failed => Status::Failed,
    };
    let mut filter = ListFilter::new(status).limit(args.limit);
    if let Some(name) = &args.pick.event_type {
        filter = filter.of_type(EventType::new(name.clone())?);
    }
    if let Some(tenant) = &args.pick.tenant {
        filter = filter.of_tenant(TenantId::new(tenant.clone())?);
    }
    if let Some(key) = &args.pick.key {
        filter = filter.with_key(OrderingKey::new(key.clone())?);
    }
    if let Some(error) = &args.pick.error {
        filter = filter.with_error(error.clone());
    }
    if let Some(after) = args.after {
        filter = filter.after(Position(after));
    }
    Ok(filter)
}

pub(super) fn table(events: &[EventSummary]) -> String {
    let rows = events.iter().map(|event| {
        let failed = event.processed_at.or(event.available_at).or(event.created_at);
        vec![
            event.position.0.to_string(),
            event.id.to_string(),
            output::short(&event.event_type, 40),
            output::short(&event.tenant_id, 20),
            output::short(event.ordering_key.as_deref().unwrap_or_default(), 30),
            state(event),
            event.retry_count.to_string(),
            failed.map(|at| format!("{at:.0}")).unwrap_or_default(),
            output::short(event.error.as_deref().unwrap_or_default(), 60),
        ]
    });
    let header = [
        "number", "id", "type", "tenant", "key", "status", "tries", "since", "error",
    ];
    output::table(&header, rows)
}

fn state(event: &EventSummary) -> String {
    match (event.class, event.discarded_at) {
        (_, Some(_)) => "discarded".to_owned(),
        (Some(class), None) => format!("{} {}", event.status.as_str(), class.as_str()),
        (None, None) => event.status.as_str().to_owned(),
    }
}

pub(super) fn as_json(event: &EventSummary) -> Value {
    json!({
        "id": event.id,
        "number": event.position.0,
        "event_type": event.event_type,
        "tenant_id": event.tenant_id,
        "ordering_key": event.ordering_key,
        "status": event.status.as_str(),
        "class": event.class.map(|class| class.as_str()),
        "retry_count": event.retry_count,
        "lost_claims": event.lost_claims,
        "error": event.error,
        "created_at": event.created_at.map(|at| at.to_string()),
        "available_at": event.available_at.map(|at| at.to_string()),
        "processed_at": event.processed_at.map(|at| at.to_string()),
        "discarded_at": event.discarded_at.map(|at| at.to_string()),
    })
}
