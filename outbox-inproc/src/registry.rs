//! Which handlers take which events.

use std::any::type_name;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use outbox_core::{Event, EventType, Handler, PartName, State, TextError};

use crate::discover::Discovered;
use crate::dispatcher::{InProcDispatcher, Listeners};
use crate::erased::{ErasedHandler, Typed};
use crate::merge::Attempts;
use crate::part::Part;
use crate::{HandlerOptions, RegistryError, Unhandled};

/// Which handlers take which events, and what they share. Put together once, then [built](Self::build).
#[derive(Default)]
#[must_use = "a registry does nothing until it is built into a dispatcher"]
pub struct Registry {
    entries: BTreeMap<&'static str, Vec<Entry>>,
    state: State,
    unhandled: Unhandled,
    allow_empty: bool,
    discovered: bool,
}

/// One handler as it was registered.
struct Entry {
    options: HandlerOptions,
    event: &'static str,
    handler_type: &'static str,
    at: &'static Location<'static>,
    handler: Box<dyn ErasedHandler>,
}

impl Registry {
    /// A registry without handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a handler of events of type `E`, under a name or with [`HandlerOptions`].
    ///
    /// ```
    /// # use outbox_core::{Context, Event, HandlerError};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { order: u64 }
    /// # impl Event for OrderPlaced { const EVENT_TYPE: &'static str = "OrderPlaced"; }
    /// # async fn charge(_: OrderPlaced, _: Context) -> Result<(), HandlerError> { Ok(()) }
    /// # async fn thank(_: OrderPlaced, _: Context) -> Result<(), HandlerError> { Ok(()) }
    /// use std::time::Duration;
    /// use outbox_inproc::{HandlerOptions, Registry};
    ///
    /// let registry = Registry::new()
    ///     .on::<OrderPlaced>("billing", charge)
    ///     .on::<OrderPlaced>(HandlerOptions::new("mail").with_timeout(Duration::from_secs(5)), thank);
    /// ```
    #[track_caller]
    pub fn on<E: Event>(mut self, options: impl Into<HandlerOptions>, handler: impl Handler<E>) -> Self {
        let entry = Entry {
            options: options.into(),
            event: type_name::<E>(),
            handler_type: handler_type_name(&handler),
            at: Location::caller(),
            handler: Typed::<E, _>::boxed(handler),
        };
        self.entries.entry(E::EVENT_TYPE).or_default().push(entry);
        self
    }

    /// Adds every handler marked with `#[on_event]` in any crate linked into the program.
    ///
    /// Calling it again changes nothing. A crate that the program names in its manifest but nowhere in its code is not
    /// linked; `use that_crate as _;` links it.
    pub fn discover(mut self) -> Self {
        if self.discovered {
            return self;
        }
        self.discovered = true;
        inventory::iter::<Discovered>
            .into_iter()
            .fold(self, |registry, found| (found.register)(registry))
    }

    /// Adds a value that handlers get by [`Context::state`](outbox_core::Context::state); one per type, the last one wins.
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.state.insert(value);
        self
    }

    /// Sets what becomes of events whose type has no handler. Defaults to [`Unhandled::Complete`].
    pub fn unhandled(mut self, unhandled: Unhandled) -> Self {
        self.unhandled = unhandled;
        self
    }

    /// Lets a registry without any handler be built, for a relay that only drains its outbox.
    pub fn allow_empty(mut self) -> Self {
        self.allow_empty = true;
        self
    }

    /// Checks the registry and makes the dispatcher.
    ///
    /// # Errors
    /// [`RegistryError`] when there is no handler, two handlers of one event type share a name, a name cannot be used, or
    /// a timeout is zero.
    pub fn build(self) -> Result<InProcDispatcher, RegistryError> {
        if self.entries.is_empty() && !self.allow_empty {
            return Err(RegistryError::Empty);
        }
        let mut listeners = HashMap::with_capacity(self.entries.len());
        for (event_type, entries) in self.entries {
            let key = EventType::new(event_type).map_err(|source| RegistryError::EventType {
                rust_type: entries.first().map_or("", |entry| entry.event),
                source,
            })?;
            listeners.insert(key, listeners_of(event_type, entries, &self.state)?);
        }
        Ok(InProcDispatcher::new(listeners, self.unhandled, self.state))
    }
}

fn listeners_of(event_type: &str, entries: Vec<Entry>, state: &State) -> Result<Listeners, RegistryError> {
    refuse_duplicates(event_type, &entries)?;
    refuse_unfit(event_type, &entries, state)?;
    let options: Vec<HandlerOptions> = entries.iter().map(|entry| entry.options.clone()).collect();
    let parts = entries
        .into_iter()
        .map(|entry| {
            Ok(Part {
                name: entry.name().map_err(|reason| RegistryError::HandlerName {
                    event_type: event_type.to_owned(),
                    name: entry.options.name.clone(),
                    handler: entry.to_string(),
                    reason,
                })?,
                timeout: entry.timeout(event_type)?,
                attempts: Attempts::of(&entry.options, &options),
                handler: entry.handler,
            })
        })
        .collect::<Result<_, RegistryError>>()?;
    Ok(Listeners { parts, options })
}

fn refuse_duplicates(event_type: &str, entries: &[Entry]) -> Result<(), RegistryError> {
    let mut seen: HashMap<&str, &Entry> = HashMap::new();
    for entry in entries {
        if let Some(first) = seen.insert(&entry.options.name, entry) {
            return Err(RegistryError::Duplicate {
                event_type: event_type.to_owned(),
                name: entry.options.name.clone(),
                first: first.to_string(),
                second: entry.to_string(),
            });
        }
    }
    Ok(())
}

fn refuse_unfit(event_type: &str, entries: &[Entry], state: &State) -> Result<(), RegistryError> {
    for entry in entries {
        entry
            .handler
            .check(state)
            .map_err(|reason| RegistryError::Unfit {
                event_type: event_type.to_owned(),
                handler: entry.to_string(),
                reason: reason.to_string(),
            })?;
    }
    Ok(())
}

fn handler_type_name<H>(_: &H) -> &'static str {
    type_name::<H>()
}

impl Entry {
    /// The handler's name, with room for the mark of a refusal.
    fn name(&self) -> Result<PartName, String> {
        let say = |error: TextError| error.to_string();
        let name = PartName::new(&self.options.name).map_err(say)?;
        if name.refused().is_some() {
            return Err(format!("`{}` at the beginning marks refusals", PartName::REFUSAL));
        }
        name.refusal().map_err(say)?;
        Ok(name)
    }

    fn timeout(&self, event_type: &str) -> Result<Option<Duration>, RegistryError> {
        if self.options.timeout == Some(Duration::ZERO) {
            return Err(RegistryError::ZeroTimeout {
                event_type: event_type.to_owned(),
                name: self.options.name.clone(),
            });
        }
        Ok(self.options.timeout)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({})", self.handler_type, self.at)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: BTreeMap<&str, Vec<&str>> = self
            .entries
            .iter()
            .map(|(event, entries)| {
                (
                    *event,
                    entries.iter().map(|entry| entry.options.name.as_str()).collect(),
                )
            })
            .collect();
        f.debug_struct("Registry")
            .field("handlers", &names)
            .field("state", &self.state)
            .field("unhandled", &self.unhandled)
            .finish_non_exhaustive()
    }
}
