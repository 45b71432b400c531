//! A fleet: a server, a repository with two versions of each package, and nodes that join.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

use serde_json::json;
use uuid::Uuid;

use super::machine::told;
use super::sweeper::Sweeper;
use super::{Binaries, Lab, Member, Node, Repository, Rest, Server};

/// Where the agent is on a node.
pub(super) const AGENT: &str = "/srv/evenkeel-agent";

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
        Some(Self::of(Lab::open()?, &[]))
    }

    /// The fleet that all tests of this program share, where there can be one. It goes when the program ends. Nodes are
    /// asked to poll every second.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<(Fleet, Sweeper)>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| {
            let often = ("EVENKEELD_MAINTENANCE_MANAGER__POLL_INTERVAL", "1s");
            let fleet = Self::of(Lab::open()?, &[often]);
            let sweeper = Sweeper::of(fleet.lab.folder(), Some(fleet.server.process()));
            Some((fleet, sweeper))
        });
        shared.as_ref().map(|(fleet, _)| fleet)
    }

    fn of(lab: Lab, settings: &[(&str, &str)]) -> Self {
        let repository = Repository::new(&lab, "repo");
        repository.publish("_1.1_");
        let server = Server::start_with(&lab, settings);
        Self {
            rest: server.rest(),
            server,
            repository,
            token: OnceLock::new(),
            lab,
        }
    }

    /// A path of the fleet's own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.lab.path(name)
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
        let node = self.equip(Node::new(&self.lab, name), agent.program);
        let uuid = Uuid::new_v4().to_string();
        self.admit(node, agent.server, &["--uuid", &uuid])
    }

    /// A node with an agent, and with the fleet's repository.
    pub fn equip(&self, node: Node, agent: &Path) -> Node {
        node.with(agent, AGENT)
            .with(self.repository.folder(), Repository::INSIDE)
    }

    /// Lets a node join that has an agent.
    #[track_caller]
    pub fn admit(&self, node: Node, server: &str, words: &[&str]) -> Member<'_> {
        let enrolled = self.enrol(&node, server, words);
        assert!(enrolled.status.success(), "{}", told(&enrolled));
        let said = String::from_utf8_lossy(&enrolled.stdout);
        let ids = |line: &str| {
            let (host, rest) = line.strip_prefix("enrolled as ")?.split_once(" (")?;
            Some((host.to_owned(), rest.split_once(')')?.0.to_owned()))
        };
        let ids = said.lines().find_map(ids);
        let (host, instance) = ids.unwrap_or_else(|| panic!("no ids in {said}"));
        Member {
            fleet: self,
            node,
            host,
            instance,
        }
    }

    /// What a node's agent says to enrolment with these words.
    pub fn enrol(&self, node: &Node, server: &str, words: &[&str]) -> Output {
        let server = format!("https://{server}");
        let common = [
            AGENT,
            "enroll",
            "--server",
            &server,
            "--token",
            self.token(),
        ];
        node.run(&[&common[..], words].concat())
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
