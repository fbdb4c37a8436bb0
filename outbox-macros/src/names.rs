//! Names are checked while compiling, by the rules that hold when they are stored.

use syn::{Error, LitStr, Result};

/// Checks a text that is to be stored as a name of 1 to `limit` bytes.
pub(crate) fn check(name: &LitStr, what: &str, limit: usize) -> Result<()> {
    let text = name.value();
    if text.is_empty() || text.len() > limit {
        let bytes = text.len();
        return Err(Error::new(
            name.span(),
            format!("{what} has {bytes} bytes; it takes 1 to {limit}"),
        ));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::new(
            name.span(),
            format!("{what} holds a control character; only printable text is accepted"),
        ));
    }
    Ok(())
}

/// The error for an option that is given twice.
pub(crate) fn refuse_twice(taken: bool, option: &syn::meta::ParseNestedMeta<'_>) -> Result<()> {
    if taken {
        return Err(option.error("this option is given twice"));
    }
    Ok(())
}
