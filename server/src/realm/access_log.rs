//! The line that the log has for each request to the token endpoint, and names in the log.

use axum::body::HttpBody as _;
use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use axum::{Extension, Json};
use serde_json::Value;
use tokio::time::Instant;

use crate::listen::Peer;

/// Name of a user who got tokens. In the extensions of the response.
#[derive(Clone, Debug)]
pub(super) struct TokenUser(pub(super) String);

/// Tokens, and for whom they are.
pub(super) type UserTokens = (Extension<TokenUser>, Json<Value>);

/// Logs a request when its response begins. A refused request has no user: clients may send a
/// password as the name. The form and the query are not logged, because they contain secrets.
pub(super) async fn log_request(request: Request, next: Next) -> Response {
    let began_at = Instant::now();
    let client = request.extensions().get::<Peer>().map(|peer| peer.0.ip().to_canonical());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let response = next.run(request).await;
    let user = response.extensions().get::<TokenUser>();
    tracing::info!(
        user = user.map(|user| user.0.as_str()),
        client = client.map(tracing::field::display),
        %method,
        route = route.as_ref().map_or("none", MatchedPath::as_str),
        status = response.status().as_u16(),
        ms = u64::try_from(began_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        bytes = response.body().size_hint().exact(),
        "answered"
    );
    response
}

/// Truncates a name for the log; clients may send any length.
pub(super) fn truncate_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(128)]
}
