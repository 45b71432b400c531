//! First start: creates the project `default` and an administrator token.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use evenkeel_auth::Role;
use evenkeel_store::projects;

use crate::app_context::AppContext;
use crate::operator_tokens;

/// Creates the first project if there is none. In that case, it also writes an administrator token
/// to a file that only its owner can read, and logs the command to log in with it. The token itself
/// is never logged.
pub(crate) async fn run_first_start(
    context: &AppContext,
    data_dir: &Path,
    token_for: Duration,
    rest: Option<SocketAddr>,
) -> anyhow::Result<()> {
    let tx = context.store.fleet().await.context("cannot list the projects")?;
    let (project, created) = projects::ensure_default(&tx, tx.database_time())
        .await
        .context("cannot create the first project")?;
    if !created {
        return Ok(());
    }
    let roles = [Role::Write(project.id.uuid()), Role::Administrator];
    let holder = ("administrator", &roles[..]);
    let issued = operator_tokens::issue_recorded(&tx, &context.authority, holder, token_for).await;
    let issued = issued.context("cannot create the first token (auth.first_token_ttl)")?;
    let path = data_dir.join("operator-token");
    write_private_file(&path, issued.token.reveal())
        .with_context(|| format!("cannot write {}", path.display()))?;
    // Commit last: the project must not exist without a token for it.
    tx.commit().await.context("cannot create the first project")?;
    let server =
        rest.map_or_else(|| "http://SERVER:8080".to_owned(), |rest| format!("http://{rest}"));
    tracing::info!(
        project = %project.name,
        token_file = %path.display(),
        expires_at = %issued.expires_at,
        "the first start created a project and a token; log in with: evenkeel login --server {server} --project {} --token-file {}",
        project.name,
        path.display(),
    );
    Ok(())
}

/// Replaces the file atomically. At no time can another user read it.
fn write_private_file(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}
