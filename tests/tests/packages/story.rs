//! How a story is told: in every release of Debian at once, on nodes of one fleet.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use evenkeel_tests::lab::{
    Binaries, Fleet, Lab, Member, Node, Repository, Running, Suite, reason, told, until,
};
use serde_json::Value;
use uuid::Uuid;

/// Nothing takes longer.
pub const SOON: Duration = Duration::from_mins(2);

/// Where the agent is on a node.
pub const AGENT: &str = "/srv/evenkeel-agent";

/// What every node has from the beginning, in version 1.0.
const PRESENT: [&str; 5] = [
    "demo-hello",
    "demo-lib",
    "demo-app",
    "demo-conf",
    "demo-held",
];

/// Makes each of the functions a test of its own, which tells it in every release.
macro_rules! stories {
    ($($story:ident),+ $(,)?) => {
        mod told {
            $(
                #[test]
                fn $story() {
                    crate::story::tell(stringify!($story), super::$story);
                }
            )+
        }
    };
}

pub(crate) use stories;

/// Where a story is told: a release, a fleet, and room for what belongs to this story alone.
#[derive(Debug)]
pub struct Stage {
    /// Which release.
    pub suite: Suite,
    /// The fleet.
    pub fleet: &'static Fleet,
    /// Room that is gone with the story.
    pub lab: Lab,
}

/// Tells a story in every release at once.
pub fn tell(name: &str, story: fn(&Stage)) {
    thread::scope(|scope| {
        let tellings = Suite::ALL.map(|suite| {
            let telling = thread::Builder::new().name(format!("{name} in {suite}"));
            let telling = telling.spawn_scoped(scope, move || {
                let _turn = Turn::take();
                if let Some(stage) = Stage::set(suite) {
                    story(&stage);
                }
            });
            (suite, telling.expect("a thread"))
        });
        let wrong = tellings.map(|(suite, telling)| telling.join().err().map(|_| suite));
        let wrong: Vec<_> = wrong.into_iter().flatten().collect();
        assert!(wrong.is_empty(), "it went wrong in {wrong:?}, see above");
    });
}

/// Leave to tell. Most of a story is waiting, so some go on at once, and not more than the machine can take.
struct Turn;

static FREE: Mutex<usize> = Mutex::new(3);
static FREED: Condvar = Condvar::new();

impl Turn {
    fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = FREED.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        FREED.notify_one();
    }
}

impl Stage {
    fn set(suite: Suite) -> Option<Self> {
        let lab = Lab::open_in(suite)?;
        let fleet = Fleet::shared()?;
        Some(Self { suite, fleet, lab })
    }

    /// A node that has not joined: with an agent, with the fleet's repository and with what every node has.
    pub fn node(&self, name: &str) -> Node {
        let node = Node::new(&self.lab, name).above(self.seed());
        self.fleet.equip(node, &Binaries::get().agent)
    }

    /// Lets a node join.
    #[track_caller]
    pub fn join(&self, node: Node) -> Member<'static> {
        let server = self.fleet.server.address("southbound");
        let uuid = Uuid::new_v4().to_string();
        self.fleet.admit(node, &server, &["--uuid", &uuid])
    }

    /// A node that has joined.
    #[track_caller]
    pub fn member(&self) -> Member<'static> {
        self.join(self.node("node"))
    }

    /// A node that has joined, and whose only source is this repository.
    #[track_caller]
    pub fn member_of(&self, repository: &Repository) -> Member<'static> {
        let node = self.node("node");
        let member = self.join(node.with(repository.folder(), repository.inside()));
        member.node.sh(&format!(
            "rm /etc/apt/sources.list.d/*; cp {}/repo.sources /etc/apt/sources.list.d/own.sources",
            repository.inside()
        ));
        member
    }

    /// A repository of this story's own, which nodes see in `/srv/own`.
    pub fn repository(&self) -> Repository {
        Repository::empty(&self.lab, "own", "/srv/own")
    }

    /// What every node of this release has, made once: what is installed, and what apt knows of the fleet's repository.
    fn seed(&self) -> &'static Path {
        static BOOKWORM: OnceLock<PathBuf> = OnceLock::new();
        static TRIXIE: OnceLock<PathBuf> = OnceLock::new();
        let seed = match self.suite {
            Suite::Bookworm => &BOOKWORM,
            Suite::Trixie => &TRIXIE,
        };
        seed.get_or_init(|| {
            let work = self.fleet.path(&format!("seed-{}", self.suite));
            let node = Node::over(self.lab.base(), work)
                .with(self.fleet.repository.folder(), Repository::INSIDE);
            let inside = Repository::INSIDE;
            let debs = PRESENT.map(|name| format!("{inside}/pool/{name}_1.0_all.deb"));
            // Without a machine id apt lets everything out to this machine at once, as to a container that is being made.
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

/// Asserts why a run ended: a failure of one of these kinds, with all of these words.
#[track_caller]
pub fn because(run: &Value, kinds: &[&str], words: &[&str]) {
    let (kind, said) = reason(run);
    assert!(kinds.contains(&kind), "not one of {kinds:?}: {run:#}");
    let said = said.to_lowercase();
    for word in words {
        let word = word.to_lowercase();
        assert!(said.contains(&word), "nothing of {word:?}: {run:#}");
    }
}

/// Lets the agent prepare an update that was ordered. It must not begin, and say why.
#[track_caller]
pub fn waits(member: &Member<'_>, why: &str) {
    let output = member.agent_once();
    let said = told(&output);
    let waits = output.status.success() && said.contains(why);
    assert!(waits, "nothing of {why:?} in {said}");
    let run = member.only_run();
    let mut untouched = ["downloading", "staged"].iter();
    assert!(
        untouched.any(|state| run["state"] == *state),
        "{run:#}\n{said}"
    );
}

/// Writes a file of a node.
#[track_caller]
pub fn write(node: &Node, path: &str, text: &str) {
    let script = "mkdir -p \"${1%/*}\"; printf %s \"$2\" > \"$1\"";
    node.succeed(&["sh", "-ec", script, "write", path, text]);
}

/// Starts another apt that configures `demo-slow`, in a script that waits until `/opt/demo/slow` is gone. What is returned
/// goes on until it is dropped.
pub fn another_apt(node: &Node) -> Running {
    let script = "touch /opt/demo/slow; \
                  apt-get -q -y install demo-slow=1.1; echo the other has ended; exec sleep 1000";
    let boot = node.start(&["sh", "-c", script]);
    until_dpkg_is_in_the_middle(node);
    boot
}

/// Waits until a script of `demo-slow` waits in turn.
pub fn until_dpkg_is_in_the_middle(node: &Node) {
    until("dpkg is in the middle of it", SOON, || {
        let found = node.run_inside(&["test", "-e", "/opt/demo/in-postinst"]);
        found.status.success().then_some(())
    });
}

/// Lets the agent do what can be done now, beside what runs on a node.
pub fn agent_beside(node: &Node) {
    let script = "(/srv/evenkeel-agent run --once > /run/said 2>&1; echo $? > /run/ended) > /run/shell 2>&1 &";
    node.inside(&["sh", "-c", script]);
}

/// Waits until an agent has fetched what it needs, and only has to begin.
pub fn until_all_is_there(node: &Node) {
    let look = "grep -qs '\"phase\":\"staged\"' /var/lib/evenkeel-agent/journal.json";
    until("all is there", SOON, || {
        let found = node.run_inside(&["sh", "-c", look]);
        found.status.success().then_some(())
    });
}

/// Waits until that agent has ended well.
#[track_caller]
pub fn until_the_agent_has_ended(node: &Node) {
    let status = until("the agent has ended", SOON, || {
        let ended = node.inside(&["sh", "-c", "cat /run/ended 2> /dev/null || true"]);
        (!ended.is_empty()).then_some(ended)
    });
    assert_eq!(status, "0\n", "{}", node.inside(&["cat", "/run/said"]));
}
