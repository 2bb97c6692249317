//! The world's imports, answered by the invocation's [`Host`](crate::Host).

use bytes::Bytes;
use wasmtime::component::Resource;
use wasmtime_wasi::p2::{DynPollable, subscribe};

use super::bindings::{
    assets, calls, context, guest_reply, guest_response, messaging, objects, outgoing_request, requests,
    types,
};
use super::fields::{field_change, field_type, guest_keys, guest_share, guest_value};
use super::pending::{Pending, PendingCall, PendingResponse};
use super::state::ComponentState;
use crate::host::{FieldType, FieldValue, HostError, LogLevel, PublishRequest, Read, read_object};

type HostResult<T> = wasmtime::Result<Result<T, types::HostError>>;

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
        self.flush_stdio();
        self.host().log(level, message);
        Ok(())
    }

    fn config(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.host().config(&key))
    }

    fn secret(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.host().secret(&name))
    }
}

impl assets::Host for ComponentState {
    fn locate(&mut self, name: String) -> wasmtime::Result<Option<assets::Region>> {
        let found = self.assets.find(&name);
        Ok(found.map(|(address, length)| assets::Region { address, length }))
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
        Ok(self.host().publish(request).map_err(Into::into))
    }
}

impl calls::Host for ComponentState {
    fn call(&mut self, name: String, data: Vec<u8>) -> HostResult<Resource<PendingCall>> {
        match self.host().call(name, data.into()) {
            Ok(future) => {
                self.open_calls += 1;
                Ok(Ok(self.table.push(Pending::Running(future))?))
            }
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
        let answer = self.table.get_mut(&call)?.take();
        Ok(answer.map(|answer| answer.map(guest_reply).map_err(Into::into)))
    }

    fn drop(&mut self, call: Resource<PendingCall>) -> wasmtime::Result<()> {
        self.table.delete(call)?;
        self.open_calls -= 1;
        Ok(())
    }
}

impl requests::Host for ComponentState {
    fn fetch(&mut self, request: requests::Request) -> HostResult<Resource<PendingResponse>> {
        match self.host().fetch(outgoing_request(request)) {
            // Sent now, whichever of several requests the component waits for first.
            Ok(future) => {
                let future = Box::pin(wasmtime_wasi::runtime::spawn(future));
                self.open_calls += 1;
                Ok(Ok(self.table.push(Pending::Running(future))?))
            }
            Err(error) => Ok(Err(error.into())),
        }
    }
}

impl requests::HostPendingResponse for ComponentState {
    fn subscribe(&mut self, pending: Resource<PendingResponse>) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe(&mut self.table, pending)
    }

    fn take(
        &mut self,
        pending: Resource<PendingResponse>,
    ) -> wasmtime::Result<Option<Result<requests::Response, types::HostError>>> {
        let answer = self.table.get_mut(&pending)?.take();
        Ok(answer.map(|answer| answer.map(guest_response).map_err(Into::into)))
    }

    fn drop(&mut self, pending: Resource<PendingResponse>) -> wasmtime::Result<()> {
        self.table.delete(pending)?;
        self.open_calls -= 1;
        Ok(())
    }
}

impl objects::Host for ComponentState {
    fn counter_add(&mut self, object: String, field: String, amount: i64) -> HostResult<()> {
        Ok(self.host().counter_add(&object, &field, amount).map_err(Into::into))
    }

    fn counter_value(&mut self, object: String, field: String) -> HostResult<i64> {
        Ok(self.host().counter_value(&object, &field).map_err(Into::into))
    }

    fn register_set(&mut self, object: String, field: String, value: Vec<u8>) -> HostResult<()> {
        Ok(self.host().register_set(&object, &field, value.into()).map_err(Into::into))
    }

    fn register_get(&mut self, object: String, field: String) -> HostResult<Option<Vec<u8>>> {
        let value = self.host().register_get(&object, &field);
        Ok(value.map(|value| value.map(Vec::from)).map_err(Into::into))
    }

    fn change(
        &mut self,
        object: String,
        field: String,
        path: Vec<String>,
        change: objects::FieldChange,
    ) -> HostResult<()> {
        let change = field_change(&change);
        Ok(self.host().object_change(&object, &field, &keys(&path), change).map_err(Into::into))
    }

    fn read(
        &mut self,
        object: String,
        field: String,
        path: Vec<String>,
        kind: objects::FieldType,
    ) -> HostResult<objects::FieldValue> {
        let read = Read::Value(field_type(kind));
        let value = read_object(self.host(), &object, &field, &keys(&path), read);
        Ok(value.and_then(guest_value).map_err(Into::into))
    }

    fn contains(
        &mut self,
        object: String,
        field: String,
        path: Vec<String>,
        kind: objects::FieldType,
        element: Vec<u8>,
    ) -> HostResult<bool> {
        let field_type = field_type(kind);
        if !matches!(field_type, FieldType::GSet | FieldType::Set) {
            let error = HostError::Invalid(format!("a {field_type} has no elements to look for"));
            return Ok(Err(error.into()));
        }
        let read = Read::Contains { field_type, element: &element };
        let value = read_object(self.host(), &object, &field, &keys(&path), read);
        Ok(value.map(|value| value == FieldValue::Flag(true)).map_err(Into::into))
    }

    fn map_keys(
        &mut self,
        object: String,
        field: String,
        path: Vec<String>,
    ) -> HostResult<Vec<(String, objects::FieldType)>> {
        let value = read_object(self.host(), &object, &field, &keys(&path), Read::MapKeys);
        Ok(value.and_then(guest_keys).map_err(Into::into))
    }

    fn bounded_counter_share(
        &mut self,
        object: String,
        field: String,
        path: Vec<String>,
    ) -> HostResult<u64> {
        let value = read_object(self.host(), &object, &field, &keys(&path), Read::Share);
        Ok(value.and_then(guest_share).map_err(Into::into))
    }

    fn delete_field(&mut self, object: String, field: String) -> HostResult<()> {
        Ok(self.host().object_delete(&object, Some(&field)).map_err(Into::into))
    }

    fn delete_object(&mut self, object: String) -> HostResult<()> {
        Ok(self.host().object_delete(&object, None).map_err(Into::into))
    }
}

fn keys(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}
