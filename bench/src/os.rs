//! Operating systems: a sync of many profiles, documents, files, and nodes that are told of a newer image.

mod documents;
mod files;
mod follow;
mod registry;
mod sync;

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::report::remark;
use crate::station::Station;

/// How large all of it is.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Profiles that a project takes.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=200))]
    profiles: u32,
    /// Revisions of each of them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    revisions: u32,
    /// Nodes that are told of a newer image; one fleet for each number.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000])]
    nodes: Vec<u32>,
    /// The size of the image that is served, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    image_mib: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// All that one run found.
#[derive(Debug, Serialize)]
struct Report {
    syncs: Vec<sync::Figures>,
    documents: Vec<documents::Figures>,
    followed: Vec<follow::Figures>,
    files: Vec<files::Figures>,
}

/// Runs the benchmark. Fails if a sync is not good, or a node or a file does not become what it should.
pub async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let documents = documents::measure()?;
    remark("publishing");
    let registry = registry::Published::new(args.profiles, args.revisions, args.image_mib);
    let station = Station::start(&registry.settings()).await?;
    remark("syncing");
    let syncs = sync::measure(&station, &registry).await?;
    let files = files::measure(&station, &registry).await?;
    drop(station.stop().await);
    drop(registry);
    let mut followed = Vec::new();
    for nodes in &args.nodes {
        remark(&format!("making {nodes} nodes"));
        followed.push(follow::measure(*nodes).await?);
    }
    let report = Report {
        syncs,
        documents,
        followed,
        files,
    };
    report.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

impl Report {
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
        writeln!(
            out,
            "\n{:>12} {:>9} {:>10} {:>12}",
            "nodes told", "s", "server ms", "postgres ms"
        )?;
        for told in &self.followed {
            writeln!(
                out,
                "{:>12} {:>9.2} {:>10.0} {:>12.0}",
                told.nodes, told.seconds, told.cpu_ms_server, told.cpu_ms_postgres
            )?;
        }
        writeln!(out, "\n{:>36} {:>9}", "file", "MiB/s")?;
        for served in &self.files {
            writeln!(out, "{:>36} {:>9.0}", served.what, served.mib_per_second)?;
        }
        Ok(())
    }
}
