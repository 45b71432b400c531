//! A fleet: a server, a repository with two versions of each package, and nodes that join.

use std::path::Path;
use std::process::Output;
use std::sync::OnceLock;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use super::machine::{told, until};
use super::{Binaries, Lab, Node, Repository, Rest, Running, Server};

/// Where the agent is on a node.
const AGENT: &str = "/srv/evenkeel-agent";

/// A server with its project `default`, and what its nodes may install.
#[derive(Debug)]
pub struct Fleet {
    /// The server.
    pub server: Server,
    /// What nodes may install: 1.0 of everything, and 1.1 from [`Member::has`] on.
    pub repository: Repository,
    /// An operator's session.
    pub rest: Rest,
    token: OnceLock<String>,
    /// Last, so that it goes last.
    lab: Lab,
}

impl Fleet {
    /// A fleet without nodes, where there can be one.
    pub fn new() -> Option<Self> {
        let lab = Lab::open()?;
        let repository = Repository::new(&lab, "repo");
        repository.publish("_1.1_");
        let server = Server::start(&lab);
        Some(Self {
            rest: server.rest(),
            server,
            repository,
            token: OnceLock::new(),
            lab,
        })
    }

    /// A node that has joined.
    pub fn join(&self, name: &str) -> Member<'_> {
        let agent = Agent {
            program: &Binaries::get().agent,
            server: &self.server.address("southbound"),
        };
        self.join_with(name, agent)
    }

    /// A node that has joined with an agent of its own.
    pub fn join_with(&self, name: &str, agent: Agent<'_>) -> Member<'_> {
        let node = Node::new(&self.lab, name)
            .with(agent.program, AGENT)
            .with(self.repository.folder(), Repository::INSIDE);
        let server = format!("https://{}", agent.server);
        let uuid = Uuid::new_v4().to_string();
        let words = [
            AGENT,
            "enroll",
            "--server",
            &server,
            "--token",
            self.token(),
            "--uuid",
            &uuid,
        ];
        let enrolled = node.run(&words);
        assert!(enrolled.status.success(), "{}", told(&enrolled));
        let hosts = self.rest.get("/compute/hosts?pageSize=100");
        let is_it = |host: &&Value| host["uuid"] == uuid.as_str();
        let host = hosts["hosts"].as_array().into_iter().flatten().find(is_it);
        let host = host.unwrap_or_else(|| panic!("no host {uuid} in {hosts:#}"));
        let id = |value: &Value| value.as_str().expect("an id").to_owned();
        Member {
            fleet: self,
            node,
            host: id(&host["resourceId"]),
            instance: id(&host["instance"]["resourceId"]),
        }
    }

    fn token(&self) -> &str {
        self.token.get_or_init(|| {
            let made = self.rest.post("/join-tokens", &json!({}));
            made["token"].as_str().expect("a token").to_owned()
        })
    }
}

/// Which agent a node has, and where it finds the server.
#[derive(Clone, Copy, Debug)]
pub struct Agent<'a> {
    /// The program.
    pub program: &'a Path,
    /// Address and port.
    pub server: &'a str,
}

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

    /// Makes a policy that wants these packages (`name=version`), one a line, and assigns it. Returns its id.
    pub fn want(&self, packages: &str) -> String {
        let policy = self.fleet.rest.post(
            "/os-update-policies",
            &json!({
                "name": "wanted",
                "updatePolicy": "UPDATE_POLICY_TARGET",
                "updatePackages": packages,
            }),
        );
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
