//! A node of a fleet, with its resources on the server.

use std::process::Output;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::fleet::AGENT_PATH;
use super::machine::{describe_output, until};
use super::{Fleet, Node, Repository, Running};

/// States of runs that ended well.
const GOOD_END_STATES: [&str; 2] = ["succeeded", "cancelled"];

/// States of runs that ended badly.
const BAD_END_STATES: [&str; 2] = ["failed", "reverted"];

/// A node of a fleet.
#[derive(Debug)]
pub struct Member<'a> {
    /// The fleet of the node.
    pub fleet: &'a Fleet,
    pub node: Node,
    /// ID of its host, such as `host-0a1b2c3d`.
    pub host: String,
    /// ID of its instance, such as `inst-0a1b2c3d`.
    pub instance: String,
}

impl Member<'_> {
    /// Installs version 1.0 of these packages on the node, with apt.
    pub fn install(&self, packages: &[&str]) {
        let exact = packages.iter().map(|name| format!("{name}=1.0"));
        let exact = exact.collect::<Vec<_>>().join(" ");
        self.node.sh(&format!(
            "cp {}/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any; apt-get -q -y install {exact}",
            Repository::INSIDE
        ));
    }

    /// Installs package files of the fleet's repository, such as `demo-hello_1.1`, without apt.
    pub fn install_files(&self, files: &[&str]) {
        let paths = files.iter().map(|file| format!("{}/pool/{file}_all.deb", Repository::INSIDE));
        let paths = paths.collect::<Vec<_>>().join(" ");
        self.node.sh(&format!("dpkg --install {paths}"));
    }

    /// Creates and assigns a policy for these packages (`name=version`, one a line). Returns its ID.
    pub fn assign_packages(&self, packages: &str) -> String {
        self.assign_new_policy(&json!({
            "updatePolicy": "UPDATE_POLICY_TARGET",
            "updatePackages": packages,
        }))
    }

    /// Creates and assigns a policy for the newest version of everything, with these rules. Returns its ID.
    pub fn assign_latest(&self, rules: &Value) -> String {
        self.assign_new_policy(&json!({
            "updatePolicy": "UPDATE_POLICY_LATEST",
            "packageRules": rules,
        }))
    }

    /// Creates and assigns a policy with these fields. Returns its ID.
    pub fn assign_new_policy(&self, fields: &Value) -> String {
        let mut policy = json!({ "name": "test" });
        let members = policy.as_object_mut().expect("an object");
        members.extend(fields.as_object().expect("an object").clone());
        let policy = self.fleet.rest.post("os-update-policies", &policy);
        let id = policy["resourceId"].as_str().expect("an id").to_owned();
        self.assign(&id);
        id
    }

    /// Assigns a policy to the node.
    pub fn assign(&self, policy: &str) {
        self.fleet.rest.patch(
            &format!("compute/instances/{}", self.instance),
            &json!({ "osUpdatePolicyID": policy }),
        );
    }

    /// Orders an update now: a window of this node is open at once, for an hour.
    pub fn order_now(&self) {
        self.fleet
            .rest
            .put(&format!("compute/instances/{}/order", self.instance), &json!({ "kind": "now" }));
    }

    /// Assigns these packages like [`Member::assign_packages`], and orders the update now.
    pub fn order_packages(&self, packages: &str) {
        self.assign_packages(packages);
        self.order_now();
    }

    /// Creates a window for the node. Start and end are in seconds from now. Returns the start.
    pub fn create_window(&self, from: i64, to: i64) -> DateTime<Utc> {
        let now = self.server_time();
        let at = |seconds| (now + TimeDelta::seconds(seconds)).timestamp();
        self.fleet.rest.post(
            "schedules/single",
            &json!({
                "name": "window",
                "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
                "startSeconds": at(from),
                "endSeconds": at(to),
                "targetHostId": self.host,
            }),
        );
        DateTime::from_timestamp(at(from), 0).expect("a time of this century")
    }

    /// Creates a window of an hour and waits until it is open.
    pub fn open_window(&self) {
        let start = self.create_window(2, 3600);
        self.wait_for_time(start);
    }

    /// Waits until the server's clock reaches a time.
    pub fn wait_for_time(&self, time: DateTime<Utc>) {
        until("the time comes", Duration::from_secs(30), || {
            (self.server_time() >= time).then_some(())
        });
    }

    /// Current time of the server's clock.
    pub fn server_time(&self) -> DateTime<Utc> {
        let decision = self.decision();
        let time = decision["time"].as_str().expect("a time");
        time.parse().expect("a time")
    }

    /// The server's decision for the node, with reasons.
    pub fn decision(&self) -> Value {
        self.fleet.rest.get(&format!("compute/instances/{}/decision", self.instance))
    }

    /// Message of the instance's condition of this type; empty if there is none.
    pub fn condition_message(&self, kind: &str) -> String {
        let path = format!("compute/instances/{}", self.instance);
        let instance = self.fleet.rest.get(&path);
        let mut all = instance["conditions"].as_array().into_iter().flatten();
        let matching = all.find(|condition| condition["type"] == kind);
        let message = matching.and_then(|condition| condition["message"].as_str());
        message.unwrap_or_default().to_owned()
    }

    /// All runs of this node, with details.
    pub fn runs(&self) -> Vec<Value> {
        let filter = format!("instance.resourceId%3D%22{}%22", self.instance);
        let list = self.fleet.rest.get(&format!("os-update-runs?filter={filter}"));
        let runs = list["osUpdateRuns"].as_array().expect("a list");
        let ids = runs.iter().filter_map(|run| run["resourceId"].as_str());
        ids.map(|id| self.fleet.rest.get(&format!("os-update-runs/{id}"))).collect()
    }

    /// The only run of this node, with details.
    #[track_caller]
    pub fn only_run(&self) -> Value {
        let mut runs = self.runs();
        assert_eq!(runs.len(), 1, "{runs:#?}");
        runs.remove(0)
    }

    /// Orders an update now and runs the agent once. Returns the only run, which must then be in this state.
    #[track_caller]
    pub fn update_to(&self, state: &str) -> Value {
        self.order_now();
        self.run_agent_to(state)
    }

    /// Runs the agent once. Returns the only run, which must then be in this state. The exit status of the agent must
    /// match the state.
    #[track_caller]
    pub fn run_agent_to(&self, state: &str) -> Value {
        let output = self.agent_once();
        let runs = self.runs();
        let text = describe_output(&output);
        assert_eq!(runs.len(), 1, "{runs:#?}\n{text}");
        let run = runs.into_iter().next().expect("a run");
        assert_eq!(run["state"], state, "{run:#}\n{text}");
        let is_bad = BAD_END_STATES.contains(&state);
        let is_over = is_bad || GOOD_END_STATES.contains(&state);
        assert_eq!(output.status.success(), !is_bad, "{text}");
        assert_eq!(run["endTime"].as_u64() > Some(0), is_over, "{run:#}");
        run
    }

    /// Asserts the dpkg state of these packages, and that dpkg finds no problems.
    #[track_caller]
    pub fn assert_packages(&self, packages: &[(&str, &str)]) {
        let status = self.node.dpkg_status();
        for (name, state) in packages {
            assert_eq!(status.package(name), *state, "{name} in {status:#?}");
        }
        assert_eq!(status.audit, "");
    }

    /// Runs the agent until it has done everything that can be done now.
    pub fn agent_once(&self) -> Output {
        self.agent(&["run", "--once"])
    }

    /// Runs the agent with these arguments until it ends.
    pub fn agent(&self, arguments: &[&str]) -> Output {
        self.node.run(&[&[AGENT_PATH], arguments].concat())
    }

    /// Starts the agent with these arguments.
    pub fn start_agent(&self, arguments: &[&str]) -> Running {
        self.node.start(&[&[AGENT_PATH], arguments].concat())
    }
}

/// Names of the events of a run.
pub fn events(run: &Value) -> Vec<&str> {
    let events = run["events"].as_array().into_iter().flatten();
    events.filter_map(|event| event["event"].as_str()).collect()
}

/// Result of the package with this name in a run.
#[track_caller]
pub fn package<'a>(run: &'a Value, name: &str) -> &'a Value {
    let packages = run["packages"].as_array().expect("packages");
    let matching = packages.iter().find(|package| package["name"] == name);
    matching.unwrap_or_else(|| panic!("no {name} in {run:#}"))
}

/// Reason of a run's end: kind of failure and message.
#[track_caller]
pub fn reason(run: &Value) -> (&str, &str) {
    let reason = run["reason"].as_str().expect("a text");
    reason.split_once(": ").unwrap_or(("", reason))
}
