//! WebAssembly components: of the world in `wit/`, which Rust functions compile to, and of `wasi:http/proxy`.

mod bindings;
mod environment;
mod failure;
mod fields;
mod host_calls;
mod outgoing;
mod pending;
mod proxy;
mod sockets;
mod state;
mod stdio;
mod tcp;
mod wall_clock;

use std::sync::Arc;
use std::time::Instant;

use edgefaas_platform::Clock;
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Engine, Store};
use wasmtime_wasi::p2::bindings::cli::environment as wasi_environment;
use wasmtime_wasi::p2::bindings::clocks::wall_clock as wasi_wall_clock;
use wasmtime_wasi::p2::bindings::sockets::{ip_name_lookup, tcp_create_socket};
use wasmtime_wasi_http::p2::bindings::{Proxy, ProxyPre};

use crate::assets::AssetTable;
use crate::cpu_time::{Counted, TimeUsed};
use crate::deadline::{self, DeadlinePassed};
use crate::event::Event;
use crate::host::Host;
use crate::outcome::{Completion, InvocationMeta, Limits, RunError};
use crate::reply::check_reply;
use crate::run_resources::{Isolate, RunResources};
use state::ComponentState;

/// A component that is linked and ready to be instantiated.
#[derive(Clone)]
pub struct ComponentProgram {
    world: World,
    assets: Arc<AssetTable>,
}

/// The export that handles events.
#[derive(Clone)]
enum World {
    /// `handle` of the world in `wit/`.
    Function(bindings::FunctionPre<ComponentState>),
    /// `wasi:http/incoming-handler`.
    Proxy(ProxyPre<ComponentState>),
}

/// An instance of one of the two worlds.
enum Started {
    Function(bindings::Function),
    Proxy(Proxy),
}

/// An instance between two invocations.
pub(crate) struct WarmComponent {
    store: Store<ComponentState>,
    instance: Started,
}

/// A component cannot be a function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComponentError {
    /// Neither a component nor a core module.
    #[error("{name} is not a WebAssembly component: it starts with {first_bytes:02x?}")]
    NotWasm {
        /// The file or function.
        name: String,
        /// First bytes of the file.
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
    /// The WebAssembly is invalid.
    #[error("{name} is not valid WebAssembly: {reason}")]
    Invalid {
        /// The file or function.
        name: String,
        /// The error of the compiler.
        reason: String,
    },
    /// The export of either world is missing or of another type.
    #[error(
        "{name} is not a function: it exports neither `handle` of the world `edgefaas:function/function` ({reason}) nor \
         `wasi:http/incoming-handler` of the world `wasi:http/proxy` ({proxy_reason}); \
         use #[edgefaas::function], or build it for one of the two"
    )]
    WrongWorld {
        /// The file or function.
        name: String,
        /// The error of the linker.
        reason: String,
        /// The error for the other world.
        proxy_reason: String,
    },
    /// The component imports something that a node does not provide.
    #[error("{name} imports what a function is not given: {reason}")]
    UnknownImport {
        /// The file or function.
        name: String,
        /// The error of the linker.
        reason: String,
    },
}

/// Checks the header of `wasm`, before it is compiled.
///
/// # Errors
/// `CoreModule` or `NotWasm`.
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
    clock: Clock,
}

impl ComponentRunner {
    /// Makes the linker with WASI 0.2, wasi:http and the imports of the world in `wit/`.
    /// Components read the wall clock from `clock`.
    pub fn new(engine: &Engine, clock: Clock) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
        // These replace WASI's own: they ask the host, or the node's clock.
        linker.allow_shadowing(true);
        wasi_environment::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        wasi_wall_clock::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        ip_name_lookup::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        tcp_create_socket::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        linker.allow_shadowing(false);
        bindings::types::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::assets::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::context::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::messaging::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::calls::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::requests::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        bindings::objects::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        Ok(Self { engine: engine.clone(), linker, clock })
    }

    /// Links a compiled component, which has `assets` in its memory.
    pub(crate) fn prepare(
        &self,
        name: &str,
        component: &Component,
        assets: AssetTable,
    ) -> Result<ComponentProgram, ComponentError> {
        let pre = self.linker.instantiate_pre(component).map_err(|error| {
            ComponentError::UnknownImport { name: name.to_owned(), reason: format!("{error:#}") }
        })?;
        let world = match bindings::FunctionPre::new(pre.clone()) {
            Ok(pre) => World::Function(pre),
            Err(function) => match ProxyPre::new(pre) {
                Ok(pre) => World::Proxy(pre),
                Err(proxy) => {
                    return Err(ComponentError::WrongWorld {
                        name: name.to_owned(),
                        reason: format!("{function:#}"),
                        proxy_reason: format!("{proxy:#}"),
                    });
                }
            },
        };
        Ok(ComponentProgram { world, assets: Arc::new(assets) })
    }

    /// Runs one invocation. Returns the instance if `resources.keep` and it may have another invocation: it has answered, and
    /// no call or request of it is in flight. Dropping the future ends the run and the instance.
    pub(crate) async fn run(
        &self,
        program: &ComponentProgram,
        resources: RunResources<WarmComponent>,
        meta: &InvocationMeta,
        event: Event,
        limits: Limits,
        host: Box<dyn Host>,
    ) -> (Completion, Option<Box<WarmComponent>>) {
        let started = Instant::now();
        let deadline = started + limits.timeout;
        let RunResources { isolate, keep, cpu_time } = resources;
        let was_warm = matches!(isolate, Isolate::Warm(_));
        let (mut store, mut instance) = match isolate {
            Isolate::Warm(warm) => {
                let WarmComponent { mut store, instance } = *warm;
                store.data_mut().renew(host, limits);
                (store, Some(instance))
            }
            Isolate::New(reservation) => {
                let state = ComponentState::new(
                    meta.function.clone(),
                    host,
                    limits,
                    program.assets.clone(),
                    reservation,
                    self.clock.clone(),
                );
                let mut store = Store::new(&self.engine, state);
                store.limiter(|state| state);
                (store, None)
            }
        };
        deadline::arm(&mut store, deadline, cpu_time.clone());

        let mut entered = started;
        let run = async {
            if instance.is_none() {
                instance = Some(match &program.world {
                    World::Function(pre) => Started::Function(pre.instantiate_async(&mut store).await?),
                    World::Proxy(pre) => Started::Proxy(pre.instantiate_async(&mut store).await?),
                });
                entered = Instant::now();
            }
            match &instance {
                Some(Started::Function(instance)) => {
                    let (meta, event) = (bindings::invocation(meta), bindings::event(event));
                    let answer = instance.call_handle(&mut store, &meta, &event).await?;
                    Ok(answer.map(bindings::reply).map_err(|failure| RunError::Failed {
                        message: failure.message,
                        location: None,
                        stack: None,
                    }))
                }
                // Boxed apart, so that the future of the other world is not as large.
                Some(Started::Proxy(instance)) => {
                    Box::pin(proxy::handle(&mut store, instance, meta, event, limits)).await
                }
                None => wasmtime::bail!("there is no instance"),
            }
        };
        // Boxed: the future is large, and every future around it would be moved with it.
        let run = Counted::new(cpu_time.clone(), Box::pin(run));
        let result = deadline::limit(deadline, run).await;
        let ended = Instant::now();

        let state = store.data_mut();
        state.flush_stdio();
        // Other results did not come from the function.
        let answered = matches!(&result, Ok(Ok(Ok(_) | Err(RunError::Failed { .. }))));
        let result = match result {
            Ok(Ok(answer)) => answer.and_then(|reply| check_reply(reply, limits)),
            Ok(Err(error)) if error.is::<TimeUsed>() => Err(RunError::CpuTimeUsed { limit: limits.cpu }),
            Ok(Err(error)) if !error.is::<DeadlinePassed>() => {
                Err(failure::classify(&error, state, limits))
            }
            _ => Err(RunError::TimedOut { limit: limits.timeout }),
        };
        let memory_bytes = state.memory_bytes.saturating_sub(program.assets.memory_bytes);
        let completion = Completion {
            result,
            start: entered - started,
            execution: ended - entered,
            cpu: cpu_time.spent(),
            memory_bytes,
            warm: was_warm,
        };
        // An instance near its limit would fail for memory that earlier invocations have left in it.
        let may_stay = keep && answered && state.is_idle() && memory_bytes <= limits.memory_bytes / 4 * 3;
        let kept = instance.filter(|_| may_stay).map(|instance| {
            store.data_mut().retire(memory_bytes);
            Box::new(WarmComponent { store, instance })
        });
        (completion, kept)
    }
}
