//! A caller of one project that tries to reach the other one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::attempts::{Attempt, Expectation, LISTS};
use super::rng::Rng;
use super::secrets::Secrets;
use super::test_project::TestProject;
use crate::statuses::operations;
use crate::test_server::{ResourceIds, TestServer};

/// Requests that run at the same time.
pub const MAX_CONCURRENT_REQUESTS: usize = 6;

/// One attempt in this many is repeated with unused ids.
const TWIN_INTERVAL: usize = 6;

/// A caller of one project, and what is known about the other one.
pub struct AttackContext<'a> {
    pub server: &'a TestServer,
    pub attacker: &'a TestProject,
    pub victim: &'a TestProject,
    pub secrets: Secrets,
    /// The operations in a project.
    pub operations: Vec<(String, String, Value)>,
    /// Lists of the other project, the token after their first page, and whether the token is only
    /// a number.
    pub tokens: Vec<(String, String, bool)>,
    /// Number of items in the attacker's lists.
    totals: BTreeMap<&'static str, u64>,
    /// Number of responses that were compared with those to unused ids.
    pub compared: AtomicUsize,
}

impl<'a> AttackContext<'a> {
    pub async fn new(
        server: &'a TestServer,
        attacker: &'a TestProject,
        victim: &'a TestProject,
    ) -> Self {
        let mut operations = operations();
        operations.retain(|(_, path, _)| path.contains("{projectName}"));
        let (mut totals, mut tokens) = (BTreeMap::new(), Vec::new());
        for (list, _) in LISTS {
            let page = attacker.client(server).get(&format!("{list}?pageSize=1")).await;
            totals.insert(list, page["totalElements"].as_u64().expect("a number"));
            for order in ["", "&orderBy=resourceId%20desc", "&orderBy=createdAt"] {
                tokens.push((format!("{list}?pageSize=1{order}"), false));
            }
        }
        for list in ["assignments", "join-tokens", "pauses", "compute/schedules"] {
            tokens.push((format!("{list}?pageSize=1"), true));
        }
        let mut ended = Vec::new();
        for (list, is_numbered) in tokens {
            let page = victim.client(server).get(&list).await;
            let token = page["nextPageToken"].as_str().expect("a text");
            assert!(!token.is_empty(), "{list} is too short");
            ended.push((list, token.to_owned(), is_numbered));
        }
        Self {
            server,
            attacker,
            victim,
            secrets: Secrets::collect(victim, attacker, server).await,
            operations,
            tokens: ended,
            totals,
            compared: AtomicUsize::new(0),
        }
    }

    /// The ids of random resources of the attacker.
    pub fn pick_own(&self, rng: &mut Rng) -> &'a ResourceIds {
        rng.pick(&self.attacker.resources)
    }

    /// The ids of random resources of the other project.
    pub fn pick_other(&self, rng: &mut Rng) -> &'a ResourceIds {
        rng.pick(&self.victim.resources)
    }

    /// Number of items in a list of the attacker.
    pub fn total(&self, list: &str) -> u64 {
        self.totals[list]
    }

    /// Runs all attempts and returns the failures.
    pub async fn try_all(&self, attempts: &[Attempt]) -> Vec<String> {
        let tries = stream::iter(attempts.iter().enumerate())
            .map(|(n, attempt)| self.try_one(attempt, n % TWIN_INTERVAL == 0))
            .buffer_unordered(MAX_CONCURRENT_REQUESTS);
        let failures: Vec<Option<String>> = tries.collect().await;
        failures.into_iter().flatten().collect()
    }

    async fn try_one(&self, attempt: &Attempt, with_twin: bool) -> Option<String> {
        let (status, text) = self.request(attempt).await;
        if let Some(why) = self.check_answer(attempt, status, &text) {
            return Some(format!("{}: {status} {why}", attempt.input_text()));
        }
        let twin = with_twin.then(|| self.twin_with_unused_ids(attempt)).flatten()?;
        let (twin_status, twin_text) = self.request(&twin).await;
        self.compared.fetch_add(1, Ordering::Relaxed);
        let same = status == twin_status
            && comparable(&self.replace_with_unused_ids(&text)) == comparable(&twin_text);
        (!same).then(|| format!("{}: {status} {text}, but {twin_text}", attempt.input_text()))
    }

    async fn request(&self, attempt: &Attempt) -> (StatusCode, String) {
        let client = self.server.client(Some(&self.attacker.token), attempt.project.as_deref());
        let answer = client.call(&attempt.request, attempt.body.clone()).await;
        (answer.status, answer.text)
    }

    /// Describes what is wrong with a response.
    fn check_answer(&self, attempt: &Attempt, status: StatusCode, text: &str) -> Option<String> {
        // An error may repeat the caller's own input; a success must contain no secret at all.
        let input = if status.is_success() { String::new() } else { attempt.input_text() };
        if let Some(secret) = self.secrets.find_leak(text, &input) {
            return Some(format!("leaks {secret}: {text}"));
        }
        let is_right = match &attempt.expected {
            Expectation::Status(expected) => status.as_u16() == *expected,
            Expectation::ClientError => status.is_client_error(),
            Expectation::Contains(expected) => status.is_success() && text.contains(expected),
            Expectation::NoServerError => status.is_success() || status.is_client_error(),
        };
        (!is_right).then(|| format!("is not {:?}: {text}", attempt.expected))
    }

    /// The same attempt with unused ids in place of those of the other project, if it has any. An
    /// error or an empty list must look the same for both. Other successes show own resources,
    /// which concurrent attempts change.
    fn twin_with_unused_ids(&self, attempt: &Attempt) -> Option<Attempt> {
        if matches!(attempt.expected, Expectation::Status(200) | Expectation::NoServerError) {
            return None;
        }
        let body = attempt.body.as_ref().map(Value::to_string);
        let body = body.map(|body| self.replace_with_unused_ids(&body));
        let twin = Attempt {
            request: self.replace_with_unused_ids(&attempt.request),
            body: body.map(|body| serde_json::from_str(&body).expect("JSON")),
            ..attempt.clone()
        };
        let is_other = twin.request != attempt.request || twin.body != attempt.body;
        is_other.then_some(twin)
    }

    /// Replaces the ids of the other project by unused ids.
    fn replace_with_unused_ids(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for id in self.secrets.ids() {
            if text.contains(id.as_str()) {
                text = text.replace(id.as_str(), &unused_id(id));
            }
        }
        text
    }
}

/// An unused id of the same kind.
fn unused_id(id: &str) -> String {
    let (prefix, digits) = id.rsplit_once('-').expect("an id");
    let bits = u32::from_str_radix(digits, 16).expect("digits");
    format!("{prefix}-{:08x}", bits ^ 0x5a5a_5a5a)
}

/// A response without the id of its request.
fn comparable(text: &str) -> Value {
    let mut answer: Value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    if let Some(members) = answer.as_object_mut() {
        members.remove("instance");
    }
    answer
}
