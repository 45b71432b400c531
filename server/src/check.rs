//! `evenkeeld check`: the configuration, and the files that it names.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use evenkeel_auth::Keys;
use evenkeel_os_resource_manager::Sources;
use evenkeel_store::check_database_url;

use crate::app_context;
use crate::config::{Config, DatabaseConfig};
use crate::data_dir;
use crate::realm::user_store;
use crate::shared_keys::KeyFolders;
use crate::tls::Certificates;

/// Prints each fault of a configuration whose settings are known and valid.
pub(crate) fn print_faults(config: &Config) -> anyhow::Result<ExitCode> {
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
    let south = &config.southbound;
    match (&south.certificate, &south.key) {
        (Some(certificate), Some(key)) => {
            let opened = Certificates::from_files(certificate, key, south.ca.as_deref());
            faults.extend(opened.err().map(|error| format!("southbound.certificate: {error:#}")));
        }
        (None, None) => {}
        _ => faults.push(app_context::CERTIFICATE_WITHOUT_KEY.to_owned()),
    }
    faults.extend(config.maintenance_manager.check().err().map(|error| error.to_string()));
    let manager = &config.os_resource_manager;
    faults.extend(manager.check().err().map(|error| error.to_string()));
    let problems = Sources::open(&manager.registries).problems();
    faults.extend(problems.iter().map(ToString::to_string));
    faults
}

fn find_database_faults(database: &DatabaseConfig) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(url) = &database.url
        && let Err(error) = check_database_url(url.reveal(), database.allow_unencrypted)
    {
        faults.push(format!("database.url: {error}"));
    }
    if let Some(path) = &database.password_file
        && let Err(error) = std::fs::read_to_string(path)
    {
        faults.push(format!("database.password_file: cannot read {}: {error}", path.display()));
    }
    faults
}
