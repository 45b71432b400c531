//! Whether the node itself lets a prepared change begin.
//!
//! The server says when a change may begin, and the modules whether it can be made. What only the machine knows is asked
//! here, each question in a file of its own. An answer is never final: it is asked again at the next poll. So it names
//! nothing that changes from one poll to the next, or each poll would look like news.

mod disk;
mod inhibit;
mod locks;
mod power;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::hooks::{self, Moment};
use crate::model::Plan;
use crate::modules::Ready;
use crate::owner::Owner;
use crate::place::Place;
use crate::runner::Runner;

/// What the gate is made of.
pub struct GateParts {
    /// Whose limits count.
    pub owner: Arc<Owner>,
    /// Runs hooks and asks logind, in the managed root.
    pub runner: Arc<dyn Runner>,
    /// Where the managed root is.
    pub place: Place,
    /// What is enough.
    pub settings: GateSettings,
}

impl fmt::Debug for GateParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateParts")
            .field("owner", &self.owner)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What is enough for a change to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateSettings {
    /// Without power from outside, a change begins only with at least this much left, in percent.
    pub min_battery_percent: u8,
    /// This must be free on each file system that a change writes to, in bytes, beside what the change needs.
    pub min_free: u64,
    /// How long each hook may take.
    pub hook_deadline: Duration,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            min_battery_percent: 30,
            min_free: 200 << 20,
            hook_deadline: Duration::from_mins(5),
        }
    }
}

/// Asks the machine whether a prepared change may begin.
#[derive(Debug)]
pub struct Gate {
    parts: GateParts,
}

impl Gate {
    /// A gate that asks these.
    pub fn new(parts: GateParts) -> Self {
        Self { parts }
    }

    /// Asks in order, and stops at the first that says no. Hooks come last: only they may have effects.
    pub async fn ready(&self, plan: &Plan) -> Ready {
        match self.ask(plan).await {
            Ok(()) => Ready::Yes,
            Err(why) => Ready::NotYet(why),
        }
    }

    async fn ask(&self, plan: &Plan) -> Result<(), String> {
        let GateParts {
            owner,
            runner,
            place,
            settings,
        } = &self.parts;
        owner.may_begin()?;
        owner.allows_plan(plan)?;
        inhibit::look(place)?;
        // The power and the logind of this machine are not those of another root.
        if place.is_own_system() {
            locks::look(runner.as_ref()).await?;
            power::look(Path::new(power::SUPPLIES), settings.min_battery_percent)?;
        }
        disk::look(place, plan, settings.min_free)?;
        let deadline = settings.hook_deadline;
        hooks::ask(Moment::BeforeUpdate, place, runner.as_ref(), deadline).await
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use chrono::DateTime;
    use evenkeel_kit::TestClock;

    use super::*;
    use crate::hooks::fake::{self, Fake};

    fn gate(root: &Path, runner: &Arc<Fake>) -> Gate {
        let place = Place::new(root, None);
        let clock = Arc::new(TestClock::new(DateTime::UNIX_EPOCH));
        Gate::new(GateParts {
            owner: Arc::new(Owner::new(place.clone(), clock)),
            runner: Arc::clone(runner) as Arc<dyn Runner>,
            place,
            settings: GateSettings {
                min_free: 0,
                ..GateSettings::default()
            },
        })
    }

    #[tokio::test]
    async fn a_machine_that_says_nothing_lets_a_change_begin() {
        let root = tempfile::tempdir().unwrap();
        let runner = Arc::new(Fake::default());
        let gate = gate(root.path(), &runner);
        assert_eq!(gate.ready(&Plan::default()).await, Ready::Yes);
        assert!(runner.asked().is_empty(), "logind is not another root's");
    }

    #[tokio::test]
    async fn the_first_no_is_told_and_hooks_are_run_only_when_all_else_says_yes() {
        let root = tempfile::tempdir().unwrap();
        let hook = fake::hook(root.path(), Moment::BeforeUpdate, "10-drain");
        let runner = Arc::new(Fake::default().says(&hook, 75, "pumping\n"));
        let gate = gate(root.path(), &runner);
        let inhibit = root.path().join("etc/evenkeel/inhibit");
        fs::write(&inhibit, "a demonstration\n").unwrap();

        let ready = gate.ready(&Plan::default()).await;
        assert_eq!(
            ready,
            Ready::NotYet("/etc/evenkeel/inhibit says: a demonstration".to_owned())
        );
        assert!(runner.asked().is_empty());

        fs::remove_file(inhibit).unwrap();
        let ready = gate.ready(&Plan::default()).await;
        assert_eq!(
            ready,
            Ready::NotYet("the hook 10-drain says not yet: pumping".to_owned())
        );
    }

    #[tokio::test]
    async fn limits_that_cannot_be_relied_on_let_nothing_begin() {
        let root = tempfile::tempdir().unwrap();
        fake::folder(root.path(), "etc/evenkeel");
        let file = root.path().join("etc/evenkeel/limits.toml");
        fake::write(&file, "hour = []\n", 0o644);
        let gate = gate(root.path(), &Arc::new(Fake::default()));
        let Ready::NotYet(why) = gate.ready(&Plan::default()).await else {
            panic!("it may begin")
        };
        assert!(why.contains("hour"), "{why}");
    }
}
