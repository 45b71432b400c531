//! Requests to the REST API, against the real server and a real Postgres with a large fleet in it.

pub mod client;
mod fleet;
mod probes;
mod table;
mod whole;

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_store::testing::fill::{self, Filled, Size};

use crate::load::Outcome;
use crate::report::{remark, tidy};
use crate::seed;
use crate::station::Station;
use client::Client;
use fleet::Fleet;
use probes::Probe;
use table::{Figures, Report, Round};

/// How many hosts the small fleet has that is measured beside.
const FEW: u32 = 1_000;

/// How many hosts there are for each site.
const HOSTS_PER_SITE: u32 = 100;

/// Requests of a kind that are not counted: they fill caches and prepare statements.
const WARM_UP: u32 = 30;

/// How requests are made.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Hosts, each with 2 network interfaces, an instance and 2 runs; a site for every 100 of them. Fleets of more than
    /// 100,000 hosts have no targets.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    hosts: u32,
    /// The most requests of a kind.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,
    /// The longest that requests of a kind go on.
    #[arg(long = "for", default_value = "5s", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark. Fails if a request failed or missed its target.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut rounds = Vec::new();
    if args.hosts > FEW {
        rounds.push(round(args, FEW).await?);
    }
    rounds.push(round(args, args.hosts).await?);
    let report = Report { rounds };
    report.print(args.json)?;
    let bad = report.bad();
    for line in &bad {
        remark(line);
    }
    Ok(if bad.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One fleet. Reads come first: they find it as it was made.
async fn round(args: &Args, hosts: u32) -> anyhow::Result<Round> {
    let station = Station::start("").await?;
    remark(&format!("making {hosts} hosts"));
    let began = Instant::now();
    let mut fleet = Fleet::new(filled(&station, hosts).await?);
    let fill_seconds = tidy(began.elapsed().as_secs_f64());
    remark(&format!(
        "made {hosts} hosts in {fill_seconds:.0} s; measuring"
    ));
    let client = Client::of(&station)?;
    let asking = Asking {
        args,
        station: &station,
        client: &client,
    };
    let mut requests = Vec::new();
    for probe in probes::READS {
        requests.push(asking.measure(probe, &mut fleet).await);
    }
    let lists = whole::measure(&station, &client, &fleet).await?;
    for probe in probes::WRITES {
        requests.push(asking.measure(probe, &mut fleet).await);
    }
    drop(client);
    drop(station.stop().await);
    Ok(Round {
        hosts,
        fill_seconds,
        requests,
        lists,
    })
}

/// Fills the project that the first start of the server made.
async fn filled(station: &Station, hosts: u32) -> anyhow::Result<Filled> {
    let size = Size {
        hosts,
        sites: (hosts / HOSTS_PER_SITE).max(1),
    };
    let (store, _, filled) = seed::filled(station, size, true).await?;
    fill::settle(&store, &station.superuser()).await?;
    store.close().await;
    Ok(filled)
}

/// Who asks whom, and how often.
struct Asking<'a> {
    args: &'a Args,
    station: &'a Station,
    client: &'a Client,
}

impl Asking<'_> {
    /// What requests of a kind take and cost.
    async fn measure(&self, probe: &Probe, fleet: &mut Fleet) -> Figures {
        let end = WARM_UP + self.args.requests;
        self.repeat(probe, fleet, 0..WARM_UP, self.args.length / 4)
            .await;
        let (server, postgres) = self.station.meters();
        let outcome = self
            .repeat(probe, fleet, WARM_UP..end, self.args.length)
            .await;
        Figures::of(probe, fleet.size(), &outcome, (&server, &postgres))
    }

    /// Asks once for each number, one after the other, as long as there is time.
    async fn repeat(
        &self,
        probe: &Probe,
        fleet: &mut Fleet,
        numbers: Range<u32>,
        length: Duration,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let began = Instant::now();
        for number in numbers {
            if began.elapsed() >= length {
                break;
            }
            let Some(asked) = (probe.ask)(fleet, number) else {
                break;
            };
            match self.client.ask(&asked).await {
                Ok((took, answer)) => {
                    outcome.latencies.push(took);
                    if probe.makes_hosts {
                        fleet.note(&answer);
                    }
                }
                Err(error) => {
                    if outcome.errors == 0 {
                        remark(&format!("{}: {error:#}", probe.what));
                    }
                    outcome.errors += 1;
                }
            }
        }
        outcome.elapsed = began.elapsed();
        outcome.latencies.sort_unstable();
        outcome
    }
}
