//! Schedules that repeat themselves, as an operator makes and takes them back.

use chrono::Timelike as _;
use evenkeel_simulator::eim::cron::Repeats;
use reqwest::Method;
use serde_json::{Value, json};

use super::book::{Held, Repeated, Scope, Step};
use super::desk::Trouble;
use super::operator::{Operator, target_of};
use super::replicas::machine_time;

/// How many there are at the same time at most, so that it is not always open somewhere.
const MOST: usize = 6;

impl Operator {
    /// Makes a schedule that repeats itself: each minute, or in some minutes of each hour. A history is short, so its
    /// windows are as well.
    pub(super) async fn repeat(&mut self, scope: Scope) {
        if self.repeated.len() >= MOST {
            return;
        }
        let scope = self.place(scope);
        let seconds = u32::try_from(self.chance.between(4, 20)).unwrap_or(4);
        let minutes = if self.chance.hits(400) {
            "*".to_owned()
        } else {
            let now = machine_time().minute();
            let mut some: Vec<_> = (1..=15)
                .filter(|_| self.chance.hits(500))
                .map(|minute| (now + minute) % 60)
                .chain([(now + 1) % 60])
                .collect();
            some.sort_unstable();
            some.dedup();
            let some: Vec<_> = some.iter().map(u32::to_string).collect();
            some.join(",")
        };
        let schedule = Repeats::read([&minutes, "*", "*", "*", "*"], seconds);
        let mut body = json!({
            "name": "again",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "durationSeconds": seconds,
            "cronMinutes": minutes, "cronHours": "*", "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "*",
        });
        body[target_of(&scope)] = Value::from(scope.clone());
        let server = usize::from(self.chance.hits(500));
        let asked = machine_time();
        let path = "/schedules/repeated";
        let made = self.desk.ask(server, Method::POST, path, Some(&body)).await;
        let done = made.is_ok().then(machine_time);
        match made {
            Ok(made) => {
                let id = made["resourceId"].as_str().unwrap_or_default().to_owned();
                self.repeated.push((id, self.book.repeated.len()));
            }
            Err(Trouble::Unsure) => {}
            Err(Trouble::Refused(status, text)) => panic!("POST {path} {body}: {status} {text}"),
        }
        self.book.repeated.push(Repeated {
            scope,
            schedule: schedule.expect("a cron of one list"),
            held: Held::since(Step { asked, done }),
        });
    }

    /// Takes one of them back.
    pub(super) async fn repeat_no_more(&mut self) {
        let Some(last) = self.repeated.len().checked_sub(1) else {
            return;
        };
        let at = usize::try_from(self.chance.between(0, last as u64)).unwrap_or(0);
        let (id, repeated) = self.repeated.swap_remove(at);
        let path = format!("/schedules/repeated/{id}");
        let (_, step) = self.desk.until_done(Method::DELETE, &path, None).await;
        self.book.repeated[repeated].held.gone = Some(step);
    }
}
