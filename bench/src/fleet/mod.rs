//! A fleet of simulated nodes, of ours and of the ancestor's, that call a real server over real TLS as they really do: each
//! at its own instants, whether the calls before were answered or not.
//!
//! The server, Postgres and the drivers are processes of their own, so that what each costs is counted apart. A latency
//! counts from the instant at which the call was planned.

mod calendar;
mod call;
mod compare;
mod connect;
mod curve;
pub mod drive;
mod drivers;
mod faults;
mod first;
mod held;
mod histogram;
mod lines;
mod node;
mod plan;
mod report;
mod roster;
mod scrape;
mod storm;
mod talk;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use evenkeel_auth::CertificateAuthority;

use crate::echo::Answers;
use crate::report::{millis, remark, tidy};
use crate::station::Station;
use compare::{Echo, turns};
use drivers::{Drivers, Share, Slice};
use faults::FaultArgs;
use plan::{Order, Plan};
use report::Report;
use roster::{Numbers, Roster};
use scrape::Scrape;
use storm::Tale;

/// Open files of the server that are no connections of nodes.
const FILES: u64 = 300;

/// How many nodes one driver has, unless it is said how many drivers there are.
const NODES_EACH: u32 = 50_000;

/// How far apart nodes call for the first time ever: much is written then of each that speaks as the ancestor's.
const FIRST_CALL: Duration = Duration::from_micros(500);

/// The times of last contact are written by then.
const CONTACTS_WITHIN: Duration = Duration::from_secs(35);

/// How the fleet is.
#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct Args {
    /// Nodes that call.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    nodes: u32,
    /// Registered hosts, if there are more than those that call.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    registered: Option<u32>,
    /// How long a node waits between two calls: ours within a tenth more or less, the ancestor's exactly.
    #[arg(long, default_value = "20s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// How long is measured, in whole seconds, once every node has called and has its connection. The comparison with the
    /// echo has turns of five seconds each, as many as fit into that, from one to six.
    #[arg(long = "for", default_value = "60s", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Over TLS. The server's door for nodes has nothing else, so this is so in any case.
    #[arg(long)]
    tls: bool,
    /// Let nodes of ours be held. With --eim 0 that is what an idle fleet costs; there is no comparison with the echo.
    #[arg(long)]
    held: bool,
    /// For how long a node lets itself be held at most, if the server does not end it before. The first time it is of any
    /// length up to that, so that what is measured is how it goes on.
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
    hold: Duration,
    /// How many of a hundred nodes speak the protocol of the ancestor's agents.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100))]
    eim: u32,
    /// Connections that a node has for itself and keeps.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(0..=200_000))]
    kept: u32,
    /// Connections that the other nodes share.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    multiplexed: u32,
    /// In how many of a hundred calls a node has something new to say, in tenths: another boot, or another list of what
    /// could be updated.
    #[arg(long, default_value_t = 1.0)]
    news: f64,
    /// Let nodes call again when the server says, and not when it was planned.
    #[arg(long)]
    obey: bool,
    /// Servers on the one database, each with its share of the nodes. One process has so many connections as it may have
    /// open files.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    servers: u16,
    /// Processes that drive nodes; one for each 50,000 nodes unless given; as many for each server.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    drivers: Option<u32>,
    /// Take the policy from all nodes, give them another one, and see when each has it.
    #[arg(long, requires = "held")]
    change_policy: bool,
    /// Let so many nodes of ours begin and finish an attempt within the same second.
    #[arg(long, default_value_t = 0)]
    storm: u32,
    /// Restart the servers under their nodes, and print the curve until all calls succeed again.
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    faults: FaultArgs,
    /// Leave out the comparison with a bare gRPC echo.
    #[arg(long)]
    no_echo: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        let are_enough = self.registered.is_none_or(|all| self.nodes <= all);
        ensure!(are_enough, "--registered: fewer than --nodes");
        ensure!(
            Duration::from_millis(100) <= self.interval,
            "--interval: less than 100ms"
        );
        ensure!((0.0..=100.0).contains(&self.news), "--news: from 0 to 100");
        ensure!(
            self.drivers() <= self.multiplexed,
            "--multiplexed: each of {} drivers needs a connection",
            self.drivers()
        );
        self.faults.check(self.held)?;
        if !self.tls {
            remark("over TLS all the same: the server's door for nodes has nothing else");
        }
        Ok(())
    }

    fn registered(&self) -> u32 {
        let least = self.nodes + self.faults.spare();
        self.registered.unwrap_or(least).max(least)
    }

    fn kept(&self) -> u32 {
        self.kept.min(self.nodes)
    }

    fn connections(&self) -> u32 {
        self.kept() + self.multiplexed
    }

    fn drivers(&self) -> u32 {
        let usual = self.nodes.div_ceil(NODES_EACH);
        let drivers = self.drivers.unwrap_or(usual).min(self.multiplexed);
        drivers.next_multiple_of(self.servers.into())
    }

    fn has_echo(&self) -> bool {
        !self.held && !self.no_echo
    }

    fn news_per_mille(&self) -> u16 {
        per_mille(self.news)
    }

    /// In which every node calls at least once.
    fn round(&self) -> Duration {
        self.interval.mul_f64(1.2) + Duration::from_secs(1)
    }

    /// What each driver is told first.
    fn plans(
        &self,
        addresses: &[&str],
        ca: &CertificateAuthority,
        (files, news_per_mille): (&[PathBuf], u16),
    ) -> anyhow::Result<Vec<Plan>> {
        let shares = drivers::shares(self.drivers(), self.multiplexed, self.kept())?;
        let parts = (0_u32..).zip(files.iter().zip(shares).zip(addresses.iter().cycle()));
        let plan = |(part, ((nodes, share), address)): (u32, ((&PathBuf, Share), &&str))| -> anyhow::Result<Plan> {
            Ok(Plan {
                address: address.parse()?,
                authority: ca.certificate_pem().to_owned(),
                nodes: nodes.clone(),
                part,
                interval_millis: u64::try_from(self.interval.as_millis())?,
                multiplexed: share.multiplexed,
                kept: share.kept,
                connections_before: share.before,
                news_per_mille,
                obey: self.obey,
            })
        };
        parts.map(plan).collect()
    }
}

/// Runs the benchmark. Fails if a call failed, a change was missed, an attempt was lost or a fault did not happen.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.check()?;
    let each = args.connections().div_ceil(args.servers.into());
    connect::allow_files(u64::from(each + args.faults.spare()) + FILES)?;
    let mut bench = Bench::prepare(args).await?;
    bench.warm_up().await?;
    bench.measure().await?;
    bench.suffer().await?;
    bench.compare().await?;
    bench.disturb().await?;
    let report = bench.finish().await;
    report.print(args.json, args.restart)?;
    Ok(if report.is_bad() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// A server, or some, with its fleet, and what was found so far.
struct Bench<'a> {
    args: &'a Args,
    station: Station,
    roster: Roster,
    files: Vec<PathBuf>,
    answers: Answers,
    drivers: Drivers,
    report: Report,
}

impl<'a> Bench<'a> {
    /// Fills a database, starts the server on it, and starts the drivers.
    async fn prepare(args: &'a Args) -> anyhow::Result<Self> {
        let interval = args.interval.as_millis();
        // Those that were filled in long ago, or are only registered, are nobody's worry.
        let settings = format!(
            "[maintenance_manager]\npoll_interval = \"{interval}ms\"\nsilent_after = \"1d\"\n"
        );
        let mut station = Station::start_many(args.servers, &settings).await?;
        // What is filled in while nobody looks is as if it had always been there.
        station.halt().await?;
        let numbers = Numbers {
            registered: args.registered(),
            nodes: args.nodes,
            eim: args.eim,
            spare: args.faults.spare(),
        };
        remark(&format!("making {} hosts", numbers.registered));
        let roster = Roster::make(&station, numbers).await?;
        let files = roster.write(&station, args.drivers())?;
        let nodes = files.first().map_or(Path::new(""), PathBuf::as_path);
        let (first, answers) = first::answer(&mut station, nodes).await?;
        remark(&format!(
            "the first answer after {:.2} s",
            first.as_secs_f64()
        ));
        let (ca, addresses) = (station.authority()?, station.addresses("southbound")?);
        let plans = args.plans(&addresses, &ca, (&files, args.news_per_mille()))?;
        let drivers = Drivers::start(&plans).await?;
        let report = Report {
            hosts: args.registered(),
            servers: args.servers,
            nodes: args.nodes,
            connections: args.connections(),
            kept_connections: args.kept(),
            interval_s: args.interval.as_secs_f64(),
            first_answer_s: tidy(first.as_secs_f64()),
            ..Report::default()
        };
        Ok(Self {
            args,
            station,
            roster,
            files,
            answers,
            drivers,
            report,
        })
    }

    /// Every node calls over the shared connections, and then over its own if it has one.
    async fn warm_up(&mut self) -> anyhow::Result<()> {
        remark("every node calls over shared connections");
        let within = self.args.interval.max(FIRST_CALL * self.args.nodes);
        self.drivers.begin(within).await?;
        let rest = self.args.round().saturating_sub(self.args.interval);
        let round = self.drivers.listen(within + rest);
        let (round, shared) = self.station.rss_mib_while(round).await;
        round?;
        self.report.vm_rss_mib_server_multiplexed = tidy(shared);
        remark(&format!("opening {} connections", self.args.kept()));
        self.drivers.keep().await?;
        if self.args.held {
            let millis = u32::try_from(self.args.hold.as_millis())?;
            self.drivers.order(&Order::Hold { millis }).await?;
            // That all of them were heard at once is written once.
            self.drivers.listen(CONTACTS_WITHIN).await?;
        }
        self.drivers.listen(self.args.round()).await
    }

    async fn measure(&mut self) -> anyhow::Result<()> {
        remark("measuring");
        let before = Scrape::of(&self.station).await?;
        let (slice, rss) = self.slice_and_rss(self.args.length).await?;
        let after = Scrape::of(&self.station).await?;
        self.report.note_calls(&slice, self.args.nodes);
        self.note_memory(&after, rss);
        self.report.hits_share = hits(&before, &after).map(tidy);
        let held = after.value("evenkeel_held_polls", "");
        self.report.held = held.map_or(u64::from(self.drivers.held()), whole);
        self.report.curve = curve::curve(&self.drivers, slice.seconds.clone(), slice.seconds.start);
        Ok(())
    }

    async fn slice(&mut self, length: Duration) -> anyhow::Result<Slice> {
        Ok(self.slice_and_rss(length).await?.0)
    }

    async fn slice_and_rss(&mut self, length: Duration) -> anyhow::Result<(Slice, f64)> {
        let station = &self.station;
        let begin = || {
            let (server, postgres) = station.meters();
            vec![server, postgres]
        };
        let measured = self.drivers.measure(length, begin);
        let (slice, rss) = station.rss_mib_while(measured).await;
        Ok((slice?, rss))
    }

    fn note_memory(&mut self, metrics: &Scrape, rss: f64) {
        let report = &mut self.report;
        let (server, postgres) = self.station.meters();
        report.rss_mib_server = tidy(server.rss_mib());
        report.rss_mib_postgres = tidy(postgres.rss_mib());
        report.vm_rss_mib_server = tidy(rss);
        let grown = report.vm_rss_mib_server - report.vm_rss_mib_server_multiplexed;
        let kept = f64::from(report.kept_connections);
        report.kib_per_kept_connection = (0.0 < kept).then(|| tidy(grown * 1_024.0 / kept));
        let bytes = metrics.value("evenkeel_view_bytes", "");
        let nodes = metrics.value("evenkeel_view_nodes", "");
        let each = bytes.zip(nodes.filter(|nodes| 0.0 < *nodes));
        report.bytes_per_node = each.map(|(bytes, nodes)| tidy(bytes / nodes));
    }

    /// What a poll without news costs beside a bare echo with the same nodes and messages.
    async fn compare(&mut self) -> anyhow::Result<()> {
        let args = self.args;
        if !args.has_echo() {
            return Ok(());
        }
        if 0 < args.news_per_mille() {
            remark("the last news");
            self.drivers.order(&Order::Quiet).await?;
            self.drivers.listen(args.round()).await?;
        }
        let from = self.drivers.present();
        self.drivers.order(&Order::Pause).await?;
        remark("every node calls the echo");
        let (ca, files) = (self.station.authority()?, &self.files);
        let plans = |addresses: &[&str]| args.plans(addresses, &ca, (files, 0));
        let echo = Echo::start(&self.station, (&ca, &self.answers), args.servers, plans);
        let mut echo = echo.await?;
        echo.warm_up(args.interval, args.round()).await?;
        remark("measuring without news, and the echo, by turns");
        let turns = turns(args.length);
        let compared = echo.compare(&self.station, &mut self.drivers, turns);
        let compared = compared.await?;
        self.drivers.order(&Order::Resume).await?;
        // All is as it was before when something else is done to the servers.
        let settled = Duration::from_secs((curve::BEFORE + 1).into());
        self.drivers.listen(settled).await?;
        let all = self.drivers.sum(from..self.drivers.present()).calls;
        self.report.errors += all.failed;
        self.report.refused += all.refused;
        let cost = compared.echo.cpu_us_per_poll_server.max(1e-9);
        self.report.cpu_us_per_quiet_poll_server = Some(compared.quiet);
        self.report.cpu_of_echo_ratio = Some(tidy(compared.quiet / cost));
        self.report.echo = Some(compared.echo);
        Ok(())
    }

    /// What else was asked for: a change, a storm, a restart.
    async fn disturb(&mut self) -> anyhow::Result<()> {
        if self.args.change_policy {
            let own = u64::try_from(self.roster.own().count())?;
            let patience = self.args.round() + Duration::from_secs(30);
            let changed = held::change(&self.station, &mut self.drivers, own, patience).await?;
            self.report.change_p50_ms = changed.latencies.percentile(0.5).map(millis);
            self.report.change_p99_ms = changed.latencies.percentile(0.99).map(millis);
            self.report.change_missed = Some(changed.missed);
        }
        if 0 < self.args.storm {
            let tale = Tale {
                count: self.args.storm,
                within: Duration::from_secs(1),
                wrong_clocks: false,
            };
            storm::begin(&self.station, &mut self.drivers, &self.roster, tale).await?;
            let told = storm::end(&self.station, &mut self.drivers, &self.roster, tale).await?;
            self.report.reports_p99_ms = told.reports.percentile(0.99).map(millis);
            self.report.lost = Some(told.records.lost);
        }
        if self.args.restart {
            let interval = self.args.interval;
            let restarted = curve::restart(&mut self.station, &mut self.drivers, interval).await?;
            self.report.recovered_s = restarted.recovered_s;
            self.report.curve = restarted.curve;
        }
        Ok(())
    }

    /// Stops everything.
    async fn finish(self) -> Report {
        drop(self.drivers);
        self.station.stop().await;
        self.report
    }
}

/// The share of the polls between two looks that were answered from memory.
fn hits(before: &Scrape, after: &Scrape) -> Option<f64> {
    let polls = |label| {
        let earlier = before.value("evenkeel_polls_total", label).unwrap_or(0.0);
        Some(after.value("evenkeel_polls_total", label)? - earlier)
    };
    let all = polls("").filter(|all| 0.0 < *all)?;
    Some(polls("kind=\"hit\"").unwrap_or(0.0) / all)
}

/// So many of a hundred, in thousandths.
fn per_mille(percent: f64) -> u16 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it was looked at: from 0 to 100"
    )]
    let share = (percent * 10.0).round() as u16;
    share
}

/// A count that was told as a number with places.
fn whole(count: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and a count is not negative"
    )]
    let count = count as u64;
    count
}
