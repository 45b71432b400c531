//! Hints that something was committed, from every server of the installation to every reader. They only save time: a
//! reader looks by itself as well, so one that is lost costs a moment.

use std::future::ready;
use std::io::ErrorKind;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::Secret;
use sea_orm::sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sea_orm::sqlx::{Error, Executor as _};
use sea_orm::{DbErr, RuntimeErr};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::StoreError;
use crate::pool::Store;
use crate::tx::execute;

/// Where hints are told.
const CHANNEL: &str = "evenkeel_log";

/// How far apart one server tells hints: all that is committed meanwhile is in one.
const APART: Duration = Duration::from_millis(20);

/// How long to wait before another try to listen, and for a connection.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long it may be quiet before it is asked whether anybody is there, and how long that may take: a line that leads
/// nowhere is as quiet as a night without changes.
const QUIET: Duration = Duration::from_secs(30);
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Hears when something was committed, on a connection of its own.
#[derive(Debug)]
pub struct Hints {
    url: Secret,
    /// None after a failure.
    listener: Option<PgListener>,
}

/// Begins to listen.
///
/// # Errors
/// The database cannot be reached.
pub async fn hints(store: &Store) -> Result<Hints, StoreError> {
    let url = store.url.clone();
    let listener = listen(&url).await;
    let listener = listener
        .map_err(|error| DbErr::Conn(RuntimeErr::SqlxError(Arc::new(error))))
        .map(Some)?;
    Ok(Hints { url, listener })
}

impl Hints {
    /// Waits until something was committed, or may have been while nobody listened. Any number of hints is one. Waits as
    /// long as the database is away.
    pub async fn next(&mut self) {
        loop {
            if let Some(listener) = &mut self.listener {
                if hear(listener).await.is_ok() {
                    return;
                }
                self.listener = None;
            }
            if let Ok(listener) = listen(&self.url).await {
                self.listener = Some(listener);
                return;
            }
            tokio::time::sleep(PATIENCE).await;
        }
    }
}

async fn listen(url: &Secret) -> Result<PgListener, Error> {
    let options = PgConnectOptions::from_str(url.reveal())?.application_name("evenkeel");
    let one = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(PATIENCE)
        .connect_lazy_with(options);
    let listening = async {
        let mut listener = PgListener::connect_with(&one).await?;
        listener.listen(CHANNEL).await?;
        Ok(listener)
    };
    answered(listening).await
}

/// Waits for a hint, or until its connection was lost and is there again; then takes what has come besides.
async fn hear(listener: &mut PgListener) -> Result<(), Error> {
    loop {
        match timeout(QUIET, listener.try_recv()).await {
            Ok(heard) => break heard.map(drop)?,
            Err(_) => is_there(listener).await?,
        }
    }
    loop {
        tokio::select! {
            biased;
            heard = listener.try_recv() => {
                heard?;
            }
            () = ready(()) => return Ok(()),
        }
    }
}

/// Asks whether anybody is there. What is told meanwhile is kept.
async fn is_there(listener: &mut PgListener) -> Result<(), Error> {
    answered(listener.execute("SELECT 1")).await.map(drop)
}

/// Waits for an answer, but not for ever.
async fn answered<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match timeout(ANSWERS_WITHIN, answer).await {
        Ok(answered) => answered,
        Err(_) => Err(Error::Io(ErrorKind::TimedOut.into())),
    }
}

impl Store {
    /// Tells all who listen when something was committed through this store or one of its clones, until it is asked to
    /// stop. A process needs it once.
    pub async fn tell_hints(self, stopping: CancellationToken) {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.written.notified() => {}
            }
            // What cannot be told is seen all the same, a moment later.
            let told = execute(&self.db, "SELECT pg_notify($1, '')", [CHANNEL.into()]);
            let _ = timeout(self.patience, told).await;
            tokio::time::sleep(APART).await;
        }
    }
}
