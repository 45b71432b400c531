//! The real server with a real Postgres, as processes that are measured.

use std::path::{Path, PathBuf};

use anyhow::Context;
use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_pg::{Options, PrivatePostgres};
use tempfile::TempDir;

use crate::children::Measured;
use crate::measure::{Meter, family};

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
        let postgres = PrivatePostgres::start(Options::new(folder.path().join("postgres"))).await?;
        let mut server = serve(folder.path(), &postgres.url(), settings)?;
        let (ready, log) = (folder.path().join("ready"), folder.path().join("log"));
        let addresses = serde_json::from_str(&server.ready(&ready, &log).await?)?;
        Ok(Self {
            server,
            postgres,
            addresses,
            folder,
        })
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
        let postgres = family(self.postgres.pid().unsigned_abs());
        (
            Meter::start(vec![self.server.pid()]),
            Meter::start(postgres),
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

fn serve(folder: &Path, database: &str, settings: &str) -> anyhow::Result<Measured> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let config = folder.join("evenkeeld.toml");
    let data = path(&data(folder));
    let text = format!(
        "data_dir = {data:?}\n[database]\nurl = {database:?}\n[rest]\nlisten = \"127.0.0.1:0\"\n\
         [southbound]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n{settings}"
    );
    std::fs::write(&config, text)?;
    let ready = folder.join("ready");
    let (config, ready) = (path(&config), path(&ready));
    Measured::start(
        &["serve", "all", "--config", &config, "--ready-file", &ready],
        &folder.join("log"),
    )
}

/// Postgres runs as another user when we are root, and so does apt: they must be able to pass through.
fn open_to_others(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o755);
    Ok(std::fs::set_permissions(folder, open)?)
}
