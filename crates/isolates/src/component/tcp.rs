//! The TCP permission of an invocation, as WASI checks it.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::sockets::SocketAddrUse;

use crate::host::{Host, SocketPermit};

/// The maximum of sockets that one invocation makes, closed ones included.
const MAX_SOCKETS: usize = 64;

/// The TCP permission of one invocation.
#[derive(Default)]
pub(super) struct TcpAccess {
    /// Addresses of the names that were looked up.
    open: Arc<Mutex<Vec<SocketAddr>>>,
    /// True if the function may open connections at all.
    is_granted: bool,
    sockets: Vec<SocketPermit>,
}

impl TcpAccess {
    /// True if the function may open connections at all.
    pub fn is_granted(&self) -> bool {
        self.is_granted
    }

    /// True if the invocation has made as many sockets as it may.
    pub fn is_full(&self) -> bool {
        self.sockets.len() >= MAX_SOCKETS
    }

    /// Counts a socket.
    pub fn add_socket(&mut self, permit: SocketPermit) {
        self.sockets.push(permit);
    }

    /// Addresses of the names that were looked up, to which more are added.
    pub fn open_addresses(&self) -> Arc<Mutex<Vec<SocketAddr>>> {
        self.open.clone()
    }

    /// Gives WASI the permission. Without one the function has no sockets.
    pub fn grant(&mut self, host: &mut dyn Host, wasi: &mut WasiCtxBuilder) {
        let Some(permitted) = host.tcp() else { return };
        self.is_granted = true;
        let open = self.open.clone();
        wasi.allow_tcp(true).allow_udp(false).socket_addr_check(move |address, what| {
            let is_permitted = match what {
                SocketAddrUse::TcpConnect => {
                    let address = canonical(address);
                    permitted(address) || open.lock().contains(&address)
                }
                // The system chooses the port that a connection starts from.
                SocketAddrUse::TcpBind => address.ip().is_unspecified() && address.port() == 0,
                _ => false,
            };
            Box::pin(std::future::ready(is_permitted))
        });
    }
}

/// The address with IPv4 in its own form only.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
