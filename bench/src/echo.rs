//! A gRPC service that answers every poll with the same message. It shows the cost of TLS and
//! gRPC alone.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::agent_service_server::{AgentService, AgentServiceServer};
use evenkeel_proto::agent::{
    BeginRequest, BeginResponse, EnrollRequest, EnrollResponse, PollRequest, PollResponse,
    RenewRequest, RenewResponse, ReportRequest, ReportResponse,
};
use evenkeel_proto::maintmgr::maintmgr_service_server::{MaintmgrService, MaintmgrServiceServer};
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, PlatformUpdateStatusResponse};
use prost::Message as _;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::children::MeasuredProcess;

/// Options of the echo.
#[derive(Debug, clap::Args)]
pub struct EchoArgs {
    /// Certificate of the server, in PEM.
    #[arg(long)]
    pub certificate: PathBuf,
    /// Private key of the certificate, in PEM.
    #[arg(long)]
    pub key: PathBuf,
    /// File with the encoded answer to polls of our own agents.
    #[arg(long)]
    pub answer: PathBuf,
    /// File with the encoded answer to status messages of EIM's agents.
    #[arg(long)]
    pub eim_answer: PathBuf,
    /// File to which the echo writes its address.
    #[arg(long)]
    pub ready_file: PathBuf,
}

/// The answers of the echo.
#[derive(Clone, Debug, Default)]
pub struct EchoAnswers {
    /// Answer to our own agents.
    pub own: PollResponse,
    /// Answer to EIM's agents.
    pub eim: PlatformUpdateStatusResponse,
}

#[tonic::async_trait]
impl AgentService for EchoAnswers {
    async fn poll(&self, _: Request<PollRequest>) -> Result<Response<PollResponse>, Status> {
        Ok(Response::new(self.own.clone()))
    }

    async fn enroll(&self, _: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    async fn begin(&self, _: Request<BeginRequest>) -> Result<Response<BeginResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    async fn report(&self, _: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }
}

#[tonic::async_trait]
impl MaintmgrService for EchoAnswers {
    async fn platform_update_status(
        &self,
        _: Request<PlatformUpdateStatusRequest>,
    ) -> Result<Response<PlatformUpdateStatusResponse>, Status> {
        Ok(Response::new(self.eim.clone()))
    }
}

/// Starts echo process `number` with its files in `folder`. Returns the process and its address.
pub async fn start(
    folder: &Path,
    number: u16,
    ca: &CertificateAuthority,
    answers: &EchoAnswers,
) -> anyhow::Result<(MeasuredProcess, String)> {
    let certificate =
        ca.issue_server(&["localhost".to_owned(), "127.0.0.1".to_owned()], SystemClock.now())?;
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    std::fs::write(path("echo.pem"), &certificate.chain_pem)?;
    std::fs::write(path("echo-key.pem"), certificate.key_pem.reveal())?;
    std::fs::write(path("answer"), answers.own.encode_to_vec())?;
    std::fs::write(path("eim-answer"), answers.eim.encode_to_vec())?;
    let ready = path(&format!("echo-ready-{number}"));
    let arguments = [
        "echo",
        "--certificate",
        &path("echo.pem"),
        "--key",
        &path("echo-key.pem"),
        "--answer",
        &path("answer"),
        "--eim-answer",
        &path("eim-answer"),
        "--ready-file",
        &ready,
    ];
    let log = folder.join(format!("echo-log-{number}"));
    let mut echo = MeasuredProcess::start(&arguments, &log)?;
    let address = echo.wait_until_ready(Path::new(&ready), &log).await?;
    Ok((echo, address))
}

/// Serves until the process is killed.
pub async fn run(args: &EchoArgs) -> anyhow::Result<ExitCode> {
    let answers = EchoAnswers {
        own: PollResponse::decode(std::fs::read(&args.answer)?.as_slice())?,
        eim: PlatformUpdateStatusResponse::decode(std::fs::read(&args.eim_answer)?.as_slice())?,
    };
    let identity = Identity::from_pem(std::fs::read(&args.certificate)?, std::fs::read(&args.key)?);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let temporary = args.ready_file.with_extension("new");
    std::fs::write(&temporary, address)?;
    std::fs::rename(temporary, &args.ready_file)?;
    Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity))?
        .add_service(AgentServiceServer::new(answers.clone()))
        .add_service(MaintmgrServiceServer::new(answers))
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await?;
    Ok(ExitCode::SUCCESS)
}
