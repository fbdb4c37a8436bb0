//! From an error of unknown manners to a text that any store accepts.

use std::error::Error;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A writer that keeps at most so many characters, and none that a store or a log would choke on.
struct Bounded {
    text: String,
    room: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for c in s.chars() {
            if self.room == 0 {
                return Err(fmt::Error); // Stops the formatting: nothing more would be kept.
            }
            self.room -= 1;
            self.text.push(if c.is_control() { ' ' } else { c });
        }
        Ok(())
    }
}

/// How many causes of an error are written. A chain that bites its tail ends here.
const CAUSES_MAX: usize = 32;

/// The error and its causes, joined by `: `, at most `chars_max` characters, control characters replaced by spaces.
///
/// An error whose `Display` or `source` panics yields a text that says so.
pub(super) fn error_text(error: &(dyn Error + 'static), chars_max: usize) -> String {
    let mut out = Bounded {
        text: String::new(),
        room: chars_max,
    };
    let written = catch_unwind(AssertUnwindSafe(|| write_chain(&mut out, error)));
    if written.is_err() {
        let _ = out.write_str(if out.text.is_empty() { "" } else { " … " });
        let _ = out.write_str("the error's own text panicked");
    }
    out.text
}

fn write_chain(out: &mut Bounded, error: &(dyn Error + 'static)) -> fmt::Result {
    write!(out, "{error}")?;
    let mut cause = error.source();
    for _ in 0..CAUSES_MAX {
        let Some(error) = cause else { break };
        write!(out, ": {error}")?;
        cause = error.source();
    }
    Ok(())
}

/// A plain text under the same limits.
pub(super) fn bounded_text(text: &str, chars_max: usize) -> String {
    let mut out = Bounded {
        text: String::new(),
        room: chars_max,
    };
    let _ = out.write_str(text);
    out.text
}

/// Drops a value whose `Drop` may panic; whether it did not.
pub(super) fn drop_quietly<T>(value: T) -> bool {
    match catch_unwind(AssertUnwindSafe(|| drop(value))) {
        Ok(()) => true,
        Err(payload) => {
            // The payload itself is user data, and its `Drop` may panic once more.
            std::mem::forget(payload);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug)]
    struct Link(&'static str, Option<Box<Link>>);

    impl fmt::Display for Link {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|link| link as _)
        }
    }

    #[derive(Debug)]
    struct Rude;

    impl fmt::Display for Rude {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("half")?;
            panic!("in the middle")
        }
    }

    impl Error for Rude {}

    #[test]
    fn a_chain_of_causes_is_joined() {
        let error = Link(
            "outer",
            Some(Box::new(Link("middle", Some(Box::new(Link("inner", None)))))),
        );

        assert_eq!(error_text(&error, 100), "outer: middle: inner");
        assert_eq!(error_text(&error, 8), "outer: m");
    }

    #[test]
    fn a_display_that_panics_is_an_error_text_too() {
        assert_eq!(error_text(&Rude, 100), "half … the error's own text panicked");
        assert_eq!(error_text(&Rude, 6), "half …");
    }

    proptest! {
        /// Invariant 22: whatever the text holds, what is stored is bounded and harmless.
        #[test]
        fn any_text_is_bounded_and_free_of_control_characters(text in any::<String>(), chars_max in 0_usize..50) {
            let stored = bounded_text(&text, chars_max);

            prop_assert_eq!(stored.chars().count(), text.chars().count().min(chars_max));
            prop_assert!(!stored.chars().any(char::is_control));
        }
    }
}
