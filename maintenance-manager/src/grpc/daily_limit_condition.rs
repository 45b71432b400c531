//! Shows on an instance that a daily limit refused a call of its node.

use evenkeel_domain::condition::{self, ConditionKind};
use evenkeel_kit::Lifecycle;
use evenkeel_store::StoreError;
use evenkeel_store::nodes::{self, MachineKey};
use tonic::{Code, Status};

use crate::admission::concurrency::CallKind;
use crate::admission::daily_limits::LimitRefusal;
use crate::manager::MaintenanceManager;
use crate::node_transaction::WritePermit;
use crate::status;

impl MaintenanceManager {
    /// Shows the refusals of daily limits on their instances, if the call may have been one. They
    /// count as shown for an hour, also those of other nodes, so a node that disconnects must not
    /// prevent it.
    pub(crate) async fn show_daily_limits<T>(&self, answer: &Result<T, Status>) {
        if !answer.as_ref().is_err_and(|refused| refused.code() == Code::ResourceExhausted) {
            return;
        }
        let refusals = self.daily_limits.take_refusals(self.now());
        if refusals.is_empty() {
            return;
        }
        let manager = self.clone();
        let showing =
            Lifecycle::detach(Box::pin(async move { manager.show_refusals(refusals).await }));
        if let Err(error) = showing.await {
            tracing::error!(%error, "cannot show that a daily limit is used up");
        }
    }

    async fn show_refusals(&self, refusals: Vec<LimitRefusal>) {
        for refusal in refusals {
            let shown = self.node_writer.with_write_permit(
                (refusal.node.0, CallKind::Write),
                |permit| async {
                    let shown = set_condition(permit, &refusal).await;
                    shown.map_err(status::from_store_error)
                },
            );
            if let Err(error) = shown.await {
                tracing::warn!(host = %refusal.node.1, %error, "cannot show that a daily limit is used up");
            }
        }
    }
}

async fn set_condition(
    (writer, _permit): WritePermit<'_>,
    refusal: &LimitRefusal,
) -> Result<(), StoreError> {
    let (tenant, host) = refusal.node;
    let tx = writer.store.tenant(tenant).await?;
    let (_, mut node) = nodes::lock_with_host(&tx, MachineKey::Host(host)).await?;
    let before = node.clone();
    let is_it = |kind| kind == ConditionKind::DailyLimit;
    let condition = (ConditionKind::DailyLimit, refusal.text.clone());
    condition::replace(&mut node.conditions, is_it, [condition], tx.database_time());
    nodes::save_changes(&tx, &before, &node).await?;
    let _unsettled = writer.pending_invalidation(tenant, host, node.instance);
    tx.commit().await
}
