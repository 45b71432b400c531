//! A service manager that records its notifications.

use std::sync::Mutex;

use evenkeel_update_agent::notify::{ServiceManager, ServiceState};

#[derive(Debug, Default)]
pub struct FakeServiceManager(Mutex<Vec<String>>);

impl FakeServiceManager {
    /// Returns and clears the recorded messages.
    pub fn take_messages(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl ServiceManager for FakeServiceManager {
    fn notify(&self, sign: ServiceState<'_>) {
        let message = match sign {
            ServiceState::Ready => "ready".to_owned(),
            ServiceState::Status(text) => text.to_owned(),
            ServiceState::Alive => "alive".to_owned(),
            ServiceState::Stopping => "stopping".to_owned(),
        };
        self.0.lock().unwrap().push(message);
    }
}
