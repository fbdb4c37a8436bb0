//! What stands in `#[on_event(…)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::{Error, Expr, Lit, LitInt, LitStr, Path, Result};

use crate::names::{check, refuse_twice};

const KNOWN: &str =
    "known are `name`, `timeout_secs`, `max_attempts`, `retry`, `concurrency`, `key` and `crate`";

/// The most bytes of a handler's name.
const NAME_LIMIT: usize = 199;

#[derive(Default)]
pub(crate) struct OnEventOptions {
    pub(crate) name: Option<LitStr>,
    /// An expression of type `Duration`.
    timeout: Option<TokenStream>,
    max_attempts: Option<u32>,
    retry: Option<Expr>,
    concurrency: Option<u32>,
    /// A variant of `KeyPolicy`.
    key: Option<TokenStream>,
    pub(crate) root: Option<Path>,
}

impl OnEventOptions {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let mut options = Self::default();
        syn::meta::parser(|option| options.take(&option)).parse2(tokens)?;
        Ok(options)
    }

    fn take(&mut self, option: &ParseNestedMeta<'_>) -> Result<()> {
        let Some(name) = option.path.get_ident().map(ToString::to_string) else {
            return Err(option.error(format!("unknown option; {KNOWN}")));
        };
        match name.as_str() {
            "name" => {
                refuse_twice(self.name.is_some(), option)?;
                self.name = Some(handler_name(option)?);
            }
            "timeout_secs" => {
                refuse_twice(self.timeout.is_some(), option)?;
                self.timeout = Some(seconds(option)?);
            }
            "max_attempts" => {
                refuse_twice(self.max_attempts.is_some(), option)?;
                self.max_attempts = Some(count(option, &name)?);
            }
            "retry" => {
                refuse_twice(self.retry.is_some(), option)?;
                self.retry = Some(option.value()?.parse()?);
            }
            "concurrency" => {
                refuse_twice(self.concurrency.is_some(), option)?;
                self.concurrency = Some(count(option, &name)?);
            }
            "key" => {
                refuse_twice(self.key.is_some(), option)?;
                self.key = Some(key_policy(option)?);
            }
            "crate" => {
                refuse_twice(self.root.is_some(), option)?;
                self.root = Some(option.value()?.parse::<LitStr>()?.parse()?);
            }
            _ => return Err(option.error(format!("unknown option `{name}`; {KNOWN}"))),
        }
        Ok(())
    }

    /// The calls that set the options on a `HandlerOptions`.
    pub(crate) fn setters(&self, root: &Path) -> TokenStream {
        let timeout = self
            .timeout
            .as_ref()
            .map(|timeout| quote!(.with_timeout(#timeout)));
        let retry = self.retry_policy(root).map(|retry| quote!(.with_retry(#retry)));
        let concurrency = self.concurrency.map(|count| {
            let count = non_zero(count);
            quote!(.with_concurrency(#count))
        });
        let key = self
            .key
            .as_ref()
            .map(|key| quote!(.with_key(#root::__private::KeyPolicy::#key)));
        quote!(#timeout #retry #concurrency #key)
    }

    fn retry_policy(&self, root: &Path) -> Option<TokenStream> {
        let attempts = self.max_attempts.map(|count| {
            let count = non_zero(count);
            quote!(.with_max_attempts(#count))
        });
        match (&self.retry, attempts) {
            (None, None) => None,
            (Some(retry), attempts) => Some(quote!((#retry)#attempts)),
            (None, attempts) => {
                Some(quote!(<#root::__private::RetryPolicy as ::core::default::Default>::default()#attempts))
            }
        }
    }
}

fn handler_name(option: &ParseNestedMeta<'_>) -> Result<LitStr> {
    let name: LitStr = option.value()?.parse()?;
    check(&name, "handler name", NAME_LIMIT)?;
    if name.value().starts_with('!') {
        return Err(Error::new(
            name.span(),
            "a handler name cannot begin with `!`, which marks refusals",
        ));
    }
    Ok(name)
}

/// A number of seconds as an expression of type `Duration`.
fn seconds(option: &ParseNestedMeta<'_>) -> Result<TokenStream> {
    let value: Expr = option.value()?.parse()?;
    let refusal = || {
        Error::new_spanned(
            &value,
            "`timeout_secs` takes a number of seconds above 0, such as `5` or `0.5`",
        )
    };
    let Expr::Lit(literal) = &value else {
        return Err(refusal());
    };
    match &literal.lit {
        Lit::Int(seconds) => match seconds.base10_parse::<u64>() {
            Ok(seconds @ 1..) => Ok(quote!(::core::time::Duration::from_secs(#seconds))),
            _ => Err(refusal()),
        },
        Lit::Float(seconds) => match seconds.base10_parse::<f64>() {
            Ok(seconds) if (0.001..1e9).contains(&seconds) => {
                Ok(quote!(::core::time::Duration::from_secs_f64(#seconds)))
            }
            _ => Err(refusal()),
        },
        _ => Err(refusal()),
    }
}

fn count(option: &ParseNestedMeta<'_>, name: &str) -> Result<u32> {
    let value: Expr = option.value()?.parse()?;
    let count = match &value {
        Expr::Lit(syn::ExprLit {
            lit: Lit::Int(count), ..
        }) => LitInt::base10_parse::<u32>(count).ok(),
        _ => None,
    };
    count
        .filter(|count| *count > 0)
        .ok_or_else(|| Error::new_spanned(&value, format!("`{name}` takes a whole number from 1")))
}

fn key_policy(option: &ParseNestedMeta<'_>) -> Result<TokenStream> {
    let key: LitStr = option.value()?.parse()?;
    match key.value().as_str() {
        "go_on" => Ok(quote!(GoOn)),
        "stop" => Ok(quote!(Stop)),
        "park" => Ok(quote!(Park)),
        _ => Err(Error::new(
            key.span(),
            "`key` takes \"go_on\", \"stop\" or \"park\"",
        )),
    }
}

/// An expression of type `NonZeroU32` that cannot fail at run time.
fn non_zero(count: u32) -> TokenStream {
    let more = count.saturating_sub(1);
    quote!(::core::num::NonZeroU32::MIN.saturating_add(#more))
}
