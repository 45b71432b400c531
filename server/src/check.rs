//! `evenkeeld check`: the configuration, the files that it names, and on request the database.

mod online;
mod permissions;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use evenkeel_auth::{CertificateAuthority, Keys};
use evenkeel_kit::{Clock, SystemClock, chain};
use evenkeel_maintenance_manager::SmtpSettings;
use evenkeel_os_resource_manager::Sources;
use evenkeel_store::{check_database_url, find_tls_file};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::app_context;
use crate::config::{Config, DatabaseConfig};
use crate::data_dir;
use crate::database::MIGRATION_URL_ALONE;
use crate::file_state::is_readable_by_others;
use crate::realm::user_store;
use crate::shared_keys::KeyFolders;
use crate::tls::{self, Certificates};
use crate::traces;

pub(crate) use online::{OnlineReport, inspect_database};
pub(crate) use permissions::secret_files;

/// Prints each fault of a configuration whose settings are known and valid, and the warnings that
/// a start would log. With `is_online`, also checks the database.
pub(crate) async fn print_faults(config: &Config, is_online: bool) -> anyhow::Result<ExitCode> {
    let online = if is_online { inspect_database(config).await } else { OnlineReport::default() };
    for warning in find_warnings(config) {
        let written = writeln!(std::io::stderr(), "evenkeeld: warning: {warning}");
        written.context("cannot write to standard error")?;
    }
    for fact in &online.facts {
        let written = writeln!(std::io::stdout(), "{fact}");
        written.context("cannot write to standard output")?;
    }
    let mut faults = find_faults(config);
    let is_valid = faults.is_empty();
    faults.extend(online.faults);
    if is_valid {
        let written = writeln!(std::io::stdout(), "the configuration is valid");
        written.context("cannot write to standard output")?;
    }
    for fault in &faults {
        let written = writeln!(std::io::stderr(), "evenkeeld: {fault}");
        written.context("cannot write to standard error")?;
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn find_warnings(config: &Config) -> Vec<String> {
    let users = config.auth.login.as_ref().and_then(|login| login.users.as_ref());
    let users = users.filter(|path| is_readable_by_others(path));
    let users = users.map(|path| {
        format!("auth.login.users: {} in {}", user_store::READABLE_BY_OTHERS, path.display())
    });
    let open = config.auth.issuers.iter().filter(|issuer| issuer.audience.is_none());
    let open = open.map(|issuer| format!("{}: {}", issuer.issuer, app_context::WITHOUT_AUDIENCE));
    let data_dir = data_dir::find(&config.data_dir);
    let files = data_dir.map(|data_dir| permissions::find_open_files(config, &data_dir));
    users.into_iter().chain(open).chain(files.unwrap_or_default()).collect()
}

pub(crate) fn find_faults(config: &Config) -> Vec<String> {
    let mut faults = Vec::new();
    let now = SystemClock.now();
    let data_dir = data_dir::find(&config.data_dir);
    match &data_dir {
        Ok(data_dir) => {
            let folders = KeyFolders::new(config, data_dir);
            if let Err(error) = Keys::read(&folders.keys) {
                faults.push(format!("auth.keys: {error}"));
            }
            faults.extend(find_authority_fault(&folders.ca, now));
        }
        Err(error) => faults.push(format!("data_dir: {error:#}")),
    }
    faults.extend(find_database_faults(&config.database, now));
    let users = config.auth.login.as_ref().and_then(|login| login.users.as_ref());
    if let Some(path) = users {
        match user_store::read_users(path) {
            Ok(users) => faults.extend(
                users
                    .rejected()
                    .iter()
                    .map(|error| format!("auth.login.users: {error} in {}", path.display())),
            ),
            Err(error) => faults.push(format!("auth.login.users: {error:#}")),
        }
    }
    faults.extend(config.find_shared_addresses());
    for issuer in &config.auth.issuers {
        if let Err(error) = app_context::open_issuer(issuer) {
            faults.push(format!("auth.issuers: {}: {error:#}", issuer.issuer));
        }
    }
    for files in certificate_files(config) {
        faults.extend(files.find_faults(now));
    }
    let checked = config.maintenance_manager.check();
    faults.extend(checked.err().map(|error| chain(&error).to_string()));
    faults.extend(find_smtp_file_faults(&config.maintenance_manager.smtp));
    let manager = &config.os_resource_manager;
    faults.extend(manager.check().err().map(|error| chain(&error).to_string()));
    let problems = Sources::open(&manager.registries).problems();
    faults.extend(problems.iter().map(ToString::to_string));
    faults.extend(traces::find_fault(&config.tracing));
    faults
}

/// Faults of the files of the mail server.
fn find_smtp_file_faults(smtp: &SmtpSettings) -> impl Iterator<Item = String> {
    let password = smtp.password_file.as_deref().map_or(Ok(()), check_password);
    let ca = smtp.ca.as_deref().map_or(Ok(()), check_certificates);
    [("password_file", password), ("ca", ca)].into_iter().filter_map(|(key, checked)| {
        checked.err().map(|error| format!("maintenance_manager.smtp.{key}: {error:#}"))
    })
}

fn check_password(path: &Path) -> anyhow::Result<()> {
    let path_text = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path_text}"))?;
    let password = text.trim_end_matches(['\r', '\n']);
    anyhow::ensure!(!password.is_empty(), "{path_text} contains no password");
    Ok(())
}

fn find_database_faults(database: &DatabaseConfig, now: DateTime<Utc>) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(url) = &database.url {
        let checked = check_database_url(url.reveal(), database.allow_unencrypted);
        match checked {
            Ok(()) => faults.extend(find_database_tls_faults(url.reveal(), now)),
            Err(error) => faults.push(format!("database.url: {error}")),
        }
    }
    if let Some(url) = &database.migration_url {
        let checked = check_database_url(url.reveal(), database.allow_unencrypted);
        faults.extend(checked.err().map(|error| format!("database.migration_url: {error}")));
        if database.url.is_none() {
            faults.push(MIGRATION_URL_ALONE.to_owned());
        }
    }
    if let Some(path) = &database.password_file
        && let Err(error) = fs::read_to_string(path)
    {
        faults.push(format!("database.password_file: cannot read {}: {error}", path.display()));
    }
    faults
}

/// Faults of the files that a valid database URL names for TLS.
fn find_database_tls_faults(url: &str, now: DateTime<Utc>) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(file) = find_tls_file(url, "sslrootcert")
        && let Err(error) = check_certificates(&file)
    {
        faults.push(format!("database.url: sslrootcert: {error:#}"));
    }
    match (find_tls_file(url, "sslcert"), find_tls_file(url, "sslkey")) {
        (Some(certificate), Some(key)) => {
            let opened = Certificates::from_files(&certificate, &key, None);
            let checked = opened.and_then(|opened| match opened.fault_at(now) {
                None => Ok(()),
                Some(fault) => bail!("{}: {fault}", certificate.display()),
            });
            faults.extend(checked.err().map(|error| format!("database.url: sslcert: {error:#}")));
        }
        (None, None) => {}
        _ => faults.push("database.url: set both sslcert and sslkey, or neither".to_owned()),
    }
    faults
}

/// Checks a file with certificates. For a connection to the database, a file without a certificate
/// is a fault as well: the server would start, and trust only the authorities of the system.
fn check_certificates(path: &Path) -> anyhow::Result<()> {
    let path_text = path.display();
    let text = fs::read(path).with_context(|| format!("cannot read {path_text}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.with_context(|| format!("{path_text} is not PEM"))?;
        let added = roots.add(certificate);
        added.with_context(|| format!("{path_text} contains an invalid certificate"))?;
    }
    anyhow::ensure!(!roots.is_empty(), "{path_text} contains no certificate in PEM");
    Ok(())
}

fn check_key(path: &Path) -> anyhow::Result<()> {
    let path_text = path.display();
    let text = fs::read(path).with_context(|| format!("cannot read {path_text}"))?;
    let key = PrivateKeyDer::from_pem_slice(&text);
    key.with_context(|| format!("{path_text} contains no key in PEM"))?;
    Ok(())
}

/// Fault of the server's own authority. Creates nothing: a start creates a missing authority.
fn find_authority_fault(folder: &Path, now: DateTime<Utc>) -> Option<String> {
    if !folder.join("ca.pem").exists() {
        return None;
    }
    let opened = CertificateAuthority::open(folder, now);
    opened.err().map(|error| format!("auth.ca: {}", chain(&error)))
}

/// The certificate files of a listener, and the names that its certificate must be valid for.
struct CertificateFiles<'a> {
    section: &'static str,
    certificate: Option<&'a Path>,
    key: Option<&'a Path>,
    ca: Option<&'a Path>,
    server_names: &'a [String],
}

fn certificate_files(config: &Config) -> [CertificateFiles<'_>; 3] {
    let (south, rest, admin) = (&config.southbound, &config.rest, &config.admin);
    [
        CertificateFiles {
            section: "southbound",
            certificate: south.certificate.as_deref(),
            key: south.key.as_deref(),
            ca: south.ca.as_deref(),
            server_names: &south.server_names,
        },
        CertificateFiles {
            section: "rest",
            certificate: rest.certificate.as_deref(),
            key: rest.key.as_deref(),
            ca: None,
            server_names: &rest.server_names,
        },
        CertificateFiles {
            section: "admin",
            certificate: admin.certificate.as_deref(),
            key: admin.key.as_deref(),
            ca: None,
            server_names: &admin.server_names,
        },
    ]
}

impl CertificateFiles<'_> {
    fn find_faults(&self, now: DateTime<Utc>) -> Vec<String> {
        let section = self.section;
        let mut faults: Vec<String> = tls::find_invalid_names(self.server_names)
            .into_iter()
            .map(|name| {
                format!("{section}.server_names: {name:?} is neither a DNS name nor an IP address")
            })
            .collect();
        let (certificate, key) = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) => return faults,
            _ => {
                faults
                    .push(format!("set both {section}.certificate and {section}.key, or neither"));
                return faults;
            }
        };
        let files = [
            ("certificate", check_certificates(certificate)),
            ("key", check_key(key)),
            ("ca", self.ca.map_or(Ok(()), check_certificates)),
        ];
        let unusable = files.into_iter().filter_map(|(setting, checked)| {
            checked.err().map(|error| format!("{section}.{setting}: {error:#}"))
        });
        let count = faults.len();
        faults.extend(unusable);
        if faults.len() == count {
            faults.extend(self.find_certificate_faults(certificate, key, now));
        }
        faults
    }

    /// Faults of a certificate and a key that can be read.
    fn find_certificate_faults(
        &self,
        certificate: &Path,
        key: &Path,
        now: DateTime<Utc>,
    ) -> Vec<String> {
        let section = self.section;
        let path = certificate.display();
        let opened = Certificates::from_files(certificate, key, self.ca)
            .and_then(|opened| Ok((opened.find_uncovered_names(self.server_names)?, opened)));
        let (uncovered, opened) = match opened {
            Ok(opened) => opened,
            Err(error) => return vec![format!("{section}.certificate: {error:#}")],
        };
        let mut faults: Vec<String> = uncovered
            .into_iter()
            .map(|name| {
                format!(
                    "{section}.certificate: {path} is not valid for {name} in {section}.server_names"
                )
            })
            .collect();
        let validity = opened.fault_at(now);
        faults.extend(validity.map(|fault| format!("{section}.certificate: {path}: {fault}")));
        faults
    }
}
