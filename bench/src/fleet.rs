//! A fleet of simulated nodes, own and EIM's, that call a real server over real TLS. Each node
//! calls at its own instants, no matter whether its earlier calls were answered.
//!
//! The server, Postgres and the drivers are separate processes, so that their costs can be told
//! apart. A latency is measured from the instant for which the call was planned.

mod call;
mod call_queue;
mod connect;
mod curve;
mod driver_connections;
mod driver_io;
mod driver_pool;
mod driver_protocol;
mod echo_comparison;
mod faults;
mod first_answer;
mod fleet_report;
mod node_credentials;
pub mod node_driver;
mod node_list;
mod policy_change;
mod scrape;
mod storm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use evenkeel_auth::CertificateAuthority;

use crate::bench_harness::{BEARER_CREDENTIALS, BenchHarness};
use crate::echo::EchoAnswers;
use crate::report::{millis, print_status, round_figure};
use driver_pool::{ConnectionShare, DriverPool, Measurement};
use driver_protocol::{DriverCommand, DriverPlan};
use echo_comparison::{EchoFleet, turn_count};
use faults::FaultArgs;
use fleet_report::FleetReport;
use node_list::{NodeCounts, NodeList};
use scrape::Scrape;
use storm::StormSpec;

/// Open files of the server besides the connections of nodes.
const EXTRA_OPEN_FILES: u64 = 300;

/// Nodes per driver, unless the number of drivers is given.
const NODES_PER_DRIVER: u32 = 50_000;

/// Interval between the first calls of different nodes. The server writes much for the first call
/// of an EIM node.
const FIRST_CALL_SPACING: Duration = Duration::from_micros(500);

/// Time after which the server has written the times of last contact.
const CONTACT_WRITE_TIME: Duration = Duration::from_secs(35);

/// Options of the fleet benchmark.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a command line flag")]
pub struct FleetArgs {
    /// Nodes that call.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    nodes: u32,
    /// Registered hosts, if more than the nodes that call.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    registered: Option<u32>,
    /// Interval between two calls of a node. Own nodes vary it by up to a tenth, EIM nodes do not.
    #[arg(long, default_value = "20s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// How long to measure, in whole seconds, after all nodes have called and all connections are
    /// open. The comparison with the echo has turns of 5 seconds: as many as fit into this time,
    /// at least 1 and at most 6.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Use TLS. This is always the case, because the southbound listener accepts only TLS.
    #[arg(long)]
    tls: bool,
    /// Let own nodes use long polls. With --eim 0, this measures an idle fleet. Skips the
    /// comparison with the echo.
    #[arg(long)]
    long_poll: bool,
    /// Maximum duration of a long poll, unless the server ends it earlier. The first long poll of a
    /// node has a random duration up to this one, so that the fleet is measured in its steady
    /// state.
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
    long_poll_timeout: Duration,
    /// Percentage of nodes that use the protocol of EIM's agents.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100))]
    eim: u32,
    /// Connections that are dedicated to one node each.
    #[arg(long = "connections", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(0..=200_000))]
    dedicated_connections: u32,
    /// Let own nodes with a dedicated connection send bearer credentials instead of a client
    /// certificate, as the other nodes do. Real nodes show a certificate.
    #[arg(long)]
    bearer_credentials: bool,
    /// Connections that the other nodes share.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    multiplexed: u32,
    /// Percentage of calls with changed content, in steps of 0.1: another boot, or another list of
    /// available updates.
    #[arg(long, default_value_t = 1.0)]
    changes: f64,
    /// Use the poll interval that the server requests, instead of --interval.
    #[arg(long)]
    follow_server_interval: bool,
    /// Servers on the same database; the nodes are distributed evenly. A server process cannot have
    /// more connections than open files.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    servers: u16,
    /// Driver processes [default: one per 50,000 nodes]. Rounded up to a multiple of --servers.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    drivers: Option<u32>,
    /// Remove the policy from all nodes, assign another one, and measure when each node has it.
    #[arg(long, requires = "long_poll")]
    change_policy: bool,
    /// Number of own nodes that begin and finish an attempt within the same second.
    #[arg(long, default_value_t = 0)]
    storm: u32,
    /// Restart the servers while the nodes call, and print the curve until all calls succeed again.
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    faults: FaultArgs,
    /// Skip the comparison with a bare gRPC echo.
    #[arg(long)]
    no_echo: bool,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

impl FleetArgs {
    fn validate(&self) -> anyhow::Result<()> {
        let are_enough = self.registered.is_none_or(|all| self.nodes <= all);
        ensure!(are_enough, "--registered must be at least --nodes");
        ensure!(Duration::from_millis(100) <= self.interval, "--interval must be at least 100ms");
        ensure!((0.0..=100.0).contains(&self.changes), "--changes must be from 0 to 100");
        ensure!(
            self.driver_count() <= self.multiplexed,
            "--multiplexed must be at least {}: each driver needs a connection",
            self.driver_count()
        );
        self.faults.validate(self.long_poll)?;
        if !self.tls {
            print_status("--tls is implied: the southbound listener accepts only TLS");
        }
        Ok(())
    }

    fn registered_hosts(&self) -> u32 {
        let least = self.nodes + self.faults.spare_nodes();
        self.registered.unwrap_or(least).max(least)
    }

    fn dedicated(&self) -> u32 {
        self.dedicated_connections.min(self.nodes)
    }

    fn total_connections(&self) -> u32 {
        self.dedicated() + self.multiplexed
    }

    fn driver_count(&self) -> u32 {
        let usual = self.nodes.div_ceil(NODES_PER_DRIVER);
        let drivers = self.drivers.unwrap_or(usual).min(self.multiplexed);
        drivers.next_multiple_of(self.servers.into())
    }

    /// For each driver, how many of its first nodes show a client certificate, if they are own nodes.
    fn certified_nodes(&self) -> anyhow::Result<Vec<u32>> {
        let shares = driver_pool::share_connections(
            self.driver_count(),
            self.multiplexed,
            self.dedicated(),
        )?;
        let count =
            |share: &ConnectionShare| if self.bearer_credentials { 0 } else { share.dedicated };
        Ok(shares.iter().map(count).collect())
    }

    fn has_echo(&self) -> bool {
        !self.long_poll && !self.no_echo
    }

    fn changes_per_mille(&self) -> u16 {
        per_mille(self.changes)
    }

    /// A period in which every node calls at least once.
    fn round_duration(&self) -> Duration {
        self.interval.mul_f64(1.2) + Duration::from_secs(1)
    }

    /// The plan of each driver.
    fn driver_plans(
        &self,
        addresses: &[&str],
        ca: &CertificateAuthority,
        (files, changes_per_mille): (&[PathBuf], u16),
    ) -> anyhow::Result<Vec<DriverPlan>> {
        let shares = driver_pool::share_connections(
            self.driver_count(),
            self.multiplexed,
            self.dedicated(),
        )?;
        let parts = (0_u32..).zip(files.iter().zip(shares).zip(addresses.iter().cycle()));
        let plan = |(driver_number, ((nodes, share), address)): (
            u32,
            ((&PathBuf, ConnectionShare), &&str),
        )|
         -> anyhow::Result<DriverPlan> {
            Ok(DriverPlan {
                address: address.parse()?,
                authority: ca.certificate_pem().to_owned(),
                nodes_file: nodes.clone(),
                driver_number,
                interval_millis: u64::try_from(self.interval.as_millis())?,
                multiplexed: share.multiplexed,
                dedicated_connections: share.dedicated,
                connections_before: share.connections_before,
                changes_per_mille,
                follow_server_interval: self.follow_server_interval,
            })
        };
        parts.map(plan).collect()
    }
}

/// Runs the benchmark. Fails if a call failed, a change did not reach a node, an attempt was lost
/// or a fault did not happen.
pub async fn run(args: &FleetArgs) -> anyhow::Result<ExitCode> {
    args.validate()?;
    let each = args.total_connections().div_ceil(args.servers.into());
    connect::raise_open_file_limit(u64::from(each + args.faults.spare_nodes()) + EXTRA_OPEN_FILES)?;
    let mut bench = FleetBench::prepare(args).await?;
    bench.warm_up().await?;
    bench.measure().await?;
    bench.run_faults().await?;
    bench.compare().await?;
    bench.run_events().await?;
    let report = bench.finish().await;
    report.print(args.json, args.restart)?;
    Ok(if report.is_bad() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The servers with their fleet, and the report so far.
struct FleetBench<'a> {
    args: &'a FleetArgs,
    harness: BenchHarness,
    node_list: NodeList,
    node_files: Vec<PathBuf>,
    answers: EchoAnswers,
    drivers: DriverPool,
    report: FleetReport,
}

impl<'a> FleetBench<'a> {
    /// Seeds a database, starts the servers on it, and starts the drivers.
    async fn prepare(args: &'a FleetArgs) -> anyhow::Result<Self> {
        let interval = args.interval.as_millis();
        // Seeded nodes must not be reported as silent.
        let settings = format!(
            "{BEARER_CREDENTIALS}poll_interval = \"{interval}ms\"\nsilence_timeout = \"1d\"\n"
        );
        let mut harness = BenchHarness::start_many(args.servers, &settings).await?;
        // The database is seeded while the servers are stopped, so that they find the data as old.
        harness.stop_servers().await?;
        let counts = NodeCounts {
            registered: args.registered_hosts(),
            nodes: args.nodes,
            eim: args.eim,
            spare: args.faults.spare_nodes(),
        };
        print_status(&format!("creating {} hosts", counts.registered));
        let node_list = NodeList::create(&harness, counts, &args.certified_nodes()?).await?;
        let files = node_list.write_files(&harness, args.driver_count())?;
        let nodes = files.first().map_or(Path::new(""), PathBuf::as_path);
        let (first, answers) = first_answer::wait_for_first_answer(&mut harness, nodes).await?;
        print_status(&format!("first answer after {:.2} s", first.as_secs_f64()));
        let (ca, addresses) = (harness.authority()?, harness.addresses("southbound")?);
        let plans = args.driver_plans(&addresses, &ca, (&files, args.changes_per_mille()))?;
        let drivers = DriverPool::start(&plans).await?;
        let report = FleetReport {
            hosts: args.registered_hosts(),
            servers: args.servers,
            nodes: args.nodes,
            connections: args.total_connections(),
            dedicated_connections: args.dedicated(),
            interval_s: args.interval.as_secs_f64(),
            first_answer_s: round_figure(first.as_secs_f64()),
            ..FleetReport::default()
        };
        Ok(Self { args, harness, node_list, node_files: files, answers, drivers, report })
    }

    /// Every node calls over the shared connections, and then over its dedicated one, if it has
    /// one.
    async fn warm_up(&mut self) -> anyhow::Result<()> {
        print_status("every node calls over the shared connections");
        let within = self.args.interval.max(FIRST_CALL_SPACING * self.args.nodes);
        self.drivers.begin(within).await?;
        let rest = self.args.round_duration().saturating_sub(self.args.interval);
        let round = self.drivers.collect_for(within + rest);
        let (round, shared) = self.harness.rss_mib_while(round).await;
        round?;
        self.report.vm_rss_mib_server_multiplexed = round_figure(shared);
        print_status(&format!("opening {} connections", self.args.dedicated()));
        self.drivers.open_dedicated_connections().await?;
        if self.args.long_poll {
            let millis = u32::try_from(self.args.long_poll_timeout.as_millis())?;
            self.drivers.send_command(&DriverCommand::AllowLongPolls { millis }).await?;
            // Wait until the servers have written that all nodes were in contact at once.
            self.drivers.collect_for(CONTACT_WRITE_TIME).await?;
        }
        self.drivers.collect_for(self.args.round_duration()).await
    }

    async fn measure(&mut self) -> anyhow::Result<()> {
        print_status("measuring");
        let before = Scrape::fetch(&self.harness).await?;
        let (measurement, rss) = self.measure_with_rss(self.args.duration).await?;
        let after = Scrape::fetch(&self.harness).await?;
        self.report.record_calls(&measurement, self.args.nodes);
        self.record_memory(&after, rss);
        self.report.cache_hit_ratio = cache_hit_ratio(&before, &after).map(round_figure);
        let long_polls = after.value("evenkeel_long_poll_open", "");
        self.report.long_polls =
            long_polls.map_or(u64::from(self.drivers.open_long_polls()), count_from_f64);
        self.report.curve = curve::build_curve(
            &self.drivers,
            measurement.seconds.clone(),
            measurement.seconds.start,
        );
        Ok(())
    }

    async fn measure_slice(&mut self, length: Duration) -> anyhow::Result<Measurement> {
        Ok(self.measure_with_rss(length).await?.0)
    }

    async fn measure_with_rss(&mut self, length: Duration) -> anyhow::Result<(Measurement, f64)> {
        let harness = &self.harness;
        let begin = || {
            let (server, postgres) = harness.meters();
            vec![server, postgres]
        };
        let measured = self.drivers.measure(length, begin);
        let (measurement, rss) = harness.rss_mib_while(measured).await;
        Ok((measurement?, rss))
    }

    fn record_memory(&mut self, metrics: &Scrape, rss: f64) {
        let report = &mut self.report;
        let (server, postgres) = self.harness.meters();
        report.rss_mib_server = round_figure(server.pss_mib());
        report.rss_mib_postgres = round_figure(postgres.pss_mib());
        report.vm_rss_mib_server = round_figure(rss);
        let grown = report.vm_rss_mib_server - report.vm_rss_mib_server_multiplexed;
        let dedicated = f64::from(report.dedicated_connections);
        report.kib_per_dedicated_connection =
            (0.0 < dedicated).then(|| round_figure(grown * 1_024.0 / dedicated));
        let bytes = metrics.value("evenkeel_answer_cache_bytes", "");
        let nodes = metrics.value("evenkeel_answer_cache_nodes", "");
        let each = bytes.zip(nodes.filter(|nodes| 0.0 < *nodes));
        report.bytes_per_node = each.map(|(bytes, nodes)| round_figure(bytes / nodes));
    }

    /// Compares the cost of an unchanged poll with a bare echo, with the same nodes and messages.
    async fn compare(&mut self) -> anyhow::Result<()> {
        let args = self.args;
        if !args.has_echo() {
            return Ok(());
        }
        if 0 < args.changes_per_mille() {
            print_status("sending the last changes");
            self.drivers.send_command(&DriverCommand::StopChanges).await?;
            self.drivers.collect_for(args.round_duration()).await?;
        }
        let from = self.drivers.current_second();
        self.drivers.send_command(&DriverCommand::Pause).await?;
        print_status("every node calls the echo");
        let (ca, files) = (self.harness.authority()?, &self.node_files);
        let plans = |addresses: &[&str]| args.driver_plans(addresses, &ca, (files, 0));
        let echo = EchoFleet::start(&self.harness, (&ca, &self.answers), args.servers, plans);
        let mut echo = echo.await?;
        echo.warm_up(args.interval, args.round_duration()).await?;
        print_status("measuring unchanged polls and the echo by turns");
        let turns = turn_count(args.duration);
        let comparison = echo.compare(&self.harness, &mut self.drivers, turns);
        let comparison = comparison.await?;
        self.drivers.send_command(&DriverCommand::Resume).await?;
        // Let the servers settle before the next measurement.
        let settle_time = Duration::from_secs((curve::SECONDS_BEFORE_RESTART + 1).into());
        self.drivers.collect_for(settle_time).await?;
        let all = self.drivers.total(from..self.drivers.current_second()).calls;
        self.report.errors += all.failed;
        self.report.refused += all.refused;
        let cost = comparison.echo.cpu_us_per_poll_server.max(1e-9);
        self.report.cpu_us_per_unchanged_poll_server = Some(comparison.micros_per_unchanged_poll);
        self.report.cpu_of_echo_ratio =
            Some(round_figure(comparison.micros_per_unchanged_poll / cost));
        self.report.echo = Some(comparison.echo);
        Ok(())
    }

    /// Runs the requested events: a change of policy, a storm, a restart.
    async fn run_events(&mut self) -> anyhow::Result<()> {
        if self.args.change_policy {
            let own = u64::try_from(self.node_list.own_nodes().count())?;
            let timeout = self.args.round_duration() + Duration::from_secs(30);
            let changed =
                policy_change::measure(&self.harness, &mut self.drivers, own, timeout).await?;
            self.report.change_p50_ms = changed.latencies.percentile(0.5).map(millis);
            self.report.change_p99_ms = changed.latencies.percentile(0.99).map(millis);
            self.report.change_missed = Some(changed.missed);
        }
        if 0 < self.args.storm {
            let spec = StormSpec {
                count: self.args.storm,
                within: Duration::from_secs(1),
                wrong_clocks: false,
            };
            storm::start(&self.harness, &mut self.drivers, &self.node_list, spec).await?;
            let outcome =
                storm::finish(&self.harness, &mut self.drivers, &self.node_list, spec).await?;
            self.report.reports_p99_ms = outcome.report_latencies.percentile(0.99).map(millis);
            self.report.lost = Some(outcome.records.lost);
        }
        if self.args.restart {
            let interval = self.args.interval;
            let restarted = curve::restart(&mut self.harness, &mut self.drivers, interval).await?;
            self.report.recovered_s = restarted.recovered_s;
            self.report.curve = restarted.curve;
        }
        Ok(())
    }

    /// Stops all processes, and returns the report.
    async fn finish(self) -> FleetReport {
        drop(self.drivers);
        self.harness.stop().await;
        self.report
    }
}

/// The share of polls between two scrapes that the answer cache answered.
fn cache_hit_ratio(before: &Scrape, after: &Scrape) -> Option<f64> {
    let polls = |label| {
        let earlier = before.value("evenkeel_poll_requests_total", label).unwrap_or(0.0);
        Some(after.value("evenkeel_poll_requests_total", label)? - earlier)
    };
    let all = polls("").filter(|all| 0.0 < *all)?;
    Some(polls("kind=\"hit\"").unwrap_or(0.0) / all)
}

/// Converts a percentage to parts per thousand.
fn per_mille(percent: f64) -> u16 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the options were checked to be from 0 to 100"
    )]
    let share = (percent * 10.0).round() as u16;
    share
}

/// Converts a count that a metric reports as a floating-point number.
fn count_from_f64(count: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and a count is not negative"
    )]
    let count = count as u64;
    count
}
