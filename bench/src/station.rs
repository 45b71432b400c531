//! The real server with a real Postgres, as processes that are measured.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_pg::{Options, PrivatePostgres};
use tempfile::TempDir;

use crate::children::Measured;
use crate::measure::Meter;

/// Where addresses are looked for that nothing else takes while the server is away: below those that the system gives to
/// connections.
const LASTING_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The server's configuration, in its folder.
const CONFIG: &str = "evenkeeld.toml";

/// What Postgres keeps of its tables in its own memory: enough for a fleet of 100,000 hosts, as operators are told to give
/// it (docs/operating.md). What it has by itself, 128 MiB, is not.
const SHARED_BUFFERS: &str = "1GB";

/// How long the server may take to stop.
const STOP_WITHIN: Duration = Duration::from_mins(1);

/// A server, its Postgres, and the folder with all that belongs to them.
#[derive(Debug)]
pub struct Station {
    server: Measured,
    postgres: PrivatePostgres,
    addresses: serde_json::Value,
    folder: TempDir,
}

impl Station {
    /// Starts both, with an empty database. `settings` are further lines of the server's configuration.
    pub async fn start(settings: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("evenkeel-bench-")
            .tempdir()?;
        open_to_others(folder.path())?;
        let postgres = Options::new(folder.path().join("postgres"));
        let postgres = postgres.setting("shared_buffers", SHARED_BUFFERS);
        let postgres = PrivatePostgres::start(postgres).await?;
        configure(folder.path(), &postgres.url(), settings)?;
        let (server, addresses) = serve(folder.path()).await?;
        Ok(Self {
            server,
            postgres,
            addresses,
            folder,
        })
    }

    /// Asks the server to stop, and waits until it has.
    pub async fn halt(&mut self) -> anyhow::Result<()> {
        self.server.stop(STOP_WITHIN).await
    }

    /// Starts the server again as it was, at the same addresses.
    pub async fn resume(&mut self) -> anyhow::Result<()> {
        (self.server, self.addresses) = serve(self.folder.path()).await?;
        Ok(())
    }

    /// Where everything of this station lies. It goes with the station.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The address of a listener of the server.
    pub fn address(&self, listener: &str) -> anyhow::Result<&str> {
        let address = self.addresses[listener].as_str();
        address.with_context(|| format!("the server has no listener {listener}"))
    }

    /// The server's data directory.
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

    /// The process id of the server.
    pub const fn server(&self) -> u32 {
        self.server.pid()
    }

    /// The authority that vouches for the server.
    pub fn authority(&self) -> anyhow::Result<CertificateAuthority> {
        let folder = self.data().join("ca");
        Ok(CertificateAuthority::open(&folder, SystemClock.now())?)
    }

    /// Counts what the server costs from now on, and what Postgres costs.
    pub fn meters(&self) -> (Meter, Meter) {
        (
            Meter::start(vec![self.server.pid()]),
            Meter::of_family(self.postgres.pid().unsigned_abs()),
        )
    }

    /// Stops both. The folder stays until it is dropped.
    pub async fn stop(self) -> TempDir {
        drop(self.server);
        self.postgres.stop().await;
        self.folder
    }
}

fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Writes the server's configuration.
fn configure(folder: &Path, database: &str, settings: &str) -> anyhow::Result<()> {
    let data = path(&data(folder));
    let [rest, southbound, admin] = lasting_ports()?;
    let text = format!(
        "data_dir = {data:?}\n[database]\nurl = {database:?}\n[rest]\nlisten = \"127.0.0.1:{rest}\"\n\
         [southbound]\nlisten = \"127.0.0.1:{southbound}\"\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n{settings}"
    );
    Ok(std::fs::write(folder.join(CONFIG), text)?)
}

/// Starts the server, and gives the addresses of its listeners once it is ready.
async fn serve(folder: &Path) -> anyhow::Result<(Measured, serde_json::Value)> {
    let (ready, log) = (folder.join("ready"), folder.join("log"));
    if ready.exists() {
        std::fs::remove_file(&ready)?;
    }
    let (config, ready_file) = (path(&folder.join(CONFIG)), path(&ready));
    let arguments = [
        "serve",
        "all",
        "--config",
        &config,
        "--ready-file",
        &ready_file,
    ];
    let mut server = Measured::start(&arguments, &log)?;
    let addresses = serde_json::from_str(&server.ready(&ready, &log).await?)?;
    Ok((server, addresses))
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Ports that are free. Where a search begins depends on the process, so that two benchmarks get in each other's way less.
fn lasting_ports() -> anyhow::Result<[u16; 3]> {
    let steps = u16::try_from(std::process::id() % 300).unwrap_or(0);
    let from = LASTING_PORTS.start + steps * 39;
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut free = (from..LASTING_PORTS.end).filter(is_free);
    match (free.next(), free.next(), free.next()) {
        (Some(rest), Some(southbound), Some(admin)) => Ok([rest, southbound, admin]),
        _ => bail!("no three ports from {from} on are free"),
    }
}

/// Postgres runs as another user when we are root, and so does apt: they must be able to pass through.
fn open_to_others(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o755);
    Ok(std::fs::set_permissions(folder, open)?)
}
