//! WebAssembly components of the world in `wit/`: what Rust functions compile to.

mod bindings;
mod failure;
mod host_calls;
mod stdio;

use std::time::Instant;

use http::{HeaderName, HeaderValue};
use wasmtime::component::{Component, HasSelf, Linker, ResourceTable};
use wasmtime::{Engine, ResourceLimiter, Store};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::busy::{Busy, Counted, TimeUsed};
use crate::deadline::{self, DeadlinePassed};
use crate::event::{Event, Reply};
use crate::host::Host;
use crate::outcome::{Completion, InvocationMeta, Limits, RunError};
use stdio::LineLog;

/// A component that is linked and ready to be instantiated.
#[derive(Clone)]
pub struct ComponentProgram {
    pre: bindings::FunctionPre<ComponentState>,
}

/// Why a component can't be a function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComponentError {
    /// Neither a component nor a core module.
    #[error("{name} is not a WebAssembly component: it starts with {first_bytes:02x?}")]
    NotWasm {
        /// The file or function.
        name: String,
        /// What it starts with.
        first_bytes: Vec<u8>,
    },
    /// A core module.
    #[error(
        "{name} is a core WebAssembly module, not a component; \
         build it with `cargo build --target wasm32-wasip2`"
    )]
    CoreModule {
        /// The file or function.
        name: String,
    },
    /// Not valid.
    #[error("{name} is not valid WebAssembly: {reason}")]
    Invalid {
        /// The file or function.
        name: String,
        /// What the compiler says.
        reason: String,
    },
    /// The world's export is missing or of another type.
    #[error(
        "{name} does not export the function world's `handle`: {reason}; \
         use #[edgefaas::function], or build it for the world `edgefaas:function/function` in wit/"
    )]
    WrongWorld {
        /// The file or function.
        name: String,
        /// What the linker says.
        reason: String,
    },
    /// It imports what a node does not give.
    #[error("{name} imports what a function is not given: {reason}")]
    UnknownImport {
        /// The file or function.
        name: String,
        /// What the linker says.
        reason: String,
    },
}

/// Says whether `wasm` can be a component at all, before it is compiled.
pub fn check_header(name: &str, wasm: &[u8]) -> Result<(), ComponentError> {
    let name = name.to_owned();
    match wasm.get(..8) {
        Some([0, b'a', b's', b'm', _, _, 1, 0]) => Ok(()),
        Some([0, b'a', b's', b'm', _, _, 0, 0]) => Err(ComponentError::CoreModule { name }),
        _ => Err(ComponentError::NotWasm { name, first_bytes: wasm.iter().take(8).copied().collect() }),
    }
}

/// Links components and runs them.
pub struct ComponentRunner {
    engine: Engine,
    linker: Linker<ComponentState>,
}

impl ComponentRunner {
    /// Makes the linker with WASI and the world's imports.
    pub fn new(engine: &Engine) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        bindings::types::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::context::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::messaging::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::calls::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::objects::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        Ok(Self { engine: engine.clone(), linker })
    }

    /// Links a compiled component.
    pub fn prepare(&self, name: &str, component: &Component) -> Result<ComponentProgram, ComponentError> {
        let pre = self.linker.instantiate_pre(component).map_err(|error| {
            ComponentError::UnknownImport { name: name.to_owned(), reason: format!("{error:#}") }
        })?;
        let pre = bindings::FunctionPre::new(pre).map_err(|error| ComponentError::WrongWorld {
            name: name.to_owned(),
            reason: format!("{error:#}"),
        })?;
        Ok(ComponentProgram { pre })
    }

    /// Runs one invocation in a fresh instance. Dropping the future ends it.
    pub async fn run(
        &self,
        program: &ComponentProgram,
        meta: &InvocationMeta,
        event: Event,
        limits: Limits,
        host: Box<dyn Host>,
    ) -> Completion {
        let started = Instant::now();
        let deadline = started + limits.timeout;
        let mut store = Store::new(&self.engine, ComponentState::new(host, limits));
        store.limiter(|state| state);
        let busy = Busy::new(limits.cpu);
        deadline::arm(&mut store, deadline, busy.clone());

        let mut entered = started;
        let run = async {
            let instance = program.pre.instantiate_async(&mut store).await?;
            entered = Instant::now();
            let (meta, event) = (bindings::invocation(meta), bindings::event(event));
            instance.call_handle(&mut store, &meta, &event).await
        };
        // Boxed: the future is large, and every future around it would be moved with it.
        let run = Counted { busy: busy.clone(), run: Box::pin(run) };
        let result = deadline::limit(deadline, run).await;
        let ended = Instant::now();

        let state = store.data_mut();
        state.stdio.flush(state.host.as_mut());
        let result = match result {
            Ok(Ok(Ok(reply))) => check_reply(bindings::reply(reply), limits),
            Ok(Ok(Err(failure))) => {
                Err(RunError::Failed { message: failure.message, location: None, stack: None })
            }
            Ok(Err(error)) if error.is::<TimeUsed>() => Err(RunError::CpuTimeUsed { limit: limits.cpu }),
            Ok(Err(error)) if !error.is::<DeadlinePassed>() => {
                Err(failure::classify(&error, state, limits))
            }
            _ => Err(RunError::TimedOut { limit: limits.timeout }),
        };
        Completion {
            result,
            start: entered - started,
            execution: ended - entered,
            cpu: busy.spent(),
            memory_bytes: store.data().memory_bytes,
        }
    }
}

/// How many headers a response may have.
const MAX_HEADERS: usize = 256;

/// Holds a reply, in either language, against its limits and against what HTTP can carry: a status of 200
/// to 599 and at most 256 headers of valid names and values, whose size counts into `limits.reply_bytes`.
pub fn check_reply(reply: Reply, limits: Limits) -> Result<Reply, RunError> {
    let actual_bytes = match &reply {
        Reply::None => 0,
        Reply::Json(text) | Reply::Text(text) => text.len(),
        Reply::Bytes(bytes) => bytes.len(),
        Reply::Http(response) => {
            if !(200..=599).contains(&response.status) {
                let reason = format!("status {} is not between 200 and 599", response.status);
                return Err(RunError::InvalidReply { reason });
            }
            check_headers(&response.headers).map_err(|reason| RunError::InvalidReply { reason })?;
            let pairs = response.headers.iter();
            response.body.len() + pairs.map(|(name, value)| name.len() + value.len()).sum::<usize>()
        }
    };
    if actual_bytes > limits.reply_bytes {
        return Err(RunError::ReplyTooLarge { actual_bytes, limit_bytes: limits.reply_bytes });
    }
    Ok(reply)
}

/// The error says which header is wrong, without its value: that may be a secret.
fn check_headers(headers: &[(String, String)]) -> Result<(), String> {
    if headers.len() > MAX_HEADERS {
        return Err(format!("it has {} headers; the limit is {MAX_HEADERS}", headers.len()));
    }
    for (name, value) in headers {
        let shown: String = name.chars().take(100).collect();
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(format!("{shown:?} is not a valid header name"));
        }
        // RFC 9110, section 5.5: what is not ASCII has no agreed meaning.
        if HeaderValue::from_str(value).is_err() {
            return Err(format!(
                "the value of header {shown:?} holds a character that is not visible ASCII, space or tab; \
                 percent-encode it"
            ));
        }
    }
    Ok(())
}

/// What a component's store holds.
pub(crate) struct ComponentState {
    host: Box<dyn Host>,
    limits: Limits,
    /// Linear memory in use over all of its memories.
    memory_bytes: usize,
    /// It asked for more than it may have; the trap that follows is told by this.
    out_of_memory: bool,
    // Most invocations never touch WASI, and making its context is a good part of a small run.
    wasi: Option<WasiCtx>,
    table: ResourceTable,
    stdio: LineLog,
}

impl ComponentState {
    fn new(host: Box<dyn Host>, limits: Limits) -> Self {
        Self {
            host,
            limits,
            memory_bytes: 0,
            out_of_memory: false,
            wasi: None,
            table: ResourceTable::new(),
            stdio: LineLog::default(),
        }
    }
}

impl WasiView for ComponentState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let stdio = &self.stdio;
        let ctx = self.wasi.get_or_insert_with(|| {
            WasiCtx::builder().stdout(stdio.stdout()).stderr(stdio.stderr()).build()
        });
        WasiCtxView { ctx, table: &mut self.table }
    }
}

impl ResourceLimiter for ComponentState {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let total = self.memory_bytes - current.min(self.memory_bytes) + desired;
        if total > self.limits.memory_bytes {
            self.out_of_memory = true;
            return Ok(false);
        }
        self.memory_bytes = total;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= crate::engine::MAX_TABLE_ELEMENTS)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::event::HttpResponse;

    fn check(headers: Vec<(String, String)>) -> Result<Reply, RunError> {
        let response = HttpResponse { status: 200, headers, body: Bytes::from_static(b"body") };
        check_reply(Reply::Http(response), Limits { reply_bytes: 2000, ..Limits::default() })
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn headers_are_what_http_can_carry() {
        check(vec![header("X-A", "b"), header("x-a", ""), header("set-cookie", "a=1;\tb=2")]).unwrap();
        for (name, value) in
            [("", "v"), ("a b", "v"), ("a:", "v"), ("ä", "v"), ("x-cr", "a\r\nb: c"), ("x-nul", "\0")]
        {
            let error = check(vec![header(name, value)]).unwrap_err();
            assert!(
                matches!(&error, RunError::InvalidReply { reason } if reason.contains(name)),
                "{error:?}"
            );
        }
        check(vec![header("a", "b"); 256]).unwrap();
        let error = check(vec![header("a", "b"); 257]).unwrap_err();
        assert!(error.to_string().contains("257 headers"), "{error}");
    }

    #[test]
    fn headers_count_into_the_size() {
        let error = check(vec![header("name", &"v".repeat(1993))]).unwrap_err();
        assert_eq!(error, RunError::ReplyTooLarge { actual_bytes: 2001, limit_bytes: 2000 });
        check(vec![header("name", &"v".repeat(1992))]).unwrap();
    }
}
