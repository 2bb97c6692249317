//! A broker on a free port of the loopback interface.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_broker::{Broker, BrokerConfig, Hooks, MemoryStorage, Peer, prepare_socket};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Server {
    pub address: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

impl Server {
    pub async fn start() -> Server {
        Server::with(BrokerConfig::default()).await
    }

    pub async fn with(config: BrokerConfig) -> Server {
        let hooks = Hooks { publish: Vec::new(), session: Vec::new() };
        let storage = Arc::new(MemoryStorage::default());
        let broker = Broker::open(config, hooks, storage).expect("an empty store");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let maintained = broker.clone();
        let maintaining = tokio::spawn(async move { maintained.maintain(CancellationToken::new()).await });
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, peer) = listener.accept().await.expect("accept");
                prepare_socket(&stream).expect("nodelay");
                let broker = broker.clone();
                tokio::spawn(async move {
                    broker.serve(stream, Peer::tcp(peer), CancellationToken::new()).await
                });
            }
        });
        Server { address, tasks: vec![maintaining, accepting] }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(result) => result,
        Err(_) => panic!("not in time: {what}"),
    }
}
