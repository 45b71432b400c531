//! HTTP client of the REST API.

mod new_login;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_api::Problem;
use evenkeel_kit::Secret;
use reqwest::{Method, RequestBuilder, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::Failure;
use crate::contexts::{Contexts, lock_renewals};
use crate::event_stream::EventStream;
use crate::failure::ProblemDetail;
use crate::http::{build_client, build_realm_client, invalid_server_address, parse_server_address};
use crate::login::oidc::expires_before;
use crate::login::{IssuedToken, Login};

/// Default URL of the server: the default listener of `evenkeeld`.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";
/// Project that a server creates at its first start.
pub const DEFAULT_PROJECT: &str = "default";

/// Maximum duration of a stream. Then the client opens another one.
const STREAM_TIMEOUT: Duration = Duration::from_hours(24);

/// How long before its end a token is renewed.
const RENEWAL_MARGIN: TimeDelta = TimeDelta::seconds(30);

/// Server, project and credentials of a [`Client`].
#[derive(Clone, Debug)]
pub struct Target {
    /// URL of the server.
    pub server: String,
    /// Project of the requests.
    pub project: String,
    /// Access token.
    pub token: Option<Secret>,
    /// How to renew the token when it expires.
    pub renewal: Option<Renewal>,
    /// CA certificate (PEM file) to verify the server; the system roots if missing.
    pub ca: Option<PathBuf>,
    /// How long to retry read requests while the server is unavailable.
    pub retry_for: Duration,
}

/// A login that can renew the token, and the context that stores it.
#[derive(Clone, Debug)]
pub struct Renewal {
    pub login: Login,
    /// File of the contexts.
    pub contexts: PathBuf,
    /// Name of the context.
    pub context: String,
}

impl Renewal {
    /// Stores a renewed token in the context. Reads the file again first, because other commands
    /// may have changed it: a context that has another login by now, or none, keeps it.
    fn save_token(&self, issued: &IssuedToken) -> Result<(), Failure> {
        let mut contexts = Contexts::load(&self.contexts)?;
        let mut all = contexts.contexts.iter_mut();
        let old_token = self.login.refresh_token.reveal();
        let is_same = |login: &Login| login.refresh_token.reveal() == old_token;
        if let Some(context) = all.find(|context| context.name == self.context)
            && context.login.as_ref().is_some_and(is_same)
        {
            context.token = Some(issued.token.clone());
            context.login.clone_from(&issued.login);
            contexts.save(&self.contexts)?;
        }
        Ok(())
    }
}

impl Renewal {
    /// The token and the login that another command has stored in the context since then.
    fn load_newer_token(&self) -> Option<(Secret, Login)> {
        let contexts = Contexts::load(&self.contexts).ok()?;
        let context = contexts.find_by_name(&self.context)?;
        let login = context.login.clone()?;
        let is_newer = login.realm == self.login.realm
            && login.username == self.login.username
            && login.refresh_token.reveal() != self.login.refresh_token.reveal();
        context.token.clone().filter(|_| is_newer).map(|token| (token, login))
    }
}

/// Client of the REST API.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    target: Target,
    session: Mutex<Session>,
}

/// Current credentials of the client.
#[derive(Debug)]
struct Session {
    token: Option<Secret>,
    renewal: Option<Renewal>,
    /// Why the renewed token could not be saved.
    save_error: Option<Failure>,
}

impl Client {
    pub fn new(mut target: Target) -> Result<Self, Failure> {
        let base = parse_server_address(&target.server)?;
        let session = Session {
            token: target.token.take(),
            renewal: target.renewal.take(),
            save_error: None,
        };
        Ok(Self {
            http: build_client(&base, target.ca.as_deref())?,
            base,
            target,
            session: Mutex::new(session),
        })
    }

    /// Project of the requests.
    pub fn project(&self) -> &str {
        &self.target.project
    }

    /// Reads a resource of the project.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.get_url(self.in_project(path)?).await
    }

    /// Reads a resource of the project with query parameters, such as `filter`.
    pub async fn get_with_params<T: DeserializeOwned>(
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

    /// Reads a resource outside of projects.
    pub async fn get_global<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, Failure> {
        self.get_url(self.url(path)?).await
    }

    /// Reads a resource outside of projects with query parameters.
    pub async fn get_global_with_params<T: DeserializeOwned>(
        &self,
        path: &[&str],
        params: &[(&'static str, String)],
    ) -> Result<T, Failure> {
        let mut url = self.url(path)?;
        if !params.is_empty() {
            url.query_pairs_mut().extend_pairs(params);
        }
        self.get_url(url).await
    }

    /// Creates a resource in the project.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.send(Method::POST, self.in_project(path)?, Some(body)).await
    }

    /// Changes a resource of the project.
    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.send(Method::PATCH, self.in_project(path)?, Some(body)).await
    }

    /// Creates or changes a resource outside of projects.
    pub async fn put_global<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.send(Method::PUT, self.url(path)?, Some(body)).await
    }

    /// As [`Self::put_global`], with query parameters.
    pub async fn put_global_with_params<T: DeserializeOwned>(
        &self,
        path: &[&str],
        params: &[(&'static str, &str)],
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let mut url = self.url(path)?;
        if !params.is_empty() {
            url.query_pairs_mut().extend_pairs(params);
        }
        self.send(Method::PUT, url, Some(body)).await
    }

    /// Creates a resource outside of projects.
    pub async fn post_global<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.send(Method::POST, self.url(path)?, Some(body)).await
    }

    /// Replaces a resource of the project.
    pub async fn replace<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.send(Method::PUT, self.in_project(path)?, Some(body)).await
    }

    /// Calls an action of a resource of the project.
    pub async fn put_empty(&self, path: &str) -> Result<(), Failure> {
        self.put_with_params(path, &[]).await
    }

    /// Calls an action of a resource of the project with query parameters.
    pub async fn put_with_params(
        &self,
        path: &str,
        params: &[(&'static str, String)],
    ) -> Result<(), Failure> {
        let mut url = self.in_project(path)?;
        if !params.is_empty() {
            url.query_pairs_mut().extend_pairs(params);
        }
        self.send::<serde_json::Value>(Method::PUT, url, None::<&()>).await.map(drop)
    }

    /// Deletes a resource of the project.
    pub async fn delete(&self, path: &str) -> Result<(), Failure> {
        let url = self.in_project(path)?;
        self.send::<serde_json::Value>(Method::DELETE, url, None::<&()>).await.map(drop)
    }

    /// Deletes a resource outside of projects, with query parameters.
    pub async fn delete_global(
        &self,
        path: &[&str],
        params: &[(&'static str, &str)],
    ) -> Result<(), Failure> {
        let mut url = self.url(path)?;
        if !params.is_empty() {
            url.query_pairs_mut().extend_pairs(params);
        }
        self.send::<serde_json::Value>(Method::DELETE, url, None::<&()>).await.map(drop)
    }

    fn in_project(&self, path: &str) -> Result<Url, Failure> {
        let mut segments = vec!["v1", "projects", &self.target.project];
        segments.extend(path.split('/'));
        self.url(&segments)
    }

    fn url(&self, segments: &[&str]) -> Result<Url, Failure> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| invalid_server_address(&self.target.server))?
            .pop_if_empty()
            .extend(segments);
        Ok(url)
    }

    /// Retries while the server is unavailable: read requests are idempotent.
    async fn get_url<T: DeserializeOwned>(&self, url: Url) -> Result<T, Failure> {
        let deadline = Instant::now() + self.target.retry_for;
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(2))
            .with_jitter()
            .without_max_times()
            .build();
        loop {
            let result = self.send(Method::GET, url.clone(), None::<&()>).await;
            let is_transient = matches!(
                result,
                Err(Failure::Unreachable { .. } | Failure::Refused { status: 503, .. })
            );
            let pause = pauses.next().unwrap_or(Duration::from_secs(2));
            if !is_transient || Instant::now() + pause > deadline {
                return result;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends a request. If the token has expired and can be renewed, sends it again with the new
    /// token: an unauthorised request has no effect.
    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        url: Url,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let result = self.send_once(method.clone(), url.clone(), body).await;
        let has_expired = matches!(result, Err(Failure::Refused { status: 401, .. }));
        // Boxed because it is rare and would enlarge the future of every request.
        if has_expired && Box::pin(self.renew_token()).await? {
            return self.send_once(method, url, body).await;
        }
        result
    }

    async fn send_once<T: DeserializeOwned>(
        &self,
        method: Method,
        url: Url,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let mut request = self.with_token(self.http.request(method, url));
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable = |source: reqwest::Error| Failure::Unreachable {
            server: self.target.server.clone(),
            // The message already contains the URL.
            source: source.without_url(),
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(unreachable)?;
        if (200..300).contains(&status) {
            let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
            return serde_json::from_slice(bytes)
                .map_err(|source| self.unreadable_response(source));
        }
        Err(self.error_response(status, &bytes))
    }

    /// Opens a stream of server-sent events of the project.
    pub async fn open_stream(
        &self,
        path: &str,
        params: &[(&'static str, String)],
    ) -> Result<EventStream, Failure> {
        self.open_stream_of(self.in_project(path)?, params).await
    }

    /// Opens a stream of server-sent events outside of projects.
    pub async fn open_global_stream(
        &self,
        path: &[&str],
        params: &[(&'static str, String)],
    ) -> Result<EventStream, Failure> {
        self.open_stream_of(self.url(path)?, params).await
    }

    async fn open_stream_of(
        &self,
        mut url: Url,
        params: &[(&'static str, String)],
    ) -> Result<EventStream, Failure> {
        url.query_pairs_mut().extend_pairs(params);
        let result = self.open_stream_once(url.clone()).await;
        let has_expired = matches!(result, Err(Failure::Refused { status: 401, .. }));
        if has_expired && Box::pin(self.renew_token()).await? {
            return self.open_stream_once(url).await;
        }
        result
    }

    async fn open_stream_once(&self, url: Url) -> Result<EventStream, Failure> {
        // The time limit of other requests would end the stream.
        let request = self.with_token(self.http.get(url)).timeout(STREAM_TIMEOUT);
        let unreachable = |source: reqwest::Error| Failure::Unreachable {
            server: self.target.server.clone(),
            source: source.without_url(),
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(EventStream::new(response));
        }
        let bytes = response.bytes().await.map_err(unreachable)?;
        Err(self.error_response(status, &bytes))
    }

    /// Renews the token if it expires soon.
    pub async fn renew_expiring_token(&self, now: DateTime<Utc>) {
        let expires_soon = {
            let session = self.session();
            let token = session.token.as_ref().filter(|_| session.renewal.is_some());
            token.is_some_and(|token| expires_before(token, now + RENEWAL_MARGIN))
        };
        if expires_soon {
            // The token is still valid. If it expires, the request renews it, and reports the error.
            let _ = Box::pin(self.renew_token()).await;
        }
    }

    /// Renews the token, if possible. Returns whether there is a new one.
    async fn renew_token(&self) -> Result<bool, Failure> {
        let Some(renewal) = self.session().renewal.clone() else {
            return Ok(false);
        };
        let _lock = lock_renewals(&renewal.contexts).await;
        if let Some((token, login)) = renewal.load_newer_token() {
            let renewal = Some(Renewal { login, ..renewal });
            *self.session() = Session { token: Some(token), renewal, save_error: None };
            return Ok(true);
        }
        let issued = match self.request_next_token(&renewal.login).await {
            Ok(issued) => issued,
            // The refresh token is no longer valid. The caller reports the 401 of the server.
            Err(Failure::Usage { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.use_token(renewal, issued);
        Ok(true)
    }

    /// Requests a new token from the identity provider of the login.
    async fn request_next_token(&self, login: &Login) -> Result<IssuedToken, Failure> {
        let http = build_realm_client(&login.realm, &self.base, self.target.ca.as_deref())?;
        login.renew(&http).await
    }

    /// Returns once why the renewed token could not be saved.
    pub fn take_save_error(&self) -> Option<Failure> {
        self.session().save_error.take()
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_token(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.session().token {
            Some(token) => request.bearer_auth(token.reveal()),
            None => request,
        }
    }

    /// Error for a response that cannot be parsed.
    pub fn unreadable_response(&self, source: serde_json::Error) -> Failure {
        Failure::Unreadable { server: self.target.server.clone(), source }
    }

    fn error_response(&self, status: u16, body: &[u8]) -> Failure {
        let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
        let message = if problem.message.is_empty() {
            let text = String::from_utf8_lossy(body);
            let line = text.lines().next().unwrap_or_default();
            format!("the server responded with HTTP status {status}: {line}")
        } else {
            problem.message
        };
        let detail = ProblemDetail { position: problem.position, hint: problem.hint };
        let has_detail = detail.position.is_some() || detail.hint.is_some();
        Failure::Refused {
            status,
            code: problem.code,
            message,
            field: problem.field,
            lacks_role: problem.kind == Problem::MISSING_ROLE_TYPE,
            detail: has_detail.then(|| Box::new(detail)),
            server: self.target.server.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::contexts::Context;

    fn login(refresh_token: &str) -> Login {
        Login {
            username: "alice".to_owned(),
            realm: "https://login.example".to_owned(),
            client: "cli".to_owned(),
            refresh_token: Secret::new(refresh_token),
            provider: None,
        }
    }

    /// Writes a file with the context `default`.
    fn save_context(path: &Path, login: Option<Login>) {
        let mut contexts = Contexts::default();
        contexts.upsert(Context {
            name: "default".to_owned(),
            server: DEFAULT_SERVER.to_owned(),
            project: None,
            ca: None,
            token: Some(Secret::new("next")),
            login,
        });
        contexts.save(path).unwrap();
    }

    #[test]
    fn a_renewed_token_replaces_only_the_login_that_it_renews() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("contexts.yaml");
        let renewal = Renewal {
            login: login("first"),
            contexts: path.clone(),
            context: "default".to_owned(),
        };
        let issued = IssuedToken { token: Secret::new("renewed"), login: Some(login("second")) };
        let other = Login { username: "bob".to_owned(), ..login("of bob") };
        for (stored, expected) in
            [(Some(login("first")), "renewed"), (Some(other), "next"), (None, "next")]
        {
            save_context(&path, stored.clone());
            renewal.save_token(&issued).unwrap();
            let contexts = Contexts::load(&path).unwrap();
            let token = contexts.contexts[0].token.as_ref().map(Secret::reveal);
            assert_eq!(token, Some(expected), "{stored:?}");
        }
    }

    #[test]
    fn a_token_that_another_command_has_renewed_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("contexts.yaml");
        save_context(&path, Some(login("second")));
        let newer = |login: Login| {
            let (contexts, context) = (path.clone(), "default".to_owned());
            let newer = Renewal { login, contexts, context }.load_newer_token();
            newer.map(|(token, login)| {
                [token, login.refresh_token].map(|secret| secret.reveal().to_owned())
            })
        };
        assert_eq!(newer(login("first")), Some(["next", "second"].map(str::to_owned)));
        assert_eq!(newer(login("second")), None);
        let other = Login { username: "bob".to_owned(), ..login("first") };
        assert_eq!(newer(other), None);
    }

    #[tokio::test]
    async fn only_one_command_renews_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("contexts.yaml");
        let lock = lock_renewals(&path).await;
        assert!(lock.is_some());
        let mut second = Box::pin(lock_renewals(&path));
        tokio::select! {
            biased;
            _ = &mut second => panic!("there are two locks"),
            () = tokio::task::yield_now() => {}
        }
        drop(lock);
        assert!(second.await.is_some());
        assert!(lock_renewals(&folder.path().join("none/contexts.yaml")).await.is_none());
    }
}
