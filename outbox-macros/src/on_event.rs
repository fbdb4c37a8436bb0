//! `#[on_event]`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Error, FnArg, ItemFn, Result, ReturnType, Signature, Type};

use crate::on_event_options::OnEventOptions;
use crate::root;

const FORM: &str = "async fn(event: E, ctx: Context) -> Result<(), HandlerError>";

pub(crate) fn expand(options: TokenStream, function: &ItemFn) -> Result<TokenStream> {
    let options = OnEventOptions::parse(options)?;
    let signature = &function.sig;
    refuse_other_forms(signature)?;
    let event = event_type(signature)?;
    let root = root::path(options.root.clone(), "outbox-inproc");

    let function = &signature.ident;
    let (pattern, context) = match signature.inputs.len() {
        2 => (quote!(ctx), Some(quote!(ctx))),
        _ => (quote!(_), None),
    };
    let name = match &options.name {
        Some(name) => quote!(#name),
        None => quote!(#root::__private::default_name(::core::module_path!(), ::core::stringify!(#function))),
    };
    let setters = options.setters(&root);
    // Where the compiler has something to say about the future, it points at the function.
    let handle = quote_spanned! {function.span()=>
        fn handle(
            event: #event,
            #pattern: #root::__private::Context,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<(), #root::__private::HandlerError>,
        > + ::core::marker::Send {
            #function(event, #context)
        }
    };
    let register = quote_spanned! {function.span()=>
        registry.on::<#event>(#root::__private::HandlerOptions::new(#name)#setters, handle)
    };
    Ok(quote! {
        const _: () = {
            #handle

            #root::__private::inventory::submit! {
                #root::__private::Discovered::new(|registry| #register)
            }
        };
    })
}

fn refuse_other_forms(signature: &Signature) -> Result<()> {
    let name = &signature.ident;
    if let Some(receiver) = signature.receiver() {
        return Err(Error::new_spanned(
            receiver,
            "a method has nobody to be called on; mark a free function, or implement `Handler` and register the value by hand",
        ));
    }
    if signature.asyncness.is_none() {
        return Err(Error::new_spanned(
            signature.fn_token,
            format!("a handler is async: `async fn {name}(…)`"),
        ));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &signature.generics,
            "a handler found at link time cannot be generic; register it by hand for each event",
        ));
    }
    if let Some(unsafety) = signature.unsafety {
        return Err(Error::new_spanned(unsafety, "a handler cannot be unsafe"));
    }
    if let ReturnType::Default = signature.output {
        return Err(Error::new_spanned(
            name,
            "a handler says how it ended: `-> Result<(), HandlerError>`",
        ));
    }
    Ok(())
}

fn event_type(signature: &Signature) -> Result<&Type> {
    let inputs: Vec<&FnArg> = signature.inputs.iter().collect();
    let (Some(FnArg::Typed(event)), ..=2) = (inputs.first(), inputs.len()) else {
        return Err(Error::new_spanned(
            &signature.ident,
            format!("a handler takes the event and, if it wants to, the context: `{FORM}`"),
        ));
    };
    if let Type::Reference(reference) = &*event.ty {
        return Err(Error::new_spanned(
            reference,
            "a handler owns its event: leave out the `&`",
        ));
    }
    Ok(&event.ty)
}
