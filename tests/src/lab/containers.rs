//! Containers: the images of the project, and its compose file with podman in a storage of its own.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::boot::skip_test;
use super::machine::{as_root, command, script, succeed};
use super::packages::architecture;
use super::{Binaries, Lab, describe_output, until};
use crate::architecture::tree;

/// How long a container may take until it is healthy on a busy machine.
const HEALTH_TIMEOUT: Duration = Duration::from_mins(2);

/// The images of the project.
pub const IMAGE_NAMES: [&str; 2] = ["evenkeel-server", "evenkeel"];

/// Images of others, as the compose file names them.
const POSTGRES_IMAGE: &str = "docker.io/library/postgres:17";
const PROMETHEUS_IMAGE: &str = "docker.io/prom/prometheus:v3.5.0";

/// Folders that the compose file uses.
const COPY_SCRIPT: &str =
    r#"mkdir -p "$2/deploy"; cp -r "$1/deploy/compose" "$1/deploy/monitoring" "$2/deploy/""#;

/// The server, the command line and Postgres as images, and the folders of the compose file. All containers end when this value
/// is dropped.
#[derive(Debug)]
pub struct Containers {
    variables: Vec<(&'static str, String)>,
    /// Folder that stands for a clone of the repository.
    checkout: PathBuf,
    rest: String,
    nodes: String,
    /// Last field, so that it is dropped last.
    lab: Lab,
}

impl Containers {
    /// Builds the images and loads that of Postgres. If no container can run here, prints one line and returns `None`, or
    /// fails if these tests are required.
    pub fn open() -> Option<Self> {
        let lab = Lab::open()?;
        for program in ["podman", "runc", "iptables"] {
            if command(program).arg("--version").output().is_err() {
                return skip_test(&format!("{program} is missing; `make tools` installs it"));
            }
        }
        let tool = command(script("make-python-tool")).args(["podman-compose", "-"]).output();
        let tool = tool.expect("the script starts");
        if !tool.status.success() {
            let why = describe_output(&tool);
            return skip_test(&format!("podman-compose cannot be installed: {why}"));
        }
        let tool = String::from_utf8_lossy(&tool.stdout).trim().to_owned();
        let containers = Self::prepare(lab, &tool);
        build_images(&containers.checkout.join("dist/images"), &IMAGE_NAMES, &[]);
        let image = format!("evenkeel_{}_{}.tar", env!("CARGO_PKG_VERSION"), architecture());
        containers.podman(&["load", "--quiet", "--input", &format!("dist/images/{image}")]);
        let name = format!("localhost/evenkeel:{}", env!("CARGO_PKG_VERSION"));
        let trial = containers.try_podman(&["run", "--rm", &name, "--version"]);
        if !trial.status.success() {
            return skip_test(&format!("no container starts here: {}", describe_output(&trial)));
        }
        succeed(containers.command(script("make-postgres-image")).arg(POSTGRES_IMAGE));
        Some(containers)
    }

    #[expect(clippy::disallowed_methods, reason = "where the cache is")]
    fn prepare(lab: Lab, tool: &str) -> Self {
        let [checkout, storage] = ["checkout", "podman"].map(|name| lab.path(name));
        let root = tree::root();
        succeed(command("sh").args(["-ec", COPY_SCRIPT, "copy"]).arg(root).arg(&checkout));
        fs::create_dir(&storage).expect("a folder for podman");
        let [containers_file, storage_file] = write_configuration(&storage);
        let programs = Binaries::get().cli.parent().expect("a folder").display();
        let [rest, nodes] = free_ports();
        let variables = vec![
            ("PATH", format!("{tool}/bin:{programs}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")),
            ("CONTAINERS_CONF", containers_file.display().to_string()),
            ("CONTAINERS_STORAGE_CONF", storage_file.display().to_string()),
            ("EVENKEEL_LAB_CACHE", std::env::var("EVENKEEL_LAB_CACHE").unwrap_or_default()),
            ("EVENKEEL_CONFIG", lab.path("contexts").display().to_string()),
            ("EVENKEEL_ADDRESS", "127.0.0.1".to_owned()),
            ("EVENKEEL_REST_PORT", rest.clone()),
            ("EVENKEEL_NODE_PORT", nodes.clone()),
        ];
        Self { variables, checkout, rest, nodes, lab }
    }

    /// The lab of the containers.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Folder that stands for a clone of the repository, with the images in `dist/images`.
    pub fn checkout(&self) -> &Path {
        &self.checkout
    }

    /// Folder of the compose file.
    pub fn folder(&self) -> PathBuf {
        self.checkout.join("deploy/compose")
    }

    /// A command of a page as it is run here: with podman, with the addresses of this machine and for its architecture.
    pub fn adapt(&self, command: &str) -> String {
        command
            .replace("docker compose", "podman-compose")
            .replace("docker load", "podman load")
            .replace("updates.example:8080", &format!("127.0.0.1:{}", self.rest))
            .replace("updates.example:50002", &format!("127.0.0.1:{}", self.nodes))
            .replace("--ca authority.pem", "--ca secrets/authority.pem")
            .replace("amd64", &architecture())
    }

    /// Runs commands of a page in one shell, in a folder. They must succeed. Returns their output.
    #[track_caller]
    pub fn run(&self, folder: &Path, commands: &[String]) -> String {
        let lines: Vec<String> = commands.iter().map(|command| self.adapt(command)).collect();
        let text = lines.join("\n");
        succeed(self.command("sh").args(["-ec", &text]).current_dir(folder))
    }

    /// Runs podman. It must succeed. Returns its output.
    #[track_caller]
    pub fn podman(&self, arguments: &[&str]) -> String {
        succeed(self.command("podman").args(arguments).current_dir(&self.checkout))
    }

    /// Runs podman.
    pub fn try_podman(&self, arguments: &[&str]) -> Output {
        let mut running = self.command("podman");
        let output = running.args(arguments).current_dir(&self.checkout).output();
        output.expect("podman starts")
    }

    /// Builds the image of Prometheus that the compose file names.
    #[track_caller]
    pub fn build_prometheus(&self) {
        succeed(self.command(script("make-prometheus-image")).arg(PROMETHEUS_IMAGE));
    }

    /// Kills the first process of a service.
    #[track_caller]
    pub fn kill(&self, service: &str) {
        let name = container_name(service);
        let process = self.podman(&["inspect", "--format", "{{.State.Pid}}", &name]);
        succeed(self.command("kill").args(["-s", "KILL", process.trim()]));
    }

    /// Waits until the health check of a service succeeds. Without systemd, podman does not run it by itself.
    #[track_caller]
    pub fn until_healthy(&self, service: &str) {
        let name = container_name(service);
        let begun = Instant::now();
        until(&format!("{service} is healthy"), HEALTH_TIMEOUT * 2, || {
            let check = self.try_podman(&["healthcheck", "run", &name]);
            let log = || describe_output(&self.try_podman(&["logs", "--tail", "30", &name]));
            assert!(begun.elapsed() < HEALTH_TIMEOUT, "{service} is not healthy: {}", log());
            check.status.success().then_some(())
        });
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let variables: Vec<(&str, &str)> =
            self.variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        as_root(program, &variables)
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        let _removed = self.try_podman(&["rm", "--all", "--force", "--time", "5"]);
        let _removed = self.try_podman(&["network", "prune", "--force"]);
    }
}

/// Name of the container of a service.
pub fn container_name(service: &str) -> String {
    format!("evenkeel_{service}_1")
}

/// Builds images of the programs of the tests into a folder, with these variables. Returns the path of each archive.
#[track_caller]
pub fn build_images(out: &Path, names: &[&str], variables: &[(&str, &str)]) -> Vec<PathBuf> {
    let programs = Binaries::get().server.parent().expect("a folder");
    let mut building = command(tree::root().join("deploy/container/build"));
    building.arg(architecture()).arg(programs).arg(out).args(names).env("FAST", "1");
    building.envs(variables.iter().copied());
    // The indexes of Debian are not those of a release.
    let paths = succeed(building.env("CARGO_TARGET_DIR", out.with_file_name("target")));
    paths.lines().map(PathBuf::from).collect()
}

/// Content of a file in an archive.
#[track_caller]
pub fn read_archive(archive: &Path, name: &str) -> String {
    let mut reading = command("tar");
    succeed(reading.args(["--extract", "--to-stdout", "--file"]).arg(archive).arg(name))
}

/// Writes the configuration of podman for a storage and networks of its own. Limits are lower than podman's, which cannot be
/// raised everywhere.
fn write_configuration(folder: &Path) -> [PathBuf; 2] {
    let [containers, storage] = ["containers.conf", "storage.conf"].map(|name| folder.join(name));
    let path = folder.display();
    let text = format!(
        r#"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
http_proxy = false
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
tmp_dir = "{path}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{path}/networks"
"#
    );
    fs::write(&containers, text).expect("a file");
    let text = format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = \"{path}/storage\"\nrunroot = \"{path}/run\"\n"
    );
    fs::write(&storage, text).expect("a file");
    [containers, storage]
}

/// Two ports that are free now.
fn free_ports() -> [String; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port().to_string())
}
