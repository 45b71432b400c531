//! Hooks of apt around dpkg: programs of the machine that apt runs before and after it changes packages.
//!
//! apt waits for a hook without a limit, and holds dpkg's lock meanwhile. The agent lets apt run each hook by a script that
//! ends it after a time, also if the agent itself is killed. A hook that fails has its usual effect: before dpkg starts, it
//! is how the machine's owner prevents a change. So a hook that is ended before dpkg starts, such as a snapshot that takes
//! too long, prevents the change as well.

use std::fs;
use std::time::Duration;

use super::sources::remove_folder;
use crate::durable::{self, FileError};
use crate::paths::AgentPaths;

/// Default time limit of a hook.
pub const DEFAULT_HOOK_TIMEOUT: Duration = Duration::from_mins(10);

/// Format of `apt-config dump` that [`HookSet::parse`] reads: name and value, with `%XX` for other than plain characters.
pub const FORMAT: &str = "%F %V%n";

/// The settings that [`HookSet::parse`] needs. apt-get adds those below its own name at its start.
pub const SETTINGS: [&str; 5] =
    [HOOK_LISTS[0], HOOK_LISTS[1], HOOK_LISTS[2], TOOL_OPTIONS, "Binary::apt-get::DPkg"];

const HOOK_LISTS: [&str; 3] = ["DPkg::Pre-Invoke", "DPkg::Pre-Install-Pkgs", HOOKS_AFTER_DPKG];
const HOOKS_AFTER_DPKG: &str = "DPkg::Post-Invoke";

/// Begins the names of settings that only apt-get uses.
const BINARY_PREFIX: &str = "Binary::apt-get::";

/// How the hooks of `DPkg::Pre-Install-Pkgs` get the list of packages, by the first word of their command.
const TOOL_OPTIONS: &str = "DPkg::Tools::Options";
const TOOL_OPTION_NAMES: [&str; 2] = ["Version", "InfoFD"];

/// Folder of the agent inside the managed root. It contains the script, and a file for each hook: apt's configuration files
/// cannot contain each command.
const FOLDER: &str = "/var/lib/evenkeel-agent/apt-hooks";
const SETTINGS_FILE: &str = "/var/lib/evenkeel-agent/apt-hooks/settings";

/// Begins the line that the script prints about a hook that it has ended.
const ENDED_PREFIX: &str = "evenkeel-agent: ";
const ENDED: &str = "a hook of apt did not end within ";

/// Runs a hook as apt does, with a time limit. 124 and 137 are the statuses of a program that `timeout` has ended. A hook may
/// also end with one of them by itself, so the time counts as well. Without its file, a hook counts as failed.
const SCRIPT: &str = r#"# Runs hook $2 of apt for at most $1 seconds. Ends with status $3 if the hook was killed.
hook=${0%/*}/$2
command=$(cat "$hook") || exit 1
read -r start _ < /proc/uptime
timeout -k 10 "$1" sh -c "$command"
status=$?
read -r end _ < /proc/uptime
case $status in
124 | 137)
  if [ $((${end%%.*} - ${start%%.*})) -ge "$1" ]; then
    echo "evenkeel-agent: a hook of apt did not end within $1 s and was killed: $(head -n 1 "$hook" | cut -c -200)"
    exit "$3"
  fi ;;
esac
exit "$status"
"#;

#[derive(Debug, PartialEq, Eq)]
struct AptHook {
    list: &'static str,
    command: Vec<u8>,
    /// Options of the command below `DPkg::Tools::Options`.
    options: Vec<(&'static str, u32)>,
}

/// The hooks of a machine around dpkg, and the time limit of each.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HookSet {
    hooks: Vec<AptHook>,
    limit_seconds: u64,
}

impl HookSet {
    /// Parses the output of `apt-config dump` with [`FORMAT`].
    pub fn parse(dump: &str, limit: Duration) -> Self {
        let settings = dump.lines().filter_map(|line| line.split_once(' '));
        let settings: Vec<(String, Vec<u8>)> = settings
            .map(|(name, value)| {
                let name = String::from_utf8_lossy(&decode(name)).into_owned();
                (without_binary(name), decode(value))
            })
            .collect();
        let hooks = settings.iter().filter_map(|(name, command)| {
            let list = HOOK_LISTS.into_iter().find(|list| child_name(name, list).is_some())?;
            (!command.is_empty()).then(|| AptHook {
                list,
                command: command.clone(),
                options: find_options(&settings, command),
            })
        });
        // `timeout` takes 0 for no limit.
        Self { hooks: hooks.collect(), limit_seconds: limit.as_secs().max(1) }
    }

    /// Writes settings of apt that limit the time of each hook. Returns their path inside the managed root; `None` if there
    /// is no hook.
    pub fn write(&self, paths: &AgentPaths) -> Result<Option<&'static str>, FileError> {
        if self.hooks.is_empty() {
            return Ok(None);
        }
        let folder = paths.inside(FOLDER);
        // The commands may contain passwords. apt runs them as root.
        durable::create_folder(&folder, 0o700)?;
        let write = |name: &str, content: &[u8]| {
            let path = folder.join(name);
            fs::write(&path, content).map_err(FileError::while_doing("write", path))
        };
        write("run", SCRIPT.as_bytes())?;
        for (index, hook) in self.hooks.iter().enumerate() {
            write(&index.to_string(), &hook.command)?;
        }
        write("settings", self.settings().as_bytes())?;
        Ok(Some(SETTINGS_FILE))
    }

    fn settings(&self) -> String {
        let cleared = HOOK_LISTS.map(|list| format!("#clear {list};\n"));
        let hooks = self.hooks.iter().enumerate().map(|(index, hook)| {
            let options = hook.options.iter().map(|(option, value)| {
                format!("{TOOL_OPTIONS}::{}::{option} \"{value}\";\n", first_word(index))
            });
            let command = format!("{}:: \"{}\";\n", hook.list, self.limited_command(index, hook));
            options.chain([command]).collect::<String>()
        });
        cleared.into_iter().chain(hooks).collect()
    }

    fn limited_command(&self, index: usize, hook: &AptHook) -> String {
        let status_if_killed = u8::from(hook.list != HOOKS_AFTER_DPKG);
        let limit = self.limit_seconds;
        format!("{} sh {FOLDER}/run {limit} {index} {status_if_killed}", first_word(index))
    }

    /// Output of apt with the commands of the machine instead of those that limit them.
    pub fn restore_commands(&self, output: &str) -> String {
        self.hooks.iter().enumerate().fold(output.to_owned(), |text, (index, hook)| {
            let limited = self.limited_command(index, hook);
            text.replace(&limited, &String::from_utf8_lossy(&hook.command))
        })
    }
}

/// Which hooks were ended, by the output of apt; `None` if none was.
pub fn describe_ended(output: &str) -> Option<String> {
    let mut ended: Vec<&str> = Vec::new();
    for line in output.lines() {
        let text = line.split_once(ENDED_PREFIX).map(|(_, text)| text.trim_end());
        ended.extend(text.filter(|text| text.starts_with(ENDED) && !ended.contains(text)));
    }
    (!ended.is_empty()).then(|| ended.join("; "))
}

pub fn exists(paths: &AgentPaths) -> bool {
    paths.inside(FOLDER).exists()
}

pub fn remove(paths: &AgentPaths) -> Result<(), FileError> {
    remove_folder(&paths.inside(FOLDER))
}

/// First word of the command that limits a hook. apt finds the options of a hook by its first word.
fn first_word(index: usize) -> String {
    format!("EVENKEEL_HOOK={index}")
}

fn find_options(settings: &[(String, Vec<u8>)], command: &[u8]) -> Vec<(&'static str, u32)> {
    let word = command.split(|byte| *byte == b' ').next().unwrap_or_default();
    let parent = format!("{TOOL_OPTIONS}::{}", String::from_utf8_lossy(word));
    let options = settings.iter().filter_map(|(name, value)| {
        let child = child_name(name, &parent)?;
        let is_same = |option: &&str| option.eq_ignore_ascii_case(child);
        let option = TOOL_OPTION_NAMES.into_iter().find(is_same)?;
        Some((option, std::str::from_utf8(value).ok()?.parse().ok()?))
    });
    options.collect()
}

/// The last part of the name of a setting that is directly below another one. Names are case-insensitive.
fn child_name<'a>(name: &'a str, parent: &str) -> Option<&'a str> {
    let (start, rest) = name.split_at_checked(parent.len())?;
    let child = rest.strip_prefix("::")?;
    (start.eq_ignore_ascii_case(parent) && !child.contains("::")).then_some(child)
}

/// The name of a setting as apt-get sees it.
fn without_binary(name: String) -> String {
    match name.split_at_checked(BINARY_PREFIX.len()) {
        Some((prefix, rest)) if prefix.eq_ignore_ascii_case(BINARY_PREFIX) => rest.to_owned(),
        _ => name,
    }
}

/// Decodes `%XX`.
fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first == b'%'
            && let Some((digits, others)) = after.split_at_checked(2)
            && let Some(byte) = parse_hex(digits)
        {
            bytes.push(byte);
            rest = others;
        } else {
            bytes.push(first);
        }
    }
    bytes
}

fn parse_hex(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::runner::{Command, HostRunner, Output, Runner};

    /// Output of apt 2.6.2 with some entries that are no hooks.
    const DUMP: &str = "DPkg::Pre-Invoke \n\
        DPkg::Pre-Invoke:: mount%20-o%20remount,rw%20\"/usr\"\n\
        DPkg::Pre-Install-Pkgs \n\
        DPkg::Pre-Install-Pkgs:: /usr/bin/apt-listchanges%20--apt%20||%20test%20$?%20-lt%2010\n\
        DPkg::Pre-Install-Pkgs:: /usr/sbin/dpkg-preconfigure%20--apt%20||%20true\n\
        dpkg::post-invoke::name echo%20100%25%20%c3%a9\n\
        DPkg::Post-Invoke::name::more no%20hook\n\
        DPkg::Tools::Options \n\
        DPkg::Tools::Options::/usr/bin/apt-listchanges \n\
        DPkg::Tools::Options::/usr/bin/apt-listchanges::Version 2\n\
        DPkg::Tools::Options::/usr/bin/apt-listchanges::infofd 20\n\
        Binary::apt-get::DPkg \n\
        Binary::apt-get::DPkg::Lock::Timeout 60\n\
        Binary::apt-get::DPkg::Post-Invoke \n\
        Binary::apt-get::DPkg::Post-Invoke:: touch%20/run/apt-get\n";

    #[test]
    fn each_hook_keeps_its_list_its_order_and_its_options() {
        let hooks = HookSet::parse(DUMP, Duration::from_mins(5));
        let commands: Vec<_> =
            hooks.hooks.iter().map(|hook| String::from_utf8_lossy(&hook.command)).collect();
        assert_eq!(
            commands,
            [
                "mount -o remount,rw \"/usr\"",
                "/usr/bin/apt-listchanges --apt || test $? -lt 10",
                "/usr/sbin/dpkg-preconfigure --apt || true",
                "echo 100% é",
                "touch /run/apt-get",
            ]
        );
        let run = "/var/lib/evenkeel-agent/apt-hooks/run 300";
        let settings = format!(
            "#clear DPkg::Pre-Invoke;\n\
             #clear DPkg::Pre-Install-Pkgs;\n\
             #clear DPkg::Post-Invoke;\n\
             DPkg::Pre-Invoke:: \"EVENKEEL_HOOK=0 sh {run} 0 1\";\n\
             DPkg::Tools::Options::EVENKEEL_HOOK=1::Version \"2\";\n\
             DPkg::Tools::Options::EVENKEEL_HOOK=1::InfoFD \"20\";\n\
             DPkg::Pre-Install-Pkgs:: \"EVENKEEL_HOOK=1 sh {run} 1 1\";\n\
             DPkg::Pre-Install-Pkgs:: \"EVENKEEL_HOOK=2 sh {run} 2 1\";\n\
             DPkg::Post-Invoke:: \"EVENKEEL_HOOK=3 sh {run} 3 0\";\n\
             DPkg::Post-Invoke:: \"EVENKEEL_HOOK=4 sh {run} 4 0\";\n"
        );
        assert_eq!(hooks.settings(), settings);
        let error = format!(
            "E: Problem executing scripts DPkg::Post-Invoke 'EVENKEEL_HOOK=3 sh {run} 3 0'\n"
        );
        assert_eq!(
            hooks.restore_commands(&error),
            "E: Problem executing scripts DPkg::Post-Invoke 'echo 100% é'\n"
        );
    }

    #[test]
    fn a_machine_without_hooks_needs_no_settings() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let hooks = HookSet::parse("DPkg::Pre-Invoke \n", Duration::from_mins(5));
        assert_eq!(hooks.write(&paths).unwrap(), None);
        assert!(!exists(&paths));
        remove(&paths).unwrap();
    }

    /// Runs one hook as apt would. Its status is 7 if it was killed.
    async fn run_hook(command: &str) -> Output {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let dump = format!("DPkg::Pre-Invoke:: {}\n", command.replace(' ', "%20"));
        let hooks = HookSet::parse(&dump, Duration::from_millis(300));
        assert_eq!(hooks.write(&paths).unwrap(), Some(SETTINGS_FILE));
        let script = format!("{}/run", paths.inside(FOLDER).display());
        let run = Command::new("sh", Duration::from_mins(1))
            .with_arguments([script.as_str(), "1", "0", "7"])
            .for_change();
        let output = HostRunner::new(Path::new("/")).run(&run).await.unwrap();
        remove(&paths).unwrap();
        assert!(!exists(&paths));
        output
    }

    #[tokio::test]
    async fn a_hook_that_does_not_end_is_killed_and_others_have_their_own_status() {
        let killed = run_hook("echo begins; sleep 1000").await;
        assert_eq!(killed.status, Some(7), "{killed:?}");
        let why = "a hook of apt did not end within 1 s and was killed: echo begins; sleep 1000";
        assert_eq!(describe_ended(&killed.stdout).as_deref(), Some(why), "{killed:?}");

        let failed = run_hook("echo \"100% $0\"; exit 3").await;
        assert_eq!((failed.status, failed.stdout.as_str()), (Some(3), "100% sh\n"));
        assert_eq!(describe_ended(&failed.stdout), None);

        let failed = run_hook("exit 124").await;
        assert_eq!((failed.status, failed.stdout.as_str()), (Some(124), ""));
    }

    #[test]
    fn each_ended_hook_is_described_once() {
        let line = |command: &str| {
            format!(
                "Progress: evenkeel-agent: a hook of apt did not end within 1 s and was killed: {command}\n"
            )
        };
        let output = [line("a"), "Setting up x ...\n".into(), line("b"), line("a")].concat();
        let described = describe_ended(&output).unwrap();
        assert_eq!(described.matches("did not end").count(), 2, "{described}");
        assert!(
            described
                .ends_with("killed: a; a hook of apt did not end within 1 s and was killed: b")
        );
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn hooks_are_parsed_as_apt_prints_them() {
        let samples = [
            "DPkg::Pre-Invoke:: test%20-x%20/bin/x%20||%20exit%201;\n",
            "DPkg::Tools::Options::a::Version 2\nDPkg::Pre-Install-Pkgs:: a%20\"b%22\n",
        ];
        fuzz("hooks in apt-config dump", |rng| {
            let dump = text(rng, &samples, " \n\r:%0aF\"'$\u{0}\u{e9}");
            let hooks = HookSet::parse(&dump, Duration::ZERO);
            let settings = hooks.settings();
            // No part of a command gets into the settings.
            let plain = |c: char| c.is_ascii_alphanumeric() || " \n\";:#=/-_".contains(c);
            assert!(settings.chars().all(plain), "{settings:?}");
            assert!(hooks.hooks.iter().all(|hook| !hook.command.is_empty()));
        });
    }
}
