//! Operating systems: the sync of many profiles, documents, files, and the notification of nodes.

mod documents;
mod files;
mod follow;
mod registry;
mod sync;

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::bench_harness::BenchHarness;
use crate::report::print_status;

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub struct OsArgs {
    /// Number of profiles that the project selects.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=200))]
    profiles: u32,
    /// Number of revisions per profile.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    revisions: u32,
    /// Numbers of nodes that are notified of a newer image, one fleet each.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000])]
    nodes: Vec<u32>,
    /// Size of the image, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    image_mib: u32,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The report.
#[derive(Debug, Serialize)]
struct OsReport {
    syncs: Vec<sync::SyncFigures>,
    documents: Vec<documents::DocumentFigures>,
    followed: Vec<follow::FollowFigures>,
    files: Vec<files::FileFigures>,
}

/// Runs the benchmark. Fails if a sync does not succeed, or a node or a file is not as expected.
pub async fn run(args: &OsArgs) -> anyhow::Result<ExitCode> {
    let documents = documents::measure()?;
    print_status("publishing the profiles");
    let registry = registry::PublishedRegistry::new(args.profiles, args.revisions, args.image_mib);
    let harness = BenchHarness::start(&registry.settings()).await?;
    print_status("syncing the profiles");
    let syncs = sync::measure(&harness, &registry).await?;
    let files = files::measure(&harness, &registry).await?;
    drop(harness.stop().await);
    drop(registry);
    let mut followed = Vec::new();
    for nodes in &args.nodes {
        print_status(&format!("creating {nodes} nodes"));
        followed.push(follow::measure(*nodes).await?);
    }
    let report = OsReport { syncs, documents, followed, files };
    report.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

impl OsReport {
    fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self)?;
            return Ok(writeln!(out)?);
        }
        writeln!(
            out,
            "{:>12} {:>10} {:>9} {:>9} {:>10} {:>12}",
            "sync", "artefacts", "s", "requests", "server ms", "postgres ms"
        )?;
        for sync in &self.syncs {
            writeln!(
                out,
                "{:>12} {:>10} {:>9.2} {:>9} {:>10.0} {:>12.0}",
                sync.what,
                sync.artefacts,
                sync.seconds,
                sync.requests,
                sync.cpu_ms_server,
                sync.cpu_ms_postgres
            )?;
        }
        writeln!(out, "\n{:>36} {:>9} {:>9}", "document", "MiB", "MiB/s")?;
        for read in &self.documents {
            let (what, mib, speed) = (read.what, read.mib, read.mib_per_second);
            writeln!(out, "{what:>36} {mib:>9.2} {speed:>9.0}")?;
        }
        writeln!(out, "\n{:>12} {:>9} {:>10} {:>12}", "nodes", "s", "server ms", "postgres ms")?;
        for figures in &self.followed {
            writeln!(
                out,
                "{:>12} {:>9.2} {:>10.0} {:>12.0}",
                figures.nodes, figures.seconds, figures.cpu_ms_server, figures.cpu_ms_postgres
            )?;
        }
        writeln!(out, "\n{:>36} {:>9}", "file", "MiB/s")?;
        for served in &self.files {
            writeln!(out, "{:>36} {:>9.0}", served.what, served.mib_per_second)?;
        }
        Ok(())
    }
}
