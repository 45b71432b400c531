//! How a registry lets us in: with a user and a password, or with a token that somebody else gives for them.

use std::collections::{BTreeMap, HashMap};
use std::iter::Peekable;
use std::str::Chars;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

use super::send::{Ask, Sender, checked, elsewhere};
use crate::address::{Access, Credentials};
use crate::error::{Got, RegistryError, malformed};

/// How long a token is good for when nothing is said.
const UNSAID: u64 = 60;

/// The longest that a token is kept.
const LONGEST: u64 = 24 * 60 * 60;

/// How long before its end a token is not used any more.
const MARGIN: Duration = Duration::from_secs(10);

/// How many tokens are kept before those that are over are removed.
const MANY: usize = 1_000;

/// How a registry wants to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The scheme, in small letters.
    pub scheme: String,
    /// What is said with it; the names in small letters.
    pub said: BTreeMap<String, String>,
}

/// Reads the value of a `WWW-Authenticate`. Any text can be read; what is no challenge is passed over.
pub fn challenges(text: &str) -> Vec<Challenge> {
    let mut found: Vec<Challenge> = Vec::new();
    let mut rest = text.chars().peekable();
    while rest.peek().is_some() {
        let word = word(&mut rest);
        if word.is_empty() {
            // A comma, a space, or what should not be here.
            if rest.next() == Some('"') {
                quoted(&mut rest);
            }
            continue;
        }
        if rest.next_if_eq(&'=').is_none() {
            found.push(Challenge {
                scheme: word.to_ascii_lowercase(),
                said: BTreeMap::new(),
            });
            continue;
        }
        let value = if rest.next_if_eq(&'"').is_some() {
            quoted(&mut rest)
        } else {
            self::word(&mut rest)
        };
        if let Some(challenge) = found.last_mut() {
            challenge.said.insert(word.to_ascii_lowercase(), value);
        }
    }
    found
}

/// Takes all up to a space or a sign.
fn word(rest: &mut Peekable<Chars<'_>>) -> String {
    let is_inner = |c: &char| !c.is_whitespace() && !matches!(c, ',' | '=' | '"');
    std::iter::from_fn(|| rest.next_if(is_inner)).collect()
}

/// Takes all up to the closing quote.
fn quoted(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut text = String::new();
    while let Some(c) = rest.next() {
        match c {
            '"' => break,
            '\\' => text.extend(rest.next()),
            c => text.push(c),
        }
    }
    text
}

/// The challenges of an answer.
pub(super) fn challenges_in(headers: &HeaderMap) -> Vec<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(challenges)
        .collect()
}

/// What is known of how a registry lets us in.
#[derive(Debug)]
pub(super) struct Auth {
    credentials: Credentials,
    /// Whether one who gives tokens may be asked without TLS.
    plain_http: bool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The registry takes the user and the password themselves.
    takes_basic: bool,
    /// Tokens by what they give the right to.
    tokens: HashMap<String, Token>,
}

#[derive(Debug)]
struct Token {
    header: HeaderValue,
    until: Instant,
}

/// What one who gives tokens answers.
#[derive(Deserialize)]
struct Given {
    token: Option<SecretString>,
    access_token: Option<SecretString>,
    expires_in: Option<u64>,
}

impl Auth {
    /// Nothing is known yet.
    pub fn new(access: &Access, base: &Url) -> Self {
        Self {
            credentials: access.credentials.clone(),
            plain_http: access.plain_http && base.scheme() == "http",
            known: Mutex::default(),
        }
    }

    /// With what to ask, as far as is known.
    pub fn known(&self, scope: &str) -> Option<HeaderValue> {
        if let Credentials::Token(token) = &self.credentials {
            return bearer(token);
        }
        let known = self.lock();
        let token = known.tokens.get(scope);
        if let Some(token) = token.filter(|token| Instant::now() < token.until) {
            return Some(token.header.clone());
        }
        if known.takes_basic {
            basic(&self.credentials)
        } else {
            None
        }
    }

    /// Does not use the token for something any more.
    pub fn forget(&self, scope: &str) {
        self.lock().tokens.remove(scope);
    }

    /// With what to ask after the registry did not let us in.
    pub async fn answer(
        &self,
        sender: &Sender,
        challenges: &[Challenge],
        scope: &str,
    ) -> Got<HeaderValue> {
        if matches!(self.credentials, Credentials::Token(_)) {
            return Err(RegistryError::Denied);
        }
        let of = |scheme: &str| challenges.iter().find(|one| one.scheme == scheme);
        if let Some(challenge) = of("bearer") {
            return self.fetch(sender, challenge, scope).await;
        }
        let header = of("basic").and_then(|_| basic(&self.credentials));
        let header = header.ok_or(RegistryError::Denied)?;
        self.lock().takes_basic = true;
        Ok(header)
    }

    /// Asks the one that a challenge names for a token, once: whoever asks the registry tries again as a whole.
    async fn fetch(&self, sender: &Sender, challenge: &Challenge, scope: &str) -> Got<HeaderValue> {
        let ask = Ask::new(Method::GET, self.realm(challenge, scope)?);
        let credentials = basic(&self.credentials);
        let text = match given(sender, &ask, credentials.as_ref()).await {
            // That there is nobody who gives tokens does not mean that there is no such repository.
            Err(RegistryError::NotThere) => return Err(RegistryError::Denied),
            text => text?,
        };
        let given: Given = serde_json::from_slice(&text)
            // What is wrong with it is not told, for there may be a token in it.
            .map_err(|_| malformed("token", "the answer is not one with a token"))?;
        let token = given.token.or(given.access_token);
        let header = token.as_ref().and_then(bearer);
        let header = header.ok_or_else(|| malformed("token", "there is none in the answer"))?;
        let seconds = given.expires_in.unwrap_or(UNSAID).min(LONGEST);
        self.keep(scope, &header, Duration::from_secs(seconds));
        Ok(header)
    }

    /// Where to ask for a token.
    fn realm(&self, challenge: &Challenge, scope: &str) -> Got<Url> {
        let said = challenge.said.get("realm").map(String::as_str);
        let mut realm = said
            .and_then(|said| Url::parse(said).ok())
            .ok_or_else(|| malformed("challenge", "it names nobody who gives tokens"))?;
        let may = match realm.scheme() {
            "https" => realm.has_host(),
            "http" => self.plain_http && realm.has_host(),
            _ => false,
        };
        let is_named = !realm.username().is_empty() || realm.password().is_some();
        if !may || is_named {
            return Err(elsewhere(&realm));
        }
        let wanted = challenge.said.get("scope").map_or(scope, String::as_str);
        let mut pairs = realm.query_pairs_mut();
        if let Some(service) = challenge.said.get("service") {
            pairs.append_pair("service", service);
        }
        pairs.append_pair("scope", wanted);
        drop(pairs);
        Ok(realm)
    }

    fn keep(&self, scope: &str, header: &HeaderValue, good_for: Duration) {
        let now = Instant::now();
        let token = Token {
            header: header.clone(),
            until: now + good_for.saturating_sub(MARGIN),
        };
        let mut known = self.lock();
        if known.tokens.len() >= MANY {
            known.tokens.retain(|_, token| now < token.until);
        }
        known.tokens.insert(scope.to_owned(), token);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks for a token once.
async fn given(sender: &Sender, ask: &Ask, credentials: Option<&HeaderValue>) -> Got<Bytes> {
    let answer = checked(sender.once(ask, credentials).await?)?;
    sender.read(answer, sender.limits.token).await
}

/// A token as it is sent.
fn bearer(token: &SecretString) -> Option<HeaderValue> {
    let token = token.expose_secret();
    (!token.is_empty()).then(|| sensitive(&format!("Bearer {token}")))?
}

/// The value of a header that is not shown.
fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The user and the password as they are sent.
fn basic(credentials: &Credentials) -> Option<HeaderValue> {
    let Credentials::Basic { username, password } = credentials else {
        return None;
    };
    let pair = STANDARD.encode(format!("{username}:{}", password.expose_secret()));
    sensitive(&format!("Basic {pair}"))
}

/// With what to ask the registry's own host for a file, where nobody gives tokens.
pub(super) fn beforehand(credentials: &Credentials) -> Option<HeaderValue> {
    match credentials {
        Credentials::Token(token) => bearer(token),
        Credentials::None | Credentials::Basic { .. } => basic(credentials),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(text: &str) -> Vec<(String, Vec<(String, String)>)> {
        challenges(text)
            .into_iter()
            .map(|one| (one.scheme, one.said.into_iter().collect()))
            .collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn a_challenge_is_read_as_registries_write_it() {
        let text = r#"Bearer realm="https://auth.example/token",service="a registry",scope="repository:a/b:pull,push""#;
        assert_eq!(
            said(text),
            [(
                "bearer".to_owned(),
                vec![
                    pair("realm", "https://auth.example/token"),
                    pair("scope", "repository:a/b:pull,push"),
                    pair("service", "a registry"),
                ]
            )]
        );
        assert_eq!(
            said("Basic realm=\"a \\\"quoted\\\" one\""),
            [("basic".to_owned(), vec![pair("realm", "a \"quoted\" one")])]
        );
    }

    #[test]
    fn several_challenges_in_one_text_are_kept_apart() {
        let text = r#"Negotiate, Basic realm="a", BEARER Realm=b , service=c"#;
        assert_eq!(
            said(text),
            [
                ("negotiate".to_owned(), vec![]),
                ("basic".to_owned(), vec![pair("realm", "a")]),
                (
                    "bearer".to_owned(),
                    vec![pair("realm", "b"), pair("service", "c")]
                ),
            ]
        );
    }

    #[test]
    fn what_is_no_challenge_is_passed_over() {
        assert!(said("").is_empty());
        assert!(said(" , , ").is_empty());
        assert!(said("=\"a\"").is_empty());
        assert!(said("a=b").is_empty());
        assert_eq!(said("Bearer realm=\"open").len(), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC*") {
            challenges(&text);
        }

        #[test]
        fn any_text_of_signs_is_read(text in "[a \",=\\\\]*") {
            challenges(&text);
        }
    }
}
