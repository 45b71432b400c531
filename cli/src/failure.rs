//! Errors of commands, with hints how to solve them.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use evenkeel_kit::chain;
use evenkeel_registry::{CopyError, RegistryError};

use crate::certificate;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Invalid arguments, or a request that cannot succeed.
    #[error("{what}")]
    Usage {
        /// Description of the error.
        what: String,
        /// How to solve it.
        hint: Option<String>,
    },
    /// The server cannot be reached.
    #[error("cannot reach the server at {server}")]
    Unreachable {
        /// URL of the server.
        server: String,
        #[source]
        source: reqwest::Error,
    },
    /// The server responded with an error.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Name of the error code.
        code: String,
        /// Message of the server.
        message: String,
        /// The invalid field or parameter, if the server names one.
        field: Option<String>,
        /// Whether the token lacks the role that the message names.
        lacks_role: bool,
        /// Details about the field.
        detail: Option<Box<ProblemDetail>>,
        /// URL of the server.
        server: String,
    },
    /// The server cannot parse a filter or an order.
    #[error("{option}: {reason}\n{excerpt}")]
    InvalidExpression {
        /// Option with the invalid text.
        option: &'static str,
        /// Description of the error.
        reason: String,
        /// The text, and a caret below the position of the error.
        excerpt: String,
        /// A suggestion.
        hint: Option<String>,
    },
    /// The response cannot be parsed.
    #[error("cannot parse the response of {server}. Is it an Evenkeel server?")]
    Unreadable {
        /// URL of the server.
        server: String,
        #[source]
        source: serde_json::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file has the wrong format.
    #[error("{} is not {expected}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// The expected format.
        expected: &'static str,
        /// Why the file has another format.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An order failed for some of the nodes.
    #[error("the order failed for {failed} of {all} {}", if *all == 1 { "node" } else { "nodes" })]
    OrdersFailed {
        /// Number of nodes for which it failed.
        failed: usize,
        /// Number of nodes.
        all: usize,
    },
    /// A registry cannot be used.
    #[error("cannot use the registry {address}")]
    Registry {
        /// Address of the registry.
        address: String,
        #[source]
        source: Box<RegistryError>,
    },
    /// Operating systems could not be copied or published.
    #[error("cannot {action}")]
    Transfer {
        /// The action that failed.
        action: String,
        #[source]
        source: Box<CopyError>,
    },
    /// Something has findings and cannot be used.
    #[error("{what}:{}", lines(findings))]
    Findings {
        /// What cannot be used.
        what: String,
        /// The findings.
        findings: Vec<String>,
    },
    /// A document is invalid.
    #[error("{name} is not a valid document:{}", lines(errors))]
    InvalidDocument {
        /// Path of the file, or "standard input".
        name: String,
        /// The invalid fields.
        errors: Vec<String>,
    },
    /// A format has no form for parts of a document.
    #[error("the document cannot be written as {format}:{}", lines(errors))]
    Unrepresentable {
        /// The format.
        format: &'static str,
        /// The parts, and why they cannot be written.
        errors: Vec<String>,
    },
    /// Documents cannot be compared.
    #[error("cannot compare the documents")]
    Comparison(#[source] Box<Failure>),
    /// The HTTP client cannot be created.
    #[error("cannot set up the connection")]
    Setup(#[source] reqwest::Error),
    /// The output cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
    /// The output cannot be formatted.
    #[error("cannot format the output")]
    Serialization(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Details of the server about an invalid field or parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProblemDetail {
    /// Position of the error in the text, in characters from 0.
    pub position: Option<usize>,
    /// A suggestion.
    pub hint: Option<String>,
}

impl Failure {
    /// A usage error without a hint.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), hint: None }
    }

    /// A usage error with a hint.
    pub fn usage_with(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), hint: Some(hint.into()) }
    }

    /// Whether the reader of the output has closed the pipe.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Comparison(source) => source.is_broken_pipe(),
            _ => false,
        }
    }

    /// The exit status. A comparison exits with 2, because 1 means that the documents differ.
    #[must_use]
    pub fn exit_status(&self) -> ExitCode {
        match self {
            Self::Comparison(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }

    /// Whether the server reports that the resource does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether the error concerns only the requested resource, so that requests for others may succeed.
    #[must_use]
    pub fn is_specific_to_resource(&self) -> bool {
        matches!(self, Self::Refused { status: 400 | 404 | 409 | 422, .. })
    }

    /// Names the option that the user gave in place of the field of the API that the server names.
    #[must_use]
    pub fn with_option(self, options: &[(&str, &str)]) -> Self {
        let Self::Refused { field: Some(field), message, .. } = &self else {
            return self;
        };
        match options.iter().find(|(name, _)| name == field) {
            None => self,
            Some((_, option)) => {
                let why = message.strip_prefix(&format!("{field}: ")).unwrap_or(message);
                Self::usage_with(format!("{option}: {why}"), "--help describes the option")
            }
        }
    }

    /// How to solve the problem.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::InvalidExpression { hint: Some(hint), .. } => Some(hint.clone()),
            // The server's advice follows the reason. The form of a filter does not help there.
            Self::InvalidExpression { reason, .. } if reason.contains("; ") => None,
            Self::InvalidExpression { option: "--filter", .. } => Some(
                "a filter is a condition such as `name = \"edge\"`; combine conditions with AND, OR, NOT and parentheses".to_owned(),
            ),
            Self::InvalidExpression { .. } => Some("give fields such as `name` or `name desc, resourceId`".to_owned()),
            Self::Unreachable { source, .. } => {
                let text = chain(source).to_string();
                let hint = certificate::hint(&text, "--ca");
                hint.or_else(|| certificate::scheme_hint(&text)).or_else(|| Some(
                    "check that the server is running and that the address is right: `evenkeel context show` prints it, `--server URL` overrides it"
                        .to_owned(),
                ))
            }
            Self::Refused { status: 401, .. } => Some(
                "log in with `evenkeel login` or `evenkeel login --token-file FILE`; on the server, `evenkeeld token operator` creates a token"
                    .to_owned(),
            ),
            // The message names the role.
            Self::Refused { lacks_role: true, .. } => Some(
                "use another login or token that has this role, or ask an administrator for the role".to_owned(),
            ),
            Self::Refused { status: 403, .. } => Some(
                "the project does not exist, or your token has no role in it; `evenkeel project list` lists your projects, `--project NAME` selects one"
                    .to_owned(),
            ),
            Self::Refused { status: 410, .. } => {
                Some("changes may be missing; run the command again".to_owned())
            }
            Self::Refused { status: 413, .. } => Some("the request is too large; split it".to_owned()),
            Self::Refused { status: 429 | 503, .. } => {
                Some("the server is busy or starting; try again in a moment".to_owned())
            }
            Self::Refused { status: 500.., server, .. } => {
                Some(format!("this is an error of the server at {server}; see its log"))
            }
            Self::OrdersFailed { .. } => Some(
                "the output shows the error of each node; fix it and repeat the command for these nodes".to_owned(),
            ),
            Self::Registry { source, .. } => registry_hint(source),
            Self::Transfer { source, .. } => transfer_hint(source),
            Self::InvalidDocument { .. } => {
                Some("correct these fields and repeat the command".to_owned())
            }
            Self::Unrepresentable { .. } => {
                Some("remove or replace these parts, or choose another format".to_owned())
            }
            Self::Comparison(source) => source.hint(),
            Self::Findings { .. } => Some("nothing was changed; fix the findings and repeat the command".to_owned()),
            Self::Refused { detail: Some(detail), .. } if detail.hint.is_some() => detail.hint.clone(),
            Self::Refused { field: Some(field), .. } => Some(format!("check `{field}`")),
            _ => None,
        }
    }
}

/// Each finding on a line of its own.
fn lines(findings: &[String]) -> String {
    let lines = findings.iter().map(|finding| format!("\n  {finding}"));
    lines.collect()
}

/// Hint for an error of a registry.
fn registry_hint(error: &RegistryError) -> Option<String> {
    if let RegistryError::Unreachable(why) = error
        && let Some(hint) = certificate::hint(why, "--registry-ca")
    {
        return Some(hint);
    }
    let hint = match error {
        RegistryError::Unreachable(_) => {
            "check the address; --plain-http uses http://, --registry-ca names the CA certificate, --proxy the proxy; \
             options of the target registry start with `--to-`"
        }
        RegistryError::Malformed { what: "address", .. } => {
            "use https://HOST, http://HOST with --plain-http, or oci:FOLDER"
        }
        RegistryError::Denied => {
            "use --username with --password-file, or --token-file; for the target registry, use --to-username with \
             --to-password-file, or --to-token-file"
        }
        RegistryError::Busy { .. } => "the registry is busy; repeat the command later",
        RegistryError::Stalled | RegistryError::Changed(_) | RegistryError::Io(_) => {
            "repeat the command: what was copied is not copied again"
        }
        RegistryError::NotFound => "check the name of the profile, the revision and --prefix",
        RegistryError::ForbiddenAddress(_) => "allow another host with --allow-host",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Hint for an error while operating systems are copied or published.
fn transfer_hint(error: &CopyError) -> Option<String> {
    let hint = match error {
        CopyError::Registry { error, .. } => return registry_hint(error),
        CopyError::Exists { .. } => {
            "publish a new revision, or replace the existing one with --move"
        }
        CopyError::OtherRevision { .. } => "use --branch only for names such as main",
        CopyError::Bundle(_) => "nothing was changed; copy the bundle again from its source",
        CopyError::NoRevisions(_) => "check --profile, --revision and --prefix",
        CopyError::File { .. } => {
            "check the free space and the permissions, then repeat the command; what was done is not repeated"
        }
    };
    Some(hint.to_owned())
}
