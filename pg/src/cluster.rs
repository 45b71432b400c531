//! Creates the cluster: the data directory, the access rules, the role and the database.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::account::Account;
use crate::error::path_error;
use crate::runner::Runner;
use crate::{Error, Options};

/// Allows connections over the socket only, for users in the map.
const HBA_RULES: &str = "\
# Written at every start.
local all all peer map=evenkeel
";

/// Creates the cluster unless it exists. An unfinished one is deleted: only a complete one gets its final name.
pub(crate) fn create_cluster(
    options: &Options,
    account: &Account,
    bin: &Path,
) -> Result<PathBuf, Error> {
    let data = options.dir.join("data");
    if fs::symlink_metadata(&data).is_ok() {
        account.check_owner(&data)?;
        return Ok(data);
    }
    let unfinished = options.dir.join("data.new");
    if fs::symlink_metadata(&unfinished).is_ok() {
        fs::remove_dir_all(&unfinished).map_err(path_error("remove", &unfinished))?;
    }
    DirBuilder::new().mode(0o700).create(&unfinished).map_err(path_error("create", &unfinished))?;
    account.chown_folder(&unfinished).map_err(path_error("change the owner of", &unfinished))?;
    let runner = Runner::new(account.clone(), bin.to_owned(), unfinished.clone())?;
    tracing::info!(data = %data.display(), user = account.name, "creating a private Postgres");

    let mut args = ["-A", "peer", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8"].to_vec();
    if !options.durable {
        args.push("--no-sync");
    }
    runner.initdb(&args)?;
    create_role_and_database(options, &runner)?;
    fs::rename(&unfinished, &data).map_err(path_error("rename", &unfinished))?;
    if options.durable {
        let folder = File::open(&options.dir).map_err(path_error("open", &options.dir))?;
        folder.sync_all().map_err(path_error("flush", &options.dir))?;
    }
    Ok(data)
}

/// Uses the single-user mode, which executes statements without listening for connections.
fn create_role_and_database(options: &Options, runner: &Runner) -> Result<(), Error> {
    let databases = if options.create_databases { "CREATEDB" } else { "NOCREATEDB" };
    let statements = format!(
        "CREATE ROLE evenkeel LOGIN {databases} NOSUPERUSER NOCREATEROLE NOREPLICATION NOBYPASSRLS;\n\
         CREATE DATABASE evenkeel OWNER evenkeel;\n"
    );
    let settings: &[&str] = if options.durable { &[] } else { &["-c", "fsync=off"] };
    runner.single_user(settings, &statements)
}

/// Writes who may connect: the user of Postgres and root, each as the role `evenkeel` or as the superuser.
pub(crate) fn write_access_rules(account: &Account, runner: &Runner) -> Result<(), Error> {
    let mut map = String::from("# Written at every start.\n");
    for user in [account.name.as_str(), "root"] {
        for role in ["evenkeel", "postgres"] {
            map += &["evenkeel \"", user, "\" ", role, "\n"].concat();
        }
    }
    runner.write("pg_hba.conf", HBA_RULES)?;
    runner.write("pg_ident.conf", &map)
}
