//! Delivers each event to several dispatchers, each with an outcome of its own.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::parts;
use crate::{
    ConfigError, Delivered, Delivery, Dispatcher, EventType, Failure, FailureKind, Limits, PartName, Policy,
    RunResult,
};

/// Delivers each event to all of several targets, as when a module moves: for a while its events go both to the
/// handlers in the process and to the broker.
///
/// Each target is a named part: once it has taken an event, that is remembered, and a later try goes to the others
/// alone. The event is completed when all have taken it. If some reject it and others want another try, these go on,
/// and then the event fails. The targets of one event run concurrently.
///
/// Events of one ordering key go one after the other, without the pipelining that a target may be capable of: an event
/// must not be on one target while the one before it is still to fail on another.
pub struct FanOut {
    targets: Vec<(PartName, Arc<dyn Dispatcher>)>,
    relay_timeout: OnceLock<Duration>,
}

impl FanOut {
    /// Delivers to these targets. The names are stored with events that are under way: choose lasting ones.
    ///
    /// # Errors
    /// [`ConfigError`] when there is no target, two have the same name, or a name has more than 60 bytes, a slash, or
    /// an exclamation mark in front.
    pub fn new(targets: Vec<(PartName, Arc<dyn Dispatcher>)>) -> Result<Self, ConfigError> {
        const NAME_MAX: usize = 60;
        let refused = |value: &str, right: &str| Err(ConfigError::new("fan-out target", value, right));
        if targets.is_empty() {
            return refused("missing", "there has to be one at least");
        }
        for (at, (name, _)) in targets.iter().enumerate() {
            let text = name.as_str();
            if text.len() > NAME_MAX || text.contains('/') || name.refused().is_some() {
                return refused(
                    text,
                    "a name has at most 60 bytes, no slash, and no exclamation mark in front",
                );
            }
            if targets[..at].iter().any(|(other, _)| other == name) {
                return refused(text, "each has a name of its own");
            }
        }
        Ok(Self {
            targets,
            relay_timeout: OnceLock::new(),
        })
    }

    async fn deliver_to(
        &self,
        (name, target): &(PartName, Arc<dyn Dispatcher>),
        delivery: &Delivery,
    ) -> Tried {
        let names: Vec<&PartName> = self.targets.iter().map(|(name, _)| name).collect();
        let mut own = delivery.clone();
        own.done = parts::told(name, &names, &delivery.done).into();
        let tried = AssertUnwindSafe(async { target.dispatch(&own).await })
            .catch_unwind()
            .await;
        let result = tried.unwrap_or_else(|_| {
            let panicked = Failure::new(FailureKind::Retry, "panicked");
            Err(panicked.with_done(own.done.to_vec()))
        });
        Tried {
            target: name.clone(),
            result,
        }
    }
}

/// How one target took the event.
struct Tried {
    target: PartName,
    result: Result<Delivered, Failure>,
}

/// Puts together what earlier tries have left and what came of this one.
fn combine(before: &[PartName], tried: Vec<Tried>) -> Result<Delivered, Failure> {
    let mut done = before.to_vec();
    let mut open: Option<FailureKind> = None;
    let (mut handled, mut retry_after) = (!before.is_empty(), None);
    let mut texts: Vec<String> = before.iter().filter_map(refused_earlier).collect();
    for Tried { target, result } in tried {
        let failure = match result {
            Ok(delivered) => {
                handled = handled || delivered == Delivered::Handled;
                done.retain(|part| !parts::is_of(&target, part));
                done.push(target);
                continue;
            }
            Err(failure) => failure,
        };
        done.retain(|part| !parts::is_of(&target, part));
        done.extend(
            failure
                .done
                .iter()
                .filter(|part| !before.contains(part))
                .filter_map(|part| parts::kept(&target, part)),
        );
        let text = failure.error.to_string();
        if failure.kind == FailureKind::Reject {
            done.extend(target.refusal_because(&text));
        } else {
            open = Some(heavier(open, failure.kind));
            retry_after = retry_after.max(failure.retry_after);
        }
        texts.push(format!("{target}: {text}"));
    }
    let refused = done.iter().any(|part| part.refused().is_some());
    match open {
        Some(kind) => Err(Failure::new(kind, texts.join("; "))
            .with_done(done)
            .with_retry_after(retry_after)),
        None if refused => {
            // Only what is done stays on record: a redrive lets those that refused try again.
            done.retain(|part| part.refused().is_none());
            Err(Failure::new(FailureKind::Reject, texts.join("; ")).with_done(done))
        }
        None if handled => Ok(Delivered::Handled),
        None => Ok(Delivered::Unhandled),
    }
}

/// What a refusal of an earlier try says in the end.
fn refused_earlier(refusal: &PartName) -> Option<String> {
    let text = format!("{}: refused the event in an earlier try", refusal.refused()?);
    let reason = refusal.reason();
    Some(reason.map_or(text.clone(), |reason| format!("{text}: {reason}")))
}

/// Which of two reasons for another try counts: an attempt is charged as soon as one target wants it charged.
fn heavier(known: Option<FailureKind>, new: FailureKind) -> FailureKind {
    match (known, new) {
        (Some(FailureKind::Retry), _) | (_, FailureKind::Retry) => FailureKind::Retry,
        (Some(FailureKind::Outage), _) | (_, FailureKind::Outage) => FailureKind::Outage,
        _ => new,
    }
}

impl fmt::Debug for FanOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&PartName> = self.targets.iter().map(|(name, _)| name).collect();
        f.debug_struct("FanOut")
            .field("targets", &names)
            .finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)] // A method of the trait that is added later has to be thought about.
#[async_trait]
impl Dispatcher for FanOut {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        let open = self
            .targets
            .iter()
            .filter(|(name, _)| !parts::is_settled(name, &delivery.done));
        let tried = join_all(open.map(|target| self.deliver_to(target, delivery))).await;
        combine(&delivery.done, tried)
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        let mut results = RunResult::with_capacity(run.len());
        for delivery in run {
            results.push(self.dispatch(delivery).await);
            if results.last().is_some_and(Result::is_err) {
                break;
            }
        }
        results
    }

    fn pipelines(&self) -> bool {
        false
    }

    /// Of the targets': the longest timeout, the lowest concurrency, the first retry policy, and the strictest key policy.
    fn policy(&self, event_type: &EventType) -> Policy {
        let policies: Vec<Policy> = self
            .targets
            .iter()
            .map(|(_, target)| target.policy(event_type))
            .collect();
        let mut policy = Policy::default();
        policy.retry = policies.iter().find_map(|policy| policy.retry.clone());
        policy.concurrency = policies.iter().filter_map(|policy| policy.concurrency).min();
        if policies.iter().any(|policy| policy.timeout.is_some()) {
            let relays = self.relay_timeout.get().copied();
            policy.timeout = policies
                .iter()
                .filter_map(|policy| policy.timeout.or(relays))
                .max();
        }
        policy.key = policies.iter().map(|policy| policy.key).max().unwrap_or_default();
        policy
    }

    fn prepare(&self, limits: &Limits) -> Result<(), ConfigError> {
        // Set once: relays that share a dispatcher have the same settings, or else the first one's count.
        let _ = self.relay_timeout.set(limits.handler_timeout);
        self.targets
            .iter()
            .try_for_each(|(_, target)| target.prepare(limits))
    }
}
