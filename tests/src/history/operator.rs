//! Creates windows, assignments, pauses and orders all the time, and logs them.

use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use evenkeel_simulator::clock::Time;
use evenkeel_simulator::rng::Rng;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::image_catalog::ImageCatalog;
use super::operator_client::{CallError, OperatorClient};
use super::operator_log::{
    Action, AssignmentRecord, OperatorLog, PauseRecord, Scope, SimulatedMember, Validity,
    WindowRecord,
};
use super::replicas::machine_time;

/// Number of package policies.
const POLICIES: usize = 5;

/// A busy operator.
#[derive(Debug)]
pub struct Operator {
    pub(super) client: OperatorClient,
    pub(super) rng: Rng,
    policies: Vec<String>,
    catalog: ImageCatalog,
    /// Scopes of windows and assignments: the project and all sites.
    wide_scopes: Vec<Scope>,
    members: Vec<SimulatedMember>,
    /// Image nodes with our own agent.
    image_members: Vec<SimulatedMember>,
    pub(super) log: OperatorLog,
    /// IDs of single schedules, each with its index in the log's windows.
    single_schedules: Vec<(String, usize)>,
    /// IDs of repeated schedules, each with its index in the log.
    pub(super) repeated_schedules: Vec<(String, usize)>,
}

impl Operator {
    /// Creates an operator for these nodes and some policies, and assigns the first policy to the project.
    /// `run_timeout` is the servers' setting.
    pub async fn new(
        client: OperatorClient,
        rng: Rng,
        (members, catalog): (Vec<SimulatedMember>, ImageCatalog),
        run_timeout: TimeDelta,
    ) -> Self {
        let mut policies = Vec::new();
        for n in 0..POLICIES {
            let policy = json!({
                "name": format!("policy-{n}"),
                "updatePolicy": "UPDATE_POLICY_TARGET",
                "updatePackages": format!("demo-{n}"),
            });
            policies.push(client.create("os-update-policies", &policy).await);
        }
        let mut wide = vec!["project".to_owned()];
        for member in &members {
            if !member.site.is_empty() && !wide.contains(&member.site) {
                wide.push(member.site.clone());
            }
        }
        let log = OperatorLog { run_timeout, ..catalog.initial_log() };
        let is_imaged = |member: &&SimulatedMember| member.is_image && !member.is_eim;
        let mut operator = Self {
            client,
            rng,
            policies,
            catalog,
            wide_scopes: wide,
            image_members: members.iter().filter(is_imaged).cloned().collect(),
            members,
            log,
            single_schedules: Vec::new(),
            repeated_schedules: Vec::new(),
        };
        let first = operator.policies[0].clone();
        operator.assign_policy("project".to_owned(), first).await;
        for scope in operator.wide_scopes.clone() {
            if operator.is_of_images(&scope) {
                let newest = operator.catalog.policies[0].clone();
                operator.assign_policy(scope, newest).await;
            }
        }
        operator
    }

    /// Works until it is stopped. Then removes all pauses and assignments.
    pub async fn run(mut self, stop: CancellationToken) -> OperatorLog {
        while !stop.is_cancelled() {
            self.step().await;
            let pause = Duration::from_millis(self.rng.between(40, 260));
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.remove_all().await;
        self.log
    }

    async fn step(&mut self) {
        match self.rng.between(0, 99) {
            0..=24 => {
                let scope = self.wide_scope();
                self.open_window(scope).await;
            }
            25..=27 => {
                let scope = self.wide_scope();
                self.create_repeated(scope).await;
            }
            28 => self.remove_repeated().await,
            29 => {
                let server = usize::from(self.rng.happens(500));
                self.catalog.publish(&self.client, server, &mut self.log).await;
            }
            30..=39 => {
                let host = self.random_member().host;
                self.open_window(host).await;
            }
            40..=59 => {
                let scope = self.wide_scope();
                self.assign_random(scope).await;
            }
            60..=69 => {
                let member = self.random_member();
                let scope = if self.rng.happens(500) { member.host } else { member.instance };
                self.assign_random(scope).await;
            }
            70..=77 => self.unassign_random().await,
            78..=81 => self.close_window().await,
            82..=85 => {
                let scope = self.pause_scope();
                self.pause(scope).await;
            }
            86..=92 => self.resume().await,
            // A failed image stays away from its node until there is an order.
            93..=95 => {
                let member = self.quarantined_member().await;
                self.order(member, true).await;
            }
            _ => {
                let member = self.random_member();
                let is_now = self.rng.happens(600);
                self.order(member, is_now).await;
            }
        }
    }

    fn random_member(&mut self) -> SimulatedMember {
        self.rng.pick(&self.members).clone()
    }

    /// An image node with our own agent: one on which an image failed, if there is one.
    async fn quarantined_member(&mut self) -> SimulatedMember {
        let any = self.rng.pick(&self.image_members).clone();
        for member in &self.image_members {
            let path = format!("compute/instances/{}", member.instance);
            let instance = self.client.get(&path).await;
            let mut conditions = instance["conditions"].as_array().into_iter().flatten();
            // Not always the first one: its image may fail again and again.
            if conditions.any(|one| one["type"] == "quarantined") && self.rng.happens(500) {
                return member.clone();
            }
        }
        any
    }

    fn wide_scope(&mut self) -> Scope {
        self.rng.pick(&self.wide_scopes).clone()
    }

    /// Whether the scope is for image nodes.
    fn is_of_images(&self, scope: &str) -> bool {
        let mut members = self.members.iter();
        scope != "project" && members.any(|member| member.is_image && member.is_in(scope))
    }

    /// The scope for a window. Projects cannot have windows, so the first site replaces the project.
    pub(super) fn window_scope(&self, scope: Scope) -> Scope {
        if scope == "project" {
            self.wide_scopes[1 % self.wide_scopes.len()].clone()
        } else {
            scope
        }
    }

    fn pause_scope(&mut self) -> Scope {
        if self.rng.happens(400) {
            self.rng.pick(&self.policies).clone()
        } else {
            self.wide_scope()
        }
    }

    /// Creates a window: usually a short one soon, sometimes one that only nodes with a wrong clock use now.
    async fn open_window(&mut self, scope: Scope) {
        let scope = self.window_scope(scope);
        let needs_rest = |member: &&SimulatedMember| member.is_eim && member.is_in(&scope);
        let is_calm = self.members.iter().any(|member| needs_rest(&member));
        let now = machine_time();
        let mut before = self.log.windows.iter().filter(|opened| opened.scope == scope);
        if is_calm && before.any(|opened| now < opened.window.1) {
            return;
        }
        let from = match self.rng.between(0, 9) {
            0 | 1 if !is_calm => self.rng.between_signed(285, 310),
            _ => self.rng.between_signed(2, 5),
        };
        let length = match self.rng.between(0, 19) {
            0 if !is_calm => self.rng.between_signed(600, 1_200),
            _ if is_calm => self.rng.between_signed(16, 26),
            _ => self.rng.between_signed(2, 12),
        };
        let start = now.timestamp() + from;
        let end = start + length;
        let mut body = json!({
            "name": "window",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": start,
            "endSeconds": end,
        });
        body[target_field(&scope)] = Value::from(scope.clone());
        let server = usize::from(self.rng.happens(500));
        let requested_at = machine_time();
        let created = self.client.send(server, Method::POST, "schedules/single", Some(&body)).await;
        let done = created.is_ok().then(machine_time);
        if let Err(CallError::Refused(status, text)) = &created {
            // The request took so long that the start had passed.
            assert_eq!(*status, 400, "POST /schedules/single {body}: {text}");
            return;
        }
        let at = |seconds| DateTime::from_timestamp(seconds, 0).unwrap_or_default();
        if let Ok(created) = created {
            let id = created["resourceId"].as_str().unwrap_or_default().to_owned();
            self.single_schedules.push((id, self.log.windows.len()));
        }
        self.log.windows.push(WindowRecord {
            scope,
            window: (at(start), at(end)),
            is_order: false,
            validity: Validity::since(Action { requested_at, done_at: done }),
        });
    }

    /// Removes a random window.
    async fn close_window(&mut self) {
        if self.single_schedules.is_empty() {
            return;
        }
        let last = self.single_schedules.len() - 1;
        let at = usize::try_from(self.rng.between(0, last as u64)).unwrap_or(0);
        let (id, window) = self.single_schedules.swap_remove(at);
        let path = format!("schedules/single/{id}");
        let (_, action) = self.client.until_done(Method::DELETE, &path, None).await;
        self.log.windows[window].validity.removed = Some(action);
    }

    async fn assign_random(&mut self, scope: Scope) {
        let policy = if self.is_of_images(&scope) {
            // The newest image and the last published policy are the most interesting.
            let all = &self.catalog.policies;
            let few = [&all[0], &all[all.len() - 1], self.rng.pick(all)];
            (*self.rng.pick(&few)).clone()
        } else {
            self.rng.pick(&self.policies).clone()
        };
        self.assign_policy(scope, policy).await;
    }

    async fn assign_policy(&mut self, scope: Scope, policy: String) {
        let mut body = json!({ "osUpdatePolicyId": policy });
        if self.rng.happens(150) {
            body["maxConcurrent"] = Value::from(self.rng.between(1, 4));
        }
        if self.rng.happens(50) {
            body["stopAfterFailures"] = Value::from(self.rng.between(2, 6));
        }
        let path = format!("assignments/{scope}");
        let (answer, action) = self.client.until_done(Method::PUT, &path, Some(&body)).await;
        answer.unwrap_or_else(|error| panic!("PUT {path} {body}: {error:?}"));
        self.log.end_assignment(&scope, action);
        self.log.assignments.push(AssignmentRecord {
            scope,
            policy,
            validity: Validity::since(action),
        });
    }

    async fn unassign_random(&mut self) {
        let open: Vec<_> = self
            .log
            .assignments
            .iter()
            .filter(|assignment| assignment.validity.removed.is_none())
            .collect();
        // Usually a narrow scope, so that the project usually has an assignment.
        let narrow: Vec<_> =
            open.iter().filter(|assignment| assignment.scope != "project").collect();
        if !narrow.is_empty() {
            let scope = self.rng.pick(&narrow).scope.clone();
            self.unassign(&scope).await;
        } else if self.rng.happens(100) {
            self.unassign("project").await;
        }
    }

    async fn unassign(&mut self, scope: &str) {
        let path = format!("assignments/{scope}");
        let (_, action) = self.client.until_done(Method::DELETE, &path, None).await;
        self.log.end_assignment(scope, action);
    }

    async fn pause(&mut self, scope: Scope) {
        if self
            .log
            .pauses
            .iter()
            .any(|paused| paused.scope == scope && paused.validity.removed.is_none())
        {
            return;
        }
        let path = format!("pauses/{scope}");
        let body = json!({ "reason": "random" });
        let (answer, action) = self.client.until_done(Method::PUT, &path, Some(&body)).await;
        answer.unwrap_or_else(|error| panic!("PUT {path}: {error:?}"));
        let validity = Validity::since(action);
        self.log.pauses.push(PauseRecord { scope, validity });
    }

    /// Removes all pauses.
    async fn resume(&mut self) {
        for paused in self.log.pauses.iter_mut().filter(|paused| paused.validity.removed.is_none())
        {
            let path = format!("pauses/{}", paused.scope);
            let (_, action) = self.client.until_done(Method::DELETE, &path, None).await;
            paused.validity.removed = Some(action);
        }
    }

    /// Orders an update of a node now, or cancels everything that has not started.
    async fn order(&mut self, member: SimulatedMember, is_now: bool) {
        let path = format!("compute/instances/{}/order", member.instance);
        let seconds = self.rng.between_signed(3, 20);
        let body = if is_now {
            json!({ "kind": "now", "seconds": seconds, "reason": "random" })
        } else {
            json!({ "kind": "cancel", "reason": "random" })
        };
        let (answer, action) = self.client.until_done(Method::PUT, &path, Some(&body)).await;
        let order = answer.unwrap_or_else(|error| panic!("PUT {path} {body}: {error:?}"));
        // The latest order of an instance replaces the one before.
        let mut before = self.log.windows.iter_mut();
        if let Some(last) = before.rfind(|o| o.is_order && o.scope == member.instance) {
            last.validity.removed.get_or_insert(action);
        }
        if is_now {
            self.log.windows.push(WindowRecord {
                scope: member.instance,
                // An order does not shorten the one before, so the server decides its end.
                window: (action.requested_at, read_time(&order["until"])),
                is_order: true,
                validity: Validity::since(action),
            });
        } else {
            self.log.cancellations.push((member.instance, action));
        }
    }

    /// Removes all pauses and assignments.
    async fn remove_all(&mut self) {
        self.resume().await;
        let open: Vec<_> = self
            .log
            .assignments
            .iter()
            .filter(|assignment| assignment.validity.removed.is_none())
            .collect();
        let scopes: Vec<_> = open.iter().map(|assignment| assignment.scope.clone()).collect();
        for scope in scopes {
            self.unassign(&scope).await;
        }
    }
}

/// The field of a schedule that holds the scope.
pub(super) fn target_field(scope: &str) -> &'static str {
    if scope.starts_with("host-") { "targetHostId" } else { "targetSiteId" }
}

impl OperatorLog {
    /// Ends the current assignment of a scope.
    fn end_assignment(&mut self, scope: &str, action: Action) {
        for assignment in &mut self.assignments {
            if assignment.scope == scope && assignment.validity.removed.is_none() {
                assignment.validity.removed = Some(action);
            }
        }
    }
}

/// # Panics
/// The value is no time.
fn read_time(value: &Value) -> Time {
    serde_json::from_value(value.clone()).expect("a time")
}
