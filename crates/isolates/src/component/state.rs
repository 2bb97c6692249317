//! What a component's store holds.

use std::sync::Arc;

use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::outgoing::Outgoing;
use super::sockets::TcpAccess;
use super::stdio::LineLog;
use crate::assets::AssetTable;
use crate::guest_memory::Reservation;
use crate::host::Host;
use crate::outcome::Limits;

/// Streams, requests, headers and whatever else of the host's a component may hold at once: each takes memory that its own
/// limit does not count.
pub(super) const MAX_RESOURCES: usize = 4096;
/// What the headers of one request or response may take.
const MAX_FIELD_BYTES: usize = 64 << 10;

/// The state of one invocation.
pub(crate) struct ComponentState {
    /// The function's name.
    pub(super) function: String,
    /// The host, and what it sends over wasi:http.
    pub(super) outgoing: Outgoing,
    pub(super) limits: Limits,
    /// What lies in its memory beside its own.
    pub(super) assets: Arc<AssetTable>,
    /// Linear memory in use over all of its memories, assets included.
    pub(super) memory_bytes: usize,
    /// It asked for more than it may have; the trap that follows is told by this.
    pub(super) out_of_memory: bool,
    /// Its part of the memory of all isolates.
    pub(super) reservation: Reservation,
    // Most invocations never touch WASI, and making its context is a good part of a small run.
    wasi: Option<WasiCtx>,
    http: WasiHttpCtx,
    pub(super) tcp: TcpAccess,
    pub(super) table: ResourceTable,
    pub(super) stdio: LineLog,
    /// Calls and requests that the component has not taken leave of.
    pub(super) open_calls: usize,
}

impl ComponentState {
    pub(super) fn new(
        function: String,
        host: Box<dyn Host>,
        limits: Limits,
        assets: Arc<AssetTable>,
        reservation: Reservation,
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
            wasi: None,
            http,
            tcp: TcpAccess::default(),
            table,
            stdio: LineLog::default(),
            open_calls: 0,
        }
    }

    /// The invocation is over: nobody answers any more, and the instance waits with `memory_bytes` of its own.
    pub(super) fn retire(&mut self, memory_bytes: usize) {
        self.outgoing.retire();
        self.reservation.rest(memory_bytes);
    }

    /// Another invocation of the same instance begins.
    pub(super) fn renew(&mut self, host: Box<dyn Host>, limits: Limits) {
        self.outgoing.renew(host, limits.memory_bytes);
        self.limits = limits;
        // Made anew for the first who asks: what may be reached is the host's to say.
        (self.wasi, self.tcp) = (None, TcpAccess::default());
    }

    /// Whether nothing that the last invocation began is still under way.
    pub(super) fn is_idle(&self) -> bool {
        self.open_calls == 0 && self.outgoing.is_idle()
    }

    /// Who answers the function's calls.
    pub(super) fn host(&mut self) -> &mut dyn Host {
        self.outgoing.host()
    }

    /// Hands what was written to stdout and stderr to the log.
    pub(super) fn flush_stdio(&mut self) {
        self.stdio.flush(self.outgoing.host());
    }
}

impl WasiView for ComponentState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        // Environment and arguments are answered by `environment`, names by `sockets`: they need the host.
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
