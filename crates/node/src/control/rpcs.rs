//! Implements the trait of a gRPC service by the methods of a type.
//!
//! `tonic::async_trait` alone would do. But it gives each method a bound `Self: 'async_trait`, and beside such a bound the compiler
//! remembers nothing of what it has proved about the node's state: that each future is `Send` was proved anew in each of 56 methods, which
//! took nine tenths of the time of checking this crate. Here each future is made in a function without bounds.

use std::pin::Pin;

use futures_util::Stream;
use tonic::{Response, Status};

/// What a method answers.
pub(super) type Answer<T> = Result<Response<T>, Status>;

/// A stream of messages to the client.
pub(super) type Flow<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Implements `$trait` for `$service`, of which a clone is cheap, by its methods of the same names. `streams` are the trait's types of
/// streams with their items, and each line is `method(request) -> answer`.
macro_rules! serve_rpcs {
    (
        $trait:ident for $service:ident, streams [$($stream:ident: $item:ty),*];
        $($method:ident($request:ty) -> $answer:ty;)*
    ) => {
        impl $trait for $service {
            $(type $stream = $crate::control::rpcs::Flow<$item>;)*

            $(
                fn $method<'life0, 'async_trait>(
                    &'life0 self,
                    request: tonic::Request<$request>,
                ) -> futures_util::future::BoxFuture<'async_trait, $crate::control::rpcs::Answer<$answer>>
                where
                    'life0: 'async_trait,
                    Self: 'async_trait,
                {
                    fn answer(
                        service: $service,
                        request: tonic::Request<$request>,
                    ) -> futures_util::future::BoxFuture<'static, $crate::control::rpcs::Answer<$answer>> {
                        Box::pin(async move { $service::$method(&service, request).await })
                    }
                    answer(self.clone(), request)
                }
            )*
        }
    };
}
pub(super) use serve_rpcs;
