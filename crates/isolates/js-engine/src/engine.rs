//! The life of the engine: prelude, user modules, one invocation.

use std::cell::RefCell;

use edgefaas_js_abi::{self as abi, Answer, Invocation, Load, Loaded, Outcome, Reply, Source, Trigger};
use rquickjs::loader::{ImportAttributes, Loader, Resolver};
use rquickjs::module::Declared;
use rquickjs::promise::PromiseState;
use rquickjs::{
    CatchResultExt, CaughtError, Context, Ctx, Error, Function, Module, Object, Persistent, Runtime, Value,
};

use crate::boundary::{ReadOnce, Text};
use crate::convert::Sent;
use crate::{boundary, convert, groups, natives};

/// QuickJS counts its shadow stack only. A JavaScript call needs about as much of the native stack, of
/// which the node allows 512 KiB, so this keeps well below.
const MAX_STACK_BYTES: usize = 160 * 1024;

/// Room in the snapshot's heap, so that a small invocation never grows the memory.
const SPARE_HEAP_BYTES: usize = 1 << 20;

/// The first cycle collection of an invocation is due after this much allocation: collecting earlier
/// would only make the pages of the snapshot dirty.
const GC_HEADROOM_BYTES: usize = 4 << 20;

/// The text of a file of the prelude.
macro_rules! text {
    ($file:literal) => {{
        static TEXT: Text<{ include_bytes!($file).len() }> = Text::new(*include_bytes!($file));
        &TEXT
    }};
}

/// Prelude files in the order of evaluation. Each is an expression: a function of the natives object.
static PRELUDE: [(&str, &dyn ReadOnce); 12] = [
    ("console", text!("prelude/console.js")),
    ("errors", text!("prelude/errors.js")),
    ("encoding", text!("prelude/encoding.js")),
    ("lazy", text!("prelude/lazy.js")),
    ("url", text!("prelude/url.js")),
    ("headers", text!("prelude/headers.js")),
    ("body", text!("prelude/body.js")),
    ("http", text!("prelude/http.js")),
    ("fetch", text!("prelude/fetch.js")),
    ("clone", text!("prelude/clone.js")),
    ("runtime", text!("prelude/runtime.js")),
    ("dispatch", text!("prelude/dispatch.js")),
];

/// Evaluates a group's file.
pub fn evaluate_group<'js>(ctx: &Ctx<'js>, natives: &Object<'js>, name: &str) -> rquickjs::Result<()> {
    let evaluated = boundary::with_library(name, |text| evaluate_prelude(ctx, name, text, natives));
    evaluated.expect("the node has the text of each group")
}

struct Engine {
    runtime: Runtime,
    context: Context,
    /// `(kind) -> value or promise`: runs the handler.
    dispatch: Persistent<Function<'static>>,
    /// `(default export) -> whether it is a handler`.
    install: Persistent<Function<'static>>,
    /// The handler's promise while it is pending.
    pending: Option<Persistent<Value<'static>>>,
}

thread_local! {
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
}

/// Makes the runtime and evaluates the prelude.
pub fn init() {
    let runtime = Runtime::new().expect("room for the runtime");
    runtime.set_max_stack_size(MAX_STACK_BYTES);
    runtime.set_host_promise_rejection_tracker(Some(Box::new(natives::track_rejection)));
    let context = Context::full(&runtime).expect("room for the context");
    let (dispatch, install) = context.with(|ctx| {
        let natives = natives::object(&ctx).expect("the natives");
        for (name, source) in &PRELUDE {
            let evaluated = evaluate_prelude(&ctx, name, &source.take(), &natives);
            if let Err(error) = evaluated.catch(&ctx) {
                panic!("prelude {name}: {error}");
            }
        }
        natives::keep(&ctx, &natives).expect("the prelude defines what natives need");
        let function =
            |name: &str| Persistent::save(&ctx, natives.get::<_, Function<'_>>(name).expect("set"));
        (function("dispatch"), function("install"))
    });
    while runtime.is_job_pending() {
        let _ = runtime.execute_pending_job();
    }
    let engine = Engine { runtime, context, dispatch, install, pending: None };
    warm_up(&engine);
    ENGINE.set(Some(engine));
}

/// Runs handlers once, so that what QuickJS makes at first use is in the snapshot already.
fn warm_up(engine: &Engine) {
    let event = "(async (event) => {
        const request = new Request('http://h/p?q=1', { method: 'POST', body: '{}', headers: { a: 'b' } });
        new URL(request.url).searchParams.get('q');
        await request.json();
        Response.json({}).headers.get('a');
        return { value: event.json().value };
    })";
    let outcome = run_once(engine, Trigger::Call { caller: None }, event);
    assert_eq!(abi::decode(&outcome), Ok(Outcome::Done(Reply::Json(r#"{"value":1}"#))));
    let fetch = "({ async fetch(request) {
        const { method, url, headers } = request;
        new Response(method, { status: 200, headers: { a: headers.get('host') } }).headers.get('a');
        return new Response(new URL(url).pathname + (await request.text()));
    } })";
    let trigger =
        Trigger::Http { method: "POST", path: "/p", query: "q=1", headers: vec![("host", "localhost")] };
    let outcome = run_once(engine, trigger, fetch);
    let headers = vec![("content-type", "text/plain;charset=UTF-8")];
    let body = br#"/p{"value": 1}"#;
    assert_eq!(abi::decode(&outcome), Ok(Outcome::Done(Reply::Http { status: 200, headers, body })));
    engine.context.with(|ctx| natives::reset(&ctx));
}

fn run_once(engine: &Engine, trigger: Trigger<'static>, handler: &str) -> Vec<u8> {
    natives::begin(Invocation {
        id: "",
        function: "",
        deadline_unix_ms: 0,
        seed: 0,
        trigger,
        body: br#"{"value": 1}"#,
    });
    let outcome = engine.context.with(|ctx| {
        let run = || -> rquickjs::Result<Vec<u8>> {
            let handler: Value<'_> = ctx.eval(handler)?;
            engine.install.clone().restore(&ctx)?.call::<_, bool>((handler,))?;
            let value: Value<'_> = engine.dispatch.clone().restore(&ctx)?.call(())?;
            Ok(proceed(&ctx, value, &mut None))
        };
        run().catch(&ctx).map_err(|error| error.to_string()).expect("a handler runs")
    });
    natives::end();
    outcome
}

fn evaluate_prelude<'js>(
    ctx: &Ctx<'js>,
    name: &str,
    source: &str,
    natives: &Object<'js>,
) -> rquickjs::Result<()> {
    let file = format!("edgefaas:{name}");
    let factory: Function<'js> = if natives::is_running() {
        let mut options = rquickjs::context::EvalOptions::default();
        options.filename = Some(file);
        ctx.eval_with_options(source, options)?
    } else {
        // It stays in the snapshot.
        boundary::eval_without_text(ctx, source, &file)?.get()?
    };
    factory.call((natives.clone(),))
}

fn with_engine<R>(run: impl FnOnce(&mut Engine) -> R) -> R {
    ENGINE.with_borrow_mut(|engine| run(engine.as_mut().expect("engine_init came first")))
}

/// Evaluates the modules of a [`Load`]; gives a [`Loaded`].
pub fn load(message: &'static [u8]) -> Vec<u8> {
    let load: Load<'static> = abi::decode(message).expect("the host's messages can be decoded");
    natives::seed(load.seed);
    let entry = load.entry;
    let mentioned = groups::mentioned(&load.modules);
    let loaded = with_engine(|engine| {
        engine.context.with(|ctx| {
            for group in mentioned {
                natives::demand(&ctx, group).expect("room for the prelude");
            }
        });
        engine.runtime.set_loader(Graph(load.clone()), Graph(load));
        let loaded = engine.context.with(|ctx| evaluate(&ctx, entry, &engine.install));
        engine.runtime.run_gc();
        boundary::seal_heap(SPARE_HEAP_BYTES);
        let used = engine.runtime.memory_usage().malloc_size;
        engine.runtime.set_gc_threshold(usize::try_from(used).unwrap_or(0) + GC_HEADROOM_BYTES);
        loaded
    });
    abi::encode(&loaded).expect("replies can be encoded")
}

fn evaluate(ctx: &Ctx<'_>, entry: &str, install: &Persistent<Function<'static>>) -> Loaded {
    match try_evaluate(ctx, entry, install) {
        Ok(loaded) => loaded,
        Err(error) => Loaded::Failed(convert::thrown(CaughtError::from_error(ctx, error))),
    }
}

fn try_evaluate(
    ctx: &Ctx<'_>,
    entry: &str,
    install: &Persistent<Function<'static>>,
) -> rquickjs::Result<Loaded> {
    let promise = Module::import(ctx, entry)?;
    while ctx.execute_pending_job() {}
    let module: Object<'_> = match promise.result() {
        Some(module) => module?,
        None => return Ok(Loaded::NeverSettles),
    };
    let default: Value<'_> = module.get("default")?;
    let accepted: bool = install.clone().restore(ctx)?.call((default.clone(),))?;
    if accepted {
        return Ok(Loaded::Ready);
    }
    let exports = module.keys::<String>().collect::<rquickjs::Result<Vec<_>>>()?;
    let default = exports.iter().any(|name| name == "default").then(|| default.type_name().to_owned());
    Ok(Loaded::NoHandler { exports, default })
}

/// Resolves and loads out of the message; nothing else can be imported.
struct Graph(Load<'static>);

impl Graph {
    fn module(&self, path: &str) -> Option<&Source<'static>> {
        self.0.modules.iter().find(|module| module.path == path)
    }
}

impl Resolver for Graph {
    fn resolve<'js>(
        &mut self,
        _ctx: &Ctx<'js>,
        base: &str,
        name: &str,
        _attributes: Option<ImportAttributes<'js>>,
    ) -> rquickjs::Result<String> {
        if self.0.entry == name && self.module(base).is_none() {
            return Ok(name.to_owned());
        }
        let target = self.module(base).and_then(|module| {
            module.imports.iter().find(|(specifier, _)| *specifier == name).map(|(_, path)| *path)
        });
        let missing = "it was not deployed: its name was computed, or it belongs to another platform";
        target.map(str::to_owned).ok_or_else(|| Error::new_resolving_message(base, name, missing))
    }
}

impl Loader for Graph {
    fn load<'js>(
        &mut self,
        ctx: &Ctx<'js>,
        name: &str,
        _attributes: Option<ImportAttributes<'js>>,
    ) -> rquickjs::Result<Module<'js, Declared>> {
        let module = self.module(name).ok_or_else(|| Error::new_loading(name))?;
        let declared = Module::declare(ctx.clone(), module.path, module.code)?;
        declared.meta()?.set("url", format!("file:///{}", module.path))?;
        Ok(declared)
    }
}

/// Runs the handler with an [`Invocation`] until it has answered or waits; gives an [`Outcome`].
pub fn invoke(message: &'static [u8]) -> Vec<u8> {
    let invocation: Invocation<'static> = abi::decode(message).expect("the host's messages can be decoded");
    natives::begin(invocation);
    with_engine(|engine| {
        let Engine { context, dispatch, pending, .. } = engine;
        context.with(|ctx| {
            let value =
                dispatch.clone().restore(&ctx).and_then(|dispatch| dispatch.call::<_, Value<'_>>(()));
            match value {
                Ok(value) => proceed(&ctx, value, pending),
                Err(error) => failed(&ctx, error),
            }
        })
    })
}

/// Forgets the last invocation, so that another one can follow.
pub fn reset() {
    with_engine(|engine| {
        engine.pending = None;
        engine.context.with(|ctx| natives::reset(&ctx));
    });
}

/// Hands the answer for `ticket` to its promise; what follows runs with [`run_jobs`]. Keeps no reference to the message.
pub fn resolve(ticket: u32, message: &[u8]) {
    let answer: Answer<'_> = abi::decode(message).expect("the host's messages can be decoded");
    with_engine(|engine| {
        engine.context.with(|ctx| {
            if natives::settle(&ctx, ticket, &answer).is_err() {
                // Only memory can be short here; the promise stays pending and the host reports it.
                let _ = ctx.catch();
            }
        });
    });
}

/// Runs what can run; gives an [`Outcome`].
pub fn run_jobs() -> Vec<u8> {
    with_engine(|engine| {
        let Engine { context, pending, .. } = engine;
        context.with(|ctx| {
            let value = pending.take().map(|value| value.restore(&ctx));
            match value {
                Some(Ok(value)) => proceed(&ctx, value, pending),
                Some(Err(error)) => failed(&ctx, error),
                None => abi::encode(&Outcome::Pending).expect("replies can be encoded"),
            }
        })
    })
}

/// Runs jobs until `value` is settled and nothing is left to wait for, or until only the host can help.
fn proceed<'js>(
    ctx: &Ctx<'js>,
    value: Value<'js>,
    pending: &mut Option<Persistent<Value<'static>>>,
) -> Vec<u8> {
    while ctx.execute_pending_job() {}
    let settled = match value.as_promise() {
        None => Ok(value.clone()),
        Some(promise) => match promise.state() {
            PromiseState::Pending => return wait(ctx, value, pending),
            _ => promise.result::<Value<'js>>().expect("it is settled"),
        },
    };
    if natives::holds(ctx) {
        return wait(ctx, value, pending);
    }
    natives::report_rejections(ctx, &value);
    match settled.and_then(|answer| convert::outcome(ctx, answer)) {
        Ok(Sent::Now(outcome)) => outcome,
        Ok(Sent::Later(promise)) => proceed(ctx, promise, pending),
        Err(error) => failed(ctx, error),
    }
}

fn wait<'js>(
    ctx: &Ctx<'js>,
    value: Value<'js>,
    pending: &mut Option<Persistent<Value<'static>>>,
) -> Vec<u8> {
    *pending = Some(Persistent::save(ctx, value));
    abi::encode(&Outcome::Pending).expect("replies can be encoded")
}

fn failed(ctx: &Ctx<'_>, error: Error) -> Vec<u8> {
    let outcome = Outcome::Failed(convert::thrown(CaughtError::from_error(ctx, error)));
    abi::encode(&outcome).expect("replies can be encoded")
}
