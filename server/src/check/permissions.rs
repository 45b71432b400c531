//! Permissions of the files that hold secrets.

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_kit::Secret;
use evenkeel_store::find_tls_file;

use crate::config::Config;
use crate::file_state::is_readable_by_others;
use crate::shared_keys::KeyFolders;

/// A warning for each file with a secret that all users of the machine can read or change.
pub(super) fn find_open_files(config: &Config, data_dir: &Path) -> Vec<String> {
    let files = secret_files(config, data_dir).into_iter();
    let open = files.filter(|(_, path)| is_readable_by_others(path));
    let warnings = open.map(|(setting, path)| {
        let path = path.display();
        format!("{setting}: all users of this machine can read {path}: run `chmod o= {path}`")
    });
    warnings.collect()
}

/// Settings and the files with secrets that they name, whether they exist or not.
pub(crate) fn secret_files(config: &Config, data_dir: &Path) -> Vec<(String, PathBuf)> {
    let folders = KeyFolders::new(config, data_dir);
    let mut files = vec![
        ("auth.ca".to_owned(), folders.ca.join("ca-key.pem")),
        ("data_dir".to_owned(), data_dir.join("operator-token")),
    ];
    for folder in [folders.keys.clone(), folders.keys.join("operators")] {
        files.extend(keys_in(&folder).into_iter().map(|path| ("auth.keys".to_owned(), path)));
    }
    let database = &config.database;
    let key_of = |url: Option<&Secret>| find_tls_file(url?.reveal(), "sslkey");
    let named = [
        ("database.password_file", database.password_file.clone()),
        ("database.url: sslkey", key_of(database.url.as_ref())),
        ("database.migration_url: sslkey", key_of(database.migration_url.as_ref())),
        (
            "maintenance_manager.smtp.password_file",
            config.maintenance_manager.smtp.password_file.clone(),
        ),
        ("rest.key", config.rest.key.clone()),
        ("southbound.key", config.southbound.key.clone()),
        ("admin.key", config.admin.key.clone()),
        ("tracing.headers_file", config.tracing.headers_file.clone()),
    ];
    files.extend(named.into_iter().filter_map(|(setting, path)| Some((setting.to_owned(), path?))));
    for (name, registry) in &config.os_resource_manager.registries {
        for (key, path) in
            [("password_file", &registry.password_file), ("token_file", &registry.token_file)]
        {
            let setting = format!("os_resource_manager.registries.{name}.{key}");
            files.extend(path.clone().map(|path| (setting, path)));
        }
    }
    files
}

/// The private keys of a folder of signing keys.
fn keys_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let is_key = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "pem")
            && fs::read_to_string(path).is_ok_and(|text| text.contains("PRIVATE KEY"))
    };
    paths.filter(is_key).collect()
}
