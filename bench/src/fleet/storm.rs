//! Many nodes that begin and finish an attempt within the same second, and tell all of it in one report.

use std::time::Duration;

use anyhow::Context;
use chrono::TimeDelta;
use evenkeel_domain::run::{AttemptId, RunState};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{
    Account, Began, Downloaded, Downloading, Event, Finished, PackageChange, PackageResult,
    PhaseSpan, Plan, ReportRequest, VerifyBegun,
};
use evenkeel_simulator::chance::Chance;
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

/// What came of a storm.
#[derive(Clone, Debug)]
pub struct Stormed {
    /// How long the reports took.
    pub reports: Histogram,
    /// Attempts that are not in the database as finished.
    pub lost: u64,
}

/// Lets the first nodes of ours have a storm, and looks for their runs in the database.
pub async fn storm(
    station: &Station,
    drivers: &mut Drivers,
    roster: &Roster,
    count: u32,
) -> anyhow::Result<Stormed> {
    let target = assigned(station).await?;
    let hit: Vec<_> = roster.own().take(usize::try_from(count)?).collect();
    remark(&format!(
        "{} nodes begin and finish within a second",
        hit.len()
    ));
    let at = (SystemClock.now() + TimeDelta::seconds(2)).timestamp_millis();
    for part in drivers.parts() {
        let is_here = |member: &&&Member| drivers.part_of(member.number) == part;
        let count = hit.iter().filter(is_here).count();
        let order = Order::Storm {
            at,
            count: u32::try_from(count)?,
            target: target.clone(),
        };
        drivers.order_one(part, &order).await?;
    }
    let end = Instant::now() + PATIENCE + Duration::from_secs(5);
    let wanted = u64::try_from(hit.len())?;
    while drivers.reports().count() < wanted && Instant::now() < end {
        drivers.listen(Duration::from_millis(500)).await?;
    }
    let lost = lost(station, roster, &hit).await?;
    Ok(Stormed {
        reports: drivers.reports().clone(),
        lost,
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

/// How many of the attempts are not in the database as finished.
async fn lost(station: &Station, roster: &Roster, hit: &[&Member]) -> anyhow::Result<u64> {
    let store = Store::connect(&station.database(), StoreOptions::default()).await?;
    let mut lost = 0;
    for part in hit.chunks(100) {
        let tx = store.tenant(roster.tenant).await?;
        for member in part {
            let attempt = AttemptId(attempt(member.number).parse()?);
            let run = runs::find_attempt(&tx, member.instance, attempt).await?;
            let is_there = run.is_some_and(|run| matches!(run.state, RunState::Succeeded { .. }));
            lost += u64::from(!is_there);
        }
    }
    store.close().await;
    Ok(lost)
}

/// The name that the node with this number gives to its attempt.
fn attempt(number: u32) -> String {
    format!("f1ee7000-0000-4000-8000-{number:012x}")
}

/// A node that has something to tell, and the way to the server.
#[derive(Clone, Debug)]
pub struct Teller {
    /// Its place among all nodes.
    pub number: u32,
    /// The value of its header `authorization`.
    pub authorization: MetadataValue<Ascii>,
    /// Its connection.
    pub channel: Channel,
}

impl Teller {
    /// Tells of an attempt from an instant on, again until all of it is acknowledged. Returns how long that took; none if
    /// it was given up.
    pub async fn tell(self, target: String, at: Instant, mut chance: Chance) -> Option<Duration> {
        let message = request(self.number, target);
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
fn request(number: u32, target: String) -> ReportRequest {
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
    let results = packages.map(result).into();
    let all = [
        News::Downloading(Downloading { plan: Some(plan) }),
        News::Downloaded(Downloaded {}),
        News::Began(Began {}),
        News::VerifyBegun(VerifyBegun {}),
        News::Finished(Finished { results }),
    ];
    let now = SystemClock.now();
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
        attempt_id: attempt(number),
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
        let request = request(77, "target".to_owned());
        let numbers: Vec<_> = request.events.iter().map(|event| event.sequence).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let ends: Vec<_> = request
            .events
            .iter()
            .map(|event| event.account.is_some())
            .collect();
        assert_eq!(ends, [false, false, false, false, true]);
        let name = AttemptId(request.attempt_id.parse().expect("a UUID"));
        assert_ne!(name, AttemptId(attempt(78).parse().expect("a UUID")));
    }
}
