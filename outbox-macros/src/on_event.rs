//! `#[on_event]`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{Error, FnArg, ItemFn, Path, Result, ReturnType, Signature, Type};

use crate::on_event_options::OnEventOptions;
use crate::root;

const FORM: &str = "async fn(event: E, ctx: Context) -> Result<(), HandlerError>";

pub(crate) fn expand(options: TokenStream, function: &ItemFn) -> Result<TokenStream> {
    let options = OnEventOptions::parse(options)?;
    let signature = &function.sig;
    refuse_other_forms(signature)?;
    let form = Form::of(signature)?;
    let event = form.event;
    let root = root::path(options.root.clone(), "outbox-inproc");

    let function = &signature.ident;
    let name = match &options.name {
        Some(name) => quote!(#name),
        None => quote!(#root::__private::default_name(::core::module_path!(), ::core::stringify!(#function))),
    };
    let setters = options.setters(&root);
    // Where the compiler has something to say about the future, it points at the function.
    let span = function.span();
    let handle = Ident::new("__outbox_handle", span);
    let wrapper = form.wrapper(&handle, function, &root);
    let handler = match form.transaction {
        true => quote_spanned!(span=> #root::__private::FromState(#handle)),
        false => quote_spanned!(span=> #handle),
    };
    let register = quote_spanned! {span=>
        registry.on::<#event>(#root::__private::HandlerOptions::new(#name)#setters, #handler)
    };
    Ok(quote! {
        const _: () = {
            #wrapper

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

/// What a function takes: the event, a transaction if it wants one, the context if it wants it.
struct Form<'f> {
    event: &'f Type,
    transaction: bool,
    context: bool,
}

impl<'f> Form<'f> {
    fn of(signature: &'f Signature) -> Result<Self> {
        let inputs: Vec<&FnArg> = signature.inputs.iter().collect();
        let refused = || {
            Error::new_spanned(
                &signature.ident,
                format!("a handler takes the event and, if it wants to, the context: `{FORM}`"),
            )
        };
        let Some(FnArg::Typed(event)) = inputs.first() else {
            return Err(refused());
        };
        let transaction = inputs.get(1).is_some_and(|input| borrows_mutably(input));
        let context = inputs.len() > 1 + usize::from(transaction);
        if inputs.len() > 2 + usize::from(transaction) {
            return Err(refused());
        }
        if let Type::Reference(reference) = &*event.ty {
            return Err(Error::new_spanned(
                reference,
                "a handler owns its event: leave out the `&`",
            ));
        }
        Ok(Self {
            event: &event.ty,
            transaction,
            context,
        })
    }

    /// A function that takes everything and passes on what is wanted.
    fn wrapper(&self, name: &Ident, function: &Ident, root: &Path) -> TokenStream {
        // Of the macro's own hygiene: the user's function may be called as one of these.
        let local = |name| Ident::new(name, Span::mixed_site().located_at(function.span()));
        let (event, tx, ctx) = (local("event"), local("tx"), local("ctx"));
        let event_type = self.event;
        let (pattern, context) = match self.context {
            true => (quote!(#ctx), Some(quote!(#ctx))),
            false => (quote!(_), None),
        };
        let output = quote!(::core::result::Result<(), #root::__private::HandlerError>);
        let ctx = quote!(#pattern: #root::__private::Context);
        match self.transaction {
            false => quote_spanned! {function.span()=>
                fn #name(
                    #event: #event_type,
                    #ctx,
                ) -> impl ::core::future::Future<Output = #output> + ::core::marker::Send {
                    #function(#event, #context)
                }
            },
            true => quote_spanned! {function.span()=>
                fn #name<'t>(
                    #event: #event_type,
                    #tx: &'t mut #root::__private::PgConnection,
                    #ctx,
                ) -> impl ::core::future::Future<Output = #output> + ::core::marker::Send + 't {
                    #function(#event, #tx, #context)
                }
            },
        }
    }
}

fn borrows_mutably(input: &FnArg) -> bool {
    matches!(input, FnArg::Typed(input) if matches!(&*input.ty, Type::Reference(reference) if reference.mutability.is_some()))
}
