//! The kinds of problems.

use axum::http::StatusCode;

/// Defines the kinds: HTTP status, gRPC code for EIM's clients, last part of the type, title.
macro_rules! kinds {
    ($($kind:ident = $status:ident, $code:literal, $name:literal, $title:literal;)+) => {
        /// The kinds of problems. docs/problems.md explains them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $(#[doc = $title] $kind),+
        }

        impl Kind {
            #[cfg(test)]
            pub const ALL: &[Self] = &[$(Self::$kind),+];

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
    Invalid = BAD_REQUEST, "InvalidArgument", "invalid-argument", "The request is not valid";
    Precondition = BAD_REQUEST, "FailedPrecondition", "failed-precondition", "The request cannot be fulfilled in the current state";
    Unauthenticated = UNAUTHORIZED, "Unauthenticated", "unauthenticated", "A valid token is required";
    Forbidden = FORBIDDEN, "PermissionDenied", "permission-denied", "The token does not allow this";
    NotFound = NOT_FOUND, "NotFound", "not-found", "There is no such resource";
    NoSuchPath = NOT_FOUND, "NotFound", "no-such-path", "There is nothing at this path";
    NoSuchMethod = METHOD_NOT_ALLOWED, "Unimplemented", "no-such-method", "The path does not take this method";
    Stale = CONFLICT, "Aborted", "aborted", "Another request changed the resource first";
    TooLarge = PAYLOAD_TOO_LARGE, "ResourceExhausted", "too-large", "The body is too large";
    Unavailable = SERVICE_UNAVAILABLE, "Unavailable", "unavailable", "The service cannot answer now";
    TooSlow = SERVICE_UNAVAILABLE, "Unavailable", "request-timeout", "The request took too long";
    Internal = INTERNAL_SERVER_ERROR, "Internal", "internal", "An internal error occurred";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that documents problems for operators.
    const PAGE: &str = include_str!("../../../docs/problems.md");

    #[test]
    fn every_kind_has_its_section_and_there_is_no_other() {
        for kind in Kind::ALL {
            let section = format!(
                "\n## {}\n\n**{}**: status {}, code `{}`.\n",
                kind.name(),
                kind.title(),
                kind.status().as_u16(),
                kind.code()
            );
            assert!(PAGE.contains(&section), "docs/problems.md lacks{section}");
        }
        let sections = PAGE.lines().filter(|line| line.starts_with("## "));
        assert_eq!(sections.count(), Kind::ALL.len());
    }
}
