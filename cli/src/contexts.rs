//! Contexts: saved servers, projects and tokens, in one file that only its owner can read.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_kit::Secret;
use serde::{Deserialize, Serialize, Serializer};
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::login::Login;

/// How long a command waits for another one that renews a token.
const RENEWAL_LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of the attempts to get the lock of renewals.
const RENEWAL_LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// File of the contexts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Contexts {
    /// Name of the current context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// The contexts in the order of their creation.
    #[serde(default)]
    pub contexts: Vec<Context>,
}

/// A server with a project and a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Context {
    /// Name of the context.
    pub name: String,
    /// URL of the server.
    pub server: String,
    /// Default project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// CA certificate (PEM file) to verify the server; the system roots if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Access token.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "reveal")]
    pub token: Option<Secret>,
    /// How to renew the token, after a login with a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<Login>,
}

#[expect(clippy::ref_option, reason = "serde gives the field by reference")]
fn reveal<S: Serializer>(token: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    token.as_ref().map(Secret::reveal).serialize(serializer)
}

impl Contexts {
    /// Reads the file. A missing file has no contexts.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => {
                let path = path.to_owned();
                return Err(Failure::File { path, source });
            }
        };
        serde_saphyr::from_str(&text).map_err(|error| Failure::Content {
            path: path.to_owned(),
            expected: "a file of contexts",
            source: Box::new(error),
        })
    }

    /// Writes the file atomically, readable only by its owner.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_saphyr::to_string(self)
            .map_err(|error| Failure::Serialization(Box::new(error)))?;
        write_atomically(path, &text)
            .map_err(|source| Failure::File { path: path.to_owned(), source })
    }

    /// Whether other users of this machine can read the tokens in the file.
    #[must_use]
    pub fn are_exposed(path: &Path) -> bool {
        let is_open = fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0);
        let has_token = |context: &Context| context.token.is_some() || context.login.is_some();
        is_open && Self::load(path).is_ok_and(|all| all.contexts.iter().any(has_token))
    }

    /// Finds the context with this name.
    #[must_use]
    pub fn find_by_name(&self, name: &str) -> Option<&Context> {
        self.contexts.iter().find(|context| context.name == name)
    }

    /// Finds the first context of this server.
    #[must_use]
    pub fn find_by_server(&self, server: &str) -> Option<&Context> {
        self.contexts.iter().find(|context| context.server == server)
    }

    /// Returns the requested context, else the current one.
    pub fn select(&self, requested: Option<&str>) -> Result<Option<&Context>, Failure> {
        let Some(name) = requested.or(self.current.as_deref()) else {
            return Ok(None);
        };
        match self.find_by_name(name) {
            Some(context) => Ok(Some(context)),
            None => Err(self.unknown_context_error(name)),
        }
    }

    /// Error for an unknown context.
    #[must_use]
    pub fn unknown_context_error(&self, name: &str) -> Failure {
        let names: Vec<_> = self.contexts.iter().map(|context| context.name.as_str()).collect();
        let hint = if names.is_empty() {
            "there are no contexts; `evenkeel context add NAME --server URL` creates one".to_owned()
        } else {
            format!("known contexts: {}", names.join(", "))
        };
        Failure::usage_with(format!("there is no context `{name}`"), hint)
    }

    /// Adds or replaces a context. The first one becomes the current one.
    pub fn upsert(&mut self, context: Context) {
        self.current.get_or_insert_with(|| context.name.clone());
        match self.contexts.iter_mut().find(|old| old.name == context.name) {
            Some(old) => *old = context,
            None => self.contexts.push(context),
        }
    }
}

/// Waits until no other command renews a token of the file, because a refresh token may be valid only
/// once. The lock ends when the result is dropped. Returns `None` if there can be no lock, or if the
/// other command takes too long.
pub async fn lock_renewals(path: &Path) -> Option<File> {
    let lock = path.with_extension("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock);
    let file = file.ok()?;
    let locked = timeout(RENEWAL_LOCK_TIMEOUT, async {
        while let Err(TryLockError::WouldBlock) = file.try_lock() {
            sleep(RENEWAL_LOCK_INTERVAL).await;
        }
    });
    locked.await.ok()?;
    Some(file)
}

/// Makes a path absolute, so that it is valid in every working directory.
pub fn absolute_path(path: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let absolute = std::path::absolute(path)
        .map_err(|source| Failure::File { path: path.to_owned(), source })?;
    Ok(Some(absolute))
}

/// Writes a temporary file and renames it, so that readers see either the old or the new content.
fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let (mut file, temp_path) = create_temp_file(path)?;
    let replaced = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temp_path, path));
    if replaced.is_err() {
        // The file contains tokens. If it cannot be removed, the first error still matters more.
        let _ = fs::remove_file(&temp_path);
    }
    replaced
}

/// Creates a new temporary file next to `path`: several commands may renew their tokens at once.
fn create_temp_file(path: &Path) -> io::Result<(File, PathBuf)> {
    static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let temp_path = path.with_extension(format!("{}-{number}.new", std::process::id()));
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp_path);
        match created {
            Ok(file) => return Ok((file, temp_path)),
            // It belongs to a process with the same ID: a killed one, or one in another container.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_context(name: &str) -> Context {
        Context {
            name: name.to_owned(),
            server: "http://127.0.0.1:8080".to_owned(),
            project: None,
            ca: None,
            token: Some(Secret::new("abc")),
            login: Some(Login {
                username: "alice".to_owned(),
                realm: "http://127.0.0.1:8080/realms/master".to_owned(),
                client: "system-client".to_owned(),
                refresh_token: Secret::new("def"),
                provider: None,
            }),
        }
    }

    #[test]
    fn only_the_owner_may_read_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/contexts.yaml");
        let mut contexts = Contexts::default();
        contexts.upsert(sample_context("first"));
        contexts.upsert(sample_context("second"));
        contexts.save(&path).expect("written");
        contexts.save(&path).expect("written again");

        assert!(!Contexts::are_exposed(&path));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("changed");
        assert!(Contexts::are_exposed(&path), "until the next save");
        contexts.save(&path).expect("written again");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let back = Contexts::load(&path).expect("readable");
        assert_eq!(back.current.as_deref(), Some("first"));
        let token = back.contexts[1].token.as_ref().expect("the token");
        assert_eq!(token.reveal(), "abc");
        let login = back.contexts[1].login.as_ref().expect("the login");
        assert_eq!(login.refresh_token.reveal(), "def");
        assert!(!format!("{back:?}").contains("def"), "{back:?}");
    }

    fn file_names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        entries
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.into_string().expect("text"))
            .collect()
    }

    #[test]
    fn many_commands_save_the_file_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts.yaml");
        let save = |many: usize| {
            let mut contexts = Contexts::default();
            for number in 0..many {
                contexts.upsert(sample_context(&format!("{many}/{number}")));
            }
            for _ in 0..20 {
                contexts.save(&path).expect("written");
                let read = Contexts::load(&path).expect("readable");
                let first = format!("{}/0", read.contexts.len());
                assert_eq!(read.current, Some(first));
            }
        };
        std::thread::scope(|scope| {
            for many in 1..=16 {
                scope.spawn(move || save(many));
            }
        });
        assert_eq!(file_names(folder.path()), ["contexts.yaml"]);
    }

    #[test]
    fn a_failed_save_removes_its_temporary_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts.yaml");
        fs::create_dir(&path).expect("made");
        let saved = Contexts::default().save(&path);
        assert!(matches!(saved, Err(Failure::File { .. })), "{saved:?}");
        assert_eq!(file_names(folder.path()), ["contexts.yaml"]);
    }

    #[test]
    fn stale_temporary_files_do_not_block_a_save() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts.yaml");
        let temp_extension = |number: u32| format!("{}-{number}.new", std::process::id());
        for number in 0..1_000 {
            fs::write(path.with_extension(temp_extension(number)), "").expect("written");
        }
        Contexts::default().save(&path).expect("written");
        Contexts::load(&path).expect("readable");
    }

    #[test]
    fn a_file_that_is_not_there_has_no_contexts() {
        let folder = tempfile::tempdir().expect("a folder");
        let contexts = Contexts::load(&folder.path().join("none")).expect("no contexts");
        assert!(contexts.contexts.is_empty());
        assert!(contexts.select(Some("x")).is_err());
        assert!(contexts.select(None).expect("none").is_none());
    }

    #[test]
    fn a_broken_file_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts.yaml");
        fs::write(&path, "contexts: 7").expect("written");
        let error = Contexts::load(&path).expect_err("no contexts");
        assert!(error.to_string().ends_with("contexts.yaml is not a file of contexts"), "{error}");
    }
}
