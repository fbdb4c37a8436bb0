//! `#[derive(Event)]`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Expr, Fields, Ident, Lit, Member, Path, Result};

use crate::event_options::EventOptions;
use crate::root;

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    refuse_what_cannot_be_an_event(input)?;
    let options = EventOptions::of(input)?;
    let root = root::path(options.root.clone(), "outbox-core");

    let name = &input.ident;
    let event_type = match &options.name {
        Some(text) => quote!(#text),
        None => quote!(::core::stringify!(#name)),
    };
    let aggregate_type = options.aggregate.as_ref().map(|aggregate| {
        quote! {
            const AGGREGATE_TYPE: ::core::option::Option<&'static str> = ::core::option::Option::Some(#aggregate);
        }
    });
    let version = options.version.as_ref().map(|version| {
        quote! { const SCHEMA_VERSION: u32 = #version; }
    });
    let id = text_method("aggregate_id", options.id.as_ref(), &input.data, &root)?;
    let key = text_method("ordering_key", options.key.as_ref(), &input.data, &root)?;

    Ok(quote! {
        #[automatically_derived]
        impl #root::Event for #name {
            const EVENT_TYPE: &'static str = #event_type;
            #aggregate_type
            #version
            #id
            #key
        }
    })
}

fn refuse_what_cannot_be_an_event(input: &DeriveInput) -> Result<()> {
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &input.generics,
            "a generic type cannot be an event: all its forms would share one event type; \
             derive `Event` on a type of its own for each",
        ));
    }
    let fields: Vec<_> = match &input.data {
        Data::Struct(data) => data.fields.iter().collect(),
        Data::Enum(data) => data.variants.iter().flat_map(|variant| &variant.fields).collect(),
        Data::Union(data) => {
            return Err(Error::new(data.union_token.span, "a union cannot be an event"));
        }
    };
    let misplaced = fields
        .iter()
        .flat_map(|field| &field.attrs)
        .find(|attribute| attribute.path().is_ident("event"));
    match misplaced {
        Some(attribute) => Err(Error::new_spanned(
            attribute,
            "`#[event(…)]` belongs on the type: `#[event(id = the_field)]`",
        )),
        None => Ok(()),
    }
}

/// The method that gives a text, if the option for it is there.
fn text_method(method: &str, value: Option<&Expr>, data: &Data, root: &Path) -> Result<Option<TokenStream>> {
    let Some(value) = value else { return Ok(None) };
    let span = value.span();
    let method = Ident::new(method, span);
    let value = of_self(value, data)?;
    let text = quote_spanned!(span=> #root::__private::TextOf(&(#value)).text());
    Ok(Some(quote! {
        fn #method(&self) -> ::core::option::Option<::std::string::String> {
            #[allow(unused_imports, reason = "needed for what is no `Option`")]
            use #root::__private::TextOfAny as _;
            #text
        }
    }))
}

/// Puts `self` before what begins with a field; leaves every other expression as it is.
fn of_self(value: &Expr, data: &Data) -> Result<TokenStream> {
    match value {
        Expr::Lit(literal) => {
            let Lit::Int(index) = &literal.lit else {
                return Err(Error::new_spanned(
                    literal,
                    "every event would have the same text; name a field, without quotes, or an expression of `self`",
                ));
            };
            let index: syn::Index = syn::parse_str(index.base10_digits())?;
            Ok(quote!(self.#index))
        }
        Expr::Path(path) => match path.path.get_ident() {
            Some(name) if name != "self" => field(name, data),
            _ => Ok(quote!(#value)),
        },
        _ => match first_name(value) {
            Some(name) if is_field(name, data) => Ok(quote!(self.#value)),
            _ => Ok(quote!(#value)),
        },
    }
}

/// A field named alone, or why there is none.
fn field(name: &Ident, data: &Data) -> Result<TokenStream> {
    if is_field(name, data) {
        return Ok(quote!(self.#name));
    }
    let message = match data {
        Data::Struct(data) => format!("there is no field `{name}`; {}", listed(&data.fields)),
        Data::Enum(_) | Data::Union(_) => {
            format!("an enum has no field `{name}` of its own; write an expression such as `self.{name}()`")
        }
    };
    Err(Error::new_spanned(name, message))
}

fn listed(fields: &Fields) -> String {
    let names: Vec<String> = fields
        .members()
        .map(|member| match member {
            Member::Named(name) => format!("`{name}`"),
            Member::Unnamed(index) => format!("`{}`", index.index),
        })
        .collect();
    match names.as_slice() {
        [] => "the type has none".to_owned(),
        names => format!("the type has {}", names.join(", ")),
    }
}

/// The name with which a chain of fields and method calls begins.
fn first_name(value: &Expr) -> Option<&Ident> {
    match value {
        Expr::Path(path) => path.path.get_ident(),
        Expr::Field(access) => first_name(&access.base),
        Expr::MethodCall(call) => first_name(&call.receiver),
        Expr::Index(index) => first_name(&index.expr),
        _ => None,
    }
}

fn is_field(name: &Ident, data: &Data) -> bool {
    let Data::Struct(data) = data else { return false };
    data.fields.iter().any(|field| field.ident.as_ref() == Some(name))
}
