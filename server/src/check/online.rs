//! Checks that need the database: whether it can be reached, its schema, and the clocks.

use std::time::Duration;

use evenkeel_kit::{SystemClock, chain};
use evenkeel_store::{ClockAgreement, SchemaCheck, Store, newest_schema_step};

use crate::config::Config;
use crate::data_dir;
use crate::database::{Database, PrivatePostgresMode, SchemaPolicy};

/// Maximum duration of all checks.
const ONLINE_TIMEOUT: Duration = Duration::from_secs(20);

/// What the checks found.
#[derive(Debug, Default)]
pub(crate) struct OnlineReport {
    /// What is as it should be, one line each.
    pub(crate) facts: Vec<String>,
    pub(crate) faults: Vec<String>,
}

/// Connects to the database, or to the private Postgres that another process runs, and changes
/// nothing.
pub(crate) async fn inspect_database(config: &Config) -> OnlineReport {
    let inspected = tokio::time::timeout(ONLINE_TIMEOUT, Box::pin(connect_and_inspect(config)));
    inspected.await.unwrap_or_else(|_| OnlineReport {
        facts: Vec::new(),
        faults: vec![format!("database: it does not answer within {ONLINE_TIMEOUT:?}")],
    })
}

async fn connect_and_inspect(config: &Config) -> OnlineReport {
    let mut report = OnlineReport::default();
    let opened = match data_dir::find(&config.data_dir) {
        Ok(data_dir) => {
            Database::open(config, &data_dir, PrivatePostgresMode::Join, SchemaPolicy::Keep).await
        }
        // The check of the files reports it.
        Err(_) => return report,
    };
    match opened {
        Ok(database) => {
            report.facts.push("database: it can be reached".to_owned());
            inspect_store(&database.store, &mut report).await;
            database.close().await;
        }
        Err(error) => report.faults.push(format!("database: {}", chain(error.as_ref()))),
    }
    report
}

async fn inspect_store(store: &Store, report: &mut OnlineReport) {
    if let Err(error) = store.ping().await {
        report.faults.push(format!("database: {}", chain(&error)));
    }
    match store.check().await {
        Ok(SchemaCheck::Current) => {
            report.facts.push(format!("database schema: current ({})", newest_schema_step()));
        }
        Ok(SchemaCheck::Newer { step }) => report.facts.push(format!(
            "database schema: newer than this program, which can still use it (step {step})"
        )),
        Ok(SchemaCheck::Empty) => report.faults.push(
            "database schema: the database is empty: the first start of `evenkeeld all` creates \
             the schema, or run `evenkeeld migrate`"
                .to_owned(),
        ),
        Ok(SchemaCheck::Outdated) => report
            .faults
            .push("database schema: older than this program: run `evenkeeld migrate`".to_owned()),
        Ok(SchemaCheck::Incompatible(why)) => report.faults.push(format!("database: {why}")),
        Err(error) => report.faults.push(format!("database schema: {}", chain(&error))),
    }
    match store.read_clocks(&SystemClock).await {
        Ok(clocks) if clocks.agreement() == ClockAgreement::Differs => {
            report.faults.push(format!("clock: {clocks}"));
        }
        Ok(clocks) => report.facts.push(format!(
            "clock: {} ms ahead of the clock of the database",
            clocks.offset().num_milliseconds()
        )),
        Err(error) => report.faults.push(format!("clock: {}", chain(&error))),
    }
}
