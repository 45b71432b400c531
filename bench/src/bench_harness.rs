//! The real server, one or more processes, with a real Postgres.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_pg::{Options, PrivatePostgres};
use tempfile::TempDir;

use crate::children::MeasuredProcess;
use crate::measure::{Meter, peak_mib, reset_peak, vm_rss_mib};

/// Ports for listeners that must stay free while a server is restarted: below the ephemeral ports
/// of the system.
const PORT_RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Buffer cache of Postgres: enough for 100,000 hosts, as docs/operate.md recommends. The default
/// of 128 MiB is not.
const SHARED_BUFFERS: &str = "1GB";

/// Settings of servers whose nodes share connections: such nodes cannot show certificates.
pub const BEARER_CREDENTIALS: &str = "[maintenance_manager]\nbearer_credentials = true\n";

/// Interval at which the memory of the servers is sampled.
const MEMORY_SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Timeout for the stop of a server.
const STOP_TIMEOUT: Duration = Duration::from_mins(1);

/// The servers, their Postgres, and the folder with their files.
#[derive(Debug)]
pub struct BenchHarness {
    servers: Vec<ServerProcess>,
    postgres: PrivatePostgres,
    folder: TempDir,
}

#[derive(Debug)]
struct ServerProcess {
    process: MeasuredProcess,
    /// Addresses by name of the listener.
    addresses: serde_json::Value,
}

impl BenchHarness {
    /// Starts Postgres with an empty database, and a server. `settings` are appended to the section
    /// `southbound` at the end of the server's configuration.
    pub async fn start(settings: &str) -> anyhow::Result<Self> {
        Self::start_many(1, settings).await
    }

    /// Starts several servers on one empty database.
    pub async fn start_many(servers: u16, settings: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("evenkeel-bench-").tempdir()?;
        make_accessible(folder.path())?;
        let postgres = Options::new(folder.path().join("postgres"));
        let postgres = postgres.setting("shared_buffers", SHARED_BUFFERS);
        let postgres = PrivatePostgres::start(postgres).await?;
        write_configs(folder.path(), servers, &postgres.url(), settings)?;
        // The first server creates the schema, the keys and the project.
        let mut all = start_servers(folder.path(), 0..1).await?;
        all.extend(start_servers(folder.path(), 1..servers).await?);
        Ok(Self { servers: all, postgres, folder })
    }

    /// Stops the servers, and waits until they have ended.
    pub async fn stop_servers(&mut self) -> anyhow::Result<()> {
        for server in &mut self.servers {
            server.process.stop(STOP_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Starts the servers again, with the same addresses.
    pub async fn restart_servers(&mut self) -> anyhow::Result<()> {
        let all = u16::try_from(self.servers.len())?;
        self.servers = start_servers(self.folder.path(), 0..all).await?;
        Ok(())
    }

    /// The folder with all files. It is deleted with the harness.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The address of a listener of the first server.
    pub fn address(&self, listener: &str) -> anyhow::Result<&str> {
        let first = self.addresses(listener)?.into_iter().next();
        first.context("there is no server")
    }

    /// The addresses of a listener of all servers.
    pub fn addresses(&self, listener: &str) -> anyhow::Result<Vec<&str>> {
        let addresses = self.servers.iter();
        let addresses = addresses.map(|server| server.addresses[listener].as_str());
        let addresses: Option<Vec<&str>> = addresses.collect();
        addresses.with_context(|| format!("the server has no listener {listener}"))
    }

    /// The data directory of the first server.
    pub fn data_dir(&self) -> PathBuf {
        data_dir(self.folder.path())
    }

    /// The connection string of the database.
    pub fn database_url(&self) -> String {
        self.postgres.url()
    }

    /// The connection string of the Postgres superuser, for actions that the server's role may not
    /// do.
    pub fn superuser_url(&self) -> String {
        self.postgres.admin_url()
    }

    fn server_pids(&self) -> impl Iterator<Item = u32> {
        self.servers.iter().map(|server| server.process.pid())
    }

    /// Resident memory of the servers, in MiB.
    pub fn rss_mib(&self) -> f64 {
        self.server_pids().map(vm_rss_mib).sum()
    }

    /// Waits for a future. Returns its output, and the median of the servers' resident memory
    /// meanwhile, in MiB. Short peaks, such as a batch that is written, do not affect the median.
    pub async fn rss_mib_while<T>(&self, future: impl Future<Output = T>) -> (T, f64) {
        let mut future = std::pin::pin!(future);
        let mut ticks = tokio::time::interval(MEMORY_SAMPLE_INTERVAL);
        let mut samples = Vec::new();
        let output = loop {
            tokio::select! {
                output = &mut future => break output,
                _ = ticks.tick() => samples.push(self.rss_mib()),
            }
        };
        samples.sort_by(f64::total_cmp);
        let median = samples.get(samples.len() / 2).copied();
        (output, median.unwrap_or_else(|| self.rss_mib()))
    }

    /// Peak resident memory of the servers since their start, or since
    /// [`BenchHarness::reset_peak`], in MiB.
    pub fn peak_mib(&self) -> f64 {
        self.server_pids().map(peak_mib).sum()
    }

    /// Resets the peak memory of the servers.
    pub fn reset_peak(&self) -> anyhow::Result<()> {
        for pid in self.server_pids() {
            reset_peak(pid)?;
        }
        Ok(())
    }

    /// The CA that issued the certificates of the servers.
    pub fn authority(&self) -> anyhow::Result<CertificateAuthority> {
        let folder = self.data_dir().join("ca");
        Ok(CertificateAuthority::open(&folder, SystemClock.now())?)
    }

    /// Starts meters for the servers and for Postgres.
    pub fn meters(&self) -> (Meter, Meter) {
        (
            Meter::start(self.server_pids().collect()),
            Meter::start_for_family(self.postgres.pid().unsigned_abs()),
        )
    }

    /// Stops the servers and Postgres. The folder stays until it is dropped.
    pub async fn stop(self) -> TempDir {
        drop(self.servers);
        self.postgres.stop().await;
        self.folder
    }
}

fn data_dir(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Path of the configuration of a server.
fn config_path(folder: &Path, server: u16) -> PathBuf {
    folder.join(format!("evenkeeld-{server}.toml"))
}

/// Writes the configuration of each server. All servers share the keys and the CA of the first one.
fn write_configs(
    folder: &Path,
    servers: u16,
    database: &str,
    settings: &str,
) -> anyhow::Result<()> {
    let ports = find_free_ports(usize::from(servers) * 3)?;
    let first = data_dir(folder);
    let (keys, ca) = (path_text(&first.join("keys")), path_text(&first.join("ca")));
    for (server, ports) in (0..servers).zip(ports.chunks_exact(3)) {
        let data = match server {
            0 => path_text(&first),
            further => path_text(&folder.join(format!("data-{further}"))),
        };
        let [rest, southbound, admin] = ports else {
            bail!("expected three ports per server");
        };
        let text = format!(
            "data_dir = {data:?}\n[database]\nurl = {database:?}\n[auth]\nkeys = {keys:?}\nca = {ca:?}\n\
             [rest]\nlisten = \"127.0.0.1:{rest}\"\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
             [southbound]\nlisten = \"127.0.0.1:{southbound}\"\n\
             max_unauthenticated_connections = 50000\nmax_unauthenticated_per_address = 0\n{settings}"
        );
        std::fs::write(config_path(folder, server), text)?;
    }
    Ok(())
}

/// Starts servers in parallel, and waits until they are ready.
async fn start_servers(
    folder: &Path,
    servers: std::ops::Range<u16>,
) -> anyhow::Result<Vec<ServerProcess>> {
    let file = |name: &str, server| folder.join(format!("{name}-{server}"));
    let mut started = Vec::new();
    for server in servers {
        let (ready, log) = (file("ready", server), file("log", server));
        if ready.exists() {
            std::fs::remove_file(&ready)?;
        }
        let (config, ready_file) = (path_text(&config_path(folder, server)), path_text(&ready));
        let arguments = ["serve", "all", "--config", &config, "--ready-file", &ready_file];
        started.push((MeasuredProcess::start(&arguments, &log)?, ready, log));
    }
    let mut all = Vec::new();
    for (mut process, ready, log) in started {
        let addresses = serde_json::from_str(&process.wait_until_ready(&ready, &log).await?)?;
        all.push(ServerProcess { process, addresses });
    }
    Ok(all)
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Finds free ports. The start of the search depends on the process id, so that concurrent
/// benchmarks rarely find the same ports.
fn find_free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    let steps = u16::try_from(std::process::id() % 300).unwrap_or(0);
    let from = PORT_RANGE.start + steps * 39;
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let free: Vec<u16> = (from..PORT_RANGE.end).filter(is_free).take(count).collect();
    ensure!(free.len() == count, "there are no {count} free ports from {from} on");
    Ok(free)
}

/// Makes a folder accessible to other users: Postgres and apt do not run as root.
fn make_accessible(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o755);
    Ok(std::fs::set_permissions(folder, open)?)
}
