//! Accounts that may log in to a node (northbound section 1.3).

use crate::Time;
use crate::id::LocalAccountId;
use crate::invalid::Invalid;
use crate::text;

/// An account that may log in. It is never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAccount {
    /// Its id.
    pub id: LocalAccountId,
    /// What it is.
    pub spec: LocalAccountSpec,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

/// What an account is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAccountSpec {
    /// Unique in its project.
    pub username: String,
    /// The public key that it logs in with, one line as in `authorized_keys` (sshd(8)).
    pub ssh_key: String,
}

/// The kinds of keys that may be given.
const KINDS: [&str; 2] = ["ssh-ed25519", "ecdsa-sha2-nistp521"];

impl LocalAccountSpec {
    /// The longest key, in characters.
    pub const MAX_KEY: usize = 800;

    /// Reads an account.
    ///
    /// # Errors
    /// The name is not one, or the key is none of a kind that may be given.
    pub fn parse(username: &str, ssh_key: &str) -> Result<Self, Invalid> {
        text::check_word("username", username)?;
        text::check_printable("sshKey", ssh_key, Self::MAX_KEY, "")?;
        if !is_key(ssh_key) {
            let kinds = KINDS.join("` or `");
            let why =
                format!("must be `{kinds}`, a space, the key in Base64, and perhaps a comment");
            return Err(Invalid::new("sshKey", why));
        }
        Ok(Self {
            username: username.to_owned(),
            ssh_key: ssh_key.to_owned(),
        })
    }
}

/// A kind, a space, Base64, and perhaps a space and a comment.
fn is_key(line: &str) -> bool {
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
    let mut words = line.split(' ');
    let (kind, key) = (words.next(), words.next());
    kind.is_some_and(|kind| KINDS.contains(&kind))
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
