//! The largest report of a node: the time of settling its results, and the cost of the whole call.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_auth::{Authority, Keys};
use evenkeel_domain::package::{self, ObservedPackage};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    Downloading, Event, Finished, PackageChange, PackageResult, Plan, ReportRequest,
};
use evenkeel_simulator::connection::authorize;
use evenkeel_store::{Store, StoreOptions, projects};
use prost::Message as _;
use serde::Serialize;
use uuid::Uuid;

use crate::bench_harness::{BEARER_CREDENTIALS, BenchHarness};
use crate::measure::as_f64;
use crate::report::{micros_each, millis, round_figure};
use crate::{load, seed};

/// Options of the message benchmark.
#[derive(Debug, clap::Args)]
pub struct MessageArgs {
    /// Planned packages, and as many results. The server accepts 100,000 of each.
    #[arg(long, default_value_t = 100_000)]
    packages: usize,
    /// Reports, one after the other.
    #[arg(long, default_value_t = 5)]
    reports: u32,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Figures of one report.
#[derive(Debug, Serialize)]
struct MessageFigures {
    packages: usize,
    /// Size of the message, in MiB.
    mib: f64,
    /// Time of settling its results in this process, in milliseconds.
    settle_ms: f64,
    /// Time until the answer, in milliseconds: the longest of all reports.
    max_ms: f64,
    /// Processor time of the server per report, in milliseconds.
    cpu_ms_server: f64,
    /// Processor time of Postgres per report, in milliseconds.
    cpu_ms_postgres: f64,
}

/// Runs the benchmark.
pub async fn run(args: &MessageArgs) -> anyhow::Result<ExitCode> {
    let harness = BenchHarness::start(BEARER_CREDENTIALS).await?;
    let keys = Keys::open(&harness.data_dir().join("keys"))?;
    let authority = Authority::new(keys, evenkeel_auth::Settings::default());
    let store = Store::connect(&harness.database_url(), StoreOptions::default()).await?;
    let now = SystemClock.now();
    let tx = store.fleet().await?;
    let (project, _) = projects::ensure_default(&tx, now).await?;
    drop(tx);
    let nodes = seed::seed_nodes(&store, project.id, &authority, 1, now).await?;
    store.close().await;

    let (address, ca) = (harness.address("southbound")?, harness.authority()?);
    let channels = load::open_channels(address, ca.certificate_pem(), 1).await?;
    let mut client = AgentServiceClient::new(channels[0].clone());
    let (server, postgres) = harness.meters();
    let (mut max, mut bytes) = (Duration::ZERO, 0);
    for number in 1..=args.reports {
        let report = largest_report(number, args.packages);
        bytes = report.encoded_len();
        let began = Instant::now();
        client.report(authorize(report, &nodes[0].authorization)).await?;
        max = max.max(began.elapsed());
    }
    let reports = u64::from(args.reports.max(1));
    let figures = MessageFigures {
        packages: args.packages,
        mib: round_figure(as_f64(bytes as u64) / f64::from(1 << 20)),
        settle_ms: millis(measure_settling(args.packages)),
        max_ms: millis(max),
        cpu_ms_server: round_figure(micros_each(server.spent(), reports) / 1e3),
        cpu_ms_postgres: round_figure(micros_each(postgres.spent(), reports) / 1e3),
    };
    harness.stop().await;
    figures.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// A report of an attempt that planned packages and has a result for each.
fn largest_report(attempt: u32, packages: usize) -> ReportRequest {
    let change = |n| PackageChange {
        name: format!("package-{n}"),
        architecture: "amd64".into(),
        before: "1.0-1".into(),
        after: "1.1-1".into(),
        ..PackageChange::default()
    };
    let result = |n| PackageResult {
        name: format!("package-{n}"),
        architecture: "amd64".into(),
        version: "1.1-1".into(),
        state: "installed".into(),
    };
    let plan = Plan { changes: (0..packages).map(change).collect(), ..Plan::default() };
    let results = (0..packages).map(result).collect();
    let kinds = [
        Kind::Downloading(Downloading { plan: Some(plan) }),
        Kind::Finished(Finished { results, ..Finished::default() }),
    ];
    let events = kinds.into_iter().zip(1..).map(|(kind, sequence)| Event {
        sequence,
        kind: Some(kind),
        ..Event::default()
    });
    ReportRequest {
        attempt_id: Uuid::from_u128(attempt.into()).to_string(),
        events: events.collect(),
        ..ReportRequest::default()
    }
}

/// The time of settling results in reverse order.
fn measure_settling(packages: usize) -> Duration {
    let change = |n| package::PackageChange {
        name: format!("package-{n}"),
        architecture: "amd64".into(),
        desired: Some("1.1-1".into()),
        ..package::PackageChange::default()
    };
    let result = |n| package::PackageResult {
        name: format!("package-{n}"),
        architecture: "amd64".into(),
        observed: ObservedPackage { version: Some("1.1-1".into()), state: "installed".into() },
    };
    let mut plan: Vec<_> = (0..packages).map(change).collect();
    let results: Vec<_> = (0..packages).rev().map(result).collect();
    let began = Instant::now();
    package::record_results(&mut plan, &results);
    began.elapsed()
}

impl MessageFigures {
    fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self)?;
            return Ok(writeln!(out)?);
        }
        writeln!(
            out,
            "{:>9} {:>8} {:>10} {:>8} {:>10} {:>12}",
            "packages", "MiB", "settle ms", "max ms", "server ms", "postgres ms"
        )?;
        writeln!(
            out,
            "{:>9} {:>8.1} {:>10.1} {:>8.1} {:>10.1} {:>12.1}",
            self.packages,
            self.mib,
            self.settle_ms,
            self.max_ms,
            self.cpu_ms_server,
            self.cpu_ms_postgres,
        )?;
        Ok(())
    }
}
