//! The machine below a node: its current boot, and its reaction to a reboot request.

use std::sync::{Arc, Mutex, MutexGuard};

use evenkeel_update_agent::gate::{Gate, MachineGate};
use evenkeel_update_agent::model::{Failure, FailureKind, SpaceNeed};
use evenkeel_update_agent::reboot::{RebootControl, RebootObjection};

use super::link::FakeLink;
use super::system::FakeSystem;

#[derive(Debug, Default)]
pub struct MachineState {
    /// Release of the running kernel; empty if it does not belong to the node.
    pub kernel_release: String,
    /// Number of boots after the first one.
    pub boots: u32,
    /// How often the agent requested a reboot.
    pub reboot_requests: u32,
    /// The last event that the server had received at that time.
    pub last_event: Option<&'static str>,
    /// The error of a reboot request, if it fails.
    pub refusal: Option<String>,
    /// Why the owner forbids a reboot.
    pub owner_objection: Option<RebootObjection>,
    /// Whether a user is logged in.
    pub has_users: bool,
    /// The messages to logged-in users.
    pub warnings: Vec<String>,
    /// The lock with which another program blocks a shutdown.
    pub logind_lock: Option<String>,
}

#[derive(Clone)]
pub struct FakeMachine {
    state: Arc<Mutex<MachineState>>,
    system: Arc<FakeSystem>,
    link: FakeLink,
}

impl FakeMachine {
    pub fn new(system: &Arc<FakeSystem>, link: &FakeLink) -> Self {
        Self { state: Arc::default(), system: Arc::clone(system), link: link.clone() }
    }

    pub fn state(&self) -> MutexGuard<'_, MachineState> {
        self.state.lock().unwrap()
    }

    /// The identifier of the current boot.
    pub fn boot_id(&self) -> String {
        format!("boot-{}", self.state().boots + 1)
    }
}

/// The real gate, and what a test lets the machine object.
pub struct FakeMachineGate {
    pub machine: FakeMachine,
    pub gate: Gate,
}

#[async_trait::async_trait]
impl MachineGate for FakeMachineGate {
    fn check_limits(&self) -> Result<(), RebootObjection> {
        let objection = self.machine.state().owner_objection.clone();
        objection.map_or_else(|| self.gate.check_limits(), Err)
    }

    async fn check_machine(&self, space: &[SpaceNeed]) -> Result<(), String> {
        let lock = self.machine.state().logind_lock.clone();
        match lock {
            Some(lock) => Err(lock),
            None => self.gate.check_machine(space).await,
        }
    }

    fn has_logged_in_users(&self) -> bool {
        self.machine.state().has_users
    }

    async fn run_after_update_hooks(&self) -> Result<(), String> {
        self.gate.run_after_update_hooks().await
    }
}

#[async_trait::async_trait]
impl RebootControl for FakeMachine {
    fn obstacle(&self) -> Option<String> {
        None
    }

    async fn request_reboot(&self) -> Result<(), Failure> {
        self.system.log_action("reboot");
        let last_event = {
            let server = self.link.0.lock().unwrap();
            let mut events = server.reported_events.values().flatten();
            events.next_back().map(|event| event.kind.name())
        };
        let mut state = self.state();
        state.reboot_requests += 1;
        state.last_event = last_event;
        match &state.refusal {
            Some(reason) => Err(Failure::new(FailureKind::Reboot, reason.clone())),
            None => Ok(()),
        }
    }

    async fn warn_users(&self, message: &str) {
        self.state().warnings.push(message.to_owned());
    }
}
