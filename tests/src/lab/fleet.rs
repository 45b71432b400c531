//! A fleet: a server, a repository with two versions of each package, and nodes that join.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

use serde_json::json;
use uuid::Uuid;

use super::machine::describe_output;
use super::sweeper::Sweeper;
use super::{Binaries, Lab, Member, Node, Repository, Rest, Server};

/// Path of the agent on a node.
pub(super) const AGENT_PATH: &str = "/srv/evenkeel-agent";

/// A server with its project `default`, and a package repository for its nodes.
#[derive(Debug)]
pub struct Fleet {
    pub server: Server,
    /// Packages for the nodes: version 1.0 of each, and 1.1.
    pub repository: Repository,
    /// REST session of an operator.
    pub rest: Rest,
    token: OnceLock<String>,
    /// Last field, so that it is dropped last.
    lab: Lab,
}

impl Fleet {
    /// Creates a fleet without nodes, if a lab is possible here.
    pub fn new() -> Option<Self> {
        Some(Self::with_settings(Lab::open()?, &[]))
    }

    /// The fleet that all tests of this program share, if a lab is possible here. It is removed when the program ends.
    /// Its nodes poll every second.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<(Fleet, Sweeper)>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| {
            let often = ("EVENKEELD_MAINTENANCE_MANAGER__POLL_INTERVAL", "1s");
            let fleet = Self::with_settings(Lab::open()?, &[often]);
            let sweeper = Sweeper::start(fleet.lab.folder(), Some(fleet.server.process()));
            Some((fleet, sweeper))
        });
        shared.as_ref().map(|(fleet, _)| fleet)
    }

    fn with_settings(lab: Lab, settings: &[(&str, &str)]) -> Self {
        let repository = Repository::new(&lab, "repo");
        repository.publish("_1.1_");
        let server = Server::start_with(&lab, settings);
        Self { rest: server.rest(), server, repository, token: OnceLock::new(), lab }
    }

    /// A path in the folder of the fleet.
    pub fn path(&self, name: &str) -> PathBuf {
        self.lab.path(name)
    }

    /// Creates a node that has joined.
    pub fn join(&self, name: &str) -> Member<'_> {
        let agent =
            Agent { program: &Binaries::get().agent, server: &self.server.address("southbound") };
        self.join_with(name, agent)
    }

    /// Creates a node that has joined with this agent.
    pub fn join_with(&self, name: &str, agent: Agent<'_>) -> Member<'_> {
        let node = self.equip(Node::new(&self.lab, name), agent.program);
        let uuid = Uuid::new_v4().to_string();
        self.enroll_node(node, agent.server, &["--uuid", &uuid])
    }

    /// Adds an agent and the fleet's repository to a node.
    pub fn equip(&self, node: Node, agent: &Path) -> Node {
        node.with_file(agent, AGENT_PATH).with_file(self.repository.folder(), Repository::INSIDE)
    }

    /// Enrolls a node that has an agent.
    #[track_caller]
    pub fn enroll_node(&self, node: Node, server: &str, arguments: &[&str]) -> Member<'_> {
        let enrolled = self.enroll(&node, server, arguments);
        assert!(enrolled.status.success(), "{}", describe_output(&enrolled));
        let output = String::from_utf8_lossy(&enrolled.stdout);
        let ids = |line: &str| {
            let (host, rest) = line.strip_prefix("enrolled as ")?.split_once(" (")?;
            Some((host.to_owned(), rest.split_once(')')?.0.to_owned()))
        };
        let ids = output.lines().find_map(ids);
        let (host, instance) = ids.unwrap_or_else(|| panic!("no ids in {output}"));
        Member { fleet: self, node, host, instance }
    }

    /// Runs `enroll` on a node with these additional arguments, and returns its output.
    pub fn enroll(&self, node: &Node, server: &str, arguments: &[&str]) -> Output {
        let server = format!("https://{server}");
        let common = [AGENT_PATH, "enroll", "--server", &server, "--token", self.token()];
        node.run(&[&common[..], arguments].concat())
    }

    fn token(&self) -> &str {
        self.token.get_or_init(|| {
            let created = self.rest.post("join-tokens", &json!({}));
            created["token"].as_str().expect("a token").to_owned()
        })
    }
}

/// The agent of a node, and the address of the server.
#[derive(Clone, Copy, Debug)]
pub struct Agent<'a> {
    pub program: &'a Path,
    /// Address and port of the server.
    pub server: &'a str,
}
