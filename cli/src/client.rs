//! Asks the server.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use evenkeel_api::Problem;
use evenkeel_kit::Secret;
use reqwest::{Certificate, Method, RequestBuilder, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::Failure;
use crate::contexts::Contexts;
use crate::failure::Detail;
use crate::login::{Fresh, Login};

/// Where and as whom to ask.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where the server is.
    pub server: String,
    /// The project that commands are about.
    pub project: String,
    /// With what to log in.
    pub token: Option<Secret>,
    /// How to get the next token when that one is over.
    pub renewal: Option<Renewal>,
    /// The only authority that may vouch for the server, as a PEM file.
    pub ca: Option<PathBuf>,
    /// How long to ask again when nobody answers.
    pub retry_for: Duration,
}

/// A login that can be renewed, and the context that keeps it.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// The login.
    pub login: Login,
    /// The file of the contexts.
    pub contexts: PathBuf,
    /// The name of the context.
    pub context: String,
}

impl Renewal {
    /// Keeps what the identity provider gave for the next command. Other commands change the file as well, so it is read
    /// again.
    fn keep(&self, fresh: &Fresh) -> Result<(), Failure> {
        let mut contexts = Contexts::load(&self.contexts)?;
        let mut all = contexts.contexts.iter_mut();
        if let Some(context) = all.find(|context| context.name == self.context) {
            context.token = Some(fresh.token.clone());
            context.login.clone_from(&fresh.login);
            contexts.save(&self.contexts)?;
        }
        Ok(())
    }
}

/// Asks the server.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    target: Target,
    session: Mutex<Session>,
}

/// With what the server is asked now.
#[derive(Debug)]
struct Session {
    token: Option<Secret>,
    renewal: Option<Renewal>,
    /// Why the token could not be kept.
    unkept: Option<Failure>,
}

impl Client {
    pub fn new(mut target: Target) -> Result<Self, Failure> {
        let base = parse_server(&target.server)?;
        let session = Session {
            token: target.token.take(),
            renewal: target.renewal.take(),
            unkept: None,
        };
        Ok(Self {
            http: connection(&base, target.ca.as_deref())?,
            base,
            target,
            session: Mutex::new(session),
        })
    }

    /// The project that commands are about.
    pub fn project(&self) -> &str {
        &self.target.project
    }

    /// Reads something of the project.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.get_url(self.in_project(path)?).await
    }

    /// Reads something of the project as parameters say, such as `filter`.
    pub async fn get_with<T: DeserializeOwned>(
        &self,
        path: &str,
        params: &[(&'static str, String)],
    ) -> Result<T, Failure> {
        let mut url = self.in_project(path)?;
        if !params.is_empty() {
            url.query_pairs_mut().extend_pairs(params);
        }
        self.get_url(url).await
    }

    /// Reads something that belongs to no project.
    pub async fn get_global<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, Failure> {
        self.get_url(self.url(path)?).await
    }

    /// Makes something in the project.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.send(Method::POST, self.in_project(path)?, Some(body))
            .await
    }

    /// Changes something of the project.
    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.send(Method::PATCH, self.in_project(path)?, Some(body))
            .await
    }

    /// Makes or changes something that belongs to no project.
    pub async fn put_global<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.send(Method::PUT, self.url(path)?, Some(body)).await
    }

    /// Puts something of the project in its place.
    pub async fn replace<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.send(Method::PUT, self.in_project(path)?, Some(body))
            .await
    }

    /// Does something to a thing of the project.
    pub async fn put(&self, path: &str) -> Result<(), Failure> {
        self.put_with(path, &[]).await
    }

    /// Does something to a thing of the project as parameters say.
    pub async fn put_with(
        &self,
        path: &str,
        params: &[(&'static str, String)],
    ) -> Result<(), Failure> {
        let mut url = self.in_project(path)?;
        if !params.is_empty() {
            url.query_pairs_mut().extend_pairs(params);
        }
        self.send::<serde_json::Value>(Method::PUT, url, None::<&()>)
            .await
            .map(drop)
    }

    /// Deletes something of the project.
    pub async fn delete(&self, path: &str) -> Result<(), Failure> {
        let url = self.in_project(path)?;
        self.send::<serde_json::Value>(Method::DELETE, url, None::<&()>)
            .await
            .map(drop)
    }

    /// Deletes something that belongs to no project, as parameters say.
    pub async fn delete_global(
        &self,
        path: &[&str],
        params: &[(&'static str, &str)],
    ) -> Result<(), Failure> {
        let mut url = self.url(path)?;
        if !params.is_empty() {
            url.query_pairs_mut().extend_pairs(params);
        }
        self.send::<serde_json::Value>(Method::DELETE, url, None::<&()>)
            .await
            .map(drop)
    }

    fn in_project(&self, path: &str) -> Result<Url, Failure> {
        let mut segments = vec!["v1", "projects", &self.target.project];
        segments.extend(path.split('/'));
        self.url(&segments)
    }

    fn url(&self, segments: &[&str]) -> Result<Url, Failure> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| bad_server(&self.target.server))?
            .pop_if_empty()
            .extend(segments);
        Ok(url)
    }

    /// Reading again does no harm, so it is tried again while nobody answers.
    async fn get_url<T: DeserializeOwned>(&self, url: Url) -> Result<T, Failure> {
        let deadline = Instant::now() + self.target.retry_for;
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(2))
            .with_jitter()
            .without_max_times()
            .build();
        loop {
            let answer = self.send(Method::GET, url.clone(), None::<&()>).await;
            let may_pass = matches!(
                answer,
                Err(Failure::Unreachable { .. } | Failure::Refused { status: 503, .. })
            );
            let pause = pauses.next().unwrap_or(Duration::from_secs(2));
            if !may_pass || Instant::now() + pause > deadline {
                return answer;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends a request. If the token is over and there is a way to a new one, it is sent again with that: a request that
    /// was not authorised has done nothing.
    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        url: Url,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let answer = self.send_once(method.clone(), url.clone(), body).await;
        let is_over = matches!(answer, Err(Failure::Refused { status: 401, .. }));
        // Rarely done, so it need not make every other request larger.
        if is_over && Box::pin(self.renew()).await? {
            return self.send_once(method, url, body).await;
        }
        answer
    }

    async fn send_once<T: DeserializeOwned>(
        &self,
        method: Method,
        url: Url,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let mut request = self.authorised(self.http.request(method, url));
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable = |source: reqwest::Error| Failure::Unreachable {
            server: self.target.server.clone(),
            // The address is in the message already.
            source: source.without_url(),
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(unreachable)?;
        if (200..300).contains(&status) {
            let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
            return serde_json::from_slice(bytes).map_err(|source| self.unreadable(source));
        }
        Err(self.refused(status, &bytes))
    }

    /// Gets the next token, if there is a way to it. Returns whether there is a new one now.
    async fn renew(&self) -> Result<bool, Failure> {
        let Some(renewal) = self.session().renewal.clone() else {
            return Ok(false);
        };
        let fresh = match self.next_token(&renewal.login).await {
            Ok(fresh) => fresh,
            // Then the person has to log in again, as what the server said tells.
            Err(Failure::Usage { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        // The token is as good for this command if the next one has to get its own.
        let unkept = renewal.keep(&fresh).err();
        let login = fresh.login;
        *self.session() = Session {
            token: Some(fresh.token),
            renewal: login.map(|login| Renewal { login, ..renewal }),
            unkept,
        };
        Ok(true)
    }

    /// Gets the next token where somebody logged in.
    async fn next_token(&self, login: &Login) -> Result<Fresh, Failure> {
        let http = realm_connection(&login.realm, &self.base, self.target.ca.as_deref())?;
        login.renew(&http).await
    }

    /// Why the token that was got meanwhile is not kept for the next command, once.
    pub fn unkept(&self) -> Option<Failure> {
        self.session().unkept.take()
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn authorised(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.session().token {
            Some(token) => request.bearer_auth(token.reveal()),
            None => request,
        }
    }

    /// Says that an answer cannot be read.
    pub fn unreadable(&self, source: serde_json::Error) -> Failure {
        Failure::Unreadable {
            server: self.target.server.clone(),
            source,
        }
    }

    fn refused(&self, status: u16, body: &[u8]) -> Failure {
        let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
        let message = if problem.message.is_empty() {
            let text = String::from_utf8_lossy(body);
            let line = text.lines().next().unwrap_or_default();
            format!("the server answered with status {status}: {line}")
        } else {
            problem.message
        };
        let detail = Detail {
            position: problem.position,
            hint: problem.hint,
        };
        let is_known = detail.position.is_some() || detail.hint.is_some();
        Failure::Refused {
            status,
            code: problem.code,
            message,
            field: problem.field,
            detail: is_known.then(|| Box::new(detail)),
            server: self.target.server.clone(),
        }
    }
}

/// Sets up the connection to the realm of an identity provider. The authority that was given for a server vouches for the
/// realm only if the server itself serves it.
pub fn realm_connection(
    realm: &str,
    server: &Url,
    ca: Option<&Path>,
) -> Result<reqwest::Client, Failure> {
    let realm = parse_server(realm)?;
    let is_own = realm.origin() == server.origin();
    connection(&realm, ca.filter(|_| is_own))
}

/// Sets up the connection to an address.
fn connection(base: &Url, ca: Option<&Path>) -> Result<reqwest::Client, Failure> {
    // An error means that the program has chosen one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(30))
        .redirect(reqwest::redirect::Policy::none());
    if is_loopback(base) {
        builder = builder.no_proxy();
    }
    if let Some(path) = ca {
        builder = builder.tls_certs_only(read_ca(path)?);
    }
    builder.build().map_err(Failure::Setup)
}

fn bad_server(text: &str) -> Failure {
    Failure::usage_with(
        format!("`{text}` is not the address of a server"),
        "an address looks like http://127.0.0.1:8080 or https://updates.example.org",
    )
}

/// Reads the address of a server.
pub fn parse_server(text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text).map_err(|_| bad_server(text))?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        Ok(url)
    } else {
        Err(bad_server(text))
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

fn read_ca(path: &Path) -> Result<Vec<Certificate>, Failure> {
    let pem = std::fs::read(path).map_err(|source| Failure::File {
        path: path.to_owned(),
        source,
    })?;
    Certificate::from_pem_bundle(&pem).map_err(|source| Failure::Content {
        path: path.to_owned(),
        expected: "a file of certificates",
        source: Box::new(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "https://updates.example.org/realms/master";

    fn server(text: &str) -> Url {
        parse_server(text).expect("an address")
    }

    #[test]
    fn the_authority_of_a_server_vouches_for_its_own_realm_alone() {
        let server = server("https://updates.example.org:443");
        let ca = Some(Path::new("/does/not/exist.pem"));
        for elsewhere in [
            "https://keycloak.example.org/realms/master",
            "https://updates.example.org:8443/realms/master",
        ] {
            let http = realm_connection(elsewhere, &server, ca);
            assert!(http.is_ok(), "the file is not even read: {http:?}");
        }
        let http = realm_connection(OWN, &server, ca);
        assert!(matches!(http, Err(Failure::File { .. })), "{http:?}");
    }

    #[test]
    fn the_address_of_the_realm_says_whether_there_may_be_a_proxy() {
        let may_have_proxy = |realm: &str, at: &str| {
            let http = realm_connection(realm, &server(at), None).expect("a connection");
            format!("{http:?}").contains("proxies")
        };
        let here = "http://127.0.0.1:8080/realms/master";
        assert!(may_have_proxy(OWN, "http://127.0.0.1:8080"));
        assert!(!may_have_proxy(here, "https://updates.example.org"));
    }
}
