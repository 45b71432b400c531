//! Logins by name: a token of an identity provider, and the next one when that is over.

use evenkeel_kit::Secret;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Response, Url};
use serde::{Deserialize, Serialize, Serializer};

use crate::Failure;
use crate::client::parse_server;

/// As which client people log in; the ancestor's command line calls itself so.
pub const CLIENT: &str = "system-client";

/// How a token was got, and how the next one is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Login {
    /// Who logged in.
    pub username: String,
    /// Where the realm of the identity provider is.
    pub realm: String,
    /// As which client.
    pub client: String,
    /// With what the next token is got.
    #[serde(serialize_with = "reveal")]
    pub refresh_token: Secret,
}

fn reveal<S: Serializer>(token: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(token.reveal())
}

/// Where and as whom to log in.
#[derive(Clone, Debug)]
pub struct Person {
    /// Who logs in.
    pub username: String,
    /// Where the realm of the identity provider is.
    pub realm: String,
    /// As which client.
    pub client: String,
}

/// What an identity provider gave.
#[derive(Clone, Debug)]
pub struct Fresh {
    /// The token.
    pub token: Secret,
    /// How the next one is got; none if the provider gave nothing for that.
    pub login: Option<Login>,
}

impl Person {
    /// Logs in with a password.
    pub(crate) async fn log_in(self, http: &Client, password: &Secret) -> Result<Fresh, Failure> {
        let form = [
            ("client_id", self.client.as_str()),
            ("grant_type", "password"),
            ("username", self.username.as_str()),
            ("password", password.reveal()),
        ];
        let tokens = ask(http, &self.realm, &form).await?;
        Ok(tokens.of(self))
    }
}

impl Login {
    /// Gets the next token. What is no longer taken is a [`Failure::Usage`]: the person must log in again.
    pub(crate) async fn renew(&self, http: &Client) -> Result<Fresh, Failure> {
        let form = [
            ("client_id", self.client.as_str()),
            ("grant_type", "refresh_token"),
            ("refresh_token", self.refresh_token.reveal()),
        ];
        let mut tokens = ask(http, &self.realm, &form).await?;
        // A provider that gives no new one still takes the old one.
        let old = || self.refresh_token.clone();
        tokens.refresh_token.get_or_insert_with(old);
        Ok(tokens.of(Person {
            username: self.username.clone(),
            realm: self.realm.clone(),
            client: self.client.clone(),
        }))
    }
}

/// The realm that a server of ours serves itself.
pub fn own_realm(server: &str) -> Result<String, Failure> {
    below(server, &["realms", "master"]).map(String::from)
}

fn below(address: &str, parts: &[&str]) -> Result<Url, Failure> {
    let mut url = parse_server(address)?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(parts);
    }
    Ok(url)
}

/// What a provider answers.
#[derive(Deserialize)]
struct Tokens {
    access_token: Secret,
    #[serde(default)]
    refresh_token: Option<Secret>,
}

impl Tokens {
    fn of(self, person: Person) -> Fresh {
        let login = self.refresh_token.map(|refresh_token| Login {
            username: person.username,
            realm: person.realm,
            client: person.client,
            refresh_token,
        });
        Fresh {
            token: self.access_token,
            login,
        }
    }
}

async fn ask(http: &Client, realm: &str, form: &[(&str, &str)]) -> Result<Tokens, Failure> {
    let url = below(realm, &["protocol", "openid-connect", "token"])?;
    // A form has the form of the parameters of an address.
    let mut shaped = url.clone();
    shaped.query_pairs_mut().clear().extend_pairs(form);
    let request = http
        .post(url)
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(shaped.query().unwrap_or_default().to_owned());
    let unreachable = |source: reqwest::Error| Failure::Unreachable {
        server: realm.to_owned(),
        // The address is in the message already.
        source: source.without_url(),
    };
    let response = request.send().await.map_err(unreachable)?;
    if !response.status().is_success() {
        return Err(refused(realm, response).await);
    }
    let bytes = response.bytes().await.map_err(unreachable)?;
    serde_json::from_slice(&bytes).map_err(|source| Failure::Unreadable {
        server: realm.to_owned(),
        source,
    })
}

/// What a provider says when it gives no token.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    error: String,
    error_description: String,
}

async fn refused(realm: &str, response: Response) -> Failure {
    let status = response.status().as_u16();
    let wait = response.headers().get(RETRY_AFTER);
    let wait = wait.and_then(|wait| wait.to_str().ok()).map(str::to_owned);
    let said = response.bytes().await.unwrap_or_default();
    let said: Refusal = serde_json::from_slice(&said).unwrap_or_default();
    let why = [said.error_description, said.error]
        .into_iter()
        .find(|text| !text.is_empty());
    match status {
        400 | 401 | 403 => Failure::usage_with(
            why.unwrap_or_else(|| "the name or the password is wrong".to_owned()),
            "look at the name and the password; after several attempts that failed the server waits longer each time",
        ),
        404 | 405 => Failure::usage_with(
            format!("nobody can log in by name at {realm}"),
            "the server has no file of users: log in with a token (`evenkeel login --token-file FILE`), or name \
             another identity provider with --realm",
        ),
        429 => Failure::usage_with(
            why.unwrap_or_else(|| "there were too many attempts to log in".to_owned()),
            wait.map_or_else(
                || "try again in a moment".to_owned(),
                |wait| format!("try again in {wait} seconds"),
            ),
        ),
        status => Failure::Refused {
            status,
            code: String::new(),
            message: why.unwrap_or_else(|| format!("{realm} answered with status {status}")),
            field: None,
            detail: None,
            server: realm.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_realm_of_a_server_lies_below_its_address() {
        let realm = |server| own_realm(server).expect("an address");
        let expected = "http://127.0.0.1:8080/realms/master";
        assert_eq!(realm("http://127.0.0.1:8080"), expected);
        assert_eq!(realm("http://127.0.0.1:8080/"), expected);
        let deeper = "https://example.org/evenkeel/realms/master";
        assert_eq!(realm("https://example.org/evenkeel"), deeper);
    }
}
