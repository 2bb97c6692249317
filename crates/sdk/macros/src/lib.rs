//! The attribute macro of `edgefaas-sdk`; use it as `#[edgefaas::function]`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, FnArg, Ident, ItemFn, Type};

const EXPECTED: &str = "expected `fn NAME(event: Event, context: Context) -> REPLY`, \
    where `async` is possible, `context` may be left out, and REPLY is anything that implements `IntoReply`";

/// Exports a function of this crate to the node.
///
/// The function takes an `Event` and optionally a `Context`; it may be `async`. Its return type must
/// implement `IntoReply`. A crate has exactly one.
#[proc_macro_attribute]
pub fn function(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let item = TokenStream::from(item);
    expand(arguments.into(), item.clone())
        // The function stays, so that the compiler complains about nothing else.
        .unwrap_or_else(|error| [error.to_compile_error(), item].into_iter().collect())
        .into()
}

fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream, Error> {
    if !arguments.is_empty() {
        return Err(Error::new_spanned(arguments, "`#[edgefaas::function]` takes no arguments"));
    }
    let function: ItemFn = syn::parse2(item.clone()).map_err(|_| {
        Error::new_spanned(&item, format!("`#[edgefaas::function]` belongs on a function: {EXPECTED}"))
    })?;
    let types = parameters(&function)?;

    let name = &function.sig.ident;
    // With the span of the parameter's type, a mismatch is reported there. The names are ones that the user's
    // function, which is called from between them, does not have.
    let values = ["__edgefaas_event", "__edgefaas_context"].into_iter().zip(&types);
    let values = values.map(|(value, r#type)| Ident::new(value, r#type.span()));
    let reply = match &function.sig.output {
        syn::ReturnType::Default => name.span(),
        syn::ReturnType::Type(_, r#type) => r#type.span(),
    };
    let call = quote!(#name(#(#values),*));
    let call = match function.sig.asyncness {
        Some(_) => quote_spanned!(reply=> ::edgefaas::__private::reply_async(#call)),
        None => quote_spanned!(reply=> ::edgefaas::__private::reply(#call)),
    };
    Ok(quote! {
        #function

        // Compiled natively too, so that an editor and `cargo test` show the same errors.
        #[allow(unused_variables)]
        const _: ::edgefaas::__private::Handler = {
            fn __edgefaas_handle(
                __edgefaas_event: ::edgefaas::Event,
                __edgefaas_context: ::edgefaas::Context,
            ) -> ::edgefaas::__private::Handled {
                #call
            }
            #[cfg(target_arch = "wasm32")]
            ::edgefaas::__private::export_handler!(__edgefaas_handle);
            __edgefaas_handle
        };
    })
}

/// The types of the parameters; an error for other signatures.
fn parameters(function: &ItemFn) -> Result<Vec<&Type>, Error> {
    let signature = &function.sig;
    let wrong =
        |what: &str, at: &dyn quote::ToTokens| Error::new_spanned(at, format!("{what}: {EXPECTED}"));
    let is_safe = matches!(signature.safety, syn::Safety::Default);
    if signature.constness.is_some() || !is_safe || signature.abi.is_some() {
        return Err(wrong("the node can't call a const, unsafe or extern function", signature));
    }
    if !signature.generics.params.is_empty() {
        return Err(wrong("the node can't call a generic function", &signature.generics));
    }
    if signature.inputs.is_empty() {
        return Err(wrong("the function does not take the event", signature));
    }
    if let Some(third) = signature.inputs.iter().nth(2) {
        return Err(wrong("the function takes more than the event and the context", third));
    }
    let types = signature.inputs.iter().map(|input| match input {
        FnArg::Typed(typed) => Ok(&*typed.ty),
        FnArg::Receiver(receiver) => Err(wrong("the node can't call a method", receiver)),
    });
    types.collect()
}
