//! Limits how many refused requests are recorded, so that no user fills the change log with them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenkeel_domain::tenant::TenantId;
use tokio::time::Instant;

/// Shortest time between two records of a user in a project.
const RECORD_INTERVAL: Duration = Duration::from_mins(1);

/// Most users whose last record is remembered. Beyond it, refusals of further users are not recorded.
const MAX_USERS: usize = 1_000;

/// The refusals of the last minute.
#[derive(Debug, Default)]
pub struct RefusalLimiter(Mutex<HashMap<(TenantId, String), RecentRefusals>>);

/// The refusals of a user in a project since the last record.
#[derive(Clone, Copy, Debug)]
struct RecentRefusals {
    recorded_at: Instant,
    not_recorded: u64,
}

impl RefusalLimiter {
    /// Counts a refusal. If it is to be recorded, returns the number of refusals since the last record
    /// that were not.
    pub fn count(&self, project: TenantId, user: String) -> Option<u64> {
        let now = Instant::now();
        let is_recent = |recent: &RecentRefusals| now < recent.recorded_at + RECORD_INTERVAL;
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (project, user);
        if let Some(recent) = users.get_mut(&key).filter(|recent| is_recent(recent)) {
            recent.not_recorded += 1;
            return None;
        }
        if users.len() >= MAX_USERS {
            users.retain(|_, recent| is_recent(recent));
            if users.len() >= MAX_USERS {
                return None;
            }
        }
        let recent = RecentRefusals { recorded_at: now, not_recorded: 0 };
        Some(users.insert(key, recent).map_or(0, |last| last.not_recorded))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn project(n: u128) -> TenantId {
        TenantId::new(Uuid::from_u128(n))
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_is_recorded_once_a_minute_in_each_project() {
        let limiter = RefusalLimiter::default();
        let count = |n: u128, user: &str| limiter.count(project(n), user.to_owned());
        assert_eq!(count(1, "ann"), Some(0));
        assert_eq!((count(1, "ann"), count(1, "ann")), (None, None));
        assert_eq!((count(2, "ann"), count(1, "bob")), (Some(0), Some(0)));
        tokio::time::advance(RECORD_INTERVAL).await;
        assert_eq!(count(1, "ann"), Some(2), "two were not recorded");
        assert_eq!(count(1, "ann"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_users_is_bounded() {
        let limiter = RefusalLimiter::default();
        let count = |n: usize| limiter.count(project(1), n.to_string());
        assert!((0..MAX_USERS).all(|n| count(n) == Some(0)));
        assert_eq!(count(MAX_USERS), None);
        tokio::time::advance(RECORD_INTERVAL).await;
        assert_eq!(count(MAX_USERS), Some(0), "the others are no longer recent");
    }
}
