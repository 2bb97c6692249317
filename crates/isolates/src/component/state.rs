//! The state in the store of a component.

use std::sync::Arc;

use edgefaas_platform::Clock;
use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::outgoing::Outgoing;
use super::stdio::LineLog;
use super::tcp::TcpAccess;
use crate::assets::AssetTable;
use crate::guest_memory::Reservation;
use crate::host::Host;
use crate::outcome::Limits;

/// The maximum of streams, requests, headers and other resources of the host that a component holds at once: they take
/// memory that its own limit does not count.
pub(super) const MAX_RESOURCES: usize = 4096;
/// The maximum of the headers of one request or response, in bytes.
const MAX_FIELD_BYTES: usize = 64 << 10;

/// The state of one invocation.
pub(crate) struct ComponentState {
    /// The function's name.
    pub(super) function: String,
    /// The host, and requests to it over wasi:http.
    pub(super) outgoing: Outgoing,
    pub(super) limits: Limits,
    /// The assets in its memory.
    pub(super) assets: Arc<AssetTable>,
    /// Linear memory in use over all of its memories, assets included.
    pub(super) memory_bytes: usize,
    /// True if the component requested more memory than its limit, which explains the trap that follows.
    pub(super) out_of_memory: bool,
    /// The isolate's part of the memory of all isolates.
    pub(super) reservation: Reservation,
    /// The wall clock that it reads.
    pub(super) clock: Clock,
    // Most invocations never touch WASI, and making its context is a good part of a small run.
    wasi: Option<WasiCtx>,
    http: WasiHttpCtx,
    pub(super) tcp: TcpAccess,
    pub(super) table: ResourceTable,
    pub(super) stdio: LineLog,
    /// Calls and requests that the component has not dropped.
    pub(super) open_calls: usize,
}

impl ComponentState {
    pub(super) fn new(
        function: String,
        host: Box<dyn Host>,
        limits: Limits,
        assets: Arc<AssetTable>,
        reservation: Reservation,
        clock: Clock,
    ) -> Self {
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(MAX_FIELD_BYTES);
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        Self {
            function,
            outgoing: Outgoing::new(host, limits.memory_bytes),
            limits,
            assets,
            memory_bytes: 0,
            out_of_memory: false,
            reservation,
            clock,
            wasi: None,
            http,
            tcp: TcpAccess::default(),
            table,
            stdio: LineLog::default(),
            open_calls: 0,
        }
    }

    /// Ends the invocation: the host is dropped, and the idle instance keeps `memory_bytes` of linear memory.
    pub(super) fn retire(&mut self, memory_bytes: usize) {
        self.outgoing.retire();
        self.reservation.shrink_to_idle(memory_bytes);
    }

    /// Begins another invocation of the same instance.
    pub(super) fn renew(&mut self, host: Box<dyn Host>, limits: Limits) {
        self.outgoing.renew(host, limits.memory_bytes);
        self.limits = limits;
        // Made again when it is needed: the new host has its own permissions.
        (self.wasi, self.tcp) = (None, TcpAccess::default());
    }

    /// True if no call or request of the last invocation is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.open_calls == 0 && self.outgoing.is_idle()
    }

    /// The host of the invocation.
    pub(super) fn host(&mut self) -> &mut dyn Host {
        self.outgoing.host()
    }

    /// Moves buffered stdout and stderr, and lines about responses, to the log.
    pub(super) fn flush_stdio(&mut self) {
        self.stdio.flush(self.outgoing.host());
        self.outgoing.flush_log();
    }
}

impl WasiView for ComponentState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        // `environment` answers environment and arguments, `sockets` names, `wall_clock` the time of day.
        let ctx = self.wasi.get_or_insert_with(|| {
            let mut wasi = WasiCtx::builder();
            wasi.stdout(self.stdio.stdout()).stderr(self.stdio.stderr());
            // Random bytes are made outside before they are copied into the memory that is limited.
            wasi.max_random_size(self.limits.memory_bytes as u64);
            self.tcp.grant(self.outgoing.host(), &mut wasi);
            wasi.build()
        });
        WasiCtxView { ctx, table: &mut self.table }
    }
}

impl WasiHttpView for ComponentState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.outgoing, table: &mut self.table, ctx: &mut self.http }
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
        if total > self.limits.memory_bytes + self.assets.memory_bytes {
            self.out_of_memory = true;
            return Ok(false);
        }
        // Assets are mapped from a file that all instances share.
        if !self.reservation.cover(total.saturating_sub(self.assets.memory_bytes)) {
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
