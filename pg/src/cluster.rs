//! Makes the cluster: the data directory, who may log in, the role and the database.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::account::Account;
use crate::error::on;
use crate::runner::Runner;
use crate::{Error, Options};

/// Only over the socket, and only who is in the map.
const LOGINS: &str = "\
# Written at every start.
local all all peer map=evenkeel
";

/// Makes the cluster unless there is one. What was made halfway is thrown away: only a complete one gets its name.
pub(crate) fn make(options: &Options, account: &Account, bin: &Path) -> Result<PathBuf, Error> {
    let data = options.dir.join("data");
    if fs::symlink_metadata(&data).is_ok() {
        account.must_own(&data)?;
        return Ok(data);
    }
    let unfinished = options.dir.join("data.new");
    if fs::symlink_metadata(&unfinished).is_ok() {
        fs::remove_dir_all(&unfinished).map_err(on("remove", &unfinished))?;
    }
    DirBuilder::new()
        .mode(0o700)
        .create(&unfinished)
        .map_err(on("make", &unfinished))?;
    account
        .give(&unfinished)
        .map_err(on("give away", &unfinished))?;
    let runner = Runner::new(account.clone(), bin.to_owned(), unfinished.clone())?;
    tracing::info!(data = %data.display(), user = account.name, "making a private Postgres");

    let mut args = [
        "-A",
        "peer",
        "-U",
        "postgres",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
    ]
    .to_vec();
    if !options.durable {
        args.push("--no-sync");
    }
    runner.initdb(&args)?;
    make_role_and_database(options, &runner)?;
    fs::rename(&unfinished, &data).map_err(on("rename", &unfinished))?;
    if options.durable {
        let folder = File::open(&options.dir).map_err(on("open", &options.dir))?;
        folder.sync_all().map_err(on("flush", &options.dir))?;
    }
    Ok(data)
}

/// Postgres for a single user reads statements without listening anywhere.
fn make_role_and_database(options: &Options, runner: &Runner) -> Result<(), Error> {
    let databases = if options.create_databases {
        "CREATEDB"
    } else {
        "NOCREATEDB"
    };
    let statements = format!(
        "CREATE ROLE evenkeel LOGIN {databases} NOSUPERUSER NOCREATEROLE NOREPLICATION NOBYPASSRLS;\n\
         CREATE DATABASE evenkeel OWNER evenkeel;\n"
    );
    let settings: &[&str] = if options.durable {
        &[]
    } else {
        &["-c", "fsync=off"]
    };
    runner.single_user(settings, &statements)
}

/// Says who may log in: the user of Postgres and root, each as the role or as the superuser.
pub(crate) fn write_logins(account: &Account, runner: &Runner) -> Result<(), Error> {
    let mut map = String::from("# Written at every start.\n");
    for user in [account.name.as_str(), "root"] {
        for role in ["evenkeel", "postgres"] {
            map += &["evenkeel \"", user, "\" ", role, "\n"].concat();
        }
    }
    runner.write("pg_hba.conf", LOGINS)?;
    runner.write("pg_ident.conf", &map)
}
