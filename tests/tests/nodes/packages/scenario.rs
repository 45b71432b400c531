//! Runs a scenario in every release of Debian at the same time, on nodes of one fleet.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use evenkeel_tests::lab::{
    Binaries, Fleet, Lab, Member, Node, Repository, Running, Suite, describe_output, reason, until,
};
use serde_json::Value;
use uuid::Uuid;

/// Maximum duration of each step.
pub const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

/// Path of the agent on a node.
pub const AGENT_PATH: &str = "/srv/evenkeel-agent";

/// Packages that every node has at the beginning, in version 1.0.
const INSTALLED_PACKAGES: [&str; 5] =
    ["demo-hello", "demo-lib", "demo-app", "demo-conf", "demo-held"];

/// Makes a test of each function, which runs it in every release.
macro_rules! scenarios {
    ($($scenario:ident),+ $(,)?) => {
        mod in_all_suites {
            $(
                #[test]
                fn $scenario() {
                    super::super::scenario::run_in_all_suites(stringify!($scenario), super::$scenario);
                }
            )+
        }
    };
}

pub(crate) use scenarios;

/// Environment of a scenario: a release, a fleet, and a folder for this scenario alone.
#[derive(Debug)]
pub struct Stage {
    /// Release of Debian.
    pub suite: Suite,
    /// The fleet that all scenarios share.
    pub fleet: &'static Fleet,
    /// Temporary folder of the scenario.
    pub lab: Lab,
}

/// Runs a scenario in every release at the same time.
pub fn run_in_all_suites(name: &str, scenario: fn(&Stage)) {
    thread::scope(|scope| {
        let handles = Suite::ALL.map(|suite| {
            let builder = thread::Builder::new().name(format!("{name} in {suite}"));
            let handle = builder.spawn_scoped(scope, move || {
                let _turn = RunSlot::acquire();
                if let Some(stage) = Stage::open(suite) {
                    scenario(&stage);
                }
            });
            (suite, handle.expect("a thread"))
        });
        let wrong = handles.map(|(suite, handle)| handle.join().err().map(|_| suite));
        let wrong: Vec<_> = wrong.into_iter().flatten().collect();
        assert!(wrong.is_empty(), "the scenario failed in {wrong:?}, see above");
    });
}

/// Permission to run. A scenario consists mostly of waiting, so three run at the same time.
struct RunSlot;

static FREE_SLOTS: Mutex<usize> = Mutex::new(3);
static SLOT_FREED: Condvar = Condvar::new();

impl RunSlot {
    fn acquire() -> Self {
        let free = FREE_SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = SLOT_FREED.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Self
    }
}

impl Drop for RunSlot {
    fn drop(&mut self) {
        *FREE_SLOTS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        SLOT_FREED.notify_one();
    }
}

impl Stage {
    fn open(suite: Suite) -> Option<Self> {
        let lab = Lab::open_in(suite)?;
        let fleet = Fleet::shared()?;
        Some(Self { suite, fleet, lab })
    }

    /// A node that has not joined, with the agent, the fleet's repository and the usual packages.
    pub fn node(&self, name: &str) -> Node {
        let node = Node::new(&self.lab, name).on_layer(self.seed_layer());
        self.fleet.equip(node, &Binaries::get().agent)
    }

    /// Enrolls a node.
    #[track_caller]
    pub fn join(&self, node: Node) -> Member<'static> {
        let server = self.fleet.server.address("southbound");
        let uuid = Uuid::new_v4().to_string();
        self.fleet.enroll_node(node, &server, &["--uuid", &uuid])
    }

    /// A node that has joined.
    #[track_caller]
    pub fn member(&self) -> Member<'static> {
        self.join(self.node("node"))
    }

    /// A node that has joined and whose only source is this repository.
    #[track_caller]
    pub fn member_with_source(&self, repository: &Repository) -> Member<'static> {
        self.join_with_source(self.node("node"), repository)
    }

    /// Enrolls a node whose only source is then this repository.
    #[track_caller]
    pub fn join_with_source(&self, node: Node, repository: &Repository) -> Member<'static> {
        let member = self.join(node.with_file(repository.folder(), repository.inside()));
        member.node.sh(&format!(
            "rm /etc/apt/sources.list.d/*; cp {}/repo.sources /etc/apt/sources.list.d/own.sources",
            repository.inside()
        ));
        member
    }

    /// An empty repository of this scenario, which nodes see as `/srv/own`.
    pub fn repository(&self) -> Repository {
        Repository::empty(&self.lab, "own", "/srv/own")
    }

    /// Layer with the usual packages and apt's index of the fleet's repository, made once per release.
    fn seed_layer(&self) -> &'static Path {
        static BOOKWORM: OnceLock<PathBuf> = OnceLock::new();
        static TRIXIE: OnceLock<PathBuf> = OnceLock::new();
        let seed = match self.suite {
            Suite::Bookworm => &BOOKWORM,
            Suite::Trixie => &TRIXIE,
        };
        seed.get_or_init(|| {
            let work = self.fleet.path(&format!("seed-{}", self.suite));
            let node = Node::on_base(self.lab.base(), work)
                .with_file(self.fleet.repository.folder(), Repository::INSIDE);
            let inside = Repository::INSIDE;
            let debs = INSTALLED_PACKAGES.map(|name| format!("{inside}/pool/{name}_1.0_all.deb"));
            // Without a machine ID, apt ignores phasing, as for a container that is being built.
            node.sh(&format!(
                "echo 0123456789abcdef0123456789abcdef > /etc/machine-id; \
                 cp {inside}/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any; \
                 dpkg --install {}; apt-mark auto demo-lib",
                debs.join(" ")
            ));
            node.layer()
        })
    }
}

/// Asserts that a run failed with one of these kinds and a message that contains all of these texts.
#[track_caller]
pub fn assert_failure(run: &Value, kinds: &[&str], texts: &[&str]) {
    let (kind, message) = reason(run);
    assert!(kinds.contains(&kind), "not one of {kinds:?}: {run:#}");
    let message = message.to_lowercase();
    for text in texts {
        let text = text.to_lowercase();
        assert!(message.contains(&text), "{text:?} is missing: {run:#}");
    }
}

/// Lets the agent prepare an ordered update. It must not start the update, and must report why.
#[track_caller]
pub fn assert_waits(member: &Member<'_>, why: &str) {
    let output = member.agent_once();
    let text = describe_output(&output);
    let waits = output.status.success() && text.contains(why);
    assert!(waits, "{why:?} is missing in {text}");
    let run = member.only_run();
    let mut untouched = ["downloading", "staged"].iter();
    assert!(untouched.any(|state| run["state"] == *state), "{run:#}\n{text}");
}

/// Installs the key of a repository on a node, as an operator does.
#[track_caller]
pub fn trust_repository(node: &Node, repository: &Repository) {
    let inside = repository.inside();
    node.sh(&format!("install -D -m 644 {inside}/repo.asc /etc/evenkeel/keys.d/tests.asc"));
}

#[track_caller]
pub fn write_file(node: &Node, path: &str, text: &str) {
    let script = "mkdir -p \"${1%/*}\"; printf %s \"$2\" > \"$1\"";
    node.succeed(&["sh", "-ec", script, "write", path, text]);
}

/// Lists the sources of a node in a second file. apt must warn about that.
#[track_caller]
pub fn list_sources_twice(node: &Node) {
    let sources = "/etc/apt/sources.list.d";
    node.sh(&format!("cp {sources}/repo.sources {sources}/twice.sources"));
    let output = node.sh("apt-get -q update 2>&1 || true");
    assert!(output.contains("configured multiple times"), "{output}");
}

/// Starts another apt that configures `demo-slow`, whose script waits until `/opt/demo/slow` is
/// deleted. The boot ends when the returned value is dropped.
pub fn start_another_apt(node: &Node) -> Running {
    let script = "touch /opt/demo/slow; \
                  apt-get -q -y install demo-slow=1.1; echo the other has ended; exec sleep 1000";
    let boot = node.start(&["sh", "-c", script]);
    wait_until_dpkg_is_blocked(node);
    boot
}

/// Waits until the postinst script of `demo-slow` waits.
pub fn wait_until_dpkg_is_blocked(node: &Node) {
    until("dpkg runs the postinst script", WAIT_TIMEOUT, || {
        let output = node.run_inside(&["test", "-e", "/opt/demo/in-postinst"]);
        output.status.success().then_some(())
    });
}

/// Starts `evenkeel-agent run --once` in the background of a running node.
pub fn start_agent_in_background(node: &Node) {
    let script = "(/srv/evenkeel-agent run --once > /run/output 2>&1; echo $? > /run/ended) > /run/shell 2>&1 &";
    node.succeed_inside(&["sh", "-c", script]);
}

/// Waits until an agent has downloaded everything and only has to start.
pub fn wait_until_downloaded(node: &Node) {
    let look = "grep -qs '\"phase\":\"staged\"' /var/lib/evenkeel-agent/journal.json";
    until("everything is downloaded", WAIT_TIMEOUT, || {
        let output = node.run_inside(&["sh", "-c", look]);
        output.status.success().then_some(())
    });
}

/// Waits until the agent in the background has ended successfully.
#[track_caller]
pub fn wait_for_agent_end(node: &Node) {
    let status = until("the agent has ended", WAIT_TIMEOUT, || {
        let ended = node.succeed_inside(&["sh", "-c", "cat /run/ended 2> /dev/null || true"]);
        (!ended.is_empty()).then_some(ended)
    });
    assert_eq!(status, "0\n", "{}", node.succeed_inside(&["cat", "/run/output"]));
}
