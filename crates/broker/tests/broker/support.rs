//! A broker on a free port of the loopback interface, and how to wait.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_broker::{Broker, BrokerConfig, Hooks, MemoryStorage, Peer, PublishHook, prepare_socket};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Server {
    pub broker: Broker,
    pub address: SocketAddr,
    pub cancel: CancellationToken,
    accepting: tokio::task::JoinHandle<()>,
}

impl Server {
    pub async fn start() -> Server {
        Server::with(BrokerConfig::default(), Vec::new()).await
    }

    pub async fn with(config: BrokerConfig, hooks: Vec<Arc<dyn PublishHook>>) -> Server {
        let hooks = Hooks { publish: hooks, session: Vec::new() };
        Server::over(config, hooks, Arc::new(MemoryStorage::default())).await
    }

    /// A broker over a store that may have something already.
    pub async fn over(config: BrokerConfig, hooks: Hooks, storage: Arc<MemoryStorage>) -> Server {
        // Without the broker's own figures, unless a test wants them.
        let sys_interval = if config.sys_interval == BrokerConfig::default().sys_interval {
            Duration::ZERO
        } else {
            config.sys_interval
        };
        let config = BrokerConfig { sys_interval, ..config };
        let broker = Broker::open(config, hooks, storage).expect("an empty store");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let cancel = CancellationToken::new();
        let accepting = tokio::spawn(accept(listener, broker.clone(), cancel.clone()));
        let (maintained, ended) = (broker.clone(), cancel.clone());
        tokio::spawn(async move { maintained.maintain(ended).await });
        Server { broker, address, cancel, accepting }
    }

    /// Waits until the figures of the broker are as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(edgefaas_broker::BrokerStats) -> bool) {
        let poll = async {
            while !wanted(self.broker.stats()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, poll).await.is_err() {
            panic!("never: {what}; the figures are {:?}", self.broker.stats());
        }
    }

    /// Ends every connection and waits for their tasks.
    pub async fn stop(self) {
        self.cancel.cancel();
        soon("the server stops", self.accepting).await.expect("no panic");
    }
}

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(result) => result,
        Err(_) => panic!("not in time: {what}"),
    }
}

async fn accept(listener: TcpListener, broker: Broker, cancel: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, peer) = accepted.expect("accept");
                prepare_socket(&stream).expect("nodelay");
                let (broker, cancel) = (broker.clone(), cancel.clone());
                connections.spawn(async move { broker.serve_tcp(stream, Peer::tcp(peer), cancel).await });
            }
            () = cancel.cancelled() => break,
        }
    }
    while let Some(ended) = connections.join_next().await {
        ended.expect("a connection's task does not panic");
    }
}
