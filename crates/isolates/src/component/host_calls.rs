//! The world's imports, answered by the invocation's [`Host`](crate::Host).

use bytes::Bytes;
use wasmtime::component::Resource;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

use super::ComponentState;
use super::bindings::{calls, context, guest_reply, messaging, objects, types};
use crate::event::Reply;
use crate::host::{HostError, HostFuture, LogLevel, PublishRequest};

type HostResult<T> = wasmtime::Result<Result<T, types::HostError>>;

/// A call of another function that is under way or answered.
pub struct PendingCall {
    state: CallState,
}

enum CallState {
    Running(HostFuture<Result<Reply, HostError>>),
    Answered(Result<Reply, HostError>),
    Taken,
}

#[async_trait::async_trait]
impl Pollable for PendingCall {
    async fn ready(&mut self) {
        if let CallState::Running(future) = &mut self.state {
            self.state = CallState::Answered(future.await);
        }
    }
}

impl types::Host for ComponentState {}

impl context::Host for ComponentState {
    fn log(&mut self, level: context::LogLevel, message: String) -> wasmtime::Result<()> {
        let level = match level {
            context::LogLevel::Trace => LogLevel::Trace,
            context::LogLevel::Debug => LogLevel::Debug,
            context::LogLevel::Info => LogLevel::Info,
            context::LogLevel::Warn => LogLevel::Warn,
            context::LogLevel::Error => LogLevel::Error,
        };
        // Lines of stdout and stderr first: the log keeps the order in which they were written.
        self.stdio.flush(self.host.as_mut());
        self.host.log(level, message);
        Ok(())
    }

    fn config(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.host.config(&key))
    }

    fn secret(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.host.secret(&name))
    }
}

impl messaging::Host for ComponentState {
    fn publish(
        &mut self,
        topic: String,
        payload: Vec<u8>,
        options: messaging::PublishOptions,
    ) -> HostResult<()> {
        let request = PublishRequest {
            topic,
            payload: payload.into(),
            qos: options.qos,
            retain: options.retain,
            content_type: options.content_type,
            response_topic: options.response_topic,
            correlation_data: options.correlation_data.map(Bytes::from),
            user_properties: options.user_properties,
        };
        Ok(self.host.publish(request).map_err(Into::into))
    }
}

impl calls::Host for ComponentState {
    fn call(&mut self, name: String, data: Vec<u8>) -> HostResult<Resource<PendingCall>> {
        match self.host.call(name, data.into()) {
            Ok(future) => Ok(Ok(self.table.push(PendingCall { state: CallState::Running(future) })?)),
            Err(error) => Ok(Err(error.into())),
        }
    }
}

impl calls::HostPendingCall for ComponentState {
    fn subscribe(&mut self, call: Resource<PendingCall>) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe(&mut self.table, call)
    }

    fn take(
        &mut self,
        call: Resource<PendingCall>,
    ) -> wasmtime::Result<Option<Result<types::Reply, types::HostError>>> {
        let pending = self.table.get_mut(&call)?;
        match std::mem::replace(&mut pending.state, CallState::Taken) {
            CallState::Answered(answer) => Ok(Some(answer.map(guest_reply).map_err(Into::into))),
            running => {
                pending.state = running;
                Ok(None)
            }
        }
    }

    fn drop(&mut self, call: Resource<PendingCall>) -> wasmtime::Result<()> {
        self.table.delete(call)?;
        Ok(())
    }
}

impl objects::Host for ComponentState {
    fn counter_add(&mut self, object: String, field: String, amount: i64) -> HostResult<()> {
        Ok(self.host.counter_add(&object, &field, amount).map_err(Into::into))
    }

    fn counter_value(&mut self, object: String, field: String) -> HostResult<i64> {
        Ok(self.host.counter_value(&object, &field).map_err(Into::into))
    }

    fn register_set(&mut self, object: String, field: String, value: Vec<u8>) -> HostResult<()> {
        Ok(self.host.register_set(&object, &field, value.into()).map_err(Into::into))
    }

    fn register_get(&mut self, object: String, field: String) -> HostResult<Option<Vec<u8>>> {
        let value = self.host.register_get(&object, &field);
        Ok(value.map(|value| value.map(Vec::from)).map_err(Into::into))
    }
}
