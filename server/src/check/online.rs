//! Checks that need the database: whether it can be reached, its schema, transactions that delay
//! all servers, and the clocks.

use std::time::Duration;

use evenkeel_kit::{SystemClock, chain};
use evenkeel_store::log::{LongTransaction, STALL_LIMIT, list_long_writers};
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
    let schema = store.check().await;
    let is_usable = matches!(schema, Ok(SchemaCheck::Current | SchemaCheck::Newer { .. }));
    match schema {
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
    if is_usable {
        // The log of a server names a transaction after the same time.
        match list_long_writers(store, STALL_LIMIT).await {
            Ok(writers) => report.faults.extend(writers.iter().map(describe_writer)),
            Err(error) => report.faults.push(format!("change log: {}", chain(&error))),
        }
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

/// Describes a transaction that has written the change log and stays open, with how to end it.
fn describe_writer(writer: &LongTransaction) -> String {
    let LongTransaction { pid, gid, role, age, .. } = writer;
    let (name, advice) = match (gid, pid) {
        (Some(gid), _) => {
            let gid_text = gid.replace('\'', "''");
            let advice = format!(
                "end it in this database with COMMIT PREPARED '{gid_text}' or ROLLBACK PREPARED \
                 '{gid_text}'"
            );
            (format!("the prepared transaction {gid:?}"), advice)
        }
        (None, Some(pid)) => (
            format!("the transaction of the process {pid}"),
            format!("end it, for example with SELECT pg_terminate_backend({pid})"),
        ),
        (None, None) => ("a transaction".to_owned(), "end it".to_owned()),
    };
    format!(
        "change log: {name} of the role {:?} has written it and stays open for {} s, so that later \
         changes are neither read nor sealed: {advice}",
        role.as_deref().unwrap_or("?"),
        age.unwrap_or_default().as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_named_with_what_ends_it() {
        let session = LongTransaction {
            pid: Some(47),
            gid: None,
            role: Some("app".to_owned()),
            age: Some(Duration::from_secs(90)),
            is_log_writer: true,
        };
        assert_eq!(
            describe_writer(&session),
            "change log: the transaction of the process 47 of the role \"app\" has written it and \
             stays open for 90 s, so that later changes are neither read nor sealed: end it, for \
             example with SELECT pg_terminate_backend(47)"
        );
        let gid = Some("it's".to_owned());
        let described = describe_writer(&LongTransaction { pid: None, gid, ..session });
        assert!(described.contains("the prepared transaction \"it's\" of"), "{described}");
        assert!(described.ends_with("or ROLLBACK PREPARED 'it''s'"), "{described}");
    }
}
