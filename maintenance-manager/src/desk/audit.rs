//! Looks again at some of what is answered from memory: that the database would have said the same is no hope but counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use evenkeel_kit::Lifecycle;
use evenkeel_store::StoreError;
use tonic::Code;

use super::{Case, Desk, Inner, Looked};
use crate::view::{Answer, Hit, Recall, Who};

impl Desk {
    /// Looks again at one of so many answers. If it is each of them, the answer waits for that.
    pub(super) async fn audit_some(&self, case: &Case, hit: &Hit) {
        let every = u64::from(self.0.settings.view.audit_every);
        if every == 0
            || !self
                .0
                .hits
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(every)
        {
            return;
        }
        let audit = audit(self.clone(), case.clone(), Arc::clone(&hit.answer));
        if every == 1 {
            Box::pin(audit).await;
        } else {
            // Nobody waits for it.
            Lifecycle::detach(audit);
        }
    }
}

/// Looks again at what was answered from memory. It was wrong if it differs and is still what would be answered, although
/// all was applied that had been committed by then.
async fn audit(desk: Desk, case: Case, told: Arc<Answer>) {
    let inner = &desk.0;
    let Ok(Some(looked)) = inner.judge_one(&case).await else {
        return;
    };
    match &looked {
        Looked::Quiet { answer, .. } if **answer == *told => return,
        // The database said nothing, so it said nothing else.
        Looked::Refused(status) if status.code() == Code::Unavailable => return,
        _ => {}
    }
    if !inner.view.fence(Instant::now()).await {
        return;
    }
    let now = inner.clock.now();
    let Recall::Hit(hit) = inner.view.recall(&case.who, &case.asked, now) else {
        return;
    };
    if !Arc::ptr_eq(&hit.answer, &told) {
        return;
    }
    inner.mismatches.fetch_add(1, Ordering::Relaxed);
    inner.meters.mismatches.increment(1);
    let (tenant, node) = match case.who {
        Who::Host(tenant, host) => (tenant, host.to_string()),
        Who::Uuid(tenant, uuid) => (tenant, uuid.to_string()),
    };
    tracing::error!(
        %tenant,
        node,
        remembered = ?told,
        found = ?looked,
        "what is remembered of a node is not what the database says"
    );
}

impl Inner {
    /// Judges a poll as it is looked at; none if it came to no end.
    async fn judge_one(&self, case: &Case) -> Result<Option<Looked>, StoreError> {
        let mut judged = self.judge(case.who.tenant(), &[case]).await?;
        if matches!(judged.looked[..], [(Looked::Alone, _)]) {
            judged = self.judge_alone(case).await?;
        }
        let found = judged.looked.into_iter().next();
        Ok(found.map(|(looked, _)| looked))
    }
}
