//! Where the generated code finds this project.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, Span};
use syn::Path;

/// The path given by hand, else the facade if the manifest has it, else the crate that holds what is needed.
pub(crate) fn path(by_hand: Option<Path>, part: &str) -> Path {
    if let Some(path) = by_hand {
        return path;
    }
    let found = crate_name("outbox").map(|found| (found, "outbox"));
    let found = found.or_else(|_| crate_name(part).map(|found| (found, part)));
    let name = match found {
        Ok((FoundCrate::Name(name), _)) => name,
        // The package's own examples and tests see it by its name, as everybody does.
        Ok((FoundCrate::Itself, package)) => package.replace('-', "_"),
        Err(_) => "outbox".to_owned(),
    };
    let name = Ident::new(&name, Span::call_site());
    syn::parse_quote!(::#name)
}
