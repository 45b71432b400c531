//! Login in a browser: authorization code with PKCE.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use reqwest::Url;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::form::{OauthError, bad_response, refused, send_form};
use super::loopback::{AuthorizationResponse, LoopbackListener};
use super::tokens::ProviderTokens;
use super::{ProviderClient, ProviderSettings};
use crate::login::IssuedToken;
use crate::{Failure, System};

/// How to log in with a browser.
#[derive(Clone, Copy, Debug)]
pub struct BrowserOptions {
    /// Whether to open the browser. Otherwise only the address is printed.
    pub open_browser: bool,
    /// How long to wait for the user.
    pub timeout: Duration,
}

/// A login that the user continues in the browser.
#[derive(Debug)]
struct AuthorizationRequest {
    /// Identifies the response to this request.
    state: String,
    /// Identifies the ID token of this request.
    nonce: String,
    /// Proves at the token endpoint that the code was requested here (RFC 7636).
    code_verifier: String,
}

impl AuthorizationRequest {
    fn new() -> Result<Self, Failure> {
        Ok(Self { state: random_text()?, nonce: random_text()?, code_verifier: random_text()? })
    }

    /// Address of the page of the provider.
    fn url(&self, page: &Url, settings: &ProviderSettings, redirect_uri: &str) -> Url {
        let scope = settings.scope();
        let code_challenge = code_challenge(&self.code_verifier);
        let mut url = page.clone();
        let mut query = url.query_pairs_mut();
        query.extend_pairs([
            ("response_type", "code"),
            ("client_id", settings.client_id.as_str()),
            ("redirect_uri", redirect_uri),
            ("scope", scope.as_str()),
            ("state", self.state.as_str()),
            ("nonce", self.nonce.as_str()),
            ("code_challenge", code_challenge.as_str()),
            ("code_challenge_method", "S256"),
        ]);
        if settings.scopes.iter().any(|scope| scope == "offline_access") {
            // Without the consent of the user, the provider ignores this scope (OpenID Connect Core 1.0,
            // section 11).
            query.append_pair("prompt", "consent");
        }
        drop(query);
        url
    }
}

/// The code challenge (S256) for a code verifier.
pub fn code_challenge(code_verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(code_verifier.as_bytes()))
}

/// A random text with 256 bits, as the code verifier of PKCE must have.
pub fn random_text() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    OsRng.try_fill_bytes(&mut bytes).map_err(|error| {
        Failure::usage(format!("cannot create a random number for the login: {error}"))
    })?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

impl ProviderClient<'_> {
    /// Logs in with a browser on this machine.
    pub async fn log_in_with_browser(
        &self,
        options: BrowserOptions,
        system: &mut System<'_>,
    ) -> Result<IssuedToken, Failure> {
        let issuer = &self.settings.issuer;
        let page = self.metadata.authorization_endpoint.as_ref();
        let page = page.filter(|_| !self.metadata.lacks_s256).ok_or_else(|| {
            Failure::usage_with(
                format!("{issuer} does not support logins in a browser with PKCE (S256)"),
                "use --device, if the provider supports it",
            )
        })?;
        let listener = LoopbackListener::bind().await.map_err(|error| {
            Failure::usage_with(
                format!("cannot receive the response of {issuer} on a port of 127.0.0.1: {error}"),
                "use --device, if the provider supports it",
            )
        })?;
        let request = AuthorizationRequest::new()?;
        let address = request.url(page, &self.settings, listener.redirect_uri());
        show_address(&address, options, system)?;
        let received = timeout(options.timeout, listener.receive(&request.state)).await;
        let response = received.map_err(|_| timed_out(issuer, options.timeout))?;
        let code = self.check_response(response)?;
        let form = [
            ("grant_type", "authorization_code"),
            ("client_id", self.settings.client_id.as_str()),
            ("code", code.as_str()),
            ("redirect_uri", listener.redirect_uri()),
            ("code_verifier", request.code_verifier.as_str()),
        ];
        let response = send_form(self.http, issuer, &self.metadata.token_endpoint, &form).await?;
        let tokens: ProviderTokens = response.into_content(issuer)?;
        self.accept_tokens(tokens, Some(&request.nonce), system.clock.now())
    }

    /// The code of a response, if this provider sent it.
    fn check_response(&self, response: AuthorizationResponse) -> Result<String, Failure> {
        let issuer = &self.settings.issuer;
        match &response.iss {
            Some(iss) if iss != issuer => {
                return Err(bad_response(issuer, &format!("another provider sent it: {iss:?}")));
            }
            None if self.metadata.sends_iss => {
                return Err(bad_response(issuer, "it does not name its issuer (iss)"));
            }
            _ => {}
        }
        let AuthorizationResponse { code, error, error_description, .. } = response;
        code.ok_or_else(|| refused(issuer, &OauthError { error, error_description }))
    }
}

/// Opens the browser, and prints the address for the case that it does not open.
fn show_address(
    address: &Url,
    options: BrowserOptions,
    system: &mut System<'_>,
) -> Result<(), Failure> {
    let is_open = options.open_browser && (system.open_browser)(address.as_str());
    let text = if is_open {
        "continue in the browser; if no window opens, open this address:"
    } else {
        "open this address in a browser on this machine:"
    };
    writeln!(system.notes, "{text}\n  {address}")?;
    Ok(system.notes.flush()?)
}

/// Error of a login that the user did not finish.
pub fn timed_out(issuer: &str, limit: Duration) -> Failure {
    Failure::usage_with(
        format!(
            "the login at {issuer} was not finished within {}",
            humantime::format_duration(limit)
        ),
        "repeat the login; --timeout waits longer, --device logs in with a browser on another machine",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_has_a_challenge_for_its_verifier() {
        let page = Url::parse("https://login.example/auth?realm=1").unwrap();
        let settings = |scopes: &[&str]| ProviderSettings {
            issuer: "https://login.example".to_owned(),
            client_id: "our cli".to_owned(),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            audience: None,
        };
        // The example of RFC 7636, appendix B.
        let request = AuthorizationRequest {
            state: "s".to_owned(),
            nonce: "n".to_owned(),
            code_verifier: "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".to_owned(),
        };
        let redirect_uri = "http://127.0.0.1:9/callback";
        let url = request.url(&page, &settings(&["openid", "groups"]), redirect_uri);
        assert_eq!(
            url.as_str(),
            "https://login.example/auth?realm=1&response_type=code&client_id=our+cli\
             &redirect_uri=http%3A%2F%2F127.0.0.1%3A9%2Fcallback&scope=openid+groups&state=s&nonce=n\
             &code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&code_challenge_method=S256"
        );
        let url = request.url(&page, &settings(&["offline_access"]), redirect_uri);
        assert!(url.as_str().ends_with("&prompt=consent"), "{url}");
    }

    #[test]
    fn random_texts_are_valid_verifiers_and_differ() {
        let (one, other) = (random_text().unwrap(), random_text().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), 43);
    }
}
