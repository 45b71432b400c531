//! The machine below a node: which boot it is in, and what it does when it is told to reboot.

use std::sync::{Arc, Mutex, MutexGuard};

use evenkeel_update_agent::boot::Reboot;
use evenkeel_update_agent::model::{Failure, FailureKind};

use super::link::FakeLink;
use super::system::FakeSystem;

#[derive(Debug, Default)]
pub struct State {
    /// How often it has booted beside the first time.
    pub boots: u32,
    /// How often it was told to reboot.
    pub told: u32,
    /// What the server had last heard of then.
    pub heard: Option<&'static str>,
    /// What it answers when it cannot.
    pub refuses: Option<String>,
    /// Why its owner does not let it reboot.
    pub owner: Option<String>,
}

#[derive(Clone)]
pub struct Machine {
    state: Arc<Mutex<State>>,
    system: Arc<FakeSystem>,
    link: FakeLink,
}

impl Machine {
    pub fn new(system: &Arc<FakeSystem>, link: &FakeLink) -> Self {
        Self {
            state: Arc::default(),
            system: Arc::clone(system),
            link: link.clone(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The boot that it is in.
    pub fn boot_id(&self) -> String {
        format!("boot-{}", self.state().boots + 1)
    }

    /// The word of its owner.
    pub fn may_reboot(&self) -> Result<(), String> {
        self.state().owner.clone().map_or(Ok(()), Err)
    }
}

#[async_trait::async_trait]
impl Reboot for Machine {
    fn hindrance(&self) -> Option<String> {
        None
    }

    async fn begin(&self) -> Result<(), Failure> {
        self.system.note("reboot");
        let heard = {
            let server = self.link.0.lock().unwrap();
            let mut told = server.told.values().flatten();
            told.next_back().map(|event| event.news.name())
        };
        let mut state = self.state();
        state.told += 1;
        state.heard = heard;
        match &state.refuses {
            Some(words) => Err(Failure::new(FailureKind::Reboot, words.clone())),
            None => Ok(()),
        }
    }
}
