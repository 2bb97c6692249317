#![doc = include_str!("../README.md")]

#[cfg(all(target_arch = "wasm32", feature = "arena-allocator"))]
mod arena;
mod call;
mod context;
mod error;
mod event;
mod executor;
mod fetch;
mod host;
pub mod object;
mod reply;

pub use call::PendingCall;
pub use context::{ConfigError, Context, Log, Node, PublishOptions};
pub use edgefaas_sdk_macros::function;
pub use error::{Error, HostError};
pub use event::{
    CronTick, DirectCall, Event, HttpRequest, MqttMessage, ObjectChange, PayloadError, Trigger,
    WorkflowStep,
};
pub use fetch::{Fetched, PendingFetch, Redirect, Request};
#[cfg(not(target_arch = "wasm32"))]
pub use host::{Published, TestNode};
pub use object::{Counter, Object, Register};
pub use reply::{IntoPayload, IntoReply, Json, Reply, Response};

/// The usual imports of a function.
pub mod prelude {
    pub use log;

    pub use crate::{
        Context, Error, Event, HostError, IntoPayload, IntoReply, Json, PublishOptions, Reply, Response,
        Trigger,
    };
}

/// The expansion of `#[edgefaas::function]`; not for direct use.
#[doc(hidden)]
pub mod __private {
    use std::future::Future;

    #[cfg(target_arch = "wasm32")]
    pub use crate::__export_handler as export_handler;
    #[cfg(target_arch = "wasm32")]
    pub use crate::host::wasm::{bindings, run};
    use crate::{Context, Error, Event, IntoReply, Reply};

    pub type Handled = Result<Reply, Error>;
    pub type Handler = fn(Event, Context) -> Handled;

    pub fn reply(value: impl IntoReply) -> Handled {
        value.into_reply()
    }

    pub fn reply_async<R: IntoReply>(future: impl Future<Output = R>) -> Handled {
        crate::executor::block_on(future)?.into_reply()
    }
}

/// Exports a handler as the component's `handle`.
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_handler {
    ($handler:path) => {
        struct Component;

        impl $crate::__private::bindings::Guest for Component {
            fn handle(
                invocation: $crate::__private::bindings::Invocation,
                event: $crate::__private::bindings::Event,
            ) -> ::core::result::Result<$crate::__private::bindings::Reply, $crate::__private::bindings::Failure> {
                $crate::__private::run(invocation, event, $handler)
            }
        }

        $crate::__private::bindings::export!(Component with_types_in $crate::__private::bindings);
    };
}
