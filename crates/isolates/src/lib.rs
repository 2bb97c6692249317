//! WebAssembly isolates: every invocation runs in an instance of its own, made in microseconds from a
//! pool and dropped afterwards.
//!
//! This crate knows wasmtime, the function world in `wit/` and the JavaScript engine. It knows nothing
//! of brokers, HTTP, stores or manifests; a [`Host`] answers the calls of a function while it runs.

mod app_folder;
mod assets;
pub mod child_process;
mod code_cache;
pub mod compile;
pub mod component;
mod cpu_time;
mod deadline;
mod dirty_pages;
pub mod engine;
mod event;
mod guest_memory;
mod host;
mod image_modules;
pub mod js;
mod lane;
mod machine;
mod memory_image;
mod outcome;
mod pool;
mod program;
mod reply;
mod run_resources;
mod source;
mod start;
mod turns;
mod warm;

pub use app_folder::{AppFileError, AppFolder};
pub use assets::{Asset, AssetError, ReadAsset, ReadAssetError};
pub use code_cache::CacheFolder;
pub use compile::Compiler;
pub use event::{
    CronTick, DirectCall, Event, HttpRequest, HttpResponse, IncomingResponse, MqttMessage, ObjectChange,
    OutgoingRequest, Redirect, Reply, ResponseBody, StreamedResponse, Trigger, WorkflowStep,
};
pub use guest_memory::{GuestMemory, GuestMemoryReading};
pub use host::{
    Change, FetchCause, FetchError, FieldType, FieldValue, Host, HostError, HostFuture, LogLevel, NODE_KEY,
    PublishRequest, Read, SocketPermit, TcpPermission,
};
pub use machine::{LimitSource, Machine, MemoryLevel, MemoryLimit, PoolOverrides, ProcessMemory};
pub use outcome::{Completion, InternalError, InvocationMeta, Limits, RunError};
pub use pool::{Isolates, IsolatesConfig, PreparedFunction};
pub use program::{FunctionSource, PrepareError, Preparing, Program};
pub use source::{Module, ModuleGraph};
pub use start::{Admitted, Start, Usage};
pub use warm::Isolation;
