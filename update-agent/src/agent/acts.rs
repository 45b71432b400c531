//! What the agent does for each word of the server.

use std::time::Duration;

use evenkeel_kit::chain;

use super::{Agent, AgentError, Did};
use crate::journal::{Entry, Phase};
use crate::link::Leave;
use crate::model::{Act, FailureKind, News, Target};
use crate::modules::{AnyStep, Draft, Ready, Try};

/// News of a beginning may take so long; then the work begins without its being told.
const BRIEFLY: Duration = Duration::from_secs(5);

impl Agent {
    pub(super) async fn act(
        &mut self,
        act: Act,
        entry: Option<Entry>,
        once: bool,
    ) -> Result<Did, AgentError> {
        match (act, entry) {
            (_, Some(entry)) if entry.has_begun() => {
                tracing::debug!(attempt = %entry.attempt, "what was begun is gone on with");
                Ok(Did::Nothing)
            }
            (Act::Idle, _) | (Act::Cancel { .. }, None) => Ok(Did::Nothing),
            (Act::Continue, None) => {
                tracing::warn!("the server knows of an attempt that this agent does not have");
                Ok(Did::Nothing)
            }
            (Act::Cancel { cause }, Some(entry)) => self.cancel(entry, &cause).await,
            (Act::Fetch(target) | Act::Apply { target, .. }, Some(entry))
                if target.digest != entry.target.digest =>
            {
                self.cancel(entry, "withdrawn").await
            }
            (Act::Fetch(_) | Act::Continue, Some(entry)) => self.download(entry).await,
            (Act::Fetch(target), None) => self.fetch(target, once).await,
            (Act::Apply { .. }, Some(entry)) => self.apply(entry).await,
            (Act::Apply { target, .. }, None) => self.open_and_apply(target, once).await,
        }
    }

    async fn cancel(&mut self, entry: Entry, cause: &str) -> Result<Did, AgentError> {
        let over = self.engine.cancel(entry, cause)?;
        self.settle(over).await?;
        Ok(Did::Something)
    }

    /// Downloads what is missing and tells so.
    async fn download(&mut self, entry: Entry) -> Result<Did, AgentError> {
        if entry.phase != Phase::Downloading {
            return Ok(Did::Nothing);
        }
        let staged = self.unless_stopped(self.engine.fetch(entry)).await??;
        self.settle(staged).await?;
        Ok(Did::Something)
    }

    /// Prepares a wish ahead of its window. Where there is nothing to fetch, nothing is told, unless the change may begin
    /// without the server: then it needs its attempt.
    async fn fetch(&mut self, target: Target, once: bool) -> Result<Did, AgentError> {
        let recent = self.memory.fetched.as_ref().is_some_and(|(digest, at)| {
            *digest == target.digest && !self.is_past(Some(*at), self.pace.fetch_again_after)
        });
        if recent || self.is_settled(&target, once) {
            return Ok(Did::Nothing);
        }
        match self.unless_stopped(self.engine.plan(&target)).await? {
            Ok(draft) if draft.download_bytes > 0 || self.may_go_alone(&target, &draft) => {
                let mut entry = self.engine.start(target, draft)?;
                self.flush(&mut entry).await?;
                self.download(entry).await
            }
            // Time does not mend it, so the server need not wait for the window to hear of it.
            Err(failure) if failure.kind == FailureKind::Unsupported => {
                let results = Vec::new();
                let news = News::Failed { failure, results };
                let over = self.engine.start_and_end(target, news)?;
                self.settle(over).await?;
                Ok(Did::Something)
            }
            prepared => {
                match prepared {
                    Ok(_) => tracing::info!("there is nothing to fetch for the wish"),
                    Err(failure) => {
                        tracing::warn!(error = %failure, "the wish cannot be prepared yet");
                    }
                }
                self.memory.fetched = Some((target.digest, self.clock.now()));
                Ok(Did::Nothing)
            }
        }
    }

    fn may_go_alone(&self, target: &Target, draft: &Draft<AnyStep>) -> bool {
        let granted = self.grants.get();
        granted.is_some_and(|grant| grant.target_digest == target.digest) && !draft.steps.is_empty()
    }

    async fn open_and_apply(&mut self, target: Target, once: bool) -> Result<Did, AgentError> {
        if self.is_settled(&target, once) {
            tracing::debug!("the wish was seen through a moment ago");
            return Ok(Did::Nothing);
        }
        let over = match self.unless_stopped(self.engine.plan(&target)).await? {
            Ok(draft) if !draft.steps.is_empty() => {
                let mut entry = self.engine.start(target, draft)?;
                self.flush(&mut entry).await?;
                return self.apply(entry).await;
            }
            Ok(_) => self.engine.start_and_end(target, News::NothingToDo)?,
            Err(failure) => {
                let results = Vec::new();
                let news = News::Failed { failure, results };
                self.engine.start_and_end(target, news)?
            }
        };
        self.settle(over).await?;
        Ok(Did::Something)
    }

    /// Whether a wish was just seen through, so that a server that forgot does not make the node run in circles.
    fn is_settled(&self, target: &Target, once: bool) -> bool {
        let ended = self.memory.ended.get(&target.digest);
        ended.is_some_and(|ended| once || !self.is_past(Some(ended.at), self.pace.retry_after))
    }

    /// Asks for leave and changes the node. Once that has begun, nothing but its end ends it.
    async fn apply(&mut self, mut entry: Entry) -> Result<Did, AgentError> {
        if entry.phase == Phase::Downloading {
            entry = self.unless_stopped(self.engine.fetch(entry)).await??;
            if entry.phase == Phase::Over {
                self.settle(entry).await?;
                return Ok(Did::Something);
            }
        }
        match self.unless_stopped(self.engine.ready(&entry)).await? {
            Ok(Ready::Yes) => {}
            Ok(Ready::NotYet(why)) => {
                tracing::warn!(why, "the node cannot be changed just now");
                return Ok(Did::Nothing);
            }
            Err(failure) => {
                let over = self.engine.fail(entry, failure)?;
                self.settle(over).await?;
                return Ok(Did::Something);
            }
        }
        self.flush(&mut entry).await?;
        let before = match self.unless_stopped(self.link.begin(&entry)).await?? {
            Leave::Granted { before } => before,
            Leave::Refused { reason } => {
                tracing::info!(reason, "the server does not let the update begin");
                // What it gave leave for ahead is overtaken by that.
                self.grants.forget().map_err(AgentError::Grant)?;
                // It may know less than it once acknowledged, as after a restore: what it has, it takes once only.
                self.engine.acknowledge(&mut entry, 0)?;
                self.flush(&mut entry).await?;
                return Ok(Did::Nothing);
            }
        };
        let mut entry = self.engine.begin(entry, before)?;
        match tokio::time::timeout(BRIEFLY, self.flush(&mut entry)).await {
            Ok(Err(AgentError::Journal(error))) => return Err(error.into()),
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "the beginning will be told later");
            }
            Ok(Ok(())) | Err(_) => {}
        }
        let over = self.engine.carry_out(entry, Try::First).await?;
        self.settle(over).await?;
        Ok(Did::Something)
    }
}
