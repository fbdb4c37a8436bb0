//! What stands in `#[event(…)]`.

use syn::meta::ParseNestedMeta;
use syn::{DeriveInput, Error, Expr, LitInt, LitStr, Path, Result};

use crate::names::{check, refuse_twice};

const KNOWN: &str = "known are `name`, `aggregate`, `id`, `key`, `version` and `crate`";

/// The most bytes of an event type's or an aggregate type's name.
const NAME_LIMIT: usize = 200;

#[derive(Default)]
pub(crate) struct EventOptions {
    pub(crate) name: Option<LitStr>,
    pub(crate) aggregate: Option<LitStr>,
    pub(crate) id: Option<Expr>,
    pub(crate) key: Option<Expr>,
    pub(crate) version: Option<LitInt>,
    pub(crate) root: Option<Path>,
}

impl EventOptions {
    pub(crate) fn of(input: &DeriveInput) -> Result<Self> {
        let mut options = Self::default();
        for attribute in input
            .attrs
            .iter()
            .filter(|attribute| attribute.path().is_ident("event"))
        {
            attribute.parse_nested_meta(|option| options.take(&option))?;
        }
        if let (Some(id), None) = (&options.id, &options.aggregate) {
            let message =
                "an `id` without an `aggregate` says which, but not of what; add `aggregate = \"…\"`";
            return Err(Error::new_spanned(id, message));
        }
        Ok(options)
    }

    fn take(&mut self, option: &ParseNestedMeta<'_>) -> Result<()> {
        let Some(name) = option.path.get_ident().map(ToString::to_string) else {
            return Err(option.error(format!("unknown option; {KNOWN}")));
        };
        match name.as_str() {
            "name" => {
                refuse_twice(self.name.is_some(), option)?;
                self.name = Some(name_of(option, "event type")?);
            }
            "aggregate" => {
                refuse_twice(self.aggregate.is_some(), option)?;
                self.aggregate = Some(name_of(option, "aggregate type")?);
            }
            "id" => {
                refuse_twice(self.id.is_some(), option)?;
                self.id = Some(option.value()?.parse()?);
            }
            "key" => {
                refuse_twice(self.key.is_some(), option)?;
                self.key = Some(option.value()?.parse()?);
            }
            "version" => {
                refuse_twice(self.version.is_some(), option)?;
                self.version = Some(version_of(option)?);
            }
            "crate" => {
                refuse_twice(self.root.is_some(), option)?;
                self.root = Some(option.value()?.parse::<LitStr>()?.parse()?);
            }
            _ => return Err(option.error(format!("unknown option `{name}`; {KNOWN}"))),
        }
        Ok(())
    }
}

fn name_of(option: &ParseNestedMeta<'_>, what: &str) -> Result<LitStr> {
    let name: LitStr = option.value()?.parse()?;
    check(&name, what, NAME_LIMIT)?;
    Ok(name)
}

fn version_of(option: &ParseNestedMeta<'_>) -> Result<LitInt> {
    let version: LitInt = option.value()?.parse()?;
    match version.base10_parse::<u32>() {
        Ok(1..) => Ok(version),
        _ => Err(Error::new(version.span(), "`version` is a whole number from 1")),
    }
}
