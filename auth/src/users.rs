//! Users who log in with a password: their names, password hashes and roles.
//!
//! Hashes are argon2id in the PHC format (`$argon2id$v=19$m=…,t=…,p=…$salt$hash`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use argon2::{ARGON2ID_IDENT, Argon2, Params, PasswordHash, PasswordHasher, PasswordVerifier};
use evenkeel_kit::Secret;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::named_role::{BadRole, RoleGrant};

/// Longest user name, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// Longest password, in bytes.
const MAX_PASSWORD_BYTES: usize = 1024;

/// Shortest new password of a user of the database, in bytes.
const MIN_PASSWORD_BYTES: usize = 12;

/// Least number of different characters in such a password.
const MIN_DIFFERENT_CHARACTERS: usize = 5;

/// Shortest name that such a password must not contain, in bytes.
const MIN_NAME_BYTES_IN_PASSWORD: usize = 3;

/// Most memory for the check of a password, in KiB. The limits protect the server: the client of a
/// login is not authenticated yet.
const MAX_MEMORY_KIB: u32 = 256 * 1024;
/// Most passes over the memory.
const MAX_PASSES: u32 = 32;
/// Most lanes of argon2.
const MAX_PARALLELISM: u32 = 16;

/// Content of a users file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UsersFile {
    pub users: Vec<UserEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserEntry {
    /// Name to log in with.
    #[serde(default)]
    pub name: String,
    /// An entry without a hash is invalid.
    #[serde(default)]
    pub password_hash: Option<Secret>,
    /// Roles of the user, as in a token.
    #[serde(default)]
    pub roles: Vec<String>,
}

/// An entry of a users file is invalid. The error never contains the hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("user {name:?}: {why}")]
pub struct BadUser {
    name: String,
    why: String,
}

/// A password could not be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadPassword {
    #[error("the password is empty")]
    Empty,
    #[error("a password has at most {} bytes", MAX_PASSWORD_BYTES)]
    TooLong,
    /// The system returned no random numbers, or not enough memory.
    #[error("the password cannot be hashed: {0}")]
    Hash(argon2::password_hash::Error),
}

/// A user who may log in.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// Name to log in with.
    pub name: String,
    /// What the user may do. Roles may name their project, which need not exist.
    pub roles: Vec<RoleGrant>,
    hash: PasswordHash,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).field("roles", &self.roles).finish()
    }
}

impl User {
    /// A user of the database: roles as in a token, and the hash of the password.
    ///
    /// # Errors
    /// The name, a role or the hash is invalid.
    pub fn from_stored(name: &str, roles: Vec<String>, hash: Secret) -> Result<Self, BadUser> {
        parse_user(&UserEntry { name: name.to_owned(), password_hash: Some(hash), roles })
    }

    /// Identifies the current password. A session that began with another password must log in
    /// again.
    #[must_use]
    pub fn session(&self) -> String {
        let digest = Sha256::digest(self.hash.to_string());
        digest.iter().take(8).fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// All users who may log in.
#[derive(Clone, Debug)]
pub struct Users {
    by_name: BTreeMap<String, User>,
    rejected: Vec<BadUser>,
    /// Checked for unknown names, so that the check takes as long as for the user with the most
    /// expensive hash.
    decoy: User,
}

impl Users {
    /// Reads the entries of a users file. The user of an invalid entry cannot log in; the others can
    /// (see [`Self::rejected`]).
    pub fn new(file: UsersFile) -> Result<Self, BadPassword> {
        let mut names = BTreeMap::new();
        for entry in &file.users {
            *names.entry(entry.name.clone()).or_insert(0) += 1;
        }
        let (mut all, mut rejected) = (BTreeMap::new(), Vec::new());
        for entry in file.users {
            // It is not known which of the entries is meant.
            if names.get(&entry.name).is_some_and(|count| *count > 1) {
                rejected.push(bad(&entry.name, "the name occurs twice"));
                continue;
            }
            match parse_user(&entry) {
                Ok(user) => _ = all.insert(entry.name, user),
                Err(error) => rejected.push(error),
            }
        }
        let params = all.values().filter_map(|user: &User| Params::try_from(&user.hash).ok());
        // Users of the database have hashes with the default cost.
        let params = params.chain([Params::default()]).max_by_key(hash_cost);
        let hash: Result<PasswordHash, _> =
            Argon2::from(params.unwrap_or_default()).hash_password(b"nobody");
        let decoy =
            User { name: String::new(), roles: Vec::new(), hash: hash.map_err(BadPassword::Hash)? };
        Ok(Self { by_name: all, rejected, decoy })
    }

    /// The users who cannot log in because their entries are invalid, and why.
    #[must_use]
    pub fn rejected(&self) -> &[BadUser] {
        &self.rejected
    }

    /// Whether an entry of the file has this name, in upper or lower case. The entry may be invalid.
    #[must_use]
    pub fn has_entry(&self, name: &str) -> bool {
        let rejected = self.rejected.iter().map(|user| user.name.as_str());
        let mut names = self.by_name.keys().map(String::as_str).chain(rejected);
        names.any(|entry| entry.eq_ignore_ascii_case(name))
    }

    #[must_use]
    pub fn find(&self, name: &str) -> Option<&User> {
        self.by_name.get(name)
    }

    /// The user of this name, if the password is correct. Takes as long for an unknown name as for
    /// the user with the most expensive hash. Slow on purpose: do not call it in a task on which
    /// others wait.
    #[must_use]
    pub fn log_in(&self, name: &str, password: &Secret) -> Option<&User> {
        self.log_in_with(None, name, password)
    }

    /// As [`Self::log_in`], with the user of this name in the database, if there is one.
    #[must_use]
    pub fn log_in_with<'a>(
        &'a self,
        stored: Option<&'a User>,
        name: &str,
        password: &Secret,
    ) -> Option<&'a User> {
        let user = self.find(name).or(stored);
        let hash = &user.unwrap_or(&self.decoy).hash;
        let password = password.reveal().as_bytes();
        let fits = password.len() <= MAX_PASSWORD_BYTES
            && Argon2::default().verify_password(password, hash).is_ok();
        user.filter(|_| fits)
    }

    /// Number of users.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_name.len()
    }
}

/// The cost of the check of a hash: memory in KiB, times the passes over it.
fn hash_cost(params: &Params) -> u64 {
    u64::from(params.m_cost()) * u64::from(params.t_cost())
}

/// A new password is too easy to guess. The error never contains the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeakPassword {
    #[error("a password has at least {} bytes", MIN_PASSWORD_BYTES)]
    TooShort,
    #[error("a password has at most {} bytes", MAX_PASSWORD_BYTES)]
    TooLong,
    #[error("a password has at least {} different characters", MIN_DIFFERENT_CHARACTERS)]
    TooUniform,
    #[error("a password must not contain the name of the user")]
    ContainsName,
    #[error("a password must not contain control characters, because a keyboard cannot type them")]
    ControlCharacter,
}

/// Checks a new password of a user of the database.
///
/// # Errors
/// It is too short or too long, or easy to guess.
pub fn check_new_password(name: &str, password: &Secret) -> Result<(), WeakPassword> {
    let text = password.reveal();
    if text.len() < MIN_PASSWORD_BYTES {
        return Err(WeakPassword::TooShort);
    }
    if text.len() > MAX_PASSWORD_BYTES {
        return Err(WeakPassword::TooLong);
    }
    if text.contains(char::is_control) {
        return Err(WeakPassword::ControlCharacter);
    }
    if text.chars().collect::<BTreeSet<_>>().len() < MIN_DIFFERENT_CHARACTERS {
        return Err(WeakPassword::TooUniform);
    }
    // Short names occur by chance.
    let is_long_name = name.len() >= MIN_NAME_BYTES_IN_PASSWORD;
    if is_long_name && text.to_lowercase().contains(&name.to_lowercase()) {
        return Err(WeakPassword::ContainsName);
    }
    Ok(())
}

/// Whether the name of a new user of the database is valid: at most 128 lower-case letters, digits
/// and `-_.+@`. No two names differ only in their case.
#[must_use]
pub fn is_new_name(name: &str) -> bool {
    let fits = |byte: u8| {
        byte.is_ascii_lowercase()
            || byte.is_ascii_digit()
            || matches!(byte, b'-' | b'_' | b'.' | b'+' | b'@')
    };
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(fits)
}

/// Hash of a password, for a users file or the database.
pub fn hash_password(password: &Secret) -> Result<String, BadPassword> {
    let password = password.reveal().as_bytes();
    if password.is_empty() {
        return Err(BadPassword::Empty);
    }
    if password.len() > MAX_PASSWORD_BYTES {
        return Err(BadPassword::TooLong);
    }
    let hash: Result<PasswordHash, _> = Argon2::default().hash_password(password);
    hash.map(|hash| hash.to_string()).map_err(BadPassword::Hash)
}

fn bad(name: &str, why: &str) -> BadUser {
    BadUser { name: name.to_owned(), why: why.to_owned() }
}

fn parse_user(entry: &UserEntry) -> Result<User, BadUser> {
    let bad = |why: &str| bad(&entry.name, why);
    let name = &entry.name;
    let is_odd = |c: char| c.is_control() || c.is_whitespace();
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(is_odd) {
        return Err(bad("a name has 1 to 128 bytes, and no spaces"));
    }
    if entry.roles.is_empty() {
        return Err(bad("there are no roles"));
    }
    let mut roles = Vec::new();
    for text in &entry.roles {
        roles.push(text.parse().map_err(|error: BadRole| bad(&error.to_string()))?);
    }
    let hash = entry.password_hash.as_ref().ok_or_else(|| bad("password_hash is missing"))?;
    let hash = PasswordHash::new(hash.reveal());
    let hash = hash.map_err(|error| bad(&format!("password_hash: {error}")))?;
    check_hash(&hash).map_err(|why| bad(&format!("password_hash: {why}")))?;
    Ok(User { name: name.clone(), roles, hash })
}

/// Checks that a hash is argon2id and does not exceed the limits.
fn check_hash(hash: &PasswordHash) -> Result<(), String> {
    if hash.algorithm != ARGON2ID_IDENT {
        return Err(
            "it is not an argon2id hash; create one with `evenkeeld hash-password`".to_owned()
        );
    }
    if hash.salt.is_none() || hash.hash.is_none() {
        return Err("it has no salt or no hash".to_owned());
    }
    let params = Params::try_from(hash).map_err(|error| error.to_string())?;
    let is_too_much = params.m_cost() > MAX_MEMORY_KIB
        || params.t_cost() > MAX_PASSES
        || params.p_cost() > MAX_PARALLELISM;
    if is_too_much {
        return Err(format!(
            "it asks for more than m={MAX_MEMORY_KIB},t={MAX_PASSES},p={MAX_PARALLELISM}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::roles::Role;

    const PROJECT: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

    /// A hash with the smallest cost.
    fn cheap_hash(password: &str) -> String {
        let params = Params::new(Params::MIN_M_COST, 1, 1, None).unwrap();
        let hash: Result<PasswordHash, _> = Argon2::from(params).hash_password(password.as_bytes());
        hash.unwrap().to_string()
    }

    fn entry(name: &str, hash: &str, roles: &[&str]) -> UserEntry {
        UserEntry {
            name: name.to_owned(),
            password_hash: Some(Secret::new(hash)),
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        }
    }

    fn users(all: Vec<UserEntry>) -> Users {
        Users::new(UsersFile { users: all }).unwrap()
    }

    #[test]
    fn a_user_logs_in_with_name_and_password() {
        let role = format!("{PROJECT}_im-rw");
        let alice = entry("alice", &cheap_hash("open sesame"), &[&role, "evenkeel-admin"]);
        let users = users(vec![alice, entry("bob", &cheap_hash("barley"), &[&role])]);
        let log_in = |name: &str, password: &str| {
            let user = users.log_in(name, &Secret::new(password));
            user.map(|user| user.roles.clone())
        };
        let writer = RoleGrant::Exact(Role::Write(PROJECT));
        let both = vec![writer.clone(), RoleGrant::Exact(Role::Administrator)];
        assert_eq!(log_in("alice", "open sesame"), Some(both));
        assert_eq!(log_in("bob", "barley"), Some(vec![writer]));
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
        let debug_text = format!("{users:?}");
        assert!(!debug_text.contains("argon2"), "{debug_text}");
    }

    #[test]
    fn an_entry_has_its_name_in_every_case_and_if_it_is_invalid() {
        let hash = cheap_hash("x");
        let (alice, bob) = (entry("Alice", &hash, &["evenkeel-admin"]), entry("bob", &hash, &[]));
        let users = users(vec![alice, bob]);
        for (name, expected) in [("alice", true), ("Alice", true), ("bob", true), ("carol", false)]
        {
            assert_eq!(users.has_entry(name), expected, "{name}");
        }
        assert!(users.find("alice").is_none(), "a login needs the exact name");
    }

    #[test]
    fn a_user_has_roles_in_projects_by_name() {
        let hash = cheap_hash("x");
        let users = users(vec![entry("alice", &hash, &["operator@shops", "viewer@banks"])]);
        let roles = &users.find("alice").unwrap().roles;
        let texts: Vec<_> = roles.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["operator@shops", "viewer@banks"]);
    }

    #[test]
    fn a_hash_is_that_of_its_password_and_never_the_same() {
        let secret = Secret::new("open sesame");
        let (one, another) = (hash_password(&secret).unwrap(), hash_password(&secret).unwrap());
        assert!(one.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{one}");
        assert_ne!(one, another);
        let users = users(vec![entry("alice", &one, &["evenkeel-admin"])]);
        assert!(users.log_in("alice", &secret).is_some());
        assert_eq!(hash_password(&Secret::new("")), Err(BadPassword::Empty));
        let long = Secret::new("x".repeat(1025));
        assert_eq!(hash_password(&long), Err(BadPassword::TooLong));
    }

    #[test]
    fn an_unknown_name_costs_as_much_as_the_most_expensive_hash() {
        let hash = |passes: u32| {
            let params = Params::new(Params::DEFAULT_M_COST, passes, 1, None).unwrap();
            let hash: Result<PasswordHash, _> = Argon2::from(params).hash_password(b"secret");
            hash.unwrap().to_string()
        };
        let names = [("alice", 1), ("bob", 3), ("carol", 2)];
        let all = names.map(|(name, passes)| entry(name, &hash(passes), &["evenkeel-admin"]));
        let users = users(all.into());
        let params = Params::try_from(&users.decoy.hash).unwrap();
        assert_eq!(params.t_cost(), 3);
    }

    #[test]
    fn a_weak_new_password_is_refused() {
        let check = |text: &str| check_new_password("alice", &Secret::new(text));
        for (text, expected) in [
            ("", WeakPassword::TooShort),
            ("elevenbytes", WeakPassword::TooShort),
            (&*"xy".repeat(513), WeakPassword::TooLong),
            ("aaaaaaaaaaaa", WeakPassword::TooUniform),
            ("abcdabcdabcdabcd", WeakPassword::TooUniform),
            ("I am Alice, hello", WeakPassword::ContainsName),
            ("open sesame\u{7}!", WeakPassword::ControlCharacter),
        ] {
            assert_eq!(check(text), Err(expected), "{text:?}");
        }
        assert_eq!(check("open sesame!"), Ok(()));
        assert_eq!(check_new_password("o", &Secret::new("open sesame!")), Ok(()));
    }

    #[test]
    fn the_name_of_a_new_user_has_no_odd_characters() {
        for good in ["a", "alice", "alice.b-c_d+e@example.org", &*"x".repeat(128)] {
            assert!(is_new_name(good), "{good}");
        }
        for bad in ["", "a b", "a\n", "a\0", "ä", "Alice", "a/b", "a(b", "a\"b", &*"x".repeat(129)]
        {
            assert!(!is_new_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_user_of_the_database_logs_in_like_one_of_the_file() {
        let hash = Secret::new(cheap_hash("barley"));
        let admin = vec!["evenkeel-admin".to_owned()];
        let bob = User::from_stored("bob", admin.clone(), hash).unwrap();
        let users = users(vec![entry("alice", &cheap_hash("open sesame"), &["evenkeel-admin"])]);
        let log_in = |name: &str, stored: Option<&User>, password: &str| {
            users.log_in_with(stored, name, &Secret::new(password)).map(|user| user.name.clone())
        };
        assert_eq!(log_in("bob", Some(&bob), "barley").as_deref(), Some("bob"));
        assert_eq!(log_in("bob", Some(&bob), "open sesame"), None);
        assert_eq!(log_in("bob", None, "barley"), None);
        assert_eq!(log_in("alice", None, "open sesame").as_deref(), Some("alice"));
        assert!(User::from_stored("bob", admin, Secret::new("barley")).is_err());
    }

    #[test]
    fn another_password_ends_the_sessions() {
        let session = |password: &str| {
            let users = users(vec![entry("alice", &cheap_hash(password), &["evenkeel-admin"])]);
            users.find("alice").unwrap().session()
        };
        assert_eq!(session("one").len(), 16);
        assert_ne!(session("one"), session("two"));
    }

    #[test]
    fn an_invalid_entry_is_reported_with_its_name_and_disables_only_its_user() {
        let good = cheap_hash("x");
        let admin = ["evenkeel-admin"];
        let node = format!("{PROJECT}_en-agent-rw");
        let other =
            "$argon2i$v=19$m=16,t=1,p=1$c29tZXNhbHQ$9sTbSlTio3Biev89thdrlKKiCaYsjjYVJxGAL3swxpQ";
        let heavy = good.replace("t=1", "t=1000");
        let no_hash = UserEntry { password_hash: None, ..entry("alice", "", &admin) };
        let cases: [(UserEntry, &str); 10] = [
            (entry("", &good, &admin), "1 to 128 bytes"),
            (entry("two words", &good, &admin), "no spaces"),
            (entry("alice", &good, &[]), "there are no roles"),
            (entry("alice", &good, &[admin[0], "root"]), "\"root\" is not a role"),
            (entry("alice", &good, &[&node]), "cannot speak as a node"),
            (entry("alice", "open sesame", &admin), "password_hash"),
            (entry("alice", other, &admin), "not an argon2id hash"),
            (entry("alice", "$argon2id$v=19$m=16,t=1,p=1", &admin), "no salt"),
            (entry("alice", &heavy, &admin), "it asks for more than"),
            (no_hash, "password_hash is missing"),
        ];
        for (invalid, why) in cases {
            let name = invalid.name.clone();
            let users = users(vec![invalid, entry("bob", &good, &admin)]);
            let [error] = users.rejected() else { panic!("{:?}", users.rejected()) };
            let error = error.to_string();
            assert!(error.contains(why) && error.contains(&name), "{error}");
            assert!(!error.contains("sesame"), "{error}");
            assert!(users.find(&name).is_none() && users.find("bob").is_some(), "{error}");
        }
    }

    #[test]
    fn a_name_that_occurs_twice_is_disabled() {
        let good = cheap_hash("x");
        let entry = |name: &str| entry(name, &good, &["evenkeel-admin"]);
        let users = users(vec![entry("alice"), entry("bob"), entry("alice")]);
        assert!(users.find("alice").is_none() && users.find("bob").is_some());
        let errors: Vec<_> = users.rejected().iter().map(ToString::to_string).collect();
        assert_eq!(errors, ["user \"alice\": the name occurs twice"; 2]);
    }

    #[test]
    fn a_file_without_users_rejects_every_login() {
        let empty = users(Vec::new());
        assert!(empty.log_in("", &Secret::new("nobody")).is_none());
    }
}
