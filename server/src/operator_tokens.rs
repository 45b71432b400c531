//! Tokens of operators: issued tokens are recorded, so that they can be listed and revoked, and
//! revoked tokens are refused.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{Authority, IssuedToken, ProjectNames, Revocations, RevokedSubject, Role};
use evenkeel_kit::{Lifecycle, chain};
use evenkeel_store::operator_tokens::{self, OperatorToken};
use evenkeel_store::{FleetTx, Store, StoreError, projects};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::app_context::AppContext;

/// How often each process reads the revoked tokens. A revocation takes effect within a second.
const REVOCATION_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How often each process that accepts tokens of other issuers reads the names of projects. A role in
/// a new project takes effect after this time.
const PROJECT_NAMES_INTERVAL: Duration = Duration::from_secs(5);

/// How often each process records which tokens for automation were used.
const TOKEN_USES_INTERVAL: Duration = Duration::from_mins(1);

/// Issues a token and records it. The transaction must be committed before the token is shown. The token
/// is issued by the time of the database, like revocations: a process whose clock is ahead would issue a
/// token that a revocation soon after does not reach.
pub(crate) async fn issue_recorded(
    tx: &FleetTx,
    authority: &Authority,
    (subject, roles): (&str, &[Role]),
    lifetime: Duration,
) -> anyhow::Result<IssuedToken> {
    let now = tx.database_time();
    let lifetime = TimeDelta::from_std(lifetime).context("the lifetime is too long")?;
    let issued = authority.issue_operator(subject, roles, lifetime, now)?;
    let token = OperatorToken {
        id: issued.id,
        subject: subject.to_owned(),
        roles: roles.iter().map(Role::to_string).collect(),
        issued_at: now,
        expires_at: issued.expires_at,
        revoked_at: None,
        revoked_by: None,
        name: None,
        project: None,
        last_used_at: None,
    };
    operator_tokens::record(tx, &token).await.context("cannot record the token")?;
    Ok(issued)
}

/// Reads the revoked tokens, which the authority refuses from then on.
pub(crate) async fn load_revocations(
    store: &Store,
    authority: &Authority,
) -> Result<(), StoreError> {
    let revoked = operator_tokens::load_revoked(store).await?;
    let subjects = revoked.subjects.into_iter().map(|revoked| RevokedSubject {
        issuer: revoked.issuer,
        subject: revoked.subject,
        revoked_until: revoked.revoked_until,
    });
    authority.set_revocations(Revocations::new(revoked.ids, subjects));
    Ok(())
}

/// Reads the revoked tokens at an interval. While the database cannot be read, the last list is
/// used; no token can be revoked meanwhile.
pub(crate) fn spawn_revocation_watch(context: &AppContext, life: &Lifecycle) {
    let (store, authority) = (context.store.clone(), Arc::clone(&context.authority));
    let stopping = life.stopping();
    life.spawn("revoked tokens", async move {
        let read = || {
            let (store, authority) = (store.clone(), Arc::clone(&authority));
            async move { load_revocations(&store, &authority).await }
        };
        read_at_interval(&stopping, REVOCATION_CHECK_INTERVAL, read).await;
        Ok(())
    });
}

/// Records at an interval when tokens for automation were used. If the database cannot be written,
/// the uses of the interval are lost.
pub(crate) fn spawn_use_recorder(context: &AppContext, life: &Lifecycle) {
    let (store, authority) = (context.store.clone(), Arc::clone(&context.authority));
    let stopping = life.stopping();
    life.spawn("uses of tokens", async move {
        let record = || {
            let (store, uses) = (store.clone(), authority.take_token_uses());
            async move { record_uses(&store, uses).await }
        };
        read_at_interval(&stopping, TOKEN_USES_INTERVAL, record).await;
        Ok(())
    });
}

async fn record_uses(store: &Store, uses: Vec<(Uuid, DateTime<Utc>)>) -> Result<(), StoreError> {
    if uses.is_empty() {
        return Ok(());
    }
    let tx = store.fleet().await?;
    operator_tokens::record_uses(&tx, uses).await?;
    tx.commit().await
}

/// Reads the names of the projects, which roles of other issuers may contain.
pub(crate) async fn load_project_names(
    store: &Store,
    authority: &Authority,
) -> Result<(), StoreError> {
    let tx = store.fleet().await?;
    let projects = projects::list(&tx).await?;
    let names = projects.into_iter().map(|project| (project.name.to_string(), project.id.uuid()));
    authority.set_project_names(names.collect::<ProjectNames>());
    Ok(())
}

/// Reads the names of the projects at an interval, if tokens of other issuers are accepted.
pub(crate) fn spawn_project_names_watch(context: &AppContext, life: &Lifecycle) {
    if !context.authority.has_external_issuers() {
        return;
    }
    let (store, authority) = (context.store.clone(), Arc::clone(&context.authority));
    let stopping = life.stopping();
    life.spawn("names of projects", async move {
        let read = || {
            let (store, authority) = (store.clone(), Arc::clone(&authority));
            async move {
                let loaded = load_project_names(&store, &authority).await;
                if loaded.is_ok() {
                    authority.warn_of_unknown_projects();
                }
                loaded
            }
        };
        read_at_interval(&stopping, PROJECT_NAMES_INTERVAL, read).await;
        Ok(())
    });
}

/// Reads, or writes, until the process stops. The first time is at once.
async fn read_at_interval<F>(stopping: &CancellationToken, interval: Duration, read: impl Fn() -> F)
where
    F: Future<Output = Result<(), StoreError>>,
{
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_failing = false;
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let loaded = read().await;
        match &loaded {
            // Others log that the database cannot be reached.
            Err(StoreError::Unreachable(_)) | Ok(()) => {}
            Err(error) if !is_failing => {
                tracing::warn!(error = %chain(error), "the revoked tokens, the names of projects or the uses of tokens cannot be read or recorded; retrying");
            }
            Err(_) => {}
        }
        is_failing = loaded.is_err();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Half of the second that the documentation states remains for the reading itself.
    #[tokio::test(start_paused = true)]
    async fn the_revoked_tokens_are_read_at_least_twice_a_second() {
        for fails in [false, true] {
            let reads = Cell::new(0);
            let read = || {
                reads.set(reads.get() + 1);
                let missing = StoreError::NotFound { what: "operator token" };
                std::future::ready(if fails { Err(missing) } else { Ok(()) })
            };
            let stopping = CancellationToken::new();
            let reading = read_at_interval(&stopping, REVOCATION_CHECK_INTERVAL, read);
            let ended = tokio::time::timeout(Duration::from_secs(10), reading).await;
            assert!(ended.is_err(), "it reads until the process stops");
            assert!(reads.get() >= 20, "{} reads in 10 seconds, failing: {fails}", reads.get());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_reading_of_revoked_tokens_ends_when_the_process_stops() {
        let stopping = CancellationToken::new();
        let read = || {
            stopping.cancel();
            std::future::ready(Ok(()))
        };
        read_at_interval(&stopping, REVOCATION_CHECK_INTERVAL, read).await;
    }
}
