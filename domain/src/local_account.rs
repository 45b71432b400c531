//! Accounts for logging in to a node.

use crate::Time;
use crate::id::LocalAccountId;
use crate::invalid::Invalid;
use crate::text;

/// An account for logging in to a node. Immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAccount {
    pub id: LocalAccountId,
    pub spec: LocalAccountSpec,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Content of a local account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAccountSpec {
    /// Unique in its project.
    pub username: String,
    /// Its public SSH key: one line as in `authorized_keys` (sshd(8)).
    pub ssh_key: String,
}

/// Accepted types of SSH keys.
const KEY_TYPES: [&str; 2] = ["ssh-ed25519", "ecdsa-sha2-nistp521"];

impl LocalAccountSpec {
    /// Maximum length of a key line, in characters.
    pub const MAX_KEY_CHARS: usize = 800;

    /// Parses an account.
    ///
    /// # Errors
    /// The name is invalid, or the key has an unsupported type or a wrong form.
    pub fn parse(username: &str, ssh_key: &str) -> Result<Self, Invalid> {
        text::check_identifier("username", username)?;
        text::check_printable("sshKey", ssh_key, Self::MAX_KEY_CHARS, "")?;
        if !is_public_key(ssh_key) {
            let kinds = KEY_TYPES.join("` or `");
            let why =
                format!("must be `{kinds}`, a space, the key in Base64, and an optional comment");
            return Err(Invalid::new("sshKey", why));
        }
        Ok(Self { username: username.to_owned(), ssh_key: ssh_key.to_owned() })
    }
}

/// A type, a space, Base64, and optionally a space and a comment.
fn is_public_key(line: &str) -> bool {
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
    let mut fields = line.split(' ');
    let (kind, key) = (fields.next(), fields.next());
    kind.is_some_and(|kind| KEY_TYPES.contains(&kind))
        && key.is_some_and(|key| !key.is_empty() && key.bytes().all(is_base64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nGkPCXr4cVvoPZ0zZ9CqDk3Pqk1LQmV0h8eCDfX5T";

    #[test]
    fn a_key_is_of_a_kind_that_may_be_given() {
        for key in [
            KEY,
            &format!("{KEY} ann@edge, für alle"),
            &format!("{KEY} "),
            "ecdsa-sha2-nistp521 AAAAE2VjZHNhLXNoYTItbmlzdHA1MjEAAAAI=",
        ] {
            let read = LocalAccountSpec::parse("ann", key).expect(key);
            assert_eq!(read.ssh_key, key);
        }
        for key in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 ",
            "ssh-ed25519  AAAA",
            "ssh-rsa AAAAB3NzaC1yc2E=",
            "ecdsa-sha2-nistp256 AAAA",
            "ssh-ed25519 AAAA-BBBB",
            "command=\"rm\" ssh-ed25519 AAAA",
            &format!("{KEY}\n{KEY}"),
            &format!("{KEY} {}", "a".repeat(800)),
        ] {
            let refused = LocalAccountSpec::parse("ann", key).expect_err(key);
            assert_eq!(refused.field, "sshKey");
        }
    }

    #[test]
    fn a_name_is_one_that_a_node_can_have() {
        for name in ["a", "ann", "ann-1", &"a".repeat(32)] {
            assert!(LocalAccountSpec::parse(name, KEY).is_ok(), "{name}");
        }
        for name in ["", "Ann", "1ann", "-ann", "ann_1", "änn", &"a".repeat(33)] {
            let refused = LocalAccountSpec::parse(name, KEY).expect_err(name);
            assert_eq!(refused.field, "username");
        }
    }
}
