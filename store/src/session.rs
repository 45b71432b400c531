//! Settings of a database session. They are set by the first statement of a session and read back
//! by the second one, because safety depends on them: a pooler may drop settings of the startup
//! packet, and one that gives each transaction another session loses all of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, TryFutureExt as _};
use sea_orm::{DbErr, RuntimeErr};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _};
use tokio::time::{Instant, timeout, timeout_at};

use crate::address::DatabaseAddress;
use crate::check::IncompatibleDatabase;
use crate::error::StoreError;

/// The setting that decides which projects a session sees.
pub(crate) const TENANT_SETTING: &str = "evenkeel.tenant";

/// A commit is on the disk before it is answered. A stricter value of the role is kept.
const DURABLE_COMMIT: (&str, &str) =
    ("synchronous_commit", "replace(current_setting('synchronous_commit'), 'off', 'on')");

/// A setting of Postgres 17 and newer. A value of the role or the database would end long lists,
/// leases and migrations, which have limits of their own.
const NO_TRANSACTION_TIMEOUT: (&str, &str) = (
    "transaction_timeout",
    "CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL \
     THEN set_config('transaction_timeout', '0', false) END",
);

/// Limit for closing connections. The answers that it waits for have no consequences.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of a session: names, and SQL expressions that set them and return the new values.
#[derive(Clone, Debug)]
pub(crate) struct SessionSettings(Arc<[(&'static str, String)]>);

impl SessionSettings {
    pub(crate) fn new<V: AsRef<str>>(
        settings: impl IntoIterator<Item = (&'static str, V)>,
    ) -> Self {
        let set = |name: &'static str, value: &str| {
            (name, format!("set_config('{name}', {value}, false)"))
        };
        let literal = |value: V| format!("'{}'", value.as_ref().replace('\'', "''"));
        let settings = settings.into_iter().map(|(name, value)| set(name, &literal(value)));
        let (durable, value) = DURABLE_COMMIT;
        let (unlimited, expression) = NO_TRANSACTION_TIMEOUT;
        let last = [set(durable, value), (unlimited, expression.to_owned())];
        Self(settings.chain(last).collect())
    }

    /// Sets the settings for the whole session and reads them back.
    ///
    /// # Errors
    /// The database does not answer, refuses a setting, or has lost one.
    pub(crate) async fn apply(&self, session: &mut PgConnection) -> Result<(), SessionError> {
        let set = self.0.iter().map(|(_, expression)| expression.clone());
        let set = select_texts(session, set.collect()).await?;
        // In a statement of its own, so that a pooler can choose another session for it.
        let read = self.0.iter().map(|(name, _)| format!("current_setting('{name}', true)"));
        let read = select_texts(session, read.collect()).await?;
        Ok(self.compare(&set, &read)?)
    }

    /// Compares the values of all settings, as they were set and as they were read back.
    fn compare(
        &self,
        set: &[Option<String>],
        read: &[Option<String>],
    ) -> Result<(), IncompatibleDatabase> {
        let mut compared = self.0.iter().zip(set.iter().zip(read));
        match compared.find(|(_, (set, read))| set != read) {
            Some(((name, _), _)) => Err(IncompatibleDatabase::SettingLost { name }),
            None => Ok(()),
        }
    }
}

/// Selects texts in one message, because a pooler may lose a prepared statement.
pub(crate) async fn select_texts(
    session: &mut PgConnection,
    expressions: Vec<String>,
) -> Result<Vec<Option<String>>, sqlx::Error> {
    let sql = format!("SELECT {}", expressions.join(", "));
    let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(session).await?;
    (0..expressions.len()).map(|column| row.try_get(column)).collect()
}

/// Why a session cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Incompatible(#[from] IncompatibleDatabase),
}

impl From<SessionError> for sqlx::Error {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Database(error) => error,
            SessionError::Incompatible(error) => Self::Configuration(error.into()),
        }
    }
}

impl From<SessionError> for StoreError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Database(error) => connection_error(error),
            SessionError::Incompatible(error) => Self::Incompatible(error),
        }
    }
}

/// Opens a connection outside of a pool.
pub(crate) async fn open_session(
    address: &DatabaseAddress,
    settings: &SessionSettings,
    within: Duration,
) -> Result<PgConnection, StoreError> {
    let options = connect_options(address)?;
    let deadline = Instant::now() + within;
    let connecting = options.connect().map_err(connection_error);
    let mut session = await_answers(deadline, "log in to the database", connecting).await?;
    let applying = settings.apply(&mut session);
    await_answers(deadline, "apply the settings of a session", applying).await?;
    Ok(session)
}

/// Waits for answers of the database until the deadline, because a crashed machine or a cut
/// connection sends nothing. `action` completes the error "cannot …".
///
/// # Errors
/// As those of the answers; or they do not arrive in time.
pub(crate) fn await_answers<T, E>(
    deadline: Instant,
    action: &str,
    answers: impl Future<Output = Result<T, E>>,
) -> impl Future<Output = Result<T, StoreError>>
where
    StoreError: From<E>,
{
    let begun = Instant::now();
    timeout_at(deadline, answers).map(move |answered| match answered {
        Ok(answered) => answered.map_err(StoreError::from),
        Err(_) => Err(silence_error(action, begun.elapsed())),
    })
}

/// The error of an action for which the database has not answered.
pub(crate) fn silence_error(action: &str, waited: Duration) -> StoreError {
    let text = format!(
        "cannot {action}: the database has not answered for {waited:.1?}; check it, and poolers and \
         firewalls in front of it"
    );
    StoreError::Unreachable(DbErr::Conn(RuntimeErr::Internal(text)))
}

/// Waits until connections are closed, but not for long. An error while closing has no
/// consequences: the database ends a session whose connection is gone.
pub(crate) async fn wait_for_close<T>(closing: impl Future<Output = T>) {
    let _ = timeout(CLOSE_TIMEOUT, closing).await;
}

/// The options for a new connection.
pub(crate) fn connect_options(address: &DatabaseAddress) -> Result<PgConnectOptions, StoreError> {
    let options = address.connect_options();
    options.map_err(|error| connection_error(sqlx::Error::Configuration(error.into())))
}

/// The error of a connection that cannot be opened.
pub(crate) fn connection_error(error: sqlx::Error) -> StoreError {
    DbErr::Conn(RuntimeErr::SqlxError(Arc::new(error))).into()
}

/// The error of a database that does not answer in time.
pub(crate) fn timeout_error() -> StoreError {
    connection_error(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))
}

/// Whether each connection keeps its session of the database while another one is in a
/// transaction. A pooler in transaction mode gives the idle session to the other connection.
pub(crate) async fn keeps_sessions(
    address: &DatabaseAddress,
    settings: &SessionSettings,
    within: Duration,
) -> Result<bool, StoreError> {
    let mut first = open_session(address, settings, within).await?;
    let mut second = open_session(address, settings, within).await?;
    let comparing = async {
        let before = backend_pid(&mut first).await?;
        let mut transaction = second.begin().await?;
        backend_pid(&mut transaction).await?;
        let after = backend_pid(&mut first).await?;
        transaction.rollback().await?;
        Ok::<_, sqlx::Error>(before == after)
    };
    let comparing = comparing.map_err(connection_error);
    let deadline = Instant::now() + within;
    let is_kept = await_answers(deadline, "compare two sessions", comparing).await?;
    for session in [first, second] {
        wait_for_close(session.close()).await;
    }
    Ok(is_kept)
}

async fn backend_pid(session: &mut PgConnection) -> Result<Vec<Option<String>>, sqlx::Error> {
    select_texts(session, vec!["pg_backend_pid()::text".to_owned()]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_read_back_with_another_value_is_lost() {
        let settings = SessionSettings::new([("jit", "off"), ("lock_timeout", "5000")]);
        let values = |texts: [&str; 3]| {
            let mut values: Vec<_> = texts.map(|text| Some(text.to_owned())).into();
            values.push(None); // Before Postgres 17 there is no transaction_timeout.
            values
        };
        let set = values(["off", "5s", "on"]);
        assert_eq!(settings.compare(&set, &set), Ok(()));
        for (read, name) in [
            (["on", "5s", "on"], "jit"),
            (["off", "0", "on"], "lock_timeout"),
            (["off", "5s", "off"], "synchronous_commit"),
            (["on", "0", "off"], "jit"),
        ] {
            let lost = IncompatibleDatabase::SettingLost { name };
            assert_eq!(settings.compare(&set, &values(read)), Err(lost));
        }
        let mut newer = set.clone();
        newer[3] = Some("1min".to_owned());
        let lost = IncompatibleDatabase::SettingLost { name: "transaction_timeout" };
        assert_eq!(settings.compare(&set, &newer), Err(lost));
    }
}
