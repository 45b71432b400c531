//! Delivers notifications to webhooks and by e-mail.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::notification::{MAX_PENDING_DELIVERIES, TargetAddress, retry_delay};
use evenkeel_kit::chain::chain;
use evenkeel_kit::clock::Clock;
use evenkeel_store::notifications::queue::{self, ClaimedTarget, PendingDelivery};
use evenkeel_store::{Store, StoreError};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::notifications::mail::{MailError, MailSender};
use crate::notifications::message::SignedMessage;
use crate::notifications::sender::{DeliveryError, WebhookSender};
use crate::outage::Outage;
use crate::settings::{NotificationSettings, SmtpSettings};

/// The interval at which due targets are claimed. A claim is one statement.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);

/// The number of intervals between two checks whether notifications are used at all. Without a target
/// there is nothing to claim.
const CLAIMS_PER_USE_CHECK: u32 = 5;

/// The number of claims between two passes that look for stopped assignments and new security updates,
/// and that end and remove old deliveries.
const CLAIMS_PER_MAINTENANCE: u32 = 30;

/// Maximum number of targets that this process delivers to at once. Each needs one connection and the
/// memory of one message.
const MAX_CONCURRENT_TARGETS: usize = 16;

/// Maximum number of messages that a target gets before others get their turn.
const MAX_DELIVERIES_PER_CLAIM: usize = 100;

/// How long a target gets messages before others get their turn. A target that answers slowly must not
/// delay others by as many attempts as it has messages.
const TURN_PERIOD: Duration = Duration::from_secs(5);

/// How long a stop waits for the results of attempts. An attempt without a recorded result is repeated.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of rows that one statement changes.
const BATCH_SIZE: u32 = 1_000;

/// Maximum number of batches of one pass.
const MAX_BATCHES_PER_PASS: usize = 100;

/// How long ended deliveries are listed and can be replayed.
const DELIVERY_RETENTION: TimeDelta = TimeDelta::days(30);

/// Delivers notifications. Several replicas may run it at the same time: a lease lets one of them
/// deliver to a target. A target that does not answer occupies one of the concurrent deliveries for the
/// time of an attempt, and then waits.
#[derive(Clone, Debug)]
pub struct NotificationDeliveries {
    store: Store,
    clock: Arc<dyn Clock>,
    settings: NotificationSettings,
    smtp: SmtpSettings,
    outage: Arc<Outage>,
}

/// What the deliveries of a pass need.
#[derive(Clone, Debug)]
struct DeliveryWorker {
    store: Store,
    webhooks: WebhookSender,
    /// Or why no e-mail is sent.
    mail: Result<MailSender, MailError>,
}

impl NotificationDeliveries {
    #[must_use]
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        settings: &NotificationSettings,
        smtp: &SmtpSettings,
    ) -> Self {
        let (settings, smtp) = (settings.clone(), smtp.clone());
        Self { store, clock, settings, smtp, outage: Arc::default() }
    }

    /// Shares the outage tracking with other tasks.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
    }

    /// Delivers until it is stopped. Then it waits for the attempts that run, but only for a short time:
    /// another replica repeats the others when their lease has ended.
    pub async fn run(self, stopping: CancellationToken) {
        let Some(worker) = self.create_worker() else {
            stopping.cancelled().await;
            return;
        };
        let mut ticks = tokio::time::interval(CLAIM_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut running = JoinSet::new();
        let (mut claims, mut is_used) = (0_u32, false);
        loop {
            tokio::select! {
                () = stopping.cancelled() => break,
                Some(ended) = running.join_next() => {
                    self.note_ended(ended);
                    continue;
                }
                _ = ticks.tick() => {}
            }
            let claim_number = claims;
            claims = claims.wrapping_add(1);
            if claim_number.is_multiple_of(CLAIMS_PER_USE_CHECK) {
                let checked = self.check_use().await;
                self.outage.note_pass("notifications", &checked);
                is_used = checked.unwrap_or(is_used);
            }
            if !is_used {
                continue;
            }
            if claim_number.is_multiple_of(CLAIMS_PER_MAINTENANCE) {
                self.outage.note_pass("notification queues", &self.maintain().await);
            }
            let free = MAX_CONCURRENT_TARGETS.saturating_sub(running.len());
            let claimed = self.claim(free).await;
            self.outage.note_pass("notifications", &claimed);
            for target in claimed.unwrap_or_default() {
                running.spawn(worker.clone().deliver_to(target, stopping.clone()));
            }
        }
        let finished = async {
            while let Some(ended) = running.join_next().await {
                self.note_ended(ended);
            }
        };
        if tokio::time::timeout(STOP_TIMEOUT, finished).await.is_err() {
            tracing::info!("deliveries of notifications are abandoned; they will be repeated");
        }
    }

    /// Runs one pass: queues and ends what is due, and makes the due attempts. Returns the number of
    /// messages that targets have accepted.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn pass(&self) -> Result<usize, StoreError> {
        self.maintain().await?;
        let Some(worker) = self.create_worker() else {
            return Ok(0);
        };
        let mut running = JoinSet::new();
        for target in self.claim(MAX_CONCURRENT_TARGETS).await? {
            running.spawn(worker.clone().deliver_to(target, CancellationToken::new()));
        }
        let mut delivered = 0;
        while let Some(ended) = running.join_next().await {
            if let Ok(count) = ended {
                delivered += count?;
            }
        }
        Ok(delivered)
    }

    /// None if the certificates of the system cannot be read.
    fn create_worker(&self) -> Option<DeliveryWorker> {
        let webhooks = WebhookSender::new(&self.settings).inspect_err(|error| {
            tracing::error!(
                error = %chain(error),
                "notifications are not delivered: cannot create the HTTP client (are the system's CA certificates \
                 installed?)"
            );
        });
        let mail = MailSender::new(&self.smtp, self.settings.attempt_timeout);
        if let Err(error @ MailError::Setting(_)) = &mail {
            tracing::error!(%error, "notifications are not sent by e-mail");
        }
        Some(DeliveryWorker { store: self.store.clone(), webhooks: webhooks.ok()?, mail })
    }

    fn note_ended(&self, ended: Result<Result<usize, StoreError>, tokio::task::JoinError>) {
        match ended {
            Ok(result) => self.outage.note_pass("notifications", &result),
            Err(error) => tracing::error!(%error, "the delivery of notifications failed"),
        }
    }

    async fn check_use(&self) -> Result<bool, StoreError> {
        let tx = self.store.fleet().await?;
        let is_used = queue::is_used(&tx).await?;
        tx.rollback().await?;
        Ok(is_used)
    }

    async fn claim(&self, limit: usize) -> Result<Vec<ClaimedTarget>, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let tx = self.store.fleet().await?;
        let claimed = queue::claim(&tx, Uuid::new_v4(), tx.database_time(), limit).await?;
        // A commit would wake the readers of the change log.
        if claimed.is_empty() {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
        }
        Ok(claimed)
    }

    /// Queues the stops of assignments and new security updates, ends deliveries that are overdue or
    /// too many, and removes old ones. Each batch is a transaction of its own. Nothing is ended or
    /// removed while the clock of the process differs from that of the database.
    async fn maintain(&self) -> Result<(), StoreError> {
        let tx = self.store.fleet().await?;
        let now = tx.database_time();
        queue::queue_stops(&tx, now, BATCH_SIZE).await?;
        queue::queue_security_updates(&tx, now, BATCH_SIZE).await?;
        tx.commit().await?;
        if self.store.trusted_time(&*self.clock).await?.is_none() {
            return Ok(());
        }
        for _ in 0..MAX_BATCHES_PER_PASS {
            if self.end_batch().await? < u64::from(BATCH_SIZE) {
                break;
            }
        }
        for _ in 0..MAX_BATCHES_PER_PASS {
            let tx = self.store.fleet().await?;
            let before = tx.database_time() - DELIVERY_RETENTION;
            let deleted = queue::delete_ended(&tx, before, BATCH_SIZE).await?;
            tx.commit().await?;
            if deleted < u64::from(BATCH_SIZE) {
                break;
            }
        }
        Ok(())
    }

    /// Ends a batch of deliveries that are overdue, and one of those that are too many. Returns their
    /// number.
    async fn end_batch(&self) -> Result<u64, StoreError> {
        let tx = self.store.fleet().await?;
        let now = tx.database_time();
        let overdue = queue::end_overdue(&tx, now, BATCH_SIZE).await?;
        let excess = queue::end_excess(&tx, MAX_PENDING_DELIVERIES, now, BATCH_SIZE).await?;
        tx.commit().await?;
        if overdue + excess > 0 {
            metrics::counter!("evenkeel_notification_deliveries_total", "result" => "dead")
                .increment(overdue + excess);
            tracing::warn!(overdue, excess, "notifications were not delivered");
        }
        Ok(overdue + excess)
    }
}

/// Why an attempt failed, for users, and the shortest delay before the next one that the target
/// permits.
#[derive(Debug)]
struct FailedAttempt {
    reason: String,
    min_retry_delay: TimeDelta,
}

impl From<&DeliveryError> for FailedAttempt {
    fn from(error: &DeliveryError) -> Self {
        Self { reason: error.to_string(), min_retry_delay: error.min_retry_delay() }
    }
}

impl From<&MailError> for FailedAttempt {
    fn from(error: &MailError) -> Self {
        Self { reason: error.to_string(), min_retry_delay: TimeDelta::zero() }
    }
}

impl DeliveryWorker {
    /// Delivers to a claimed target until nothing is due, an attempt fails, its turn is over or the task
    /// is stopped, and ends the lease. Returns the number of messages that the target has accepted.
    async fn deliver_to(
        self,
        target: ClaimedTarget,
        stopping: CancellationToken,
    ) -> Result<usize, StoreError> {
        let turn_end = Instant::now() + TURN_PERIOD;
        let mut delivered = 0;
        for _ in 0..MAX_DELIVERIES_PER_CLAIM {
            if stopping.is_cancelled() || Instant::now() >= turn_end {
                break;
            }
            let Some((delivery, now)) = self.load_next(&target).await? else {
                break;
            };
            match self.send(&delivery, now).await {
                Ok(()) => {
                    self.record_delivered(&target, &delivery).await?;
                    delivered += 1;
                }
                Err(failed) => {
                    self.record_failed(&target, &delivery, &failed).await?;
                    break;
                }
            }
        }
        let tx = self.store.fleet().await?;
        queue::release(&tx, &target).await?;
        tx.commit().await?;
        Ok(delivered)
    }

    /// Makes one attempt.
    async fn send(&self, delivery: &PendingDelivery, now: Time) -> Result<(), FailedAttempt> {
        match &delivery.address {
            TargetAddress::Webhook(url) => {
                let message = SignedMessage::new(delivery, now);
                let sent = self.webhooks.send(url.as_str(), &message).await;
                sent.map_err(|error| FailedAttempt::from(&error))
            }
            TargetAddress::Email(recipients) => {
                let sent = self.mail.as_ref()?.send(recipients, delivery, now).await;
                sent.map_err(|error| FailedAttempt::from(&error))
            }
        }
    }

    /// No transaction is open while an attempt runs.
    async fn load_next(
        &self,
        target: &ClaimedTarget,
    ) -> Result<Option<(PendingDelivery, Time)>, StoreError> {
        let tx = self.store.fleet().await?;
        let now = tx.database_time();
        let next = queue::load_next(&tx, target, now).await?;
        tx.commit().await?;
        Ok(next.map(|delivery| (delivery, now)))
    }

    async fn record_delivered(
        &self,
        target: &ClaimedTarget,
        delivery: &PendingDelivery,
    ) -> Result<(), StoreError> {
        let tx = self.store.fleet().await?;
        queue::record_delivered(&tx, target, delivery.number, tx.database_time()).await?;
        tx.commit().await?;
        metrics::counter!("evenkeel_notification_deliveries_total", "result" => "delivered")
            .increment(1);
        Ok(())
    }

    async fn record_failed(
        &self,
        target: &ClaimedTarget,
        delivery: &PendingDelivery,
        failed: &FailedAttempt,
    ) -> Result<(), StoreError> {
        let tx = self.store.fleet().await?;
        let now = tx.database_time();
        let delay = retry_delay(delivery.failures.saturating_add(1), rand::random());
        let retry_at = now + delay.max(failed.min_retry_delay);
        let (number, times) = (delivery.number, (now, retry_at));
        let is_dead = queue::record_failed(&tx, target, number, &failed.reason, times).await?;
        tx.commit().await?;
        let result = if is_dead { "dead" } else { "failed" };
        metrics::counter!("evenkeel_notification_deliveries_total", "result" => result)
            .increment(1);
        tracing::debug!(project = %target.tenant, id = %target.target, error = %failed.reason, is_dead, "an attempt failed");
        Ok(())
    }
}
