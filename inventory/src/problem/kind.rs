//! The kinds of problems.

use axum::http::StatusCode;

/// Defines the kinds: HTTP status, gRPC code for EIM's clients, last part of the type, title. The doc
/// comment of a kind is its description in docs/reference/problems.md.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $status:ident, $code:literal, $name:literal, $title:literal;)+) => {
        /// The kinds of problems. docs/reference/problems.md explains them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[doc = $doc])+ $kind),+
        }

        impl Kind {
            #[cfg(test)]
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// Description for the reference page.
            #[cfg(test)]
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$kind => concat!($($doc),+)),+
                }
            }

            /// HTTP status.
            pub const fn status(self) -> StatusCode {
                match self {
                    $(Self::$kind => StatusCode::$status),+
                }
            }

            /// Name of the gRPC code.
            pub const fn code(self) -> &'static str {
                match self {
                    $(Self::$kind => $code),+
                }
            }

            /// Last part of the type.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name),+
                }
            }

            /// Title, the same for all problems of the kind.
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$kind => $title),+
                }
            }
        }
    };
}

kinds! {
    /// The body is not JSON, or a field or parameter is invalid, unknown or missing. The same
    /// request fails again.
    Invalid = BAD_REQUEST, "InvalidArgument", "invalid-argument", "The request is not valid";
    /// The request is valid, but not now: a resource of this name or UUID exists already, the
    /// resource to delete is in use, a referenced resource does not exist, the state does not allow
    /// the requested state, or a sync is requested for a project that selects nothing from a
    /// registry.
    Precondition = BAD_REQUEST, "FailedPrecondition", "failed-precondition", "The request cannot be fulfilled in the current state";
    /// The bearer token is missing, expired, revoked, not for this server, or not signed by a trusted
    /// issuer. In EIM's legacy form of paths the header `ActiveProjectID` must hold the UUID of a
    /// project. The response carries `WWW-Authenticate: Bearer`.
    Unauthenticated = UNAUTHORIZED, "Unauthenticated", "unauthenticated", "A valid token is required";
    /// The caller may read the project, but the token lacks the role for this request, or the request needs the role of
    /// an administrator. The message names the role.
    MissingRole = FORBIDDEN, "PermissionDenied", "missing-role", "The token lacks a role";
    /// The token has no role in the project, or there is no such project; the answer is the same. With `auth.disabled`, the request did not come from the server's own
    /// machine, or it came from a web page of another origin.
    Forbidden = FORBIDDEN, "PermissionDenied", "permission-denied", "The token does not allow this";
    /// The message is that of EIM: `host_resource not found`.
    NotFound = NOT_FOUND, "NotFound", "not-found", "There is no such resource";
    /// The API has no such path. `/openapi.json` lists all paths.
    NoSuchPath = NOT_FOUND, "NotFound", "no-such-path", "There is nothing at this path";
    /// The header `Allow` lists the methods of the path.
    NoSuchMethod = METHOD_NOT_ALLOWED, "Unimplemented", "no-such-method", "The path does not take this method";
    /// Changes after the cursor of a stream may be missing, because they were deleted, the database was restored, or
    /// the cursor belongs to another project. List the changes again, and watch from the `cursor` of
    /// that list.
    CursorExpired = GONE, "OutOfRange", "cursor-expired", "The cursor has expired";
    /// Read the resource again, and decide whether the change is still wanted.
    Stale = CONFLICT, "Aborted", "aborted", "Another request changed the resource first";
    /// The limit is a setting of the server (`rest.body_limit`). A body that announces its length
    /// is refused before it is read.
    TooLarge = PAYLOAD_TOO_LARGE, "ResourceExhausted", "too-large", "The body is too large";
    /// The database is unreachable or busy, too many long lists are being streamed, the user, the
    /// project or the address has too many connections with running requests, or the server has not
    /// yet received the signing keys of the token's issuer. The header `Retry-After` says
    /// after how many seconds to try again.
    Unavailable = SERVICE_UNAVAILABLE, "Unavailable", "unavailable", "The service cannot answer now";
    /// The limit is a setting of the server (`rest.request_timeout`). A slow client is a cause as
    /// well. The change may or may not have been made.
    TooSlow = SERVICE_UNAVAILABLE, "Unavailable", "request-timeout", "The request took too long";
    /// The response contains no details. The log of the server has them, with the ID of the
    /// request.
    Internal = INTERNAL_SERVER_ERROR, "Internal", "internal", "An internal error occurred";
}

#[cfg(test)]
mod tests;
