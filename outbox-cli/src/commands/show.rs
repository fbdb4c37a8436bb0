//! Everything about one event.

use outbox::TenantId;
use outbox::admin::EventDetails;
use serde_json::{Value, json};

use super::list;
use crate::cli::{Show, Target};
use crate::exit::{CliError, Exit};
use crate::output;

pub(super) async fn run(target: &Target, args: &Show) -> Result<Exit, CliError> {
    let admin = target.admin().await?;
    let found = admin.show(args.id).await?;
    if found.is_empty() {
        return Err(CliError::NotFound(format!("there is no event {}", args.id)));
    }
    let mut all = Vec::new();
    for event in &found {
        let mut value = as_json(event);
        if args.payload {
            let tenant_id = TenantId::new(event.summary.tenant_id.clone())?;
            let payload = admin.payload(args.id, &tenant_id).await?.unwrap_or_default();
            value["payload"] = serde_json::from_str(&payload).unwrap_or(Value::String(payload));
        }
        all.push(value);
    }
    if target.json {
        output::json(&all)?;
        return Ok(Exit::Success);
    }
    for value in all {
        let rows = value
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !is_nothing(value));
        let rows = rows.map(|(name, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), ToOwned::to_owned);
            vec![name.clone(), output::short(&text, 4000)]
        });
        output::line(&output::table(&["", ""], rows))?;
    }
    Ok(Exit::Success)
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    }
}

fn as_json(event: &EventDetails) -> Value {
    let mut value = list::as_json(&event.summary);
    value["aggregate_type"] = json!(event.aggregate_type);
    value["aggregate_id"] = json!(event.aggregate_id);
    value["headers"] = json!(event.headers);
    value["done_parts"] = json!(event.done_parts);
    value["leased_until"] = json!(event.leased_until.map(|at| at.to_string()));
    value["blocked_by"] = json!(event.blocked_by);
    value
}
