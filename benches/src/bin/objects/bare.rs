//! The peer of the gRPC load: a tonic server with the same service that does nothing, as a process of its own.

use std::process::Command;

use edgefaas_api::objects as proto;
use edgefaas_api::objects::objects_server::{Objects, ObjectsServer};
use edgefaas_benches::process::Process;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::client::Endpoint;

/// Answers updates at once.
struct Bare;

type Nothing<T> = futures_util::stream::Empty<Result<T, Status>>;

#[tonic::async_trait]
impl Objects for Bare {
    type WatchStream = Nothing<proto::Change>;
    type ExportStream = Nothing<proto::Chunk>;

    async fn update(
        &self,
        _: Request<proto::UpdateRequest>,
    ) -> Result<Response<proto::UpdateResponse>, Status> {
        Ok(Response::new(proto::UpdateResponse {}))
    }

    async fn update_all(
        &self,
        _: Request<proto::UpdateAllRequest>,
    ) -> Result<Response<proto::UpdateAllResponse>, Status> {
        nothing()
    }

    async fn delete(
        &self,
        _: Request<proto::DeleteRequest>,
    ) -> Result<Response<proto::DeleteResponse>, Status> {
        nothing()
    }

    async fn get(&self, _: Request<proto::GetRequest>) -> Result<Response<proto::GetResponse>, Status> {
        nothing()
    }

    async fn list(&self, _: Request<proto::ListRequest>) -> Result<Response<proto::ListResponse>, Status> {
        nothing()
    }

    async fn watch(&self, _: Request<proto::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        nothing()
    }

    async fn export(
        &self,
        _: Request<proto::ExportRequest>,
    ) -> Result<Response<Self::ExportStream>, Status> {
        nothing()
    }

    async fn import(
        &self,
        _: Request<Streaming<proto::Chunk>>,
    ) -> Result<Response<proto::ImportResponse>, Status> {
        nothing()
    }
}

fn nothing<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("the bare server takes updates alone"))
}

/// Runs it in this process until it is killed, on a thread a core. Prints its address on its first line.
pub fn run() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let incoming = futures_util::StreamExt::map(TcpListenerStream::new(listener), |stream| {
            stream.inspect(|stream| drop(stream.set_nodelay(true)))
        });
        Ok(Server::builder().add_service(ObjectsServer::new(Bare)).serve_with_incoming(incoming).await?)
    })
}

/// Starts it as a child.
pub fn start() -> anyhow::Result<(Process, Endpoint)> {
    let process = Process::start(Command::new(std::env::current_exe()?).arg("bare"))?;
    let address = process.first_line.trim().parse()?;
    // It gets a token of the same length, which it doesn't look at.
    Ok((process, Endpoint { address, token: "0".repeat(64) }))
}
