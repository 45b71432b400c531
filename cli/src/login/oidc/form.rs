//! Requests with a form to endpoints of an identity provider, and their responses.

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Failure, sanitize_text};

/// Largest response that is read, in bytes.
pub const MAX_RESPONSE_BYTES: usize = 512 * 1024;

/// Response to a form.
#[derive(Debug)]
pub struct FormResponse {
    status: StatusCode,
    body: Vec<u8>,
}

/// Error response of an OAuth endpoint (RFC 6749, section 5.2).
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OauthError {
    /// Error code, such as `invalid_grant`.
    pub error: String,
    /// Explanation of the provider.
    pub error_description: String,
}

impl OauthError {
    /// The code and the explanation, as far as the provider sent them.
    pub fn describe(&self) -> String {
        let text = match (self.error.as_str(), self.error_description.as_str()) {
            (code, "") => code.to_owned(),
            ("", text) => text.to_owned(),
            (code, text) => format!("{text} ({code})"),
        };
        sanitize_text(&text)
    }
}

/// Sends a form.
pub async fn send_form(
    http: &Client,
    issuer: &str,
    endpoint: &Url,
    form: &[(&str, &str)],
) -> Result<FormResponse, Failure> {
    // Form bodies are encoded like query strings.
    let mut encoded = endpoint.clone();
    encoded.query_pairs_mut().clear().extend_pairs(form);
    let request = http
        .post(endpoint.clone())
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(encoded.query().unwrap_or_default().to_owned());
    let response = request.send().await.map_err(|source| unreachable(issuer, source))?;
    let status = response.status();
    let body = read_body(response, issuer).await?;
    Ok(FormResponse { status, body })
}

impl FormResponse {
    /// The content of a successful response, or the error of the provider.
    pub fn parse<T: DeserializeOwned>(
        self,
        issuer: &str,
    ) -> Result<Result<T, OauthError>, Failure> {
        if let Some(error) = self.read_error(issuer)? {
            return Ok(Err(error));
        }
        let content = serde_json::from_slice(&self.body);
        content.map(Ok).map_err(|error| bad_response(issuer, &error.to_string()))
    }

    /// The content of a successful response.
    pub fn into_content<T: DeserializeOwned>(self, issuer: &str) -> Result<T, Failure> {
        self.parse(issuer)?.map_err(|error| refused(issuer, &error))
    }

    /// Checks that the response is a success.
    pub fn check_success(&self, issuer: &str) -> Result<(), Failure> {
        self.read_error(issuer)?.map_or(Ok(()), |error| Err(refused(issuer, &error)))
    }

    /// The error of the provider; none for a success.
    fn read_error(&self, issuer: &str) -> Result<Option<OauthError>, Failure> {
        if self.status.is_success() {
            return Ok(None);
        }
        let error: OauthError = serde_json::from_slice(&self.body).unwrap_or_default();
        if self.status.is_client_error() && !error.error.is_empty() {
            return Ok(Some(error));
        }
        Err(unexpected_status(issuer, self.status))
    }
}

/// Reads the body of a response, up to a maximum size.
pub async fn read_body(mut response: Response, issuer: &str) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|source| unreachable(issuer, source))? {
        if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(bad_response(issuer, "it is too large"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Error of a provider that cannot be reached.
pub fn unreachable(issuer: &str, source: reqwest::Error) -> Failure {
    // The message already contains the URL.
    Failure::Unreachable { server: issuer.to_owned(), source: source.without_url() }
}

/// Error of a response that cannot be used.
pub fn bad_response(issuer: &str, why: &str) -> Failure {
    Failure::usage_with(
        format!("the response of {issuer} is not usable: {why}"),
        "check the address of the identity provider",
    )
}

/// Error of a response with a status that OAuth does not define.
pub fn unexpected_status(issuer: &str, status: StatusCode) -> Failure {
    Failure::Refused {
        status: status.as_u16(),
        code: String::new(),
        message: format!("{issuer} responded with HTTP status {status}"),
        field: None,
        lacks_role: false,
        detail: None,
        server: issuer.to_owned(),
    }
}

/// Error of a request that the provider refused.
pub fn refused(issuer: &str, error: &OauthError) -> Failure {
    let hint = match error.error.as_str() {
        "access_denied" => "the login was denied at the provider: repeat it, and allow the access",
        "invalid_client" | "unauthorized_client" => {
            "the provider does not know the client ID for this kind of login: check --client-id, or ask its administrator"
        }
        "invalid_scope" => "the provider does not know a scope: check --scope",
        "invalid_grant" => "the login is no longer valid: log in again",
        _ => "repeat the login; if it fails again, ask the administrator of the provider",
    };
    Failure::usage_with(format!("{issuer} refused the login: {}", error.describe()), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://login.example";

    fn response(status: u16, body: &str) -> FormResponse {
        let status = StatusCode::from_u16(status).unwrap();
        FormResponse { status, body: body.as_bytes().to_vec() }
    }

    #[test]
    fn an_error_of_the_provider_is_distinguished_from_a_broken_response() {
        let refusal = r#"{"error": "access_denied", "error_description": "no\u001b[2J"}"#;
        let error = response(400, refusal).parse::<Vec<String>>(ISSUER).unwrap().unwrap_err();
        assert_eq!(error.error, "access_denied");
        let text = error.describe();
        assert!(!text.contains('\u{1b}') && text.contains("(access_denied)"), "{text}");

        let good = response(200, r#"["a"]"#).into_content::<Vec<String>>(ISSUER);
        assert_eq!(good.unwrap(), ["a"]);
        for (status, body, part) in [
            (200, "<html>", "is not usable"),
            (400, "<html>", "HTTP status 400"),
            (500, refusal, "HTTP status 500"),
            (302, "", "HTTP status 302"),
            (401, refusal, "access_denied"),
        ] {
            let failure = response(status, body).into_content::<Vec<String>>(ISSUER).unwrap_err();
            let text = failure.to_string();
            assert!(text.contains(part) && text.contains(ISSUER), "{status} {body}: {text}");
        }
        assert!(response(200, "").check_success(ISSUER).is_ok());
        assert!(response(400, refusal).check_success(ISSUER).is_err());
    }
}
