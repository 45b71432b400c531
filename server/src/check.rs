//! `evenkeeld check`: the configuration, and the files that it names.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use evenkeel_auth::Keys;
use evenkeel_kit::chain;
use evenkeel_os_resource_manager::Sources;
use evenkeel_store::{check_database_url, find_tls_file};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::app_context;
use crate::config::{Config, DatabaseConfig, SouthboundConfig};
use crate::data_dir;
use crate::realm::user_store;
use crate::shared_keys::KeyFolders;
use crate::tls::{self, Certificates};

/// Prints each fault of a configuration whose settings are known and valid, and the warnings that
/// a start would log.
pub(crate) fn print_faults(config: &Config) -> anyhow::Result<ExitCode> {
    for warning in find_warnings(config) {
        let written = writeln!(std::io::stderr(), "evenkeeld: warning: {warning}");
        written.context("cannot write to standard error")?;
    }
    let faults = find_faults(config);
    if faults.is_empty() {
        let written = writeln!(std::io::stdout(), "the configuration is valid");
        written.context("cannot write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    for fault in faults {
        let written = writeln!(std::io::stderr(), "evenkeeld: {fault}");
        written.context("cannot write to standard error")?;
    }
    Ok(ExitCode::FAILURE)
}

fn find_warnings(config: &Config) -> Vec<String> {
    let users = config.auth.login.as_ref().map(|login| &login.users);
    let users = users.filter(|path| user_store::is_readable_by_others(path));
    let users = users.map(|path| {
        format!("auth.login.users: {} in {}", user_store::READABLE_BY_OTHERS, path.display())
    });
    let open = config.auth.issuers.iter().filter(|issuer| issuer.audience.is_none());
    let open = open.map(|issuer| format!("{}: {}", issuer.issuer, app_context::WITHOUT_AUDIENCE));
    users.into_iter().chain(open).collect()
}

fn find_faults(config: &Config) -> Vec<String> {
    let mut faults = Vec::new();
    let data_dir = data_dir::find(&config.data_dir);
    match &data_dir {
        Ok(data_dir) => {
            if let Err(error) = Keys::read(&KeyFolders::new(config, data_dir).keys) {
                faults.push(format!("auth.keys: {error}"));
            }
        }
        Err(error) => faults.push(format!("data_dir: {error:#}")),
    }
    faults.extend(find_database_faults(&config.database));
    if let Some(login) = &config.auth.login {
        match user_store::read_users(&login.users) {
            Ok(users) => faults.extend(
                users
                    .rejected()
                    .iter()
                    .map(|error| format!("auth.login.users: {error} in {}", login.users.display())),
            ),
            Err(error) => faults.push(format!("auth.login.users: {error:#}")),
        }
    }
    for issuer in &config.auth.issuers {
        if let Err(error) = app_context::open_issuer(issuer) {
            faults.push(format!("auth.issuers: {}: {error:#}", issuer.issuer));
        }
    }
    faults.extend(find_southbound_faults(&config.southbound));
    let checked = config.maintenance_manager.check();
    faults.extend(checked.err().map(|error| chain(&error).to_string()));
    let manager = &config.os_resource_manager;
    faults.extend(manager.check().err().map(|error| chain(&error).to_string()));
    let problems = Sources::open(&manager.registries).problems();
    faults.extend(problems.iter().map(ToString::to_string));
    faults
}

fn find_database_faults(database: &DatabaseConfig) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(url) = &database.url {
        let checked = check_database_url(url.reveal(), database.allow_unencrypted);
        match checked {
            Ok(()) => faults.extend(find_database_tls_faults(url.reveal())),
            Err(error) => faults.push(format!("database.url: {error}")),
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
fn find_database_tls_faults(url: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(file) = find_tls_file(url, "sslrootcert")
        && let Err(error) = check_certificates(&file)
    {
        faults.push(format!("database.url: sslrootcert: {error:#}"));
    }
    match (find_tls_file(url, "sslcert"), find_tls_file(url, "sslkey")) {
        (Some(certificate), Some(key)) => {
            let opened = Certificates::from_files(&certificate, &key, None);
            faults.extend(opened.err().map(|error| format!("database.url: sslcert: {error:#}")));
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

fn find_southbound_faults(south: &SouthboundConfig) -> Vec<String> {
    let mut faults: Vec<String> = tls::find_invalid_names(&south.server_names)
        .into_iter()
        .map(|name| {
            format!("southbound.server_names: {name:?} is neither a DNS name nor an IP address")
        })
        .collect();
    let (certificate, key) = match (&south.certificate, &south.key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) => return faults,
        _ => {
            faults.push(app_context::CERTIFICATE_WITHOUT_KEY.to_owned());
            return faults;
        }
    };
    let files = [
        ("certificate", check_certificates(certificate)),
        ("key", check_key(key)),
        ("ca", south.ca.as_deref().map_or(Ok(()), check_certificates)),
    ];
    let unusable = files.into_iter().filter_map(|(setting, checked)| {
        checked.err().map(|error| format!("southbound.{setting}: {error:#}"))
    });
    let count = faults.len();
    faults.extend(unusable);
    if faults.len() > count {
        return faults;
    }
    let uncovered = Certificates::from_files(certificate, key, south.ca.as_deref())
        .and_then(|opened| opened.find_uncovered_names(&south.server_names));
    match uncovered {
        Ok(names) => faults.extend(names.into_iter().map(|name| {
            format!(
                "southbound.certificate: {} is not valid for {name} in southbound.server_names",
                certificate.display()
            )
        })),
        Err(error) => faults.push(format!("southbound.certificate: {error:#}")),
    }
    faults
}
