//! `evenkeeld support-bundle`: an archive for a report of an error. It has no secrets: texts of
//! settings are shown only if they are in a list, and known secrets are replaced in every part.

mod admin_client;
mod known_secrets;
mod machine;
mod settings;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_store::fleet_counts::{self, CountLimits, FleetCounts};
use evenkeel_store::{Store, diagnosis, newest_schema_step};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::check::{self, inspect_database};
use crate::cli::SupportBundleArgs;
use crate::config::Config;
use crate::data_dir;
use crate::database::{Database, PrivatePostgresMode, SchemaPolicy};
use crate::observe::REVISION;

use admin_client::AdminClient;
use known_secrets::KnownSecrets;

/// Folder in the archive.
const FOLDER: &str = "evenkeel-support";

/// Maximum duration of the queries but for the counts of the fleet.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum duration of the counts of the fleet. They are left out if counting takes longer.
const COUNT_TIMEOUT: Duration = Duration::from_mins(1);

/// A file of the archive.
struct BundlePart {
    name: &'static str,
    text: String,
}

/// Writes the archive. A part that cannot be read contains the reason. An archive that cannot be
/// written completely is removed.
pub(crate) async fn write(config: &Config, args: &SupportBundleArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.display();
    let data_dir = data_dir::find(&config.data_dir)?;
    let file = File::options().write(true).create_new(true).mode(0o600).open(&args.output);
    let file = file.with_context(|| format!("cannot create {output}"))?;
    let parts = Box::pin(collect_parts(config, &data_dir, args)).await;
    let secrets = KnownSecrets::read(config, &data_dir);
    if let Err(error) = write_archive(file, parts, &secrets) {
        return Err(remove_incomplete(&args.output, error));
    }
    let printed = writeln!(io::stdout(), "wrote {output}; look at it before you send it");
    printed.context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

async fn collect_parts(
    config: &Config,
    data_dir: &Path,
    args: &SupportBundleArgs,
) -> Vec<BundlePart> {
    let part = |name, text| BundlePart { name, text };
    let admin = args.admin.unwrap_or_else(|| reachable_address(config.admin.listen));
    let admin = AdminClient::new(config, data_dir, admin);
    let get = async |path: &str| match &admin {
        Ok(client) => text_or_error(client.get(path).await),
        Err(error) => format!("not available: {error:#}\n"),
    };
    let mut health = String::new();
    for path in ["/livez", "/readyz"] {
        let _written = writeln!(health, "{path}: {}", get(path).await);
    }
    let mut parts = vec![
        part("version.txt", describe_version()),
        part("settings.json", text_or_error(describe_settings(config))),
        part("check.txt", describe_check(config).await),
        part("health.txt", health),
        part("metrics.txt", get("/metrics").await),
        part("database.json", text_or_error(describe_database(config, data_dir).await)),
        part("machine.txt", machine::describe_machine(data_dir)),
    ];
    if !args.no_log {
        let log = machine::read_log_end(args.log.as_deref()).await;
        parts.push(part("log.txt", text_or_error(log)));
    }
    parts
}

fn write_archive(file: File, parts: Vec<BundlePart>, secrets: &KnownSecrets) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    let now = u64::try_from(SystemClock.now().timestamp()).unwrap_or_default();
    for BundlePart { name, text } in parts {
        let text = secrets.remove_from(text);
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(text.len()).unwrap_or(u64::MAX));
        header.set_mode(0o600);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("{FOLDER}/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.sync_all()
}

/// Removes an archive that was not written completely: a reader could take it for a whole one.
/// Returns the error with what to do.
fn remove_incomplete(path: &Path, error: io::Error) -> anyhow::Error {
    let output = path.display();
    let is_full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    let advice =
        if is_full { "; free space on its disk, or use another disk with --output" } else { "" };
    let error = anyhow::Error::new(error).context(format!("cannot write {output}{advice}"));
    match fs::remove_file(path) {
        Ok(()) => error,
        Err(why) => error.context(format!("remove {output} yourself, it is incomplete ({why})")),
    }
}

fn describe_version() -> String {
    format!(
        "evenkeeld {}\nrevision: {}\nschema: {}\ncreated: {}\n",
        env!("CARGO_PKG_VERSION"),
        if REVISION.is_empty() { "unknown" } else { REVISION },
        newest_schema_step(),
        SystemClock.now().to_rfc3339()
    )
}

fn describe_settings(config: &Config) -> anyhow::Result<String> {
    let mut settings: Value = serde_json::to_value(config)?;
    settings::hide_texts(&mut settings);
    Ok(serde_json::to_string_pretty(&settings)?)
}

/// The output of `evenkeeld check --online`.
async fn describe_check(config: &Config) -> String {
    let online = inspect_database(config).await;
    let warnings = check::find_warnings(config).into_iter().map(|text| format!("warning: {text}"));
    let faults = check::find_faults(config).into_iter().chain(online.faults);
    let faults = faults.map(|text| format!("fault: {text}"));
    let lines: Vec<String> = online.facts.into_iter().chain(warnings).chain(faults).collect();
    lines.join("\n") + "\n"
}

async fn describe_database(config: &Config, data_dir: &Path) -> anyhow::Result<String> {
    let database =
        Database::open(config, data_dir, PrivatePostgresMode::Join, SchemaPolicy::Keep).await?;
    let described = timeout(DATABASE_TIMEOUT, Box::pin(describe_store(&database.store))).await;
    let counts = timeout(COUNT_TIMEOUT, Box::pin(count_fleet(&database.store))).await;
    database.close().await;
    let mut described = described.context("the database is too slow")??;
    described["fleet"] = match counts {
        Ok(Ok(counts)) => json!(counts),
        Ok(Err(error)) => json!(format!("not available: {error:#}")),
        Err(_) => json!(format!("not available: counting took longer than {COUNT_TIMEOUT:?}")),
    };
    Ok(serde_json::to_string_pretty(&described)?)
}

async fn count_fleet(store: &Store) -> anyhow::Result<FleetCounts> {
    let tx = store.fleet().await?;
    Ok(fleet_counts::read(&tx, CountLimits::default()).await?)
}

async fn describe_store(store: &Store) -> anyhow::Result<Value> {
    let tx = store.fleet().await?;
    let (server, schema) = diagnosis::read_versions(&tx).await?;
    let tables = diagnosis::read_table_sizes(&tx).await?;
    let clocks = store.read_clocks(&SystemClock).await?;
    Ok(json!({
        "postgres": server,
        "schema": schema,
        "clock_offset_ms": clocks.offset().num_milliseconds(),
        "tables": tables,
    }))
}

/// The address under which this machine reaches a listener.
fn reachable_address(listen: SocketAddr) -> SocketAddr {
    let ip =
        if listen.ip().is_unspecified() { IpAddr::from(Ipv4Addr::LOCALHOST) } else { listen.ip() };
    SocketAddr::new(ip, listen.port())
}

fn text_or_error(text: anyhow::Result<String>) -> String {
    text.unwrap_or_else(|error| format!("not available: {error:#}\n"))
}
