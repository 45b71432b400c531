//! Renewal of the node's certificates over the connection that shows the present one, and of its expired bearer token.
//!
//! The server decides when a certificate is old and whether it or a bearer token is expired, so a wrong clock of the node
//! has no effect.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use evenkeel_kit::{Secret, chain};
use tokio::time::Instant;

use super::{GrpcLink, with_deadline};
use crate::link::{LinkError, ServerLink, wire};
use crate::node::NodeError;

/// Minimum and maximum delay after a failed renewal of a certificate that the server still accepts.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(6));

/// Advice for a node whose certificate the server does not renew.
pub(super) const ADVICE: &str = "enrol this machine again with a join token";

/// When the next renewal may be tried.
#[derive(Debug, Default)]
pub(super) struct RenewalPace(Mutex<Option<RenewalDelay>>);

/// The delays since the last success.
#[derive(Debug)]
struct RenewalDelay {
    next: Instant,
    backoff: ExponentialBackoff,
}

impl RenewalPace {
    fn is_due(&self) -> bool {
        let delay = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        delay.as_ref().is_none_or(|delay| delay.next <= Instant::now())
    }

    fn record_success(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the delay until the next try.
    fn record_failure(&self) -> Duration {
        let mut delay = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new_backoff = || {
            ExponentialBuilder::new()
                .with_min_delay(RETRY_DELAY.0)
                .with_max_delay(RETRY_DELAY.1)
                .with_jitter()
                .without_max_times()
                .build()
        };
        let mut backoff = delay.take().map_or_else(new_backoff, |delay| delay.backoff);
        let wait = backoff.next().unwrap_or(RETRY_DELAY.1);
        *delay = Some(RenewalDelay { next: Instant::now() + wait, backoff });
        wait
    }
}

impl GrpcLink {
    /// Whether the node has a client certificate that can be renewed.
    pub(super) fn may_renew(&self) -> bool {
        self.certificates.as_ref().is_some_and(|own| own.has_client())
    }

    /// Renews a certificate that the server still accepts. A failure is logged, and the next try is delayed.
    pub(super) async fn renew_in_time(&self) {
        if !self.may_renew() || !self.renewal_pace.is_due() {
            return;
        }
        if let Err(error) = Box::pin(self.renew()).await {
            let wait = self.renewal_pace.record_failure();
            tracing::warn!(error = %chain(&error), retry_in_seconds = wait.as_secs(), "cannot renew the certificate");
        }
    }

    /// Renews a certificate or a bearer token that the server did not accept, usually because the node was off until it had
    /// expired. `why` is the server's reason.
    pub(super) async fn renew_rejected(&self, why: &str) -> Result<(), LinkError> {
        tracing::info!(
            why,
            "the server does not accept the certificate or the bearer token: renewing it"
        );
        Box::pin(self.renew()).await.map_err(|error| match error {
            LinkError::Unauthenticated(reason)
            | LinkError::Denied(reason)
            | LinkError::Refused(reason) => {
                let reason = reason
                    .strip_suffix(ADVICE)
                    .map_or(reason.as_str(), |left| left.trim_end_matches([' ', ';']));
                LinkError::Denied(format!("{why}, and it is not renewed: {reason}; {ADVICE}"))
            }
            other => other,
        })
    }

    /// Replaces the bearer token that the agent has not stored yet. Returns the previous one.
    pub(super) fn replace_renewed_credential(&self, new: Option<Secret>) -> Option<Secret> {
        let mut renewed = self.renewed_credential.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *renewed, new)
    }

    /// Requests new certificates for the node's keys, stores them and uses them for the next connection. A new bearer token
    /// is used at once; the answer to the next poll contains it, so that the agent stores it.
    async fn renew(&self) -> Result<(), LinkError> {
        let Some(certificates) = &self.certificates else {
            return Err(LinkError::Setup("there is no certificate to renew".to_owned()));
        };
        let local = |error: NodeError| LinkError::Setup(chain(&error).to_string());
        let request = wire::renew_request(certificates.requests().await.map_err(local)?);
        let mut client = self.client();
        let call = client.renew(self.request(request));
        let answer = with_deadline(self.deadline, call).await?;
        let (issued, credential) = wire::parse_renewal(answer)?;
        if let Some(credential) = credential {
            self.set_credential(&credential)?;
            self.replace_renewed_credential(Some(credential));
        }
        certificates.store(&issued).map_err(local)?;
        self.reconnect()?;
        self.renewal_pace.record_success();
        tracing::info!("the server renewed the certificate of this node");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_renewal_is_not_tried_at_each_poll() {
        let pace = RenewalPace::default();
        assert!(pace.is_due());
        let first = pace.record_failure();
        assert!(!pace.is_due());
        tokio::time::advance(first).await;
        assert!(pace.is_due());
        let later: Vec<_> = (0..20).map(|_| pace.record_failure()).collect();
        assert!(later.iter().all(|wait| *wait >= RETRY_DELAY.0), "{later:?}");
        assert!(later.iter().all(|wait| *wait <= 2 * RETRY_DELAY.1), "{later:?}");
        assert!(later.last().is_some_and(|wait| *wait >= RETRY_DELAY.1), "{later:?}");
        pace.record_success();
        assert!(pace.is_due());
        assert!(pace.record_failure() <= 2 * RETRY_DELAY.0);
    }
}
