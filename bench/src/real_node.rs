//! A node with the real agent, which runs in a Debian root as on a machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::children::{MeasuredProcess, command_output};
use crate::measure::family;

const AGENT_PATH: &str = "/srv/evenkeel-agent";
/// Name of the agent process in `/proc/PID/comm`.
const AGENT_PROCESS_NAME: &str = "evenkeel-agent\n";

/// A Debian root with an overlay for the changes of the node, and its package repository.
#[derive(Debug)]
pub struct RealNode {
    base: String,
    work: PathBuf,
    binds: String,
}

impl RealNode {
    /// Creates a node that has version 1.0 of the packages, and a repository that offers 1.1.
    pub async fn create(folder: &Path, agent: &Path, packages: &[&str]) -> anyhow::Result<Self> {
        let (debs, repo) = (folder.join("debs"), folder.join("repo"));
        let base = command_output(&lab_script("make-base-root"), &["-"], &[]).await?;
        command_output(&lab_script("make-test-debs"), &[&path_text(&debs)], &[]).await?;
        let node = Self {
            base,
            work: folder.join("node"),
            binds: format!("{}:/srv/repo {}:{AGENT_PATH}", repo.display(), agent.display()),
        };
        publish_packages(&debs, &repo, "1.0", packages).await?;
        let installed = packages.join(" ");
        node.run_shell(&format!(
            "cp /srv/repo/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any
             apt-get -q -y install {installed}"
        ))
        .await?;
        publish_packages(&debs, &repo, "1.1", packages).await?;
        Ok(node)
    }

    /// Runs a shell script as root on the node.
    pub async fn run_shell(&self, script: &str) -> anyhow::Result<String> {
        self.run_command(&["sh", "-ec", script]).await
    }

    /// Runs the agent with these arguments until it ends.
    pub async fn run_agent(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.run_command(&[&[AGENT_PATH], arguments].concat()).await
    }

    /// Starts the agent. Returns the process that contains it, and the process id of the agent.
    pub async fn start_agent(&self, log: &Path) -> anyhow::Result<(MeasuredProcess, u32)> {
        let arguments = self.root_arguments(&[AGENT_PATH, "run"]);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let variables = [("BIND", self.binds.as_str())];
        let holder =
            MeasuredProcess::start_program(&lab_script("in-root"), &arguments, &variables, log)?;
        for _ in 0..100 {
            if let Some(agent) = find_agent_below(holder.pid()) {
                return Ok((holder, agent));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let log_text = std::fs::read_to_string(log).unwrap_or_default();
        bail!("the agent did not start within 10 seconds:\n{log_text}")
    }

    async fn run_command(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let arguments = self.root_arguments(arguments);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        command_output(&lab_script("in-root"), &arguments, &[("BIND", &self.binds)]).await
    }

    fn root_arguments(&self, arguments: &[&str]) -> Vec<String> {
        let own = [self.base.clone(), path_text(&self.work)];
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        own.into_iter().chain(arguments).collect()
    }
}

async fn publish_packages(
    debs: &Path,
    repo: &Path,
    version: &str,
    packages: &[&str],
) -> anyhow::Result<()> {
    let files =
        packages.iter().map(|name| path_text(&debs.join(format!("{name}_{version}_all.deb"))));
    let arguments: Vec<_> =
        [path_text(repo), "file:/srv/repo".to_owned()].into_iter().chain(files).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    command_output(&lab_script("make-apt-repo"), &arguments, &[]).await?;
    Ok(())
}

/// Finds the agent among the descendants of a process.
fn find_agent_below(process: u32) -> Option<u32> {
    let is_agent = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name == AGENT_PROCESS_NAME)
    };
    let family = family(process);
    let children = || family.iter().copied().filter(|child| *child != process);
    family.iter().copied().find(is_agent).or_else(|| children().find_map(find_agent_below))
}

fn lab_script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/lab").join(name)
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Path of the agent as it is shipped. Builds the agent if necessary.
pub async fn build_shipped_agent() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let stdout =
        command_output(Path::new("make"), &["-s", "-C", &path_text(&root), "agent"], &[]).await?;
    let path = stdout.lines().last().and_then(|line| line.split(' ').next_back());
    let path = root.join(path.context("`make agent` printed no path")?);
    path.canonicalize().context("`make agent` did not build the agent")
}
