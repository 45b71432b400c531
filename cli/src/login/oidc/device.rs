//! Login with a code that the user enters in a browser on any machine (RFC 8628).

use std::time::Duration;

use reqwest::Url;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::ProviderClient;
use super::browser::{code_challenge, random_text, timed_out};
use super::form::{OauthError, refused, send_form};
use super::tokens::ProviderTokens;
use crate::login::IssuedToken;
use crate::{Failure, System, sanitize_text};

/// Grant type of the token requests.
const DEVICE_CODE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// Interval of the token requests, if the provider does not set one, and its increase by `slow_down`.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Shortest interval of the token requests. A provider may set 0.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Codes for a login on another device.
#[derive(Debug, Deserialize)]
struct DeviceAuthorization {
    device_code: String,
    user_code: String,
    verification_uri: String,
    /// Address that contains the code.
    #[serde(default)]
    verification_uri_complete: Option<String>,
    /// Seconds until the codes expire.
    expires_in: u64,
    /// Seconds between two token requests.
    #[serde(default)]
    interval: Option<u64>,
}

impl ProviderClient<'_> {
    /// Logs in with a code on another device.
    pub async fn log_in_with_device(
        &self,
        limit: Duration,
        system: &mut System<'_>,
    ) -> Result<IssuedToken, Failure> {
        let issuer = &self.settings.issuer;
        let endpoint = self.metadata.device_authorization_endpoint.as_ref().ok_or_else(|| {
            Failure::usage_with(
                format!("{issuer} does not support logins on another device"),
                "use --web on a machine with a browser",
            )
        })?;
        let (device, code_verifier) = self.request_codes(endpoint).await?;
        show_code(&device, system)?;
        let tokens = self.poll_tokens(&device, code_verifier.as_deref(), limit).await?;
        self.accept_tokens(tokens, None, system.clock.now())
    }

    /// Requests the codes. Also returns a code verifier if the provider requires PKCE.
    ///
    /// RFC 8628 has no PKCE, but Keycloak requires it here too if it requires it of the client.
    /// Other providers may refuse parameters that they do not expect, so the first request has none.
    async fn request_codes(
        &self,
        endpoint: &Url,
    ) -> Result<(DeviceAuthorization, Option<String>), Failure> {
        let issuer = &self.settings.issuer;
        let scope = self.settings.scope();
        let mut form =
            vec![("client_id", self.settings.client_id.as_str()), ("scope", scope.as_str())];
        let response = send_form(self.http, issuer, endpoint, &form).await?;
        match response.parse::<DeviceAuthorization>(issuer)? {
            Ok(device) => Ok((device, None)),
            Err(error) if requires_pkce(&error) => {
                let code_verifier = random_text()?;
                let code_challenge = code_challenge(&code_verifier);
                form.push(("code_challenge", code_challenge.as_str()));
                form.push(("code_challenge_method", "S256"));
                let response = send_form(self.http, issuer, endpoint, &form).await?;
                Ok((response.into_content(issuer)?, Some(code_verifier)))
            }
            Err(error) => Err(refused(issuer, &error)),
        }
    }

    /// Requests the tokens until the user has allowed or denied the login.
    async fn poll_tokens(
        &self,
        device: &DeviceAuthorization,
        code_verifier: Option<&str>,
        limit: Duration,
    ) -> Result<ProviderTokens, Failure> {
        let issuer = &self.settings.issuer;
        let limit = limit.min(Duration::from_secs(device.expires_in));
        let begun = Instant::now();
        let mut interval = device.interval.map_or(DEFAULT_POLL_INTERVAL, Duration::from_secs);
        let mut form = vec![
            ("grant_type", DEVICE_CODE_GRANT),
            ("client_id", self.settings.client_id.as_str()),
            ("device_code", device.device_code.as_str()),
        ];
        form.extend(code_verifier.map(|verifier| ("code_verifier", verifier)));
        loop {
            interval = interval.max(MIN_POLL_INTERVAL);
            let remaining = limit.saturating_sub(begun.elapsed());
            if remaining.is_zero() {
                return Err(timed_out(issuer, limit));
            }
            sleep(interval.min(remaining)).await;
            let endpoint = &self.metadata.token_endpoint;
            let sent = send_form(self.http, issuer, endpoint, &form).await;
            match sent.and_then(|response| response.parse::<ProviderTokens>(issuer)) {
                Ok(Ok(tokens)) => return Ok(tokens),
                Ok(Err(error)) => interval = next_interval(issuer, &error, interval)?,
                // RFC 8628, section 3.5: after a timeout, the interval is doubled.
                Err(failure) if is_transient(&failure) => interval = interval.saturating_mul(2),
                Err(failure) => return Err(failure),
            }
        }
    }
}

/// Whether a request for codes was refused because it has no code challenge.
fn requires_pkce(error: &OauthError) -> bool {
    error.error == "invalid_request" && error.error_description.contains("code_challenge")
}

/// Whether a later token request can succeed: the user may still be at the page of the provider.
const fn is_transient(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Unreachable { .. } | Failure::Refused { status: 429 | 500..=599, .. }
    )
}

/// The interval until the next token request, after this error.
fn next_interval(
    issuer: &str,
    error: &OauthError,
    interval: Duration,
) -> Result<Duration, Failure> {
    match error.error.as_str() {
        "authorization_pending" => Ok(interval),
        "slow_down" => Ok(interval.saturating_add(DEFAULT_POLL_INTERVAL)),
        "expired_token" => Err(Failure::usage_with(
            format!("the code for the login at {issuer} has expired"),
            "repeat the login, and enter the new code",
        )),
        _ => Err(refused(issuer, error)),
    }
}

/// Prints the code and where to enter it.
fn show_code(device: &DeviceAuthorization, system: &mut System<'_>) -> Result<(), Failure> {
    let (address, code) =
        (sanitize_text(&device.verification_uri), sanitize_text(&device.user_code));
    writeln!(system.notes, "open {address} in a browser and enter the code {code}")?;
    if let Some(address) = &device.verification_uri_complete {
        let address = sanitize_text(address);
        writeln!(system.notes, "or open this address, and compare the code:\n  {address}")?;
    }
    Ok(system.notes.flush()?)
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::super::form::unexpected_status;
    use super::*;

    #[test]
    fn an_overloaded_provider_does_not_end_a_login() {
        for (status, expected) in
            [(429, true), (500, true), (503, true), (400, false), (302, false)]
        {
            let status = StatusCode::from_u16(status).unwrap();
            let failure = unexpected_status("https://login.example", status);
            assert_eq!(is_transient(&failure), expected, "{status}");
        }
        assert!(!is_transient(&Failure::usage("the code has expired")));
    }

    #[test]
    fn a_request_for_codes_is_repeated_with_pkce_only_if_the_provider_requires_it() {
        for (code, description, expected) in [
            ("invalid_request", "Missing parameter: code_challenge_method", true),
            ("invalid_request", "Missing parameter: scope", false),
            ("invalid_client", "code_challenge", false),
            ("", "", false),
        ] {
            let error =
                OauthError { error: code.to_owned(), error_description: description.to_owned() };
            assert_eq!(requires_pkce(&error), expected, "{code} {description}");
        }
    }

    #[test]
    fn the_interval_grows_only_when_the_provider_is_busy() {
        let issuer = "https://login.example";
        let next = |error: &str| {
            let error = OauthError { error: error.to_owned(), ..OauthError::default() };
            next_interval(issuer, &error, Duration::from_secs(7))
        };
        assert_eq!(next("authorization_pending").unwrap(), Duration::from_secs(7));
        assert_eq!(next("slow_down").unwrap(), Duration::from_secs(12));
        for (error, part) in [
            ("expired_token", "has expired"),
            ("access_denied", "access_denied"),
            ("invalid_grant", "invalid_grant"),
        ] {
            let failure = next(error).unwrap_err();
            assert!(failure.to_string().contains(part), "{failure}");
        }
    }
}
