//! Programs of the machine that are asked before a change begins.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::in_one_line;
use crate::model::tail;
use crate::owner::only_root_writes;
use crate::place::Place;
use crate::runner::{Command, RunError, Runner};

/// The folder, as seen from inside the managed root.
const FOLDER: &str = "/etc/evenkeel/hooks/before-update.d";

/// With this status a hook says "not yet" (`EX_TEMPFAIL`). Any other than 0 means the same, and that something is wrong.
const NOT_YET: i32 = 75;

/// So much of the end of what a hook says is told.
const MOST_WORDS: usize = 300;

/// Runs the hooks one after the other in the order of their names, until one does not say yes; then its words.
pub async fn ask(place: &Place, runner: &dyn Runner, deadline: Duration) -> Result<(), String> {
    for name in names(place)? {
        let command = Command::new(format!("{FOLDER}/{name}"), deadline);
        let output = match runner.run(&command).await {
            Ok(output) => output,
            Err(RunError::Deadline { said, .. }) => {
                let late = format!("the hook {name} did not answer in time");
                return Err(with_words(late, &said));
            }
            Err(error) => return Err(format!("the hook {name} cannot be asked: {error}")),
        };
        let answer = match output.status {
            Some(0) => continue,
            Some(NOT_YET) => format!("the hook {name} says not yet"),
            _ => format!("the hook {name} {}", output.ending()),
        };
        return Err(with_words(answer, &output.words()));
    }
    Ok(())
}

fn with_words(answer: String, words: &str) -> String {
    let words = in_one_line(tail(words.trim_end(), MOST_WORDS));
    if words.is_empty() {
        return answer;
    }
    format!("{answer}: {words}")
}

/// The names of the hooks. Fails if somebody else than root could have put one there.
fn names(place: &Place) -> Result<Vec<String>, String> {
    let folder = place.inside(FOLDER);
    let unreadable = |error: io::Error| format!("the hooks in {FOLDER} cannot be read: {error}");
    let found = match fs::metadata(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.map_err(unreadable)?,
    };
    let refuse = |why: String| format!("the hooks in {FOLDER} are not run: {why}");
    only_root_writes(&found).map_err(refuse)?;
    // Who may write above it could put another folder in its place.
    for above in folder.ancestors().skip(1).take(2) {
        let found = fs::metadata(above).map_err(unreadable)?;
        only_root_writes(&found).map_err(refuse)?;
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        // What has another name is a copy that an editor or dpkg left, or text for people.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if is_name(&name) && is_hook(&entry.path(), &name)? {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The names that run-parts(8) takes.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    !name.is_empty() && name.bytes().all(is_part)
}

/// Whether a file is to be run. One that is to be run and that others could have written holds the change back: left
/// out, it could not say no.
fn is_hook(path: &Path, name: &str) -> Result<bool, String> {
    let refuse = |why: String| format!("the hook {name} is not run: {why}");
    let found = fs::symlink_metadata(path).map_err(|error| refuse(error.to_string()))?;
    if found.is_symlink() {
        return Err(refuse("it is a symbolic link".to_owned()));
    }
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Ok(false);
    }
    only_root_writes(&found).map_err(refuse)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{self, Fake};
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    async fn answer(root: &Path, runner: &Fake) -> Result<(), String> {
        ask(&Place::new(root, None), runner, SOON).await
    }

    #[tokio::test]
    async fn all_hooks_are_asked_in_the_order_of_their_names() {
        let root = tempfile::tempdir().unwrap();
        let second = fake::hook(root.path(), "20-b");
        let first = fake::hook(root.path(), "10_a");
        let runner = Fake::default()
            .says(&first, 0, "fine\n")
            .says(&second, 0, "");
        answer(root.path(), &runner).await.unwrap();
        assert_eq!(runner.asked(), [first, second]);
    }

    #[tokio::test]
    async fn a_hook_that_does_not_say_yes_is_the_last_and_its_words_are_told() {
        let root = tempfile::tempdir().unwrap();
        let first = fake::hook(root.path(), "10-a");
        let second = fake::hook(root.path(), "20-b");
        let both = || Fake::default().says(&second, 0, "");

        let runner = both().says(&first, 75, "the oven\nis on\n");
        let why = answer(root.path(), &runner).await.unwrap_err();
        assert_eq!(why, "the hook 10-a says not yet: the oven is on");
        assert_eq!(runner.asked(), [first.as_str()]);

        let runner = both().says(&first, 2, "");
        let why = answer(root.path(), &runner).await.unwrap_err();
        assert_eq!(why, "the hook 10-a ended with status 2");

        let runner = both().hangs(&first);
        let why = answer(root.path(), &runner).await.unwrap_err();
        assert_eq!(why, "the hook 10-a did not answer in time: thinking");

        let why = answer(root.path(), &both()).await.unwrap_err();
        assert!(
            why.starts_with("the hook 10-a cannot be asked: cannot start"),
            "{why}"
        );
    }

    #[tokio::test]
    async fn what_is_no_hook_is_passed_over() {
        let root = tempfile::tempdir().unwrap();
        let runner = Fake::default();
        answer(root.path(), &runner).await.unwrap();
        for name in ["10-a.dpkg-old", "20-b~", "README.txt", ".hidden"] {
            fake::hook(root.path(), name);
        }
        let folder = root.path().join(FOLDER.trim_start_matches('/'));
        fake::write(&folder.join("30-text"), "to be read", 0o644);
        fs::create_dir(folder.join("40-folder")).unwrap();
        answer(root.path(), &runner).await.unwrap();
        assert!(runner.asked().is_empty(), "{:?}", runner.asked());
    }

    #[tokio::test]
    async fn a_hook_that_others_could_have_written_is_not_run_and_holds_back() {
        let root = tempfile::tempdir().unwrap();
        let hook = fake::hook(root.path(), "10-a");
        let runner = Fake::default().says(&hook, 0, "");
        let path = root.path().join(hook.trim_start_matches('/'));
        fake::write(&path, "#!/bin/sh\n", 0o775);
        let why = answer(root.path(), &runner).await.unwrap_err();
        assert_eq!(
            why,
            "the hook 10-a is not run: others than root may write it"
        );

        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/bin/true", &path).unwrap();
        let why = answer(root.path(), &runner).await.unwrap_err();
        assert_eq!(why, "the hook 10-a is not run: it is a symbolic link");

        fs::remove_file(&path).unwrap();
        for folder in path.ancestors().skip(1).take(2) {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
            let why = answer(root.path(), &runner).await.unwrap_err();
            assert!(why.ends_with("others than root may write it"), "{why}");
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert!(runner.asked().is_empty());
    }
}
