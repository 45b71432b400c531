//! First start: creates the project `default` and an administrator token.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use evenkeel_auth::Role;
use evenkeel_auth::roles::ADMINISTRATOR;
use evenkeel_store::projects;

use crate::app_context::AppContext;
use crate::config::HttpSecurity;
use crate::operator_tokens;

/// How the command line reaches the REST API.
#[derive(Debug)]
pub(crate) struct RestEndpoint {
    /// `SERVER` stands for a name that this process does not know.
    url: String,
    /// Certificate of the authority that the command line must trust; none without TLS, or if the
    /// listener uses certificate files.
    ca: Option<PathBuf>,
}

impl RestEndpoint {
    /// The endpoint of a listener. Without an address, another process serves the API.
    pub(crate) fn new(
        address: Option<SocketAddr>,
        security: HttpSecurity<'_>,
        ca_folder: &Path,
    ) -> Self {
        let scheme = if security == HttpSecurity::PlainHttp { "http" } else { "https" };
        let host = match (address, security) {
            (None, _) => "SERVER:8080".to_owned(),
            // The certificate is valid for its own names, which may include no address.
            (Some(address), HttpSecurity::Files { .. }) => format!("SERVER:{}", address.port()),
            (Some(address), _) if address.ip().is_unspecified() => {
                format!("localhost:{}", address.port())
            }
            (Some(address), _) => address.to_string(),
        };
        let is_own = security == HttpSecurity::OwnAuthority;
        let ca = is_own.then(|| ca_folder.join("ca.pem"));
        Self { url: format!("{scheme}://{host}"), ca }
    }

    /// Options of the command line.
    pub(crate) fn options(&self) -> String {
        let ca = self.ca.as_ref().map(|path| format!(" --ca {}", path.display()));
        format!("--server {}{}", self.url, ca.unwrap_or_default())
    }
}

/// Creates the first project if there is none. In that case, it also writes an administrator token
/// to a file that only its owner can read, and logs the command to log in with it. The token itself
/// is never logged.
pub(crate) async fn run_first_start(
    context: &AppContext,
    data_dir: &Path,
    token_for: Duration,
    rest: &RestEndpoint,
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
    let options = rest.options();
    tracing::info!(
        project = %project.name,
        token_file = %path.display(),
        expires_at = %issued.expires_at,
        "the first start created a project and a token; log in with: evenkeel login {options} --project {} --token-file {}",
        project.name,
        path.display(),
    );
    tracing::info!(
        "create the first user with: evenkeel user add NAME --role {ADMINISTRATOR}, then log in with: evenkeel login {options} \
         --username NAME; logins with a password need the section [auth.login] in the configuration"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_lead_to_the_listener_with_its_authority() {
        let files = HttpSecurity::Files { certificate: Path::new("/c"), key: Path::new("/k") };
        for (address, security, expected) in [
            (Some("127.0.0.1:8080"), HttpSecurity::PlainHttp, "--server http://127.0.0.1:8080"),
            (None, HttpSecurity::PlainHttp, "--server http://SERVER:8080"),
            (Some("0.0.0.0:80"), HttpSecurity::PlainHttp, "--server http://localhost:80"),
            (Some("192.0.2.1:1"), files, "--server https://SERVER:1"),
            (
                Some("[::]:8443"),
                HttpSecurity::OwnAuthority,
                "--server https://localhost:8443 --ca /data/ca/ca.pem",
            ),
        ] {
            let address = address.map(|address| address.parse().unwrap());
            let endpoint = RestEndpoint::new(address, security, Path::new("/data/ca"));
            assert_eq!(endpoint.options(), expected);
        }
    }
}
