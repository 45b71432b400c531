//! Polls without news, against the real server and a real Postgres, and a bare echo with the same messages beside it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use evenkeel_auth::{Authority, CertificateAuthority, Keys};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::PollResponse;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_store::{Store, StoreOptions, projects};
use tonic::Request;

use crate::echo::{self, Answers};
use crate::load::{self, Node, Shape};
use crate::measure::Meter;
use crate::report::{EchoFigures, Figures, Report};
use crate::seed;
use crate::station::Station;

/// How the polls are made.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Registered hosts; one round for each number.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    hosts: Vec<usize>,
    /// Connections over which the nodes poll.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Polls under way at once on each connection.
    #[arg(long, default_value_t = 1)]
    at_once: usize,
    /// How long a round lasts.
    #[arg(long = "for", default_value = "10s", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    const fn shape(&self, length: Duration) -> Shape {
        Shape {
            at_once: self.at_once,
            length,
        }
    }
}

/// Runs the benchmark.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut rounds = Vec::new();
    let mut echo = None;
    for hosts in &args.hosts {
        let (figures, beside) = round(args, *hosts).await?;
        rounds.push(figures);
        echo = Some(beside);
    }
    let last = rounds
        .last()
        .context("give at least one number of hosts")?
        .clone();
    let echo = echo.context("give at least one number of hosts")?;
    let failed = rounds.iter().any(|round| round.errors > 0) || echo.errors > 0;
    Report { last, rounds, echo }.print(args.json)?;
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// One fleet: the server, and then the echo with the answer that the server gave.
async fn round(args: &Args, hosts: usize) -> anyhow::Result<(Figures, EchoFigures)> {
    ensure!(hosts > 0, "a fleet has at least one host");
    let station = Station::start("").await?;
    let clock = SystemClock;
    let authority = Authority::new(
        Keys::open(&station.data().join("keys"))?,
        evenkeel_auth::Settings::default(),
    );
    let store = Store::connect(&station.database(), StoreOptions::default()).await?;
    let tx = store.fleet().await?;
    let (project, _) = projects::ensure_default(&tx, clock.now()).await?;
    drop(tx);
    let nodes = seed::seed(&store, project.id, &authority, hosts, clock.now()).await?;
    let nodes = Arc::new(nodes);
    store.close().await;

    let ca = station.authority()?;
    let southbound = station.address("southbound")?;
    let channels = load::connect(southbound, ca.certificate_pem(), args.connections).await?;
    let answer = one_answer(&channels[0], &nodes[0]).await?;
    // The first polls fill caches and prepare statements.
    load::run(&channels, &nodes, args.shape(args.length / 4)).await;
    let (server, postgres) = station.meters();
    let outcome = load::run(&channels, &nodes, args.shape(args.length)).await;
    let figures = Figures::of(hosts, args.connections, &outcome, &server, &postgres);
    drop(channels);
    let folder = station.stop().await;

    let echo = echo_round(args, folder.path(), &ca, &nodes, &answer).await?;
    Ok((figures, echo))
}

async fn one_answer(
    channel: &tonic::transport::Channel,
    node: &Node,
) -> anyhow::Result<PollResponse> {
    let mut request = Request::new(node.request.clone());
    request
        .metadata_mut()
        .insert("authorization", node.authorization.clone());
    let answer = AgentServiceClient::new(channel.clone())
        .poll(request)
        .await?
        .into_inner();
    ensure!(
        !answer.want_facts,
        "the seeded facts are not those that the nodes say"
    );
    Ok(answer)
}

async fn echo_round(
    args: &Args,
    folder: &Path,
    ca: &CertificateAuthority,
    nodes: &Arc<Vec<Node>>,
    answer: &PollResponse,
) -> anyhow::Result<EchoFigures> {
    let answers = Answers {
        own: answer.clone(),
        ..Answers::default()
    };
    let (echo, address) = echo::start(folder, 0, ca, &answers).await?;
    let channels = load::connect(&address, ca.certificate_pem(), args.connections).await?;
    load::run(&channels, nodes, args.shape(args.length / 4)).await;
    let meter = Meter::start(vec![echo.pid()]);
    let outcome = load::run(&channels, nodes, args.shape(args.length)).await;
    Ok(EchoFigures::of(&outcome, &meter))
}
