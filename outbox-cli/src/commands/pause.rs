//! Stopping and starting a type or a key.

use outbox::{EventType, OrderingKey, TenantId};
use serde_json::json;

use crate::cli::{Block, Target};
use crate::exit::{CliError, Exit};
use crate::output;

pub(super) async fn pause(target: &Target, args: &Block) -> Result<Exit, CliError> {
    let admin = target.admin().await?;
    let changed = match (&args.event_type, &args.key) {
        (Some(name), _) => {
            admin
                .pause_type(&EventType::new(name.clone())?, &args.reason)
                .await?
        }
        (None, Some(key)) => {
            let (tenant_id, key) = (
                TenantId::new(args.tenant.clone())?,
                OrderingKey::new(key.clone())?,
            );
            admin.pause_key(&tenant_id, &key, &args.reason).await?
        }
        (None, None) => return Err(CliError::Usage("give --type or --key".to_owned())),
    };
    let text = if changed { "paused" } else { "was paused already" };
    say(target, &json!({"paused": true, "changed": changed}), text)
}

pub(super) async fn resume(target: &Target, args: &Block) -> Result<Exit, CliError> {
    let admin = target.admin().await?;
    let (changed, parked_by) = match (&args.event_type, &args.key) {
        (Some(name), _) => (
            admin
                .resume_type(&EventType::new(name.clone())?, &args.reason)
                .await?,
            None,
        ),
        (None, Some(key)) => {
            let (tenant_id, key) = (
                TenantId::new(args.tenant.clone())?,
                OrderingKey::new(key.clone())?,
            );
            let resumed = admin.resume_key(&tenant_id, &key, &args.reason).await?;
            (resumed.was_blocked, resumed.parked_by)
        }
        (None, None) => return Err(CliError::Usage("give --type or --key".to_owned())),
    };
    let text = match (changed, parked_by) {
        (_, Some(id)) => format!("still parked behind failed event {id}: redrive or discard that one"),
        (true, None) => "resumed".to_owned(),
        (false, None) => "was not blocked".to_owned(),
    };
    say(
        target,
        &json!({"paused": false, "changed": changed, "parked_by": parked_by}),
        &text,
    )
}

fn say(target: &Target, value: &serde_json::Value, text: &str) -> Result<Exit, CliError> {
    if target.json {
        output::json(value)?;
    } else {
        output::line(text)?;
    }
    Ok(Exit::Success)
}
