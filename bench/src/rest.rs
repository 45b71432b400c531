//! Requests to the REST API of the real server, with a large fleet in a real Postgres.

pub mod client;
mod fleet;
mod full_lists;
mod probes;
mod table;

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_store::testing::fill::{self, ProjectSize, SeededProject};

use crate::bench_harness::BenchHarness;
use crate::load::LoadOutcome;
use crate::report::{print_status, round_figure};
use crate::seed;
use client::RestClient;
use fleet::Fleet;
use probes::Probe;
use table::{FleetRound, RequestFigures, RestReport};

/// Hosts of the small fleet that is measured for comparison.
const SMALL_FLEET_HOSTS: u32 = 1_000;

/// Hosts per site.
const HOSTS_PER_SITE: u32 = 100;

/// Requests of each kind that are not counted, because they fill caches and prepare statements.
const WARM_UP_REQUESTS: u32 = 30;

/// Options of the REST benchmark.
#[derive(Debug, clap::Args)]
pub struct RestArgs {
    /// Number of hosts, each with 2 network interfaces, an instance and 2 runs. There is one site
    /// for every 100 hosts. Fleets of more than 100,000 hosts have no targets.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    hosts: u32,
    /// Maximum number of requests of each kind.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,
    /// Maximum duration of the requests of each kind.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark. Fails if a request failed or missed its target.
pub async fn run(args: &RestArgs) -> anyhow::Result<ExitCode> {
    let mut rounds = Vec::new();
    if args.hosts > SMALL_FLEET_HOSTS {
        rounds.push(measure_round(args, SMALL_FLEET_HOSTS).await?);
    }
    rounds.push(measure_round(args, args.hosts).await?);
    let report = RestReport { rounds };
    report.print(args.json)?;
    let problems = report.problems();
    for line in &problems {
        print_status(line);
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures one fleet. Reads come before writes, so that they see the fleet unchanged.
async fn measure_round(args: &RestArgs, hosts: u32) -> anyhow::Result<FleetRound> {
    let harness = BenchHarness::start("").await?;
    print_status(&format!("creating {hosts} hosts"));
    let began = Instant::now();
    let mut fleet = Fleet::new(fill_database(&harness, hosts).await?);
    let fill_seconds = round_figure(began.elapsed().as_secs_f64());
    print_status(&format!("created {hosts} hosts in {fill_seconds:.0} s; measuring"));
    let client = RestClient::open_session(&harness)?;
    let runner = RequestRunner { args, harness: &harness, client: &client };
    let mut requests = Vec::new();
    for probe in probes::READS {
        requests.push(runner.measure(probe, &mut fleet).await);
    }
    let lists = full_lists::measure(&harness, &client, &fleet).await?;
    for probe in probes::WRITES {
        requests.push(runner.measure(probe, &mut fleet).await);
    }
    drop(client);
    drop(harness.stop().await);
    Ok(FleetRound { hosts, fill_seconds, requests, lists })
}

/// Seeds the default project, which the server created at its first start.
async fn fill_database(harness: &BenchHarness, hosts: u32) -> anyhow::Result<SeededProject> {
    let size = ProjectSize { hosts, sites: (hosts / HOSTS_PER_SITE).max(1) };
    let (store, _, seeded) = seed::fill_project(harness, size, true).await?;
    fill::vacuum_and_checkpoint(&store, &harness.superuser_url()).await?;
    store.close().await;
    Ok(seeded)
}

/// Sends requests to the server and measures them.
struct RequestRunner<'a> {
    args: &'a RestArgs,
    harness: &'a BenchHarness,
    client: &'a RestClient,
}

impl RequestRunner<'_> {
    /// Measures the latency and cost of a kind of requests.
    async fn measure(&self, probe: &Probe, fleet: &mut Fleet) -> RequestFigures {
        let end = WARM_UP_REQUESTS + self.args.requests;
        self.repeat(probe, fleet, 0..WARM_UP_REQUESTS, self.args.duration / 4).await;
        let (server, postgres) = self.harness.meters();
        let outcome = self.repeat(probe, fleet, WARM_UP_REQUESTS..end, self.args.duration).await;
        RequestFigures::from_outcome(probe, fleet.host_count(), &outcome, (&server, &postgres))
    }

    /// Sends one request for each number, one after the other, until the time is up.
    async fn repeat(
        &self,
        probe: &Probe,
        fleet: &mut Fleet,
        numbers: Range<u32>,
        length: Duration,
    ) -> LoadOutcome {
        let mut outcome = LoadOutcome::default();
        let began = Instant::now();
        for number in numbers {
            if began.elapsed() >= length {
                break;
            }
            let Some(spec) = (probe.build_request)(fleet, number) else {
                break;
            };
            match self.client.send(&spec).await {
                Ok((took, answer)) => {
                    outcome.latencies.record(took);
                    if probe.creates_hosts {
                        fleet.record_host(&answer);
                    }
                }
                Err(error) => {
                    if outcome.errors == 0 {
                        print_status(&format!("{}: {error:#}", probe.what));
                    }
                    outcome.errors += 1;
                }
            }
        }
        outcome.elapsed = began.elapsed();
        outcome
    }
}
