//! Unchanged polls against the real server and Postgres, compared with a bare gRPC echo.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use evenkeel_auth::{Authority, CertificateAuthority, Keys};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::PollResponse;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_simulator::connection::authorize;
use evenkeel_store::{Store, StoreOptions, projects};

use crate::bench_harness::{BEARER_CREDENTIALS, BenchHarness};
use crate::echo::{self, EchoAnswers};
use crate::load::{self, LoadShape, PollingNode};
use crate::measure::Meter;
use crate::report::{EchoFigures, PollFigures, PollReport};
use crate::seed;

/// Options of the poll benchmark.
#[derive(Debug, clap::Args)]
pub struct PollArgs {
    /// Numbers of registered hosts, one round each.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    hosts: Vec<usize>,
    /// Connections that the nodes share.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Concurrent polls per connection.
    #[arg(long, default_value_t = 1)]
    at_once: usize,
    /// Duration of a round.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

impl PollArgs {
    const fn load_shape(&self, length: Duration) -> LoadShape {
        LoadShape { at_once: self.at_once, length }
    }
}

/// Runs the benchmark.
pub async fn run(args: &PollArgs) -> anyhow::Result<ExitCode> {
    let mut rounds = Vec::new();
    let mut echo = None;
    for hosts in &args.hosts {
        let (figures, echo_figures) = measure_round(args, *hosts).await?;
        rounds.push(figures);
        echo = Some(echo_figures);
    }
    let last = rounds.last().context("--hosts needs at least one number")?.clone();
    let echo = echo.context("--hosts needs at least one number")?;
    let failed = rounds.iter().any(|round| round.errors > 0) || echo.errors > 0;
    PollReport { last, rounds, echo }.print(args.json)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures one fleet: first the server, then the echo with the answer of the server.
async fn measure_round(
    args: &PollArgs,
    hosts: usize,
) -> anyhow::Result<(PollFigures, EchoFigures)> {
    ensure!(hosts > 0, "--hosts must be at least 1");
    let harness = BenchHarness::start(BEARER_CREDENTIALS).await?;
    let clock = SystemClock;
    let authority = Authority::new(
        Keys::open(&harness.data_dir().join("keys"))?,
        evenkeel_auth::Settings::default(),
    );
    let store = Store::connect(&harness.database_url(), StoreOptions::default()).await?;
    let tx = store.fleet().await?;
    let (project, _) = projects::ensure_default(&tx, clock.now()).await?;
    drop(tx);
    let nodes = seed::seed_nodes(&store, project.id, &authority, hosts, clock.now()).await?;
    let nodes = Arc::new(nodes);
    store.close().await;

    let ca = harness.authority()?;
    let southbound = harness.address("southbound")?;
    let channels = load::open_channels(southbound, ca.certificate_pem(), args.connections).await?;
    let answer = poll_once(&channels[0], &nodes[0]).await?;
    // Warm up: the first polls fill caches and prepare statements.
    load::run(&channels, &nodes, args.load_shape(args.duration / 4)).await;
    let (server, postgres) = harness.meters();
    let outcome = load::run(&channels, &nodes, args.load_shape(args.duration)).await;
    let figures = PollFigures::from_outcome(hosts, args.connections, &outcome, &server, &postgres);
    drop(channels);
    let folder = harness.stop().await;

    let echo = measure_echo(args, folder.path(), &ca, &nodes, &answer).await?;
    Ok((figures, echo))
}

async fn poll_once(
    channel: &tonic::transport::Channel,
    node: &PollingNode,
) -> anyhow::Result<PollResponse> {
    let request = authorize(node.request.clone(), &node.authorization);
    let answer = AgentServiceClient::new(channel.clone()).poll(request).await?.into_inner();
    ensure!(!answer.facts_required, "the facts of a node differ from the seeded facts");
    Ok(answer)
}

async fn measure_echo(
    args: &PollArgs,
    folder: &Path,
    ca: &CertificateAuthority,
    nodes: &Arc<Vec<PollingNode>>,
    answer: &PollResponse,
) -> anyhow::Result<EchoFigures> {
    let answers = EchoAnswers { own: answer.clone(), ..EchoAnswers::default() };
    let (echo, address) = echo::start(folder, 0, ca, &answers).await?;
    let channels = load::open_channels(&address, ca.certificate_pem(), args.connections).await?;
    load::run(&channels, nodes, args.load_shape(args.duration / 4)).await;
    let meter = Meter::start(vec![echo.pid()]);
    let outcome = load::run(&channels, nodes, args.load_shape(args.duration)).await;
    Ok(EchoFigures::from_outcome(&outcome, &meter))
}
