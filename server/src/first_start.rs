//! The first start: the project `default`, and a token to log in with.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use chrono::TimeDelta;
use evenkeel_auth::Role;
use evenkeel_store::projects;

use crate::house::House;

/// Makes the first project if there is none. Then also makes a token for the administrator, in a file that only its
/// owner can read, and says how to log in with it. The token itself is never shown.
pub(crate) async fn welcome(
    house: &House,
    data_dir: &Path,
    token_for: Duration,
    rest: Option<SocketAddr>,
) -> anyhow::Result<()> {
    let tx = house
        .store
        .fleet()
        .await
        .context("cannot look for projects")?;
    let now = house.clock.now();
    let (project, made) = projects::ensure_default(&tx, now)
        .await
        .context("cannot make the first project")?;
    if !made {
        return Ok(());
    }
    let lifetime = TimeDelta::from_std(token_for).context("auth.first_token_for is too long")?;
    let roles = [Role::Write(project.id.uuid()), Role::Administrator];
    let issued = house
        .authority
        .issue_operator("administrator", &roles, lifetime, now);
    let issued = issued.context("cannot make the first token")?;
    let path = data_dir.join("operator-token");
    write_closed(&path, issued.token.reveal())
        .with_context(|| format!("cannot write {}", path.display()))?;
    // The project is there only when there is a way to it.
    tx.commit().await.context("cannot make the first project")?;
    let server = rest.map_or_else(
        || "http://SERVER:8080".to_owned(),
        |rest| format!("http://{rest}"),
    );
    tracing::info!(
        project = %project.name,
        token_file = %path.display(),
        expires_at = %issued.expires_at,
        "the first start made a project and a token; log in with: evenkeel login --server {server} --project {} --token-file {}",
        project.name,
        path.display(),
    );
    Ok(())
}

/// Replaces the file whole; nobody else can read it at any moment.
fn write_closed(path: &Path, text: &str) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
