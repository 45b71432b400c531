//! Many nodes that begin and finish an attempt at the same time, and tell all of it in one report. Their clocks may be
//! wrong.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::run::{AttemptId, RunState, UpdateRun};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{
    Account, Began, Downloaded, Downloading, Event, Finished, PackageChange, PackageResult,
    PhaseSpan, Plan, ReportRequest, VerifyBegun,
};
use evenkeel_simulator::chance::Chance;
use evenkeel_simulator::clock::NodeClock;
use evenkeel_store::{Store, StoreOptions, runs};
use serde_json::Value;
use tokio::time::Instant;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

use super::drivers::Drivers;
use super::histogram::Histogram;
use super::node::Heard;
use super::plan::Order;
use super::roster::{Member, Roster};
use crate::report::remark;
use crate::rest::client::{Asked, Client};
use crate::station::Station;

/// How long a report may take before the node gives it up and makes it again.
const DEADLINE: Duration = Duration::from_secs(20);

/// After this time a node does not try any more.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long before the first one tells the drivers know of it.
const AHEAD: TimeDelta = TimeDelta::seconds(2);

/// What the record says of a time is true if it is no further from it than this.
const TRUE_WITHIN: TimeDelta = TimeDelta::hours(1);

/// By how many hours clocks are wrong: by some, by years, and as that of a machine whose battery is empty.
const WRONG_BY: [i64; 5] = [-3, 5, -7 * YEAR, 30 * YEAR, -55 * YEAR];

/// A year, in hours.
const YEAR: i64 = 8_766;

/// Who has a storm.
#[derive(Clone, Copy, Debug)]
pub struct Tale {
    /// How many nodes: the first ones of ours.
    pub count: u32,
    /// Within what time all of them tell.
    pub within: Duration,
    /// Whether their clocks are wrong.
    pub wrong_clocks: bool,
}

impl Tale {
    fn hit(self, roster: &Roster) -> impl Iterator<Item = &Member> {
        roster.own().take(usize::try_from(self.count).unwrap_or(0))
    }
}

/// What came of a storm.
#[derive(Clone, Debug)]
pub struct Stormed {
    /// How long the reports took.
    pub reports: Histogram,
    /// What the database says of the attempts.
    pub records: Records,
}

/// What the database says of attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// Those that are not there as finished.
    pub lost: u64,
    /// Those that did not begin or end when they did, by the clock of the server.
    pub misdated: u64,
}

/// Lets nodes of ours have a storm from now on.
pub async fn begin(
    station: &Station,
    drivers: &mut Drivers,
    roster: &Roster,
    tale: Tale,
) -> anyhow::Result<()> {
    let target = assigned(station).await?;
    let hit: Vec<_> = tale.hit(roster).collect();
    remark(&format!(
        "{} nodes begin and finish within {}",
        hit.len(),
        humantime::format_duration(tale.within)
    ));
    drivers.forget_reports();
    let at = (SystemClock.now() + AHEAD).timestamp_millis();
    for part in drivers.parts() {
        let is_here = |member: &&&Member| drivers.part_of(member.number) == part;
        let count = hit.iter().filter(is_here).count();
        let order = Order::Storm {
            at,
            within_millis: u64::try_from(tale.within.as_millis())?,
            wrong_clocks: tale.wrong_clocks,
            count: u32::try_from(count)?,
            target: target.clone(),
        };
        drivers.order_one(part, &order).await?;
    }
    Ok(())
}

/// Waits until everything is told, and looks for the runs in the database.
pub async fn end(
    station: &Station,
    drivers: &mut Drivers,
    roster: &Roster,
    tale: Tale,
) -> anyhow::Result<Stormed> {
    let hit: Vec<_> = tale.hit(roster).collect();
    let end = Instant::now() + tale.within + PATIENCE + Duration::from_secs(5);
    let wanted = u64::try_from(hit.len())?;
    while drivers.reports().count() < wanted && Instant::now() < end {
        drivers.listen(Duration::from_millis(500)).await?;
    }
    let records = records(station, roster, &hit, tale.wrong_clocks).await?;
    Ok(Stormed {
        reports: drivers.reports().clone(),
        records,
    })
}

/// What an attempt is for: the policy that is assigned to the project.
async fn assigned(station: &Station) -> anyhow::Result<String> {
    let client = Client::of(station)?;
    let (_, answer) = client.ask(&Asked::get("/assignments/project")).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    let policy = answer["osUpdatePolicyId"].as_str();
    Ok(policy.context("no policy is assigned")?.to_owned())
}

/// What the database says of the attempts, all of which happened just now.
async fn records(
    station: &Station,
    roster: &Roster,
    hit: &[&Member],
    wrong_clocks: bool,
) -> anyhow::Result<Records> {
    let store = Store::connect(&station.database(), StoreOptions::default()).await?;
    let mut records = Records::default();
    for part in hit.chunks(100) {
        let tx = store.tenant(roster.tenant).await?;
        for member in part {
            let attempt = AttemptId(attempt(member.number, wrong_clocks).parse()?);
            let run = runs::find_attempt(&tx, member.instance, attempt).await?;
            records.note(run.as_ref(), SystemClock.now());
        }
    }
    store.close().await;
    Ok(records)
}

impl Records {
    fn note(&mut self, run: Option<&UpdateRun>, now: Time) {
        let done = run.filter(|run| matches!(run.state, RunState::Succeeded { .. }));
        let Some(run) = done else {
            self.lost += 1;
            return;
        };
        let is_true = |at: Time| (now - at).abs() < TRUE_WITHIN;
        let is_dated = is_true(run.started_at) && run.ended_at().is_some_and(is_true);
        self.misdated += u64::from(!is_dated);
    }
}

/// The name that the node with this number gives to its attempt. With a wrong clock it has another one.
fn attempt(number: u32, wrong_clock: bool) -> String {
    let kind = u8::from(wrong_clock);
    format!("f1ee700{kind}-0000-4000-8000-{number:012x}")
}

/// By how much the clock of the node with this number is wrong.
fn wrong_by(number: u32) -> TimeDelta {
    let kinds = u32::try_from(WRONG_BY.len()).unwrap_or(1);
    let place = usize::try_from(number % kinds).unwrap_or(0);
    TimeDelta::hours(WRONG_BY.get(place).copied().unwrap_or(1))
}

/// A node that has something to tell, and the way to the server.
#[derive(Clone, Debug)]
pub struct Teller {
    /// Its place among all nodes.
    pub number: u32,
    /// Whether its clock is wrong.
    pub wrong_clock: bool,
    /// The value of its header `authorization`.
    pub authorization: MetadataValue<Ascii>,
    /// Its connection.
    pub channel: Channel,
}

impl Teller {
    /// Tells of an attempt from an instant on, again until all of it is acknowledged. Returns how long that took; none if
    /// it was given up.
    pub async fn tell(self, target: String, at: Instant, mut chance: Chance) -> Option<Duration> {
        let message = request(self.number, self.wrong_clock, target);
        let whole = u32::try_from(message.events.len()).ok()?;
        tokio::time::sleep_until(at).await;
        let mut backoff = Duration::from_millis(500);
        while at.elapsed() < PATIENCE {
            let mut call = Request::new(message.clone());
            let headers = call.metadata_mut();
            headers.insert("authorization", self.authorization.clone());
            let mut client = AgentServiceClient::new(self.channel.clone());
            let answer = tokio::time::timeout(DEADLINE, client.report(call)).await;
            let least = match answer {
                Ok(Ok(answer)) if whole <= answer.get_ref().acknowledged => {
                    return Some(at.elapsed());
                }
                Ok(Err(status)) => match Heard::status(&status) {
                    Heard::Refused(hint) => hint,
                    _ => Duration::ZERO,
                },
                Ok(Ok(_)) | Err(_) => Duration::ZERO,
            };
            let wait = chance.length((backoff / 2, backoff)).max(least);
            tokio::time::sleep(wait).await;
            backoff = (backoff * 2).min(Duration::from_secs(5));
        }
        None
    }
}

/// All of an attempt, as the agent tells it that could not tell any of it before.
fn request(number: u32, wrong_clock: bool, target: String) -> ReportRequest {
    let packages = ["curl", "libcurl4", "openssl", "tzdata"];
    let change = |name: &str| PackageChange {
        name: name.to_owned(),
        architecture: "amd64".to_owned(),
        before: "3.0.14-1~deb12u2".to_owned(),
        after: "3.0.15-1~deb12u1".to_owned(),
        ..PackageChange::default()
    };
    let result = |name: &str| PackageResult {
        name: name.to_owned(),
        architecture: "amd64".to_owned(),
        version: "3.0.15-1~deb12u1".to_owned(),
        state: "installed".to_owned(),
    };
    let plan = Plan {
        changes: packages.map(change).into(),
        download_bytes: 4_096,
        ..Plan::default()
    };
    let finished = Finished {
        results: packages.map(result).into(),
        ..Finished::default()
    };
    let all = [
        News::Downloading(Downloading { plan: Some(plan) }),
        News::Downloaded(Downloaded {}),
        News::Began(Began {}),
        News::VerifyBegun(VerifyBegun {}),
        News::Finished(finished),
    ];
    let wrong_by = if wrong_clock {
        wrong_by(number)
    } else {
        TimeDelta::zero()
    };
    let now = NodeClock::new(Arc::new(SystemClock), wrong_by)
        .moment()
        .node;
    let mut events: Vec<_> = (1..)
        .zip(all)
        .map(|(sequence, news)| Event {
            sequence,
            node_time: Some(prost_types::Timestamp {
                seconds: now.timestamp(),
                nanos: 0,
            }),
            boot_id: format!("{number:08x}"),
            account: None,
            news: Some(news),
        })
        .collect();
    if let Some(last) = events.last_mut() {
        last.account = Some(account());
    }
    ReportRequest {
        attempt_id: attempt(number, wrong_clock),
        target_digest: target,
        events,
    }
}

fn account() -> Account {
    let phase = |phase: &str, millis| PhaseSpan {
        phase: phase.to_owned(),
        millis,
        bytes: 0,
    };
    Account {
        phases: vec![phase("download", 120), phase("apply", 640)],
        ..Account::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_all_of_an_attempt_in_order_and_its_name_is_one() {
        let request = request(77, false, "target".to_owned());
        let numbers: Vec<_> = request.events.iter().map(|event| event.sequence).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let ends: Vec<_> = request
            .events
            .iter()
            .map(|event| event.account.is_some())
            .collect();
        assert_eq!(ends, [false, false, false, false, true]);
        let name = AttemptId(request.attempt_id.parse().expect("a UUID"));
        let other = |number, wrong| AttemptId(attempt(number, wrong).parse().expect("a UUID"));
        assert!(name == other(77, false) && name != other(78, false));
        assert_ne!(name, other(77, true), "its other attempt");
    }

    #[test]
    fn a_node_with_a_wrong_clock_tells_its_own_time() {
        let told = |number| {
            let request = request(number, true, "target".to_owned());
            let time = request.events.first().and_then(|event| event.node_time);
            let ahead = time.expect("a time").seconds - SystemClock.now().timestamp();
            TimeDelta::seconds(ahead)
        };
        for number in 0..5 {
            let off = (told(number) - wrong_by(number)).abs();
            assert!(off <= TimeDelta::minutes(1), "{number}: {off}");
        }
        let years = |number| wrong_by(number).num_days() / 365;
        assert_eq!((years(0), years(3), years(4)), (0, 30, -55));
        assert_ne!(wrong_by(0), TimeDelta::zero());
    }
}
