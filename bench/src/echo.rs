//! A bare gRPC service that answers every poll with the same message: what the wire itself costs.

use std::path::PathBuf;
use std::process::ExitCode;

use evenkeel_proto::agent::agent_service_server::{AgentService, AgentServiceServer};
use evenkeel_proto::agent::{
    BeginRequest, BeginResponse, EnrollRequest, EnrollResponse, PollRequest, PollResponse,
    ReportRequest, ReportResponse,
};
use prost::Message as _;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

/// How the echo is started.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A certificate and its key, in PEM.
    #[arg(long)]
    pub certificate: PathBuf,
    /// The key.
    #[arg(long)]
    pub key: PathBuf,
    /// The encoded answer.
    #[arg(long)]
    pub answer: PathBuf,
    /// Where to write the address.
    #[arg(long)]
    pub ready_file: PathBuf,
}

#[derive(Debug)]
struct Echo(PollResponse);

#[tonic::async_trait]
impl AgentService for Echo {
    async fn poll(&self, _: Request<PollRequest>) -> Result<Response<PollResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }

    async fn enroll(&self, _: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    async fn begin(&self, _: Request<BeginRequest>) -> Result<Response<BeginResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    async fn report(&self, _: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }
}

/// Serves until it is killed.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let answer = PollResponse::decode(std::fs::read(&args.answer)?.as_slice())?;
    let identity = Identity::from_pem(std::fs::read(&args.certificate)?, std::fs::read(&args.key)?);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let beside = args.ready_file.with_extension("new");
    std::fs::write(&beside, address)?;
    std::fs::rename(beside, &args.ready_file)?;
    let connections = tokio_stream::wrappers::TcpListenerStream::new(listener);
    Server::builder()
        .tcp_nodelay(true)
        .tls_config(ServerTlsConfig::new().identity(identity))?
        .add_service(AgentServiceServer::new(Echo(answer)))
        .serve_with_incoming(connections)
        .await?;
    Ok(ExitCode::SUCCESS)
}
