//! The functions that are measured: echo over MQTT and hello over HTTP, in both languages, and one that waits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};
use bytes::Bytes;
use edgefaas_isolates::{
    Change, DirectCall, Event, FetchError, FieldValue, FunctionSource, Host, HostError, HostFuture,
    IncomingResponse, InvocationMeta, Isolation, Limits, LogLevel, Module, ModuleGraph, OutgoingRequest,
    Preparing, PublishRequest, Read, Reply, SocketPermit, StreamedResponse, TcpPermission, Trigger,
};

use crate::{repository, target_folder};

/// The JavaScript function.
pub const ECHO_JS: &str = include_str!("../guests/echo.js");

/// A JavaScript function that computes.
pub const COMPUTE_JS: &str = include_str!("../guests/compute.js");

/// A greeting in the form that workerd runs as well.
pub const WORKER_JS: &str = include_str!("../guests/worker.js");

/// A Hono app in the form that workerd runs as well.
pub const HONO_JS: &str = include_str!("../guests/hono.js");

/// A JavaScript function that answers after `?ms=` milliseconds.
pub const WAIT_JS: &str = include_str!("../guests/wait.js");

/// A JavaScript function that works on stateful objects.
pub const OBJECTS_JS: &str = include_str!("../guests/objects.js");

/// A Rust function of `guests/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    /// The Rust function, with the SDK.
    Echo,
    /// A greeting in `wasi:http/proxy`.
    Proxy,
    /// Answers after `?ms=` milliseconds; with the SDK.
    Wait,
    /// Works on stateful objects, or on a hash of Redis; with the SDK.
    Objects,
    /// Reads a property of a document in Redis; with the SDK.
    Document,
    /// Computes; with the SDK.
    Compute,
    /// A step of a chain; with the SDK.
    Step,
}

impl Guest {
    fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Proxy => "proxy",
            Self::Wait => "wait",
            Self::Objects => "objects",
            Self::Document => "document",
            Self::Compute => "compute",
            Self::Step => "step",
        }
    }

    /// Builds it with cargo and gives the component's path.
    pub fn build(self) -> anyhow::Result<PathBuf> {
        let name = self.name();
        let target = target_folder().join("guest");
        let status = Command::new("cargo")
            .args(["build", "--release", "--quiet", "--target", "wasm32-wasip2"])
            .current_dir(repository().join("benches/guests").join(name))
            .env("CARGO_TARGET_DIR", &target)
            .status()
            .context("cargo cannot be started")?;
        if !status.success() {
            bail!("benches/guests/{name} could not be built: cargo ended with {status}");
        }
        Ok(target.join("wasm32-wasip2/release").join(format!("{name}.wasm")))
    }
}

/// The Rust function as a source for `Isolates`.
pub fn rust_source() -> anyhow::Result<FunctionSource> {
    Ok(FunctionSource::Component(std::fs::read(Guest::Echo.build()?)?.into()))
}

/// The JavaScript function as a source for `Isolates`.
pub fn js_source() -> FunctionSource {
    let module = Module { path: "echo.js".into(), source: ECHO_JS.into(), imports: Vec::new() };
    FunctionSource::JavaScript(ModuleGraph { entry: "echo.js".into(), modules: vec![module] })
}

/// How a source is prepared: with the default limits, in fresh isolates.
pub fn wanted(source: &FunctionSource) -> Preparing<'_> {
    Preparing {
        name: "echo",
        owner: "echo",
        source,
        assets: &[],
        memory_bytes: Limits::default().memory_bytes,
        isolation: Isolation::Fresh,
        anew: true,
    }
}

/// An event with a payload, as a call.
pub fn call(payload: Bytes) -> Event {
    Event { trigger: Trigger::Call(DirectCall::default()), body: payload }
}

/// The facts of an invocation that nobody looks at.
pub fn meta() -> InvocationMeta {
    let id = "01JBENCH000000000000000000".to_owned();
    InvocationMeta { id, function: "echo".into(), deadline_unix_ms: 1_900_000_000_000 }
}

/// A host without anything; what is measured never asks it.
#[derive(Debug, Clone, Copy)]
pub struct NoHost;

fn nothing<T>() -> Result<T, HostError> {
    Err(HostError::NotPermitted("the benchmarks' host has nothing".into()))
}

impl Host for NoHost {
    fn publish(&mut self, _: PublishRequest) -> Result<(), HostError> {
        nothing()
    }

    fn call(&mut self, _: String, _: Bytes) -> Result<HostFuture<Result<Reply, HostError>>, HostError> {
        nothing()
    }

    fn fetch(
        &mut self,
        _: OutgoingRequest,
    ) -> Result<HostFuture<Result<IncomingResponse, HostError>>, HostError> {
        nothing()
    }

    fn fetch_streamed(
        &mut self,
        _: OutgoingRequest,
        _: HostFuture<Result<Bytes, HostError>>,
    ) -> Result<HostFuture<Result<StreamedResponse, FetchError>>, HostError> {
        nothing()
    }

    fn tcp(&mut self) -> Option<TcpPermission> {
        None
    }

    fn socket(&mut self) -> Result<SocketPermit, HostError> {
        nothing()
    }

    fn resolve(&mut self, _: &str) -> Result<HostFuture<Result<Vec<SocketAddr>, HostError>>, HostError> {
        nothing()
    }

    fn counter_add(&mut self, _: &str, _: &str, _: i64) -> Result<(), HostError> {
        nothing()
    }

    fn counter_value(&mut self, _: &str, _: &str) -> Result<i64, HostError> {
        nothing()
    }

    fn register_set(&mut self, _: &str, _: &str, _: Bytes) -> Result<(), HostError> {
        nothing()
    }

    fn register_get(&mut self, _: &str, _: &str) -> Result<Option<Bytes>, HostError> {
        nothing()
    }

    fn object_change(&mut self, _: &str, _: &str, _: &[&str], _: Change<'_>) -> Result<(), HostError> {
        nothing()
    }

    fn object_read(&mut self, _: &str, _: &str, _: &[&str], _: Read<'_>) -> Result<FieldValue, HostError> {
        nothing()
    }

    fn object_delete(&mut self, _: &str, _: Option<&str>) -> Result<(), HostError> {
        nothing()
    }

    fn log(&mut self, _: LogLevel, _: String) {}

    fn config(&mut self, _: &str) -> Option<String> {
        None
    }

    fn config_keys(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn secret(&mut self, _: &str) -> Option<String> {
        None
    }

    fn secret_names(&mut self) -> Vec<String> {
        Vec::new()
    }
}
