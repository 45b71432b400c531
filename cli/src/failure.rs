//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;

use evenkeel_registry::{MoveError, RegistryError};

/// Why a command could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What was asked for makes no sense.
    #[error("{what}")]
    Usage {
        /// What makes no sense.
        what: String,
        /// What would.
        hint: Option<String>,
    },
    /// Nobody answers.
    #[error("cannot reach the server at {server}")]
    Unreachable {
        /// Where it should be.
        server: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The server answered, and not with what was asked for.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The name of the server's code.
        code: String,
        /// The server's words.
        message: String,
        /// The field or parameter that the server names.
        field: Option<String>,
        /// What else the server says of it.
        detail: Option<Box<Detail>>,
        /// Where it was asked.
        server: String,
    },
    /// A text that a person gave cannot be understood by the server.
    #[error("{option}: {why}\n{place}")]
    Misread {
        /// The option that the text was given with.
        option: &'static str,
        /// Why it cannot be understood.
        why: String,
        /// The text, and below it a caret where that begins.
        place: String,
        /// What would be understood.
        hint: Option<String>,
    },
    /// The answer cannot be read.
    #[error("the server at {server} sent an answer that cannot be read; is it an Evenkeel server?")]
    Unreadable {
        /// Where it was asked.
        server: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{} is not {expected}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
        /// Why it is not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What was asked for was done to some of the things and not to others.
    #[error("{failed} of {all} nodes did not take the order")]
    Partly {
        /// To how many not.
        failed: usize,
        /// How many there are.
        all: usize,
    },
    /// A registry cannot be used.
    #[error("cannot use the registry {address}")]
    Registry {
        /// Where it is.
        address: String,
        /// Why.
        #[source]
        source: Box<RegistryError>,
    },
    /// Operating systems could not be moved.
    #[error("cannot {doing}")]
    Moving {
        /// What was to be done.
        doing: String,
        /// Why it was not.
        #[source]
        source: Box<MoveError>,
    },
    /// Something was looked at and cannot be used.
    #[error("{what}:{}", lines(findings))]
    Findings {
        /// What cannot be used.
        what: String,
        /// All that is wrong with it.
        findings: Vec<String>,
    },
    /// The client cannot be set up.
    #[error("cannot set up the connection")]
    Setup(#[source] reqwest::Error),
    /// The answer cannot be written.
    #[error("cannot write the answer")]
    Output(#[from] io::Error),
    /// The answer cannot be shown in this form.
    #[error("cannot show the answer in this form")]
    Form(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What a server says of a field or parameter that it does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// Where in its text the trouble begins, in letters from 0.
    pub position: Option<usize>,
    /// What would do.
    pub hint: Option<String>,
}

impl Failure {
    /// What was asked for makes no sense.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::Usage {
            what: what.into(),
            hint: None,
        }
    }

    /// What was asked for makes no sense, and this would.
    pub fn usage_with(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage {
            what: what.into(),
            hint: Some(hint.into()),
        }
    }

    /// Whether the reader of the answer went away.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether the server says that there is no such thing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether it is about the very thing that was asked for, so that another may fare better.
    #[must_use]
    pub fn is_about_the_thing(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: 400 | 404 | 409 | 422,
                ..
            }
        )
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::Misread { hint: Some(hint), .. } => Some(hint.clone()),
            Self::Misread { option: "--filter", .. } => Some(
                "a condition looks like `name = \"edge\"`; join conditions with AND, OR, NOT and parentheses".to_owned(),
            ),
            Self::Misread { .. } => Some("give fields such as `name` or `name desc, resourceId`".to_owned()),
            Self::Unreachable { .. } => Some(
                "is the server running, and is the address right? `evenkeel context show` prints it, `--server URL` overrides it"
                    .to_owned(),
            ),
            Self::Refused { status: 401, .. } => Some(
                "log in again: `evenkeel login --username NAME`, or with a token: `evenkeel login --token-file FILE`; on the server, `evenkeeld token operator` makes one"
                    .to_owned(),
            ),
            Self::Refused { status: 403, .. } => Some(
                "the project does not exist or your token has no role in it; `evenkeel project list` shows your projects, `--project NAME` chooses one"
                    .to_owned(),
            ),
            Self::Refused { status: 413, .. } => Some("send less at once".to_owned()),
            Self::Refused { status: 429 | 503, .. } => {
                Some("the server is busy or starting; try again in a moment".to_owned())
            }
            Self::Refused { status: 500.., server, .. } => {
                Some(format!("this is a fault of the server at {server}; its log says more"))
            }
            Self::Partly { .. } => Some(
                "the answer says why, node by node; name those again once that is mended".to_owned(),
            ),
            Self::Registry { source, .. } => registry_hint(source),
            Self::Moving { source, .. } => moving_hint(source),
            Self::Findings { .. } => Some("nothing was changed; mend these and run it again".to_owned()),
            Self::Refused { detail: Some(detail), .. } if detail.hint.is_some() => detail.hint.clone(),
            Self::Refused { field: Some(field), .. } => Some(format!("look at `{field}`")),
            _ => None,
        }
    }
}

/// Each on a line of its own.
fn lines(findings: &[String]) -> String {
    let lines = findings.iter().map(|finding| format!("\n  {finding}"));
    lines.collect()
}

/// What to do about a registry.
fn registry_hint(error: &RegistryError) -> Option<String> {
    let hint = match error {
        RegistryError::Unreachable(_) => {
            "is the address right? --plain-http asks one at http://, --registry-ca names the authority that vouches for \
             one, --proxy says through what it is reached; before an option of the one that is copied to stands `to-`"
        }
        RegistryError::Malformed {
            what: "address", ..
        } => "an address is https://HOST, http://HOST with --plain-http, or oci:FOLDER",
        RegistryError::Denied => {
            "give --username with --password-file, or --token-file; for the one that is copied to, these with `to-` before \
             them"
        }
        RegistryError::Busy { .. } => "it asks to be left alone; run the same line again later",
        RegistryError::Stalled | RegistryError::Io(_) => {
            "run the same line again: what was carried over stays"
        }
        RegistryError::NotThere => "look at the name of the profile, the revision and --prefix",
        RegistryError::Elsewhere(_) => "--allow-host names another host that may be asked",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// What to do where operating systems could not be moved.
fn moving_hint(error: &MoveError) -> Option<String> {
    let hint = match error {
        MoveError::Registry { error, .. } => return registry_hint(error),
        MoveError::Taken { .. } => {
            "publish it as a revision of its own; --move puts it in the place of the one that is there"
        }
        MoveError::OtherRevision { .. } => "--branch is for names such as main",
        MoveError::Bundle(_) => {
            "nothing was changed; copy the bundle once more from where it was made"
        }
        MoveError::Nothing(_) => "look at --profile, --revision and --prefix",
        MoveError::File { .. } => {
            "what was done stays; run the same line again once there is room and it may be used"
        }
    };
    Some(hint.to_owned())
}
