//! A node of a fleet, with what the server knows of it.

use std::process::Output;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::fleet::AGENT;
use super::machine::{told, until};
use super::{Fleet, Node, Repository, Running};

/// States in which a run is over and nothing went wrong.
const GOOD_ENDS: [&str; 2] = ["succeeded", "cancelled"];

/// States in which a run is over and something went wrong.
const BAD_ENDS: [&str; 2] = ["failed", "reverted"];

/// A node of a fleet.
#[derive(Debug)]
pub struct Member<'a> {
    /// What it belongs to.
    pub fleet: &'a Fleet,
    /// The node.
    pub node: Node,
    /// Its host, such as `host-0a1b2c3d`.
    pub host: String,
    /// Its instance, such as `inst-0a1b2c3d`.
    pub instance: String,
}

impl Member<'_> {
    /// Gives the node version 1.0 of these packages.
    pub fn has(&self, packages: &[&str]) {
        let exact = packages.iter().map(|name| format!("{name}=1.0"));
        let exact = exact.collect::<Vec<_>>().join(" ");
        self.node.sh(&format!(
            "cp {}/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any; apt-get -q -y install {exact}",
            Repository::INSIDE
        ));
    }

    /// Installs packages from the files of the fleet's repository, such as `demo-hello_1.1`, without apt.
    pub fn given(&self, files: &[&str]) {
        let paths = files
            .iter()
            .map(|file| format!("{}/pool/{file}_all.deb", Repository::INSIDE));
        let paths = paths.collect::<Vec<_>>().join(" ");
        self.node.sh(&format!("dpkg --install {paths}"));
    }

    /// Makes a policy that wants these packages (`name=version`), one a line, and assigns it. Returns its id.
    pub fn want(&self, packages: &str) -> String {
        self.want_with(&json!({
            "updatePolicy": "UPDATE_POLICY_TARGET",
            "updatePackages": packages,
        }))
    }

    /// Makes a policy that wants everything in the newest version by these rules, and assigns it. Returns its id.
    pub fn want_all(&self, rules: &Value) -> String {
        self.want_with(&json!({
            "updatePolicy": "UPDATE_POLICY_LATEST",
            "packageRules": rules,
        }))
    }

    /// Makes a policy of these fields and assigns it. Returns its id.
    pub fn want_with(&self, fields: &Value) -> String {
        let mut policy = json!({ "name": "wanted" });
        let members = policy.as_object_mut().expect("an object");
        members.extend(fields.as_object().expect("an object").clone());
        let policy = self.fleet.rest.post("/os-update-policies", &policy);
        let id = policy["resourceId"].as_str().expect("an id").to_owned();
        self.assign(&id);
        id
    }

    /// Assigns a policy to the node.
    pub fn assign(&self, policy: &str) {
        self.fleet.rest.patch(
            &format!("/compute/instances/{}", self.instance),
            &json!({ "osUpdatePolicyID": policy }),
        );
    }

    /// Orders an update now: for this node a window is open at once, for an hour.
    pub fn order_now(&self) {
        self.fleet.rest.put(
            &format!("/compute/instances/{}/order", self.instance),
            &json!({ "kind": "now" }),
        );
    }

    /// Opens a window for the node, counted in seconds from now. Returns its start.
    pub fn window(&self, from: i64, to: i64) -> DateTime<Utc> {
        let now = self.now();
        let at = |seconds| (now + TimeDelta::seconds(seconds)).timestamp();
        self.fleet.rest.post(
            "/schedules/single",
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

    /// Opens a window that lasts an hour and waits until it is open.
    pub fn open_window(&self) {
        let start = self.window(2, 3600);
        self.until_it_is(start);
    }

    /// Waits until the server's clock shows a time.
    pub fn until_it_is(&self, time: DateTime<Utc>) {
        until("the time comes", Duration::from_secs(30), || {
            (self.now() >= time).then_some(())
        });
    }

    /// The server's clock.
    pub fn now(&self) -> DateTime<Utc> {
        let decision = self.decision();
        let time = decision["time"].as_str().expect("a time");
        time.parse().expect("a time")
    }

    /// What the node should do now, and why.
    pub fn decision(&self) -> Value {
        self.fleet
            .rest
            .get(&format!("/compute/instances/{}/decision", self.instance))
    }

    /// What people should know of the node, one condition of this kind; empty if there is none.
    pub fn condition(&self, kind: &str) -> String {
        let path = format!("/compute/instances/{}", self.instance);
        let instance = self.fleet.rest.get(&path);
        let mut all = instance["conditions"].as_array().into_iter().flatten();
        let found = all.find(|condition| condition["type"] == kind);
        let message = found.and_then(|condition| condition["message"].as_str());
        message.unwrap_or_default().to_owned()
    }

    /// All runs of this node, in full.
    pub fn runs(&self) -> Vec<Value> {
        let filter = format!("instance.resourceId%3D%22{}%22", self.instance);
        let list = self
            .fleet
            .rest
            .get(&format!("/os-update-runs?filter={filter}"));
        let runs = list["osUpdateRuns"].as_array().expect("a list");
        let ids = runs.iter().filter_map(|run| run["resourceId"].as_str());
        ids.map(|id| self.fleet.rest.get(&format!("/os-update-runs/{id}")))
            .collect()
    }

    /// The only run of this node, in full.
    #[track_caller]
    pub fn only_run(&self) -> Value {
        let mut runs = self.runs();
        assert_eq!(runs.len(), 1, "{runs:#?}");
        runs.remove(0)
    }

    /// Orders an update now and lets the agent do what it can. Returns the only run, which must then be in this state.
    #[track_caller]
    pub fn update_to(&self, state: &str) -> Value {
        self.order_now();
        self.go_on_to(state)
    }

    /// Lets the agent do what can be done now. Returns the only run, which must then be in this state; whether the agent
    /// says that all went well must fit.
    #[track_caller]
    pub fn go_on_to(&self, state: &str) -> Value {
        let output = self.agent_once();
        let runs = self.runs();
        let said = told(&output);
        assert_eq!(runs.len(), 1, "{runs:#?}\n{said}");
        let run = runs.into_iter().next().expect("a run");
        assert_eq!(run["state"], state, "{run:#}\n{said}");
        let is_bad = BAD_ENDS.contains(&state);
        let is_over = is_bad || GOOD_ENDS.contains(&state);
        assert_eq!(output.status.success(), !is_bad, "{said}");
        assert_eq!(run["endTime"].as_u64() > Some(0), is_over, "{run:#}");
        run
    }

    /// Asserts what dpkg says of these packages, and that it finds nothing wrong.
    #[track_caller]
    pub fn stands(&self, packages: &[(&str, &str)]) {
        let found = self.node.found();
        for (name, state) in packages {
            assert_eq!(found.package(name), *state, "{name} in {found:#?}");
        }
        assert_eq!(found.audit, "");
    }

    /// Lets the agent do what is to be done now, and end.
    pub fn agent_once(&self) -> Output {
        self.agent(&["run", "--once"])
    }

    /// Runs the agent with these words until it ends.
    pub fn agent(&self, words: &[&str]) -> Output {
        self.node.run(&[&[AGENT], words].concat())
    }

    /// Starts the agent with these words.
    pub fn start_agent(&self, words: &[&str]) -> Running {
        self.node.start(&[&[AGENT], words].concat())
    }
}

/// The events of a run by their names.
pub fn events(run: &Value) -> Vec<&str> {
    let events = run["events"].as_array().into_iter().flatten();
    events.filter_map(|event| event["event"].as_str()).collect()
}

/// The package of a run with this name.
#[track_caller]
pub fn package<'a>(run: &'a Value, name: &str) -> &'a Value {
    let packages = run["packages"].as_array().expect("packages");
    let found = packages.iter().find(|package| package["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {run:#}"))
}

/// Why a run ended as it did: the kind of its failure and the words.
#[track_caller]
pub fn reason(run: &Value) -> (&str, &str) {
    let reason = run["reason"].as_str().expect("a text");
    reason.split_once(": ").unwrap_or(("", reason))
}
