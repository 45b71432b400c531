//! People who log in with a password: their names, the hashes of their passwords, and their roles.
//!
//! Hashes are those of argon2id in the form of the PHC (`$argon2id$v=19$m=…,t=…,p=…$salt$hash`).

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use argon2::{ARGON2ID_IDENT, Argon2, Params, PasswordHash, PasswordHasher, PasswordVerifier};
use evenkeel_kit::Secret;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::roles::Role;

/// The longest name, in bytes.
const LONGEST_NAME: usize = 128;

/// The longest password, in bytes.
const LONGEST_PASSWORD: usize = 1024;

/// The most memory that the check of a password may take, in KiB, and the most passes over it: whoever asks has not proved
/// anything yet.
const MOST_MEMORY: u32 = 256 * 1024;
const MOST_PASSES: u32 = 32;
const MOST_LANES: u32 = 16;

/// What a file of users holds.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UsersFile {
    /// One entry for each.
    pub users: Vec<UserEntry>,
}

/// What a file says of a user.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserEntry {
    /// The name to log in with.
    pub name: String,
    /// The hash of the password.
    pub password_hash: Secret,
    /// What the user may do, as in a token.
    pub roles: Vec<String>,
}

/// An entry of a file of users cannot be used. Nothing of a hash is repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("user {name:?}: {why}")]
pub struct BadUser {
    name: String,
    why: String,
}

/// A password cannot be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadPassword {
    /// There is none.
    #[error("the password is empty")]
    Empty,
    /// It is longer than may be.
    #[error("a password has at most {} bytes", LONGEST_PASSWORD)]
    TooLong,
    /// The system gave no random numbers or no memory.
    #[error("the password cannot be hashed: {0}")]
    Hash(argon2::password_hash::Error),
}

/// Somebody who may log in.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// What the user may do.
    pub roles: Vec<Role>,
    hash: PasswordHash,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .field("roles", &self.roles)
            .finish()
    }
}

impl User {
    /// What changes with the password: whoever logged in with another one must do so anew.
    #[must_use]
    pub fn session(&self) -> String {
        let digest = Sha256::digest(self.hash.to_string());
        digest.iter().take(8).fold(String::new(), |mut text, byte| {
            // A string takes it all.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// Everybody who may log in.
#[derive(Clone, Debug)]
pub struct Users {
    all: BTreeMap<String, User>,
    /// Nobody's, checked for those who are not there.
    nobody: User,
}

impl Users {
    /// Reads the entries of a file.
    pub fn new(file: UsersFile) -> Result<Self, BadUser> {
        let mut all = BTreeMap::new();
        for entry in file.users {
            let user = read(&entry)?;
            if let Some(twice) = all.insert(entry.name, user) {
                return Err(bad(&twice.name, "it is there twice"));
            }
        }
        // A check for nobody takes as long as one for somebody.
        let like = all.values().next().map(|user| user.hash.clone());
        let params = like.and_then(|hash| Params::try_from(&hash).ok());
        let hash: Result<PasswordHash, _> =
            Argon2::from(params.unwrap_or_default()).hash_password(b"nobody");
        let nobody = User {
            name: String::new(),
            roles: Vec::new(),
            hash: hash.map_err(|error| bad("", &error.to_string()))?,
        };
        Ok(Self { all, nobody })
    }

    /// The user of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&User> {
        self.all.get(name)
    }

    /// The user of this name, if this is the password. Takes as long for a name that is not there, and long on purpose: not
    /// for a task that others wait for.
    #[must_use]
    pub fn log_in(&self, name: &str, password: &Secret) -> Option<&User> {
        let found = self.find(name);
        let hash = &found.unwrap_or(&self.nobody).hash;
        let password = password.reveal().as_bytes();
        let fits = password.len() <= LONGEST_PASSWORD
            && Argon2::default().verify_password(password, hash).is_ok();
        found.filter(|_| fits)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

/// The hash of a password, for a file of users.
pub fn hash(password: &Secret) -> Result<String, BadPassword> {
    let password = password.reveal().as_bytes();
    if password.is_empty() {
        return Err(BadPassword::Empty);
    }
    if password.len() > LONGEST_PASSWORD {
        return Err(BadPassword::TooLong);
    }
    let hash: Result<PasswordHash, _> = Argon2::default().hash_password(password);
    hash.map(|hash| hash.to_string()).map_err(BadPassword::Hash)
}

fn bad(name: &str, why: &str) -> BadUser {
    BadUser {
        name: name.to_owned(),
        why: why.to_owned(),
    }
}

fn read(entry: &UserEntry) -> Result<User, BadUser> {
    let bad = |why: &str| bad(&entry.name, why);
    let name = &entry.name;
    let is_odd = |c: char| c.is_control() || c.is_whitespace();
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains(is_odd) {
        return Err(bad("a name has 1 to 128 bytes, and no spaces"));
    }
    if entry.roles.is_empty() {
        return Err(bad("there are no roles"));
    }
    let mut roles = Vec::new();
    for text in &entry.roles {
        match Role::parse(text) {
            Some(Role::Node(_)) => return Err(bad("a person cannot speak as a node")),
            Some(role) => roles.push(role),
            None => {
                let forms = "<project uuid>_im-r, <project uuid>_im-rw or evenkeel-admin";
                return Err(bad(&format!("{text:?} is no role: it must be {forms}")));
            }
        }
    }
    let hash = PasswordHash::new(entry.password_hash.reveal());
    let hash = hash.map_err(|error| bad(&format!("password_hash: {error}")))?;
    check(&hash).map_err(|why| bad(&format!("password_hash: {why}")))?;
    Ok(User {
        name: name.clone(),
        roles,
        hash,
    })
}

/// Whether a hash is one of argon2id, and not too much work.
fn check(hash: &PasswordHash) -> Result<(), String> {
    if hash.algorithm != ARGON2ID_IDENT {
        return Err(
            "it is not one of argon2id; make one with `evenkeeld hash-password`".to_owned(),
        );
    }
    if hash.salt.is_none() || hash.hash.is_none() {
        return Err("it has no salt or no hash".to_owned());
    }
    let params = Params::try_from(hash).map_err(|error| error.to_string())?;
    let is_too_much = params.m_cost() > MOST_MEMORY
        || params.t_cost() > MOST_PASSES
        || params.p_cost() > MOST_LANES;
    if is_too_much {
        return Err(format!(
            "it asks for more than m={MOST_MEMORY},t={MOST_PASSES},p={MOST_LANES}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const PROJECT: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

    /// A hash that takes next to no time.
    fn quick(password: &str) -> String {
        let params = Params::new(Params::MIN_M_COST, 1, 1, None).unwrap();
        let hash: Result<PasswordHash, _> = Argon2::from(params).hash_password(password.as_bytes());
        hash.unwrap().to_string()
    }

    fn entry(name: &str, hash: &str, roles: &[&str]) -> UserEntry {
        UserEntry {
            name: name.to_owned(),
            password_hash: Secret::new(hash),
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        }
    }

    fn users(all: Vec<UserEntry>) -> Result<Users, BadUser> {
        Users::new(UsersFile { users: all })
    }

    #[test]
    fn somebody_logs_in_with_name_and_password() {
        let role = format!("{PROJECT}_im-rw");
        let alice = entry("alice", &quick("open sesame"), &[&role, "evenkeel-admin"]);
        let users = users(vec![alice, entry("bob", &quick("barley"), &[&role])]).unwrap();
        let log_in = |name: &str, password: &str| {
            let found = users.log_in(name, &Secret::new(password));
            found.map(|user| user.roles.clone())
        };
        let both = vec![Role::Write(PROJECT), Role::Administrator];
        assert_eq!(log_in("alice", "open sesame"), Some(both));
        assert_eq!(log_in("bob", "barley"), Some(vec![Role::Write(PROJECT)]));
        for (name, password) in [
            ("alice", "barley"),
            ("alice", ""),
            ("Alice", "open sesame"),
            ("carol", "open sesame"),
            ("", "nobody"),
        ] {
            assert_eq!(log_in(name, password), None, "{name} {password}");
        }
        assert_eq!(users.count(), 2);
        let shown = format!("{users:?}");
        assert!(!shown.contains("argon2"), "{shown}");
    }

    #[test]
    fn a_hash_is_that_of_its_password_and_never_the_same() {
        let secret = Secret::new("open sesame");
        let (one, another) = (hash(&secret).unwrap(), hash(&secret).unwrap());
        assert!(one.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{one}");
        assert_ne!(one, another);
        let users = users(vec![entry("alice", &one, &["evenkeel-admin"])]).unwrap();
        assert!(users.log_in("alice", &secret).is_some());
        assert_eq!(hash(&Secret::new("")), Err(BadPassword::Empty));
        let long = Secret::new("x".repeat(1025));
        assert_eq!(hash(&long), Err(BadPassword::TooLong));
    }

    #[test]
    fn another_password_ends_the_sessions() {
        let session = |password: &str| {
            let users = users(vec![entry("alice", &quick(password), &["evenkeel-admin"])]);
            users.unwrap().find("alice").unwrap().session()
        };
        assert_eq!(session("one").len(), 16);
        assert_ne!(session("one"), session("two"));
    }

    #[test]
    fn each_fault_of_an_entry_is_told_with_its_name() {
        let good = quick("x");
        let admin = ["evenkeel-admin"];
        let node = format!("{PROJECT}_en-agent-rw");
        let other =
            "$argon2i$v=19$m=16,t=1,p=1$c29tZXNhbHQ$9sTbSlTio3Biev89thdrlKKiCaYsjjYVJxGAL3swxpQ";
        let heavy = good.replace("t=1", "t=1000");
        let cases: [(UserEntry, &str); 9] = [
            (entry("", &good, &admin), "1 to 128 bytes"),
            (entry("two words", &good, &admin), "no spaces"),
            (entry("alice", &good, &[]), "there are no roles"),
            (entry("alice", &good, &["root"]), "\"root\" is no role"),
            (entry("alice", &good, &[&node]), "cannot speak as a node"),
            (entry("alice", "open sesame", &admin), "password_hash"),
            (entry("alice", other, &admin), "not one of argon2id"),
            (
                entry("alice", "$argon2id$v=19$m=16,t=1,p=1", &admin),
                "no salt",
            ),
            (entry("alice", &heavy, &admin), "it asks for more than"),
        ];
        for (entry, why) in cases {
            let name = entry.name.clone();
            let error = users(vec![entry]).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(&name), "{error}");
            assert!(!error.contains("sesame"), "{error}");
        }
        let twice = || entry("alice", &good, &admin);
        let error = users(vec![twice(), twice()]).unwrap_err().to_string();
        assert_eq!(error, "user \"alice\": it is there twice");
    }

    #[test]
    fn a_file_without_anybody_lets_nobody_in() {
        let nobody = users(Vec::new()).unwrap();
        assert!(nobody.log_in("", &Secret::new("nobody")).is_none());
    }
}
