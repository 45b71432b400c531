//! What the agent does for each word of the server.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::troubles::brief;
use super::{Agent, AgentError, Did, Planning};
use crate::engine::WITHDRAWN;
use crate::journal::{Entry, JournalError, Phase};
use crate::link::Leave;
use crate::model::{Act, Failure, FailureKind, News, Target, Wish};
use crate::modules::{AnyStep, Draft, Fetched, Ready, Try};

/// News of a beginning may take so long; then the work begins without its being told.
pub(super) const BRIEFLY: Duration = Duration::from_secs(5);

impl Agent {
    pub(super) async fn act(
        &mut self,
        act: Act,
        entry: Option<Entry>,
        once: bool,
    ) -> Result<Did, AgentError> {
        let has_begun = entry.as_ref().is_some_and(Entry::has_begun);
        let goes_on = is_gone_on_with(&act, entry.as_ref());
        let entry = match entry {
            Some(open) => Some(self.renew(&act, open)?),
            None => None,
        };
        if !has_begun && !goes_on && !matches!(act, Act::Apply { .. }) {
            // Nothing is to begin now, so nothing is waited for.
            self.waits(String::new());
        }
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
                if is_another(&target, &entry.target) =>
            {
                self.cancel(entry, WITHDRAWN).await
            }
            (Act::Fetch(_) | Act::Continue, Some(entry)) => self.download(entry).await,
            (Act::Fetch(target), None) => self.fetch(target, once).await,
            (Act::Apply { .. }, Some(entry)) => self.apply(entry).await,
            (Act::Apply { target, .. }, None) => self.open_and_apply(target, once).await,
        }
    }

    /// Keeps what is told anew of the image that an attempt is for, as long as it has not begun.
    fn renew(&self, act: &Act, open: Entry) -> Result<Entry, JournalError> {
        match act {
            Act::Fetch(target) | Act::Apply { target, .. }
                if !open.has_begun() && is_told_anew(target, &open.target) =>
            {
                tracing::info!(attempt = %open.attempt, "the wish for the same image was told anew");
                self.engine.renew(open, target.clone())
            }
            _ => Ok(open),
        }
    }

    async fn cancel(&mut self, entry: Entry, cause: &str) -> Result<Did, AgentError> {
        let over = self.engine.cancel(entry, cause)?;
        self.settle(over).await?;
        Ok(Did::Something)
    }

    /// Downloads what is missing, or a part of it, and tells so.
    async fn download(&mut self, entry: Entry) -> Result<Did, AgentError> {
        if entry.phase != Phase::Downloading {
            return Ok(Did::Nothing);
        }
        if self.memory.waiting.is_empty() {
            // What an earlier agent left there.
            self.waits(String::new());
        }
        let (entry, fetched) = self.unless_stopped(self.engine.fetch(entry)).await??;
        let did = self.has_fetched(&fetched);
        self.settle(entry).await?;
        Ok(did)
    }

    /// Notes how far a download came. While it waits for something, the server is asked as it said, and not at once.
    fn has_fetched(&mut self, fetched: &Fetched) -> Did {
        match fetched {
            Fetched::All | Fetched::Part => {
                self.waits(String::new());
                Did::Something
            }
            Fetched::Later(why) => {
                self.waits(brief(why));
                self.memory.later = true;
                Did::Nothing
            }
        }
    }

    /// Prepares a wish ahead of its window. Where there is nothing to fetch, nothing is told, unless the change may begin
    /// without the server: then it needs its attempt.
    async fn fetch(&mut self, target: Target, once: bool) -> Result<Did, AgentError> {
        let recent = self.memory.fetched.as_ref().is_some_and(|(wish, at)| {
            *wish == wish_name(&target) && !self.is_past(Some(*at), self.pace.fetch_again_after)
        });
        if recent || self.is_settled(&target, once) {
            return Ok(Did::Nothing);
        }
        let Some(planning) = self.begin_to_plan()? else {
            return Ok(Did::Nothing);
        };
        match self.plan(&target).await? {
            Ok(draft) if is_long(&draft) || self.may_go_alone(&target, &draft) => {
                let mut entry = self.engine.start(target, draft)?;
                drop(planning);
                self.flush(&mut entry).await?;
                self.download(entry).await
            }
            // Time does not mend it, so the server need not wait for the window to hear of it.
            Err(failure) if is_final(&target.wish, &failure) => {
                let news = News::failed(failure, None);
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
                self.memory.fetched = Some((wish_name(&target), self.clock.now()));
                Ok(Did::Nothing)
            }
        }
    }

    /// Begins to plan; `None` while a person makes a plan here.
    fn begin_to_plan(&self) -> Result<Option<Planning>, AgentError> {
        let planning = Planning::begin(&self.place).map_err(JournalError::from)?;
        if planning.is_none() {
            tracing::info!("another program plans an update here; the agent does so later");
        }
        Ok(planning)
    }

    /// Plans what the machine's owner allows.
    async fn plan(&self, target: &Target) -> Result<Result<Draft<AnyStep>, Failure>, AgentError> {
        if let Wish::Packages(wish) = &target.wish
            && let Err(failure) = self.owner.allows(wish)
        {
            return Ok(Err(failure));
        }
        self.unless_stopped(self.engine.plan(target)).await
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
        let Some(planning) = self.begin_to_plan()? else {
            return Ok(Did::Nothing);
        };
        let over = match self.plan(&target).await? {
            Ok(draft) if !draft.steps.is_empty() => {
                let mut entry = self.engine.start(target, draft)?;
                drop(planning);
                self.flush(&mut entry).await?;
                return self.apply(entry).await;
            }
            Ok(_) => self.engine.start_and_end(target, News::NothingToDo)?,
            Err(failure) => {
                let news = News::failed(failure, None);
                self.engine.start_and_end(target, news)?
            }
        };
        self.settle(over).await?;
        Ok(Did::Something)
    }

    /// Whether a wish was just seen through, so that a server that forgot does not make the node run in circles.
    fn is_settled(&self, target: &Target, once: bool) -> bool {
        let ended = self.memory.ended.get(&wish_name(target));
        ended.is_some_and(|ended| once || !self.is_past(Some(ended.at), ended.again_after))
    }

    /// Asks for leave and changes the node. Once that has begun, nothing but its end ends it.
    async fn apply(&mut self, mut entry: Entry) -> Result<Did, AgentError> {
        if entry.phase == Phase::Downloading {
            let fetched;
            (entry, fetched) = self.unless_stopped(self.engine.fetch(entry)).await??;
            if entry.phase == Phase::Over {
                self.settle(entry).await?;
                return Ok(Did::Something);
            }
            if entry.phase == Phase::Downloading {
                return Ok(self.has_fetched(&fetched));
            }
            // The node itself may let it wait: that all is there is told before.
            self.flush(&mut entry).await?;
        }
        match self.may_begin(&entry).await? {
            Ok(true) => {}
            Ok(false) => return Ok(Did::Nothing),
            Err(failure) => {
                let over = self.engine.fail(entry, failure)?;
                self.settle(over).await?;
                return Ok(Did::Something);
            }
        }
        self.flush(&mut entry).await?;
        let before = match self.unless_stopped(self.link.begin(&entry)).await?? {
            Leave::Granted { before } => before.map(|before| self.on_own_clock(before)),
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
        let mut entry = self.engine.begin(entry, before).await?;
        if entry.phase == Phase::Over {
            self.settle(entry).await?;
            return Ok(Did::Something);
        }
        self.flush_briefly(&mut entry).await?;
        let over = self.carry_out(entry, Try::First).await?;
        self.settle(over).await?;
        Ok(Did::Something)
    }

    /// An instant of the server's clock by the node's own, which alone is asked when the node has booted.
    fn on_own_clock(&self, server: DateTime<Utc>) -> DateTime<Utc> {
        let ahead = self.memory.ahead.unwrap_or_default();
        server.checked_add_signed(ahead).unwrap_or(server)
    }

    /// Whether the node itself lets what is prepared begin: first as its modules see it, then as its owner does. Why it
    /// does not is kept and told.
    pub(super) async fn may_begin(
        &mut self,
        entry: &Entry,
    ) -> Result<Result<bool, Failure>, AgentError> {
        // The owner may have had another word since the plan was made.
        if let Wish::Packages(wish) = &entry.target.wish
            && let Err(failure) = self.owner.allows(wish)
        {
            return Ok(Err(failure));
        }
        let mut ready = self.unless_stopped(self.engine.ready(entry)).await?;
        if matches!(ready, Ok(Ready::Yes)) {
            ready = Ok(self.unless_stopped(self.gate.ready(&entry.plan)).await?);
        }
        let why = match ready {
            Ok(Ready::Yes) => String::new(),
            Ok(Ready::NotYet(why)) => brief(&why),
            Err(failure) => return Ok(Err(failure)),
        };
        let may = why.is_empty();
        self.waits(why);
        Ok(Ok(may))
    }

    /// Keeps why the node does not let a prepared change begin; empty if it does or nothing is to begin.
    pub(super) fn waits(&mut self, why: String) {
        if why != self.status.get().waiting {
            // Also what an earlier agent left there.
            self.status.change(|status| status.waiting.clone_from(&why));
        }
        if why == self.memory.waiting {
            return;
        }
        if why.is_empty() {
            tracing::info!(was = self.memory.waiting, "the node waits no longer");
        } else {
            tracing::warn!(why, "the node cannot be changed just now");
        }
        self.memory.waiting = why;
    }
}

/// Whether time does not mend a failure. What does not fit or is not signed stays so while the wish for an image does.
fn is_final(wish: &Wish, failure: &Failure) -> bool {
    match failure.kind {
        FailureKind::Unsupported | FailureKind::Limits => true,
        FailureKind::Signature | FailureKind::Verify => matches!(wish, Wish::Image(_)),
        _ => false,
    }
}

/// Whether an act goes on with fetching what an open attempt needs.
fn is_gone_on_with(act: &Act, entry: Option<&Entry>) -> bool {
    let is_open = entry.is_some_and(|entry| entry.phase == Phase::Downloading);
    is_open && matches!(act, Act::Fetch(_) | Act::Continue)
}

/// Whether a change is prepared ahead of its window: if there is something to fetch, or an image to write.
fn is_long(draft: &Draft<AnyStep>) -> bool {
    draft.download_bytes > 0 || (draft.image.is_some() && !draft.steps.is_empty())
}

/// Whether what is wanted is something else than what an attempt is for. The digest names the release that is wanted, and
/// not the file that it is made of: that may have been replaced.
fn is_another(wanted: &Target, open: &Target) -> bool {
    let file = match (&wanted.wish, &open.wish) {
        (Wish::Image(wanted), Wish::Image(open)) => !wanted.is_same_image(open),
        _ => false,
    };
    file || wanted.digest != open.digest
}

/// Whether another word is said of the same image, such as a signature more, another rule or an order.
fn is_told_anew(wanted: &Target, open: &Target) -> bool {
    matches!(wanted.wish, Wish::Image(_)) && !is_another(wanted, open) && wanted != open
}

/// The name under which is remembered what became of a wish: its digest, and that of the file of an image. One that a
/// person ordered although it failed is another wish: it does not wait because the one before it was just seen through.
pub(super) fn wish_name(target: &Target) -> String {
    match &target.wish {
        Wish::Image(image) => {
            let again = if image.again { " again" } else { "" };
            format!("{} {}{again}", target.digest, image.sha256)
        }
        Wish::Packages(_) | Wish::Unknown => target.digest.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ImageWish, Sha256};

    fn target(wish: ImageWish) -> Target {
        Target {
            digest: "os".into(),
            wish: Wish::Image(wish),
        }
    }

    #[test]
    fn what_became_of_an_image_says_nothing_of_its_order_and_nothing_of_another_file() {
        let wish = ImageWish::sample("1.1");
        let ordered = ImageWish {
            again: true,
            ..wish.clone()
        };
        let rebuilt = ImageWish {
            sha256: Sha256::of(b"rebuilt"),
            ..wish.clone()
        };
        let signed = ImageWish {
            signatures: vec!["k:s".into()],
            ..wish.clone()
        };
        let name = wish_name(&target(wish));
        assert_ne!(wish_name(&target(ordered)), name);
        assert_ne!(wish_name(&target(rebuilt)), name);
        assert_eq!(wish_name(&target(signed)), name);
    }
}
