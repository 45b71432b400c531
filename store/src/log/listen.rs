//! Hints that a transaction was committed, from every server to every reader. They only reduce
//! latency: readers also poll, so a lost hint costs a moment.

use std::future::ready;
use std::io::ErrorKind;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Error, Executor as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::address::DatabaseAddress;
use crate::error::StoreError;
use crate::pool::Store;
use crate::session::{connect_options, connection_error};
use crate::tx::execute;

/// The notification channel of hints.
const CHANNEL: &str = "evenkeel_log";

/// The shortest interval between two hints of a server. One hint covers all commits in between.
const HINT_INTERVAL: Duration = Duration::from_millis(20);

/// How long to wait before the next attempt to listen, and for a connection.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// After this time without a notification the connection is tested, because a dead connection is
/// silent as well.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Receives hints about commits on a connection of its own.
#[derive(Debug)]
pub struct HintListener {
    address: DatabaseAddress,
    /// None after a failure.
    listener: Option<PgListener>,
}

/// Starts to listen for hints.
pub async fn listen_for_hints(store: &Store) -> Result<HintListener, StoreError> {
    let address = store.address.clone();
    let listener = connect_listener(&address, CHANNEL).await.map(Some)?;
    Ok(HintListener { address, listener })
}

impl HintListener {
    /// Waits until a transaction was committed, or may have been committed while the listener was
    /// disconnected. Several hints collapse into one. Keeps waiting while the database is down.
    pub async fn next(&mut self) {
        loop {
            if let Some(listener) = &mut self.listener {
                if receive_hint(listener).await.is_ok() {
                    return;
                }
                self.listener = None;
            }
            if let Ok(listener) = connect_listener(&self.address, CHANNEL).await {
                self.listener = Some(listener);
                return;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Opens a connection that listens on a channel.
pub(crate) async fn connect_listener(
    address: &DatabaseAddress,
    channel: &str,
) -> Result<PgListener, StoreError> {
    let options = connect_options(address)?;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(RETRY_INTERVAL)
        .connect_lazy_with(options);
    let listening = async {
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(channel).await?;
        Ok(listener)
    };
    with_answer_timeout(listening).await.map_err(connection_error)
}

/// Waits for a hint or a reconnect, then drains the queued notifications.
async fn receive_hint(listener: &mut PgListener) -> Result<(), Error> {
    loop {
        match timeout(KEEPALIVE_INTERVAL, listener.try_recv()).await {
            Ok(notification) => break notification.map(drop)?,
            Err(_) => check_connection(listener).await?,
        }
    }
    loop {
        tokio::select! {
            biased;
            notification = listener.try_recv() => {
                notification?;
            }
            () = ready(()) => return Ok(()),
        }
    }
}

/// Waits for a notification and returns its payload.
pub(crate) async fn receive_payload(listener: &mut PgListener) -> Result<String, Error> {
    loop {
        match timeout(KEEPALIVE_INTERVAL, listener.try_recv()).await {
            Ok(Ok(Some(notification))) => return Ok(notification.payload().to_owned()),
            // The listener has lost its connection and reconnects with the next call.
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => check_connection(listener).await?,
        }
    }
}

/// Tests the connection. Notifications that arrive meanwhile stay queued.
async fn check_connection(listener: &mut PgListener) -> Result<(), Error> {
    with_answer_timeout(listener.execute("SELECT 1")).await.map(drop)
}

/// Waits for an answer with a timeout.
async fn with_answer_timeout<T>(
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answered) => answered,
        Err(_) => Err(Error::Io(ErrorKind::TimedOut.into())),
    }
}

impl Store {
    /// Notifies all listeners of commits through this store or its clones, until it is cancelled.
    /// Run it once per process.
    pub async fn send_hints(self, stopping: CancellationToken) {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.committed.notified() => {}
            }
            // If the notification fails, readers see the changes at their next poll.
            let notification = execute(self.db(), "SELECT pg_notify($1, '')", [CHANNEL.into()]);
            let _ = timeout(self.answer_timeout, notification).await;
            tokio::time::sleep(HINT_INTERVAL).await;
        }
    }
}
