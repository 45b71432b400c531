//! Polls with changes while other clients overload the server.

mod disturbance;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use chrono::TimeDelta;
use evenkeel_auth::{Authority, Keys, Role};
use evenkeel_domain::tenant::ProjectName;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{Facts, OsRelease};
use evenkeel_simulator::connection::authorize;
use evenkeel_store::projects;
use evenkeel_store::testing::fill::{self, ProjectSize};
use prost::Message as _;
use serde::Serialize;
use sha2::Digest as _;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use crate::bench_harness::{BEARER_CREDENTIALS, BenchHarness};
use crate::histogram::Histogram;
use crate::load::{self, PollingNode};
use crate::report::{millis, print_status, round_figure};
use crate::seed;
use disturbance::Disturber;

/// Nodes that poll, and the connections that they share. Each node stays below its rate limit.
const NODES: usize = 100;
const CONNECTIONS: usize = 4;

/// Pause between two polls of a connection.
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// Limit of the listener for nodes: a little more than the number of silent connections.
const SERVER_SETTINGS: &str = "max_connections = 64\n";

/// How long nodes try to connect.
const CONNECT_DEADLINE: Duration = Duration::from_mins(1);

/// Users of the other clients. Each sends the requests of several clients.
const DISTURBING_USERS: usize = 6;

/// Hosts per site.
const HOSTS_PER_SITE: u32 = 100;

/// Options of the fairness benchmark.
#[derive(Debug, clap::Args)]
pub struct FairnessArgs {
    /// Number of hosts that the expensive requests read. The polling nodes are in another project.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    hosts: u32,
    /// Number of rounds, each without and with the other clients.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Duration of each half of a round.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Maximum ratio of the 99th percentiles with and without the other clients.
    #[arg(long, default_value_t = 2.0)]
    max_ratio: f64,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Polls of one half of a round.
#[derive(Clone, Debug, Serialize)]
struct FairnessPolls {
    polls: u64,
    p50_ms: f64,
    p99_ms: f64,
    errors: u64,
    /// Time until the nodes were connected, in milliseconds.
    connect_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
struct FairnessRound {
    without: FairnessPolls,
    with: FairnessPolls,
    /// Ratio of the 99th percentiles.
    ratio: f64,
    /// Requests with the most expensive filter: answered, refused and dropped.
    answered: u64,
    refused: u64,
    dropped: u64,
}

#[derive(Debug, Serialize)]
struct FairnessReport {
    rounds: Vec<FairnessRound>,
    /// Median of the ratios.
    ratio: f64,
}

/// Runs the benchmark. Fails if a poll failed or the ratio is too high.
pub async fn run(args: &FairnessArgs) -> anyhow::Result<ExitCode> {
    let settings = format!("{SERVER_SETTINGS}{BEARER_CREDENTIALS}");
    let harness = BenchHarness::start(&settings).await?;
    print_status(&format!("creating {} hosts", args.hosts));
    let (nodes, disturber) = prepare(args, &harness).await?;
    disturber.check_filter().await?;
    let bench = FairnessBench { args, harness: &harness, nodes };
    // The first polls fill caches and prepare statements.
    bench.measure_polls(args.duration / 4).await?;
    let mut rounds = Vec::new();
    for round in 1..=args.rounds {
        print_status(&format!("round {round} of {}", args.rounds));
        rounds.push(bench.measure_round(&disturber).await?);
    }
    drop(bench);
    drop(harness.stop().await);
    let mut ratios: Vec<f64> = rounds.iter().map(|round| round.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios.get(ratios.len() / 2).copied().context("there is no round")?;
    let report = FairnessReport { rounds, ratio };
    report.print(args.json)?;
    let is_bad = ratio > args.max_ratio || report.rounds.iter().any(FairnessRound::has_errors);
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Seeds the hosts and, in another project, the nodes. Returns the nodes and the users who disturb
/// them.
async fn prepare(
    args: &FairnessArgs,
    harness: &BenchHarness,
) -> anyhow::Result<(Arc<Vec<PollingNode>>, Disturber)> {
    let size = ProjectSize { hosts: args.hosts, sites: (args.hosts / HOSTS_PER_SITE).max(1) };
    let (store, other_project, _) = seed::fill_project(harness, size, true).await?;
    let now = SystemClock.now();
    let tx = store.fleet().await?;
    let name = ProjectName::parse("name", "nodes")?;
    let project = projects::create(&tx, &name, "", now).await?;
    tx.commit().await?;
    let keys = Keys::open(&harness.data_dir().join("keys"))?;
    let authority = Authority::new(keys, evenkeel_auth::Settings::default());
    let nodes = seed::seed_nodes(&store, project.id, &authority, NODES, now).await?;
    fill::vacuum_and_checkpoint(&store, &harness.superuser_url()).await?;
    store.close().await;
    let role = Role::Read(other_project.uuid());
    let mut tokens = Vec::new();
    for number in 0..DISTURBING_USERS {
        let name = format!("reader-{number}");
        let issued = authority.issue_operator(&name, &[role], TimeDelta::days(1), now)?;
        tokens.push(issued.token.reveal().to_owned());
    }
    let disturber = Disturber {
        rest: harness.address("rest")?.to_owned(),
        southbound: harness.address("southbound")?.to_owned(),
        tokens,
    };
    Ok((Arc::new(nodes), disturber))
}

struct FairnessBench<'a> {
    args: &'a FairnessArgs,
    harness: &'a BenchHarness,
    nodes: Arc<Vec<PollingNode>>,
}

impl FairnessBench<'_> {
    async fn measure_round(&self, disturber: &Disturber) -> anyhow::Result<FairnessRound> {
        let without = self.measure_polls(self.args.duration).await?;
        let disturbance = disturber.start()?;
        let with = self.measure_polls(self.args.duration).await?;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &disturbance.counts;
        Ok(FairnessRound {
            ratio: round_figure(with.p99_ms / without.p99_ms.max(0.001)),
            without,
            with,
            answered: count(&counts.answered),
            refused: count(&counts.refused),
            dropped: count(&counts.dropped),
        })
    }

    /// Connects the nodes and lets them poll with changed facts.
    async fn measure_polls(&self, length: Duration) -> anyhow::Result<FairnessPolls> {
        let began = Instant::now();
        let channels = timeout(CONNECT_DEADLINE, self.connect()).await;
        let channels = channels.context("the nodes cannot connect")??;
        let connect_ms = millis(began.elapsed());
        let end = Instant::now() + length;
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for channel in channels {
            let client = AgentServiceClient::new(channel);
            tasks.spawn(poll_with_changes(end, client, Arc::clone(&self.nodes), Arc::clone(&next)));
        }
        let (mut latencies, mut errors) = (Histogram::default(), 0);
        while let Some(done) = tasks.join_next().await {
            let (more, failed) = done?;
            latencies.merge(&more);
            errors += failed;
        }
        let percentile = |share| millis(latencies.percentile(share).unwrap_or_default());
        Ok(FairnessPolls {
            polls: latencies.count(),
            p50_ms: percentile(0.5),
            p99_ms: percentile(0.99),
            errors,
            connect_ms,
        })
    }

    /// Connects as nodes do: after a failure, they try again.
    async fn connect(&self) -> anyhow::Result<Vec<Channel>> {
        let (address, ca) = (self.harness.address("southbound")?, self.harness.authority()?);
        loop {
            match load::open_channels(address, ca.certificate_pem(), CONNECTIONS).await {
                Ok(channels) => return Ok(channels),
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

/// Polls until the end. Each poll brings new facts, so the server writes them.
async fn poll_with_changes(
    end: Instant,
    mut client: AgentServiceClient<Channel>,
    nodes: Arc<Vec<PollingNode>>,
    next: Arc<AtomicUsize>,
) -> (Histogram, u64) {
    let (mut latencies, mut errors) = (Histogram::default(), 0);
    while Instant::now() < end {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let node = &nodes[number % nodes.len()];
        let facts = changed_facts(number);
        let mut request = node.request.clone();
        request.facts_digest = sha2::Sha256::digest(facts.encode_to_vec()).to_vec();
        request.facts = Some(facts);
        let request = authorize(request, &node.authorization);
        let sent_at = Instant::now();
        match client.poll(request).await {
            Ok(_) => latencies.record(sent_at.elapsed()),
            Err(_) => errors += 1,
        }
        sleep(POLL_PAUSE).await;
    }
    (latencies, errors)
}

fn changed_facts(number: usize) -> Facts {
    Facts {
        agent_version: "0.1.0".to_owned(),
        os_release: Some(OsRelease {
            id: "debian".to_owned(),
            version_id: "12".to_owned(),
            pretty_name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            version_codename: "bookworm".to_owned(),
        }),
        architecture: "amd64".to_owned(),
        kernel_release: format!("6.1.0-{number}-amd64"),
        modules: vec!["packages".to_owned()],
        ..Facts::default()
    }
}

impl FairnessRound {
    const fn has_errors(&self) -> bool {
        self.without.errors > 0 || self.with.errors > 0
    }
}

impl FairnessReport {
    fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self)?;
            return Ok(writeln!(out)?);
        }
        writeln!(
            out,
            "{:>6} {:>8} {:>8} {:>8} {:>8} {:>11} {:>9} {:>8} {:>9} {:>6}",
            "load",
            "polls",
            "p50 ms",
            "p99 ms",
            "errors",
            "connect ms",
            "answered",
            "refused",
            "dropped",
            "ratio"
        )?;
        for round in &self.rounds {
            print_polls(&mut out, "no", &round.without)?;
            writeln!(out)?;
            print_polls(&mut out, "yes", &round.with)?;
            writeln!(
                out,
                " {:>9} {:>8} {:>9} {:>6.2}",
                round.answered, round.refused, round.dropped, round.ratio
            )?;
        }
        writeln!(out, "median of the ratios: {:.2}", self.ratio)?;
        Ok(())
    }
}

fn print_polls(
    out: &mut impl std::io::Write,
    load: &str,
    polls: &FairnessPolls,
) -> std::io::Result<()> {
    write!(
        out,
        "{load:>6} {:>8} {:>8.2} {:>8.2} {:>8} {:>11.1}",
        polls.polls, polls.p50_ms, polls.p99_ms, polls.errors, polls.connect_ms
    )
}
