//! Repeated schedules, as an operator creates and removes them.

use chrono::Timelike as _;
use evenkeel_simulator::eim::cron::RepeatedWindows;
use reqwest::Method;
use serde_json::{Value, json};

use super::operator::{Operator, target_field};
use super::operator_client::CallError;
use super::operator_log::{Action, ScheduleRecord, Scope, Validity};
use super::replicas::machine_time;

/// Maximum number at the same time, so that not every instant is in a window.
const MAX_REPEATED_SCHEDULES: usize = 6;

impl Operator {
    /// Creates a repeated schedule: every minute, or some minutes of each hour. A history is short, so its windows are
    /// short as well.
    pub(super) async fn create_repeated(&mut self, scope: Scope) {
        if self.repeated_schedules.len() >= MAX_REPEATED_SCHEDULES {
            return;
        }
        let scope = self.window_scope(scope);
        let seconds = u32::try_from(self.rng.between(4, 20)).unwrap_or(4);
        let minutes = if self.rng.happens(400) {
            "*".to_owned()
        } else {
            let now = machine_time().minute();
            let mut some: Vec<_> = (1..=15)
                .filter(|_| self.rng.happens(500))
                .map(|minute| (now + minute) % 60)
                .chain([(now + 1) % 60])
                .collect();
            some.sort_unstable();
            some.dedup();
            let some: Vec<_> = some.iter().map(u32::to_string).collect();
            some.join(",")
        };
        let schedule = RepeatedWindows::parse([&minutes, "*", "*", "*", "*"], seconds);
        let mut body = json!({
            "name": "repeated",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "durationSeconds": seconds,
            "cronMinutes": minutes, "cronHours": "*", "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "*",
        });
        body[target_field(&scope)] = Value::from(scope.clone());
        let server = usize::from(self.rng.happens(500));
        let requested_at = machine_time();
        let path = "schedules/repeated";
        let created = self.client.send(server, Method::POST, path, Some(&body)).await;
        let done = created.is_ok().then(machine_time);
        match created {
            Ok(created) => {
                let id = created["resourceId"].as_str().unwrap_or_default().to_owned();
                self.repeated_schedules.push((id, self.log.repeated_schedules.len()));
            }
            Err(CallError::Unknown) => {}
            Err(CallError::Refused(status, text)) => panic!("POST {path} {body}: {status} {text}"),
        }
        self.log.repeated_schedules.push(ScheduleRecord {
            scope,
            schedule: schedule.expect("a cron expression"),
            validity: Validity::since(Action { requested_at, done_at: done }),
        });
    }

    /// Removes a random repeated schedule.
    pub(super) async fn remove_repeated(&mut self) {
        let Some(last) = self.repeated_schedules.len().checked_sub(1) else {
            return;
        };
        let at = usize::try_from(self.rng.between(0, last as u64)).unwrap_or(0);
        let (id, repeated) = self.repeated_schedules.swap_remove(at);
        let path = format!("schedules/repeated/{id}");
        let (_, action) = self.client.until_done(Method::DELETE, &path, None).await;
        self.log.repeated_schedules[repeated].validity.removed = Some(action);
    }
}
