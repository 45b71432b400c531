//! A service manager that writes down what it is told.

use std::sync::Mutex;

use evenkeel_update_agent::notify::{Manager, Sign};

#[derive(Debug, Default)]
pub struct Heard(Mutex<Vec<String>>);

impl Heard {
    /// What it was told so far; forgets it.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Manager for Heard {
    fn tell(&self, sign: Sign<'_>) {
        let words = match sign {
            Sign::Ready => "ready".to_owned(),
            Sign::Status(text) => text.to_owned(),
            Sign::Alive => "alive".to_owned(),
            Sign::Stopping => "stopping".to_owned(),
        };
        self.0.lock().unwrap().push(words);
    }
}
