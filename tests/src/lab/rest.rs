//! REST client, for tests that act as an operator's script.

use evenkeel_test_support::RestClient;
use reqwest::Method;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// A session of an operator in a project, for tests without a runtime.
#[derive(Debug)]
pub struct Rest {
    runtime: Runtime,
    client: RestClient,
}

impl Rest {
    /// Creates a session with the server at `address` in the project named `project`.
    pub fn new(address: &str, project: &str, token: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build();
        let client = RestClient::connect(address, project, token);
        Self { runtime: runtime.expect("a runtime"), client }
    }

    /// Reads an object or a list. The path is relative to the project.
    pub fn get(&self, path: &str) -> Value {
        self.runtime.block_on(self.client.get(path))
    }

    /// Creates an object and returns it.
    pub fn post(&self, path: &str, body: &Value) -> Value {
        self.runtime.block_on(self.client.post(path, body))
    }

    /// Creates or replaces an object and returns it.
    pub fn put(&self, path: &str, body: &Value) -> Value {
        self.runtime.block_on(self.client.put(path, body))
    }

    /// Changes an object and returns it.
    pub fn patch(&self, path: &str, body: &Value) -> Value {
        self.runtime.block_on(self.client.patch(path, body))
    }

    /// Removes an object.
    pub fn delete(&self, path: &str) {
        self.runtime.block_on(self.client.delete(path));
    }

    /// Sends a request. Returns the status and the body of the response.
    pub fn send(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, String) {
        let answer = self.runtime.block_on(self.client.send(method, path, body));
        let answer = answer.expect("an answer");
        (answer.status.as_u16(), answer.text)
    }
}
