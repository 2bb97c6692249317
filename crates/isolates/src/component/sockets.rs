//! `wasi:sockets`: TCP connections to the servers that the host permits, and nothing else.
//!
//! The host looks up names, and answers for permitted ones only. A function may connect to the addresses in these answers,
//! and to the addresses that are permitted as such: a name that resolves to another address later opens nothing.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use wasmtime::component::Resource;
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{self, ResolveAddressStream};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::{network, tcp_create_socket};
use wasmtime_wasi::p2::{DynPollable, Pollable, SocketError, SocketResult, TcpSocket, subscribe};
use wasmtime_wasi::sockets::WasiSocketsView;

use super::state::ComponentState;
use super::tcp::canonical;
use crate::host::{HostError, HostFuture, LogLevel};

impl network::Host for ComponentState {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        network::Host::network_error_code(&mut self.sockets(), error)
    }
}

impl network::HostNetwork for ComponentState {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        network::HostNetwork::drop(&mut self.sockets(), network)
    }
}

impl tcp_create_socket::Host for ComponentState {
    fn create_tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        if self.tcp.is_full() {
            return Err(ErrorCode::NewSocketLimit.into());
        }
        // Makes the context, which has no sockets without a permission.
        self.sockets();
        if self.tcp.is_granted() {
            match self.host().socket() {
                Ok(permit) => self.tcp.add_socket(permit),
                Err(error) => {
                    self.host().log(LogLevel::Warn, format!("wasi:sockets: {error}"));
                    return Err(ErrorCode::NewSocketLimit.into());
                }
            }
        }
        tcp_create_socket::Host::create_tcp_socket(&mut self.sockets(), family)
    }
}

/// A lookup of a name.
struct Lookup {
    state: LookupState,
    open: Arc<Mutex<Vec<SocketAddr>>>,
}

enum LookupState {
    Running(HostFuture<Result<Vec<SocketAddr>, HostError>>),
    Done(Result<std::vec::IntoIter<IpAddr>, ErrorCode>),
}

impl Lookup {
    fn done(&mut self, answer: Result<Vec<SocketAddr>, HostError>) {
        self.state = LookupState::Done(match answer {
            Ok(addresses) => {
                let mut ips: Vec<IpAddr> = Vec::with_capacity(addresses.len());
                let mut open = self.open.lock();
                for address in addresses.into_iter().map(canonical) {
                    if !ips.contains(&address.ip()) {
                        ips.push(address.ip());
                    }
                    if !open.contains(&address) {
                        open.push(address);
                    }
                }
                Ok(ips.into_iter())
            }
            Err(error) => Err(code(&error)),
        });
    }
}

fn code(error: &HostError) -> ErrorCode {
    match error {
        HostError::NotPermitted(_) => ErrorCode::AccessDenied,
        HostError::Invalid(_) => ErrorCode::InvalidArgument,
        HostError::Overloaded(_) => ErrorCode::TemporaryResolverFailure,
        _ => ErrorCode::NameUnresolvable,
    }
}

#[async_trait::async_trait]
impl Pollable for Lookup {
    async fn ready(&mut self) {
        if let LookupState::Running(future) = &mut self.state {
            let answer = future.await;
            self.done(answer);
        }
    }
}

/// WASI's own stream cannot be made outside of its crate. The type only names the handle here: the table holds a
/// [`Lookup`], which only this file takes out.
fn lookup(stream: &Resource<ResolveAddressStream>) -> Resource<Lookup> {
    Resource::new_borrow(stream.rep())
}

impl ip_name_lookup::Host for ComponentState {
    fn resolve_addresses(
        &mut self,
        network: Resource<Network>,
        name: String,
    ) -> SocketResult<Resource<ResolveAddressStream>> {
        self.table.get(&network)?;
        // Makes the context, which has the addresses that are permitted without a name.
        self.sockets();
        let state = match name.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => LookupState::Done(Ok(vec![address].into_iter())),
            Err(_) => match self.host().resolve(&name) {
                Ok(future) => LookupState::Running(future),
                Err(error) => {
                    // WASI's error code does not say what to do about it.
                    self.host().log(LogLevel::Warn, format!("wasi:sockets: {error}"));
                    return Err(code(&error).into());
                }
            },
        };
        let handle = self.table.push(Lookup { state, open: self.tcp.open_addresses() })?;
        Ok(Resource::new_own(handle.rep()))
    }
}

impl ip_name_lookup::HostResolveAddressStream for ComponentState {
    fn resolve_next_address(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> SocketResult<Option<IpAddress>> {
        match &mut self.table.get_mut(&lookup(&stream))?.state {
            LookupState::Running(_) => Err(ErrorCode::WouldBlock.into()),
            LookupState::Done(Ok(addresses)) => Ok(addresses.next().map(Into::into)),
            LookupState::Done(Err(code)) => Err((*code).into()),
        }
    }

    fn subscribe(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe(&mut self.table, lookup(&stream))
    }

    fn drop(&mut self, stream: Resource<ResolveAddressStream>) -> wasmtime::Result<()> {
        self.table.delete(Resource::<Lookup>::new_own(stream.rep()))?;
        Ok(())
    }
}
