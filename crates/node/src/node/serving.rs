//! Serving connections: HTTP, MQTT, MQTT over TLS and the control port.

use std::net::SocketAddr;
use std::sync::Arc;

use edgefaas_broker::{Peer, Transport};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{CLOSE_GRACE, Parts};
use crate::address_limits::AddressLimits;
use crate::control;
use crate::gateway::connection_slots::ConnectionSlots;
use crate::gateway::http;
use crate::gateway::socket::GatewaySocket;
use crate::gateway::websocket::WebSocketUpgrade;
use crate::listeners::{ClientListeners, Slot, accept, connection_slots, handshake, on_this_runtime};
use crate::tls::{self, Service, Tls};

/// Stages of a node's stop, in this order.
#[derive(Default)]
pub(super) struct Stages {
    /// Fires first: listeners and triggers end.
    pub listening: CancellationToken,
    /// Fires after running invocations have ended: connections of clients end.
    pub connected: CancellationToken,
    /// Connections over which other nodes call this one.
    pub calls: TaskTracker,
    /// Fires after the connections have ended: no more spans come, and the last ones are exported.
    pub settled: CancellationToken,
    /// What ends last: the export of spans, and the history.
    pub last: TaskTracker,
}

impl Parts {
    /// Serves clients. Each listener is a task; each connection is a task of a worker.
    pub(super) fn serve_clients(
        &self,
        tasks: &mut JoinSet<()>,
        stages: &Stages,
        listeners: ClientListeners,
    ) {
        let slots = Arc::new(Semaphore::new(connection_slots(control::MAX_CONNECTIONS)));
        // One address cannot use up the slots, which the gateway shares with MQTT.
        let http_limits = AddressLimits::new((connection_slots(control::MAX_CONNECTIONS) / 4).max(8));
        // Many devices may share one address, so MQTT allows more; half of the slots stay for others.
        let mqtt_limits = AddressLimits::new((connection_slots(control::MAX_CONNECTIONS) / 2).max(8));
        let listening = &stages.listening;
        let ClientListeners { http, mqtt, mqtts } = listeners;
        let serve = self.http_connections(stages);
        tasks.spawn(accept(http, slots.clone(), http_limits, listening.clone(), serve));
        let serve = self.mqtt_connections(stages);
        tasks.spawn(accept(mqtt, slots.clone(), mqtt_limits.clone(), listening.clone(), serve));
        if let (Some(mqtts), Some(tls)) = (mqtts, self.tls.clone()) {
            let serve = self.mqtts_connections(tls, stages);
            tasks.spawn(accept(mqtts, slots, mqtt_limits, listening.clone(), serve));
        }
    }

    fn http_connections(
        &self,
        stages: &Stages,
    ) -> impl Fn(std::net::TcpStream, SocketAddr, Slot) + Send + use<> {
        let (workers, gateway) = (self.workers.clone(), self.gateway.clone());
        let (websocket, open) = (self.websocket.clone(), stages.connected.clone());
        let secure = self.tls.clone().filter(|_| self.addresses.http_tls);
        let admission = ConnectionSlots::new(self.gateway_connections);
        move |stream, peer, slot| {
            workers.spawn_connection(on_this_runtime(stream, slot, {
                let (gateway, open) = (gateway.clone(), open.clone());
                let (secure, upgrading) = (secure.clone(), WebSocketUpgrade::new(websocket.clone(), peer));
                let admission = admission.clone();
                move |stream| async move {
                    let _ = stream.set_nodelay(true);
                    let slot = tokio::select! {
                        slot = admission.admit(peer.ip()) => slot,
                        () = open.cancelled() => return,
                    };
                    let Ok(slot) = slot else {
                        // Boxed, so that the futures of other connections need no memory for it.
                        Box::pin(http::refuse(&stream, secure.is_some())).await;
                        return;
                    };
                    let socket = GatewaySocket::new(stream);
                    let stream = socket.clone();
                    match secure {
                        None => http::serve(stream, socket, slot, gateway, upgrading, open).await,
                        Some(tls) => {
                            let secured = tokio::select! {
                                secured = handshake(&tls, Service::Http, stream, peer, &open) => secured,
                                () = slot.evicted() => None,
                            };
                            if let Some(stream) = secured {
                                http::serve(stream, socket, slot, gateway, upgrading, open).await;
                            }
                        }
                    }
                }
            }));
        }
    }

    fn mqtt_connections(
        &self,
        stages: &Stages,
    ) -> impl Fn(std::net::TcpStream, SocketAddr, Slot) + Send + use<> {
        let (workers, broker) = (self.workers.clone(), self.broker.clone());
        let open = stages.connected.clone();
        move |stream, peer, slot| {
            workers.spawn_connection(on_this_runtime(stream, slot, {
                let (broker, open) = (broker.clone(), open.clone());
                move |stream| async move {
                    let _ = stream.set_nodelay(true);
                    broker.serve_tcp(stream, Peer::tcp(peer), open).await;
                }
            }));
        }
    }

    fn mqtts_connections(
        &self,
        tls: Arc<Tls>,
        stages: &Stages,
    ) -> impl Fn(std::net::TcpStream, SocketAddr, Slot) + Send + use<> {
        let (workers, broker) = (self.workers.clone(), self.broker.clone());
        let open = stages.connected.clone();
        move |stream, address, slot| {
            workers.spawn_connection(on_this_runtime(stream, slot, {
                let (broker, tls, open) = (broker.clone(), tls.clone(), open.clone());
                move |stream| async move {
                    let _ = stream.set_nodelay(true);
                    let secured = handshake(&tls, Service::Mqtt, stream, address, &open).await;
                    let Some(stream) = secured else { return };
                    let certificate = tls::client_certificate(&stream);
                    let peer = Peer { address, transport: Transport::Tls, certificate };
                    broker.serve(stream, peer, open).await;
                }
            }));
        }
    }

    /// Serves the control port until the connections of clients end.
    pub(super) fn serve_control(
        &self,
        listener: TcpListener,
        stages: &Stages,
    ) -> impl Future<Output = ()> + Send + use<> {
        let secure = self.tls.clone().filter(|_| self.addresses.control_tls);
        control::serve(listener, secure, self.control.clone(), stages.connected.clone(), CLOSE_GRACE)
    }
}
