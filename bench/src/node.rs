//! A node with the real agent: a Debian root of its own in which the agent runs as on a machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::children::{Measured, output};
use crate::measure::family;

/// Where the agent is on the node.
const AGENT: &str = "/srv/evenkeel-agent";
/// The name of its process, as the kernel keeps it.
const NAME: &str = "evenkeel-agent\n";

/// A Debian root over which the node's own changes lie, and the repository that it may install from.
#[derive(Debug)]
pub struct Node {
    base: String,
    work: PathBuf,
    binds: String,
}

impl Node {
    /// A node whose repository offers 1.1 of the packages that it has in version 1.0.
    pub async fn make(folder: &Path, agent: &Path, packages: &[&str]) -> anyhow::Result<Self> {
        let (debs, repo) = (folder.join("debs"), folder.join("repo"));
        let base = output(&script("make-base-root"), &["-"], &[]).await?;
        output(&script("make-test-debs"), &[&text(&debs)], &[]).await?;
        let node = Self {
            base,
            work: folder.join("node"),
            binds: format!("{}:/srv/repo {}:{AGENT}", repo.display(), agent.display()),
        };
        publish(&debs, &repo, "1.0", packages).await?;
        let installed = packages.join(" ");
        node.shell(&format!(
            "cp /srv/repo/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any
             apt-get -q -y install {installed}"
        ))
        .await?;
        publish(&debs, &repo, "1.1", packages).await?;
        Ok(node)
    }

    /// Runs a shell script as root of the node.
    pub async fn shell(&self, script: &str) -> anyhow::Result<String> {
        self.run(&["sh", "-ec", script]).await
    }

    /// Runs the agent with these words until it ends.
    pub async fn agent(&self, words: &[&str]) -> anyhow::Result<String> {
        self.run(&[&[AGENT], words].concat()).await
    }

    /// Starts the agent. Returns what holds it and its process id.
    pub async fn start(&self, log: &Path) -> anyhow::Result<(Measured, u32)> {
        let words = self.entering(&[AGENT, "run"]);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let variables = [("BIND", self.binds.as_str())];
        let holder = Measured::start_program(&script("in-root"), &words, &variables, log)?;
        for _ in 0..100 {
            if let Some(agent) = agent_below(holder.pid()) {
                return Ok((holder, agent));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let said = std::fs::read_to_string(log).unwrap_or_default();
        bail!("the agent did not start:\n{said}")
    }

    async fn run(&self, words: &[&str]) -> anyhow::Result<String> {
        let words = self.entering(words);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        output(&script("in-root"), &words, &[("BIND", &self.binds)]).await
    }

    fn entering(&self, words: &[&str]) -> Vec<String> {
        let own = [self.base.clone(), text(&self.work)];
        let words = words.iter().map(|&word| word.to_owned());
        own.into_iter().chain(words).collect()
    }
}

async fn publish(debs: &Path, repo: &Path, version: &str, packages: &[&str]) -> anyhow::Result<()> {
    let files = packages
        .iter()
        .map(|name| text(&debs.join(format!("{name}_{version}_all.deb"))));
    let words: Vec<_> = [text(repo), "file:/srv/repo".to_owned()]
        .into_iter()
        .chain(files)
        .collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    output(&script("make-apt-repo"), &words, &[]).await?;
    Ok(())
}

/// The agent among the children of a process and theirs.
fn agent_below(process: u32) -> Option<u32> {
    let is_agent = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name == NAME)
    };
    let family = family(process);
    let children = || family.iter().copied().filter(|child| *child != process);
    family
        .iter()
        .copied()
        .find(is_agent)
        .or_else(|| children().find_map(agent_below))
}

/// A script of the lab.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/lab")
        .join(name)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The agent as it is shipped, built if that was not done yet.
pub async fn shipped_agent() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let said = output(Path::new("make"), &["-s", "-C", &text(&root), "agent"], &[]).await?;
    let path = said
        .lines()
        .last()
        .and_then(|line| line.split(' ').next_back());
    let path = root.join(path.context("make agent names no file")?);
    path.canonicalize().context("the agent was not built")
}
