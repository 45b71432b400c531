//! The real server, or some of them, with a real Postgres, as processes that are measured.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_pg::{Options, PrivatePostgres};
use tempfile::TempDir;

use crate::children::Measured;
use crate::measure::{Meter, peak_mib, reset_peak, rss_of_mib};

/// Where addresses are looked for that nothing else takes while the server is away: below those that the system gives to
/// connections.
const LASTING_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// What Postgres keeps of its tables in its own memory: enough for a fleet of 100,000 hosts, as operators are told to give
/// it (docs/operating.md). What it has by itself, 128 MiB, is not.
const SHARED_BUFFERS: &str = "1GB";

/// How often it is looked how much memory is in use.
const LOOK: Duration = Duration::from_millis(500);

/// How long the server may take to stop.
const STOP_WITHIN: Duration = Duration::from_mins(1);

/// A server or more of them, their Postgres, and the folder with all that belongs to them.
#[derive(Debug)]
pub struct Station {
    servers: Vec<Server>,
    postgres: PrivatePostgres,
    folder: TempDir,
}

#[derive(Debug)]
struct Server {
    process: Measured,
    /// Of its listeners, by their names.
    addresses: serde_json::Value,
}

impl Station {
    /// Starts both, with an empty database. `settings` are further lines of the server's configuration.
    pub async fn start(settings: &str) -> anyhow::Result<Self> {
        Self::start_many(1, settings).await
    }

    /// Starts so many servers on one empty database.
    pub async fn start_many(servers: u16, settings: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("evenkeel-bench-")
            .tempdir()?;
        open_to_others(folder.path())?;
        let postgres = Options::new(folder.path().join("postgres"));
        let postgres = postgres.setting("shared_buffers", SHARED_BUFFERS);
        let postgres = PrivatePostgres::start(postgres).await?;
        configure(folder.path(), servers, &postgres.url(), settings)?;
        // The first one makes the schema, the keys and the project.
        let mut all = serve(folder.path(), 0..1).await?;
        all.extend(serve(folder.path(), 1..servers).await?);
        Ok(Self {
            servers: all,
            postgres,
            folder,
        })
    }

    /// Asks the servers to stop, and waits until they have.
    pub async fn halt(&mut self) -> anyhow::Result<()> {
        for server in &mut self.servers {
            server.process.stop(STOP_WITHIN).await?;
        }
        Ok(())
    }

    /// Starts the servers again as they were, at the same addresses.
    pub async fn resume(&mut self) -> anyhow::Result<()> {
        let all = u16::try_from(self.servers.len())?;
        self.servers = serve(self.folder.path(), 0..all).await?;
        Ok(())
    }

    /// Where everything of this station lies. It goes with the station.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The address of a listener of the first server.
    pub fn address(&self, listener: &str) -> anyhow::Result<&str> {
        let first = self.addresses(listener)?.into_iter().next();
        first.context("there is no server")
    }

    /// The addresses of a listener, of each server.
    pub fn addresses(&self, listener: &str) -> anyhow::Result<Vec<&str>> {
        let addresses = self.servers.iter();
        let addresses = addresses.map(|server| server.addresses[listener].as_str());
        let addresses: Option<Vec<&str>> = addresses.collect();
        addresses.with_context(|| format!("the server has no listener {listener}"))
    }

    /// The data directory of the first server.
    pub fn data(&self) -> PathBuf {
        data(self.folder.path())
    }

    /// The connection string of the database.
    pub fn database(&self) -> String {
        self.postgres.url()
    }

    /// The connection string of the superuser of Postgres, for what the server's own role may not do.
    pub fn superuser(&self) -> String {
        self.postgres.admin_url()
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        self.servers.iter().map(|server| server.process.pid())
    }

    /// Memory of the servers that is in use, in MiB.
    pub fn rss_mib(&self) -> f64 {
        self.pids().map(rss_of_mib).sum()
    }

    /// Waits for something, and gives with it how much memory of the servers was in use meanwhile, in MiB: half of the time
    /// it was more. What is in use for a moment only, such as a batch that is written, does not count.
    pub async fn rss_mib_while<T>(&self, future: impl Future<Output = T>) -> (T, f64) {
        let mut future = std::pin::pin!(future);
        let mut looks = tokio::time::interval(LOOK);
        let mut found = Vec::new();
        let output = loop {
            tokio::select! {
                output = &mut future => break output,
                _ = looks.tick() => found.push(self.rss_mib()),
            }
        };
        found.sort_by(f64::total_cmp);
        let median = found.get(found.len() / 2).copied();
        (output, median.unwrap_or_else(|| self.rss_mib()))
    }

    /// The most memory that the servers had in use since they began, or since [`Station::reset_peak`], in MiB.
    pub fn peak_mib(&self) -> f64 {
        self.pids().map(peak_mib).sum()
    }

    /// Lets the count of their most memory begin anew.
    pub fn reset_peak(&self) -> anyhow::Result<()> {
        for pid in self.pids() {
            reset_peak(pid)?;
        }
        Ok(())
    }

    /// The authority that vouches for the servers.
    pub fn authority(&self) -> anyhow::Result<CertificateAuthority> {
        let folder = self.data().join("ca");
        Ok(CertificateAuthority::open(&folder, SystemClock.now())?)
    }

    /// Counts what the servers cost from now on, and what Postgres costs.
    pub fn meters(&self) -> (Meter, Meter) {
        (
            Meter::start(self.pids().collect()),
            Meter::of_family(self.postgres.pid().unsigned_abs()),
        )
    }

    /// Stops both. The folder stays until it is dropped.
    pub async fn stop(self) -> TempDir {
        drop(self.servers);
        self.postgres.stop().await;
        self.folder
    }
}

fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Where the configuration of a server is.
fn config(folder: &Path, server: u16) -> PathBuf {
    folder.join(format!("evenkeeld-{server}.toml"))
}

/// Writes the configuration of each server. All have the keys and the authority of the first one.
fn configure(folder: &Path, servers: u16, database: &str, settings: &str) -> anyhow::Result<()> {
    let ports = lasting_ports(usize::from(servers) * 3)?;
    let first = data(folder);
    let (keys, ca) = (path(&first.join("keys")), path(&first.join("ca")));
    for (server, ports) in (0..servers).zip(ports.chunks_exact(3)) {
        let data = match server {
            0 => path(&first),
            further => path(&folder.join(format!("data-{further}"))),
        };
        let [rest, southbound, admin] = ports else {
            bail!("a server has three listeners");
        };
        let text = format!(
            "data_dir = {data:?}\n[database]\nurl = {database:?}\n[auth]\nkeys = {keys:?}\nca = {ca:?}\n\
             [rest]\nlisten = \"127.0.0.1:{rest}\"\n[southbound]\nlisten = \"127.0.0.1:{southbound}\"\n\
             [admin]\nlisten = \"127.0.0.1:{admin}\"\n{settings}"
        );
        std::fs::write(config(folder, server), text)?;
    }
    Ok(())
}

/// Starts servers together, and gives them once they are ready.
async fn serve(folder: &Path, servers: std::ops::Range<u16>) -> anyhow::Result<Vec<Server>> {
    let file = |name: &str, server| folder.join(format!("{name}-{server}"));
    let mut started = Vec::new();
    for server in servers {
        let (ready, log) = (file("ready", server), file("log", server));
        if ready.exists() {
            std::fs::remove_file(&ready)?;
        }
        let (config, ready_file) = (path(&config(folder, server)), path(&ready));
        let arguments = [
            "serve",
            "all",
            "--config",
            &config,
            "--ready-file",
            &ready_file,
        ];
        started.push((Measured::start(&arguments, &log)?, ready, log));
    }
    let mut all = Vec::new();
    for (mut process, ready, log) in started {
        let addresses = serde_json::from_str(&process.ready(&ready, &log).await?)?;
        all.push(Server { process, addresses });
    }
    Ok(all)
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// So many ports that are free. Where a search begins depends on the process, so that two benchmarks get in each other's
/// way less.
fn lasting_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    let steps = u16::try_from(std::process::id() % 300).unwrap_or(0);
    let from = LASTING_PORTS.start + steps * 39;
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let free: Vec<u16> = (from..LASTING_PORTS.end)
        .filter(is_free)
        .take(count)
        .collect();
    ensure!(
        free.len() == count,
        "no {count} ports from {from} on are free"
    );
    Ok(free)
}

/// Postgres runs as another user when we are root, and so does apt: they must be able to pass through.
fn open_to_others(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o755);
    Ok(std::fs::set_permissions(folder, open)?)
}
