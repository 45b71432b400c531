//! Contexts: which server, which project, with which token. One file, readable by its owner alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_kit::Secret;
use serde::{Deserialize, Serialize, Serializer};

use crate::Failure;
use crate::login::Login;

/// All contexts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Contexts {
    /// The name of the one that holds unless another is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// Ordered as they were added.
    #[serde(default)]
    pub contexts: Vec<Context>,
}

/// Which server, which project, with which token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Context {
    /// What it is called here.
    pub name: String,
    /// Where the server is.
    pub server: String,
    /// The project that commands are about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The only authority that may vouch for the server, as a PEM file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// With what to log in.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "reveal"
    )]
    pub token: Option<Secret>,
    /// How the token was got, if somebody logged in by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<Login>,
}

#[expect(clippy::ref_option, reason = "serde gives the field by reference")]
fn reveal<S: Serializer>(token: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    token.as_ref().map(Secret::reveal).serialize(serializer)
}

impl Contexts {
    /// Reads the file; a file that is not there has no contexts.
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

    /// Writes the file whole, for its owner alone.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_saphyr::to_string(self).map_err(|error| Failure::Form(Box::new(error)))?;
        replace(path, &text).map_err(|source| Failure::File {
            path: path.to_owned(),
            source,
        })
    }

    /// The context with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Context> {
        self.contexts.iter().find(|context| context.name == name)
    }

    /// The first context of this server.
    #[must_use]
    pub fn of_server(&self, server: &str) -> Option<&Context> {
        self.contexts
            .iter()
            .find(|context| context.server == server)
    }

    /// The context to use: the one that was asked for, else the current one.
    pub fn chosen(&self, wanted: Option<&str>) -> Result<Option<&Context>, Failure> {
        let Some(name) = wanted.or(self.current.as_deref()) else {
            return Ok(None);
        };
        match self.named(name) {
            Some(context) => Ok(Some(context)),
            None => Err(self.unknown(name)),
        }
    }

    /// Says that there is no such context.
    #[must_use]
    pub fn unknown(&self, name: &str) -> Failure {
        let names: Vec<_> = self
            .contexts
            .iter()
            .map(|context| context.name.as_str())
            .collect();
        let hint = if names.is_empty() {
            "there is none yet; `evenkeel context add NAME --server URL` makes one".to_owned()
        } else {
            format!("there are: {}", names.join(", "))
        };
        Failure::usage_with(format!("there is no context `{name}`"), hint)
    }

    /// Adds a context, or puts it in the place of the one with its name. The first one becomes the current one.
    pub fn put(&mut self, context: Context) {
        self.current.get_or_insert_with(|| context.name.clone());
        match self
            .contexts
            .iter_mut()
            .find(|old| old.name == context.name)
        {
            Some(old) => *old = context,
            None => self.contexts.push(context),
        }
    }
}

/// A path that means the same file wherever the command is run later.
pub fn absolute(path: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let whole = std::path::absolute(path).map_err(|source| Failure::File {
        path: path.to_owned(),
        source,
    })?;
    Ok(Some(whole))
}

/// Writes beside and renames, so that a reader sees the old file or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    let (mut file, beside) = create_beside(path)?;
    let replaced = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&beside, path));
    if replaced.is_err() {
        // It holds tokens. If it cannot be removed, the first error still says more.
        let _ = fs::remove_file(&beside);
    }
    replaced
}

/// Makes a file beside this one that is nobody else's: many commands may renew their token at once.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_extension(format!("{}-{number}.new", std::process::id()));
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside);
        match created {
            Ok(file) => return Ok((file, beside)),
            // It belongs to a process with the same number: one that was killed, or one in another container.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn context(name: &str) -> Context {
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
            }),
        }
    }

    #[test]
    fn only_the_owner_may_read_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/contexts.yaml");
        let mut contexts = Contexts::default();
        contexts.put(context("first"));
        contexts.put(context("second"));
        contexts.save(&path).expect("written");
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

    fn names_in(folder: &Path) -> Vec<String> {
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
                contexts.put(context(&format!("{many}/{number}")));
            }
            for _ in 0..20 {
                contexts.save(&path).expect("written");
                let read = Contexts::load(&path).expect("readable");
                let whole = format!("{}/0", read.contexts.len());
                assert_eq!(read.current, Some(whole));
            }
        };
        std::thread::scope(|scope| {
            for many in 1..=16 {
                scope.spawn(move || save(many));
            }
        });
        assert_eq!(names_in(folder.path()), ["contexts.yaml"]);
    }

    #[test]
    fn what_cannot_be_saved_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts.yaml");
        fs::create_dir(&path).expect("made");
        let saved = Contexts::default().save(&path);
        assert!(matches!(saved, Err(Failure::File { .. })), "{saved:?}");
        assert_eq!(names_in(folder.path()), ["contexts.yaml"]);
    }

    #[test]
    fn a_file_that_was_left_behind_is_in_nobodys_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts.yaml");
        let left = |number: u32| format!("{}-{number}.new", std::process::id());
        for number in 0..1_000 {
            fs::write(path.with_extension(left(number)), "").expect("written");
        }
        Contexts::default().save(&path).expect("written");
        Contexts::load(&path).expect("readable");
    }

    #[test]
    fn a_file_that_is_not_there_has_no_contexts() {
        let folder = tempfile::tempdir().expect("a folder");
        let contexts = Contexts::load(&folder.path().join("none")).expect("nothing is fine");
        assert!(contexts.contexts.is_empty());
        assert!(contexts.chosen(Some("x")).is_err());
        assert!(contexts.chosen(None).expect("none").is_none());
    }

    #[test]
    fn a_broken_file_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts.yaml");
        fs::write(&path, "contexts: 7").expect("written");
        let error = Contexts::load(&path).expect_err("no contexts");
        assert!(
            error
                .to_string()
                .ends_with("contexts.yaml is not a file of contexts"),
            "{error}"
        );
    }
}
