//! Somebody of one project, who wants to get at the other one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::attempts::{Attempt, LISTS, Wanted};
use super::dice::Dice;
use super::secrets::Secrets;
use super::side::Side;
use crate::house::{House, Things, read, text_of};
use crate::statuses::operations;

/// How many ask at the same time.
pub const AT_ONCE: usize = 6;

/// Of so many attempts one is made again with ids that nobody has.
const TWINS: usize = 6;

/// Somebody of one project, and what is to be had of the other one.
pub struct World<'a> {
    pub house: &'a House,
    pub attacker: &'a Side,
    pub victim: &'a Side,
    pub secrets: Secrets,
    /// Those that are about a project.
    pub operations: Vec<(String, String, Value)>,
    /// Lists of the other project, where their first page ended, and whether that only counts.
    pub tokens: Vec<(String, String, bool)>,
    /// How much there is in the attacker's lists.
    totals: BTreeMap<&'static str, u64>,
    /// How many answers were compared with those about nothing.
    pub compared: AtomicUsize,
}

impl<'a> World<'a> {
    pub async fn new(house: &'a House, attacker: &'a Side, victim: &'a Side) -> Self {
        let mut operations = operations();
        operations.retain(|(_, path, _)| path.contains("{projectName}"));
        let (mut totals, mut tokens) = (BTreeMap::new(), Vec::new());
        for (list, _) in LISTS {
            let page = page(house, attacker, &format!("{list}?pageSize=1")).await;
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
            let page = page(house, victim, &list).await;
            let token = page["nextPageToken"].as_str().expect("a text");
            assert!(!token.is_empty(), "{list} is too short");
            ended.push((list, token.to_owned(), is_numbered));
        }
        Self {
            house,
            attacker,
            victim,
            secrets: Secrets::of(victim, attacker, house).await,
            operations,
            tokens: ended,
            totals,
            compared: AtomicUsize::new(0),
        }
    }

    /// Some of the attacker's things.
    pub fn own(&self, dice: &mut Dice) -> &'a Things {
        dice.pick(&self.attacker.things)
    }

    /// Some of the other project's things.
    pub fn other(&self, dice: &mut Dice) -> &'a Things {
        dice.pick(&self.victim.things)
    }

    /// How much there is in a list of the attacker.
    pub fn total(&self, list: &str) -> u64 {
        self.totals[list]
    }

    /// Tries all of it: what went wrong.
    pub async fn try_all(&self, attempts: &[Attempt]) -> Vec<String> {
        let tries = stream::iter(attempts.iter().enumerate())
            .map(|(n, attempt)| self.try_one(attempt, n % TWINS == 0))
            .buffer_unordered(AT_ONCE);
        let wrong: Vec<Option<String>> = tries.collect().await;
        wrong.into_iter().flatten().collect()
    }

    async fn try_one(&self, attempt: &Attempt, with_twin: bool) -> Option<String> {
        let (status, text) = self.ask(attempt).await;
        if let Some(why) = self.wrong(attempt, status, &text) {
            return Some(format!("{}: {status} {why}", attempt.said()));
        }
        let twin = with_twin.then(|| self.twin(attempt)).flatten()?;
        let (of_nobody, told) = self.ask(&twin).await;
        self.compared.fetch_add(1, Ordering::Relaxed);
        let same = status == of_nobody && comparable(&self.of_nobody(&text)) == comparable(&told);
        (!same).then(|| format!("{}: {status} {text}, but {told}", attempt.said()))
    }

    async fn ask(&self, attempt: &Attempt) -> (StatusCode, String) {
        let token = self.attacker.token.as_str();
        let project = attempt.project.as_deref();
        let answer = self
            .house
            .ask_with(Some(token), project, &attempt.what, attempt.body.clone());
        text_of(answer.await).await
    }

    /// What is wrong with an answer.
    fn wrong(&self, attempt: &Attempt, status: StatusCode, text: &str) -> Option<String> {
        // Who is refused may read again what they said; a success says nothing of the other project at all.
        let said = if status.is_success() {
            String::new()
        } else {
            attempt.said()
        };
        if let Some(secret) = self.secrets.told_in(text, &said) {
            return Some(format!("tells {secret}: {text}"));
        }
        let is_right = match &attempt.wanted {
            Wanted::Status(wanted) => status.as_u16() == *wanted,
            Wanted::Refused => status.is_client_error(),
            Wanted::Saying(wanted) => status.is_success() && text.contains(wanted),
            Wanted::Anything => status.is_success() || status.is_client_error(),
        };
        (!is_right).then(|| format!("is not {:?}: {text}", attempt.wanted))
    }

    /// The same about things that are nobody's, if it is about things of the other project: what is refused or found
    /// empty must look the same. What succeeds shows one's own things, which others change meanwhile.
    fn twin(&self, attempt: &Attempt) -> Option<Attempt> {
        if matches!(attempt.wanted, Wanted::Status(200) | Wanted::Anything) {
            return None;
        }
        let body = attempt.body.as_ref().map(Value::to_string);
        let body = body.map(|body| self.of_nobody(&body));
        let twin = Attempt {
            what: self.of_nobody(&attempt.what),
            body: body.map(|body| serde_json::from_str(&body).expect("JSON")),
            ..attempt.clone()
        };
        let is_other = twin.what != attempt.what || twin.body != attempt.body;
        is_other.then_some(twin)
    }

    /// A text with ids that nobody has in the place of those of the other project.
    fn of_nobody(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for id in self.secrets.ids() {
            if text.contains(id.as_str()) {
                text = text.replace(id.as_str(), &nobodys(id));
            }
        }
        text
    }
}

/// An id of the same kind that nobody has.
fn nobodys(id: &str) -> String {
    let (prefix, digits) = id.rsplit_once('-').expect("an id");
    let bits = u32::from_str_radix(digits, 16).expect("digits");
    format!("{prefix}-{:08x}", bits ^ 0x5a5a_5a5a)
}

/// A page of a list, as the people of its project see it.
async fn page(house: &House, side: &Side, list: &str) -> Value {
    let what = format!("GET /v1/projects/{}/{list}", side.name);
    let token = Some(side.token.as_str());
    let answer = house.ask_with(token, None, &what, None).await;
    let (status, page) = read(answer).await;
    assert_eq!(status, StatusCode::OK, "{what}: {page}");
    page
}

/// An answer without the id of its request.
fn comparable(text: &str) -> Value {
    let mut answer: Value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    if let Some(members) = answer.as_object_mut() {
        members.remove("instance");
    }
    answer
}
