//! The OCI registry that Debian packages, for operating systems that are published and synced.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::Lab;
use super::machine::{command, until};

/// [`Registry::PASSWORD`] as `htpasswd -B` writes it.
const PASSWORD_HASH: &str = "$2y$05$evenkeelevenkeelevenkeeS2.OxIMjWcwHpYXoX1coCx9a7TdDdC";

/// A registry that runs until it is dropped. It uses plain HTTP, stores its data in a folder, and returns all tags of a
/// repository at once, without a next page.
#[derive(Debug)]
pub struct Registry {
    process: Mutex<Child>,
    settings: PathBuf,
    data: PathBuf,
    socket_address: SocketAddr,
}

impl Registry {
    /// User of a registry with a password.
    pub const USER: &str = "fleet";

    /// The password of [`Registry::USER`].
    pub const PASSWORD: &str = "open sesame";

    /// Starts a registry without access control.
    pub fn open(lab: &Lab, name: &str) -> Self {
        Self::start(&lab.path(name), "")
    }

    /// Starts a registry that only [`Registry::USER`] may use.
    pub fn with_password(lab: &Lab, name: &str) -> Self {
        let folder = lab.path(name);
        fs::create_dir_all(&folder).expect("a folder");
        let users = folder.join("users");
        let line = format!("{}:{PASSWORD_HASH}\n", Self::USER);
        fs::write(&users, line).expect("a file of users");
        let users = users.display();
        let guard = format!("auth:\n  htpasswd:\n    realm: lab\n    path: {users}\n");
        Self::start(&folder, &guard)
    }

    fn start(folder: &Path, more: &str) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let at = listener.local_addr().expect("an address");
        drop(listener);
        let data = folder.join("data");
        let mut text = format!("version: 0.1\nlog:\n  level: error\nhttp:\n  addr: {at}\n");
        let _written =
            write!(text, "storage:\n  filesystem:\n    rootdirectory: {}\n{more}", data.display());
        let settings = folder.join("config.yml");
        fs::write(&settings, text).expect("a configuration");
        let registry =
            Self { process: Mutex::new(spawn(&settings)), settings, data, socket_address: at };
        registry.wait();
        registry
    }

    /// URL, such as `http://127.0.0.1:5000`.
    pub fn address(&self) -> String {
        format!("http://{}", self.socket_address)
    }

    /// Stops the registry and keeps its data.
    pub fn stop(&self) {
        let mut process = self.process();
        process.kill().expect("a child of ours");
        process.wait().expect("a child of ours");
    }

    /// Starts it again at the same address with the same data.
    pub fn restart(&self) {
        *self.process() = spawn(&self.settings);
        self.wait();
    }

    /// Removes a tag from its data. The registry's API cannot do that.
    pub fn remove_tag(&self, repository: &str, tag: &str) {
        let tags = self.repository_folder(repository).join("_manifests/tags");
        fs::remove_dir_all(tags.join(tag)).expect("a tag");
    }

    /// Changes one byte of the first layer of a tag, so that its digest is wrong.
    pub fn corrupt(&self, repository: &str, tag: &str) {
        let link = format!("_manifests/tags/{tag}/current/link");
        let link = fs::read_to_string(self.repository_folder(repository).join(link));
        let manifest = self.content_path(link.expect("a tag").trim());
        let manifest = fs::read(manifest).expect("a manifest");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let digest = manifest["layers"][0]["digest"].as_str();
        let file = self.content_path(digest.expect("a layer"));
        let mut content = fs::read(&file).expect("a layer's content");
        let middle = content.len() / 2;
        content[middle] ^= 1;
        fs::write(&file, content).expect("changed content");
    }

    fn repository_folder(&self, name: &str) -> PathBuf {
        let all = self.data.join("docker/registry/v2/repositories");
        all.join(name)
    }

    /// The file with the content of a digest.
    fn content_path(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        let (front, _) = hex.split_at(2);
        let all = self.data.join("docker/registry/v2/blobs/sha256");
        all.join(front).join(hex).join("data")
    }

    fn wait(&self) {
        until("the registry listens", Duration::from_secs(30), || {
            if let Some(status) = self.process().try_wait().expect("a child of ours") {
                panic!("docker-registry ended with {status}");
            }
            TcpStream::connect(self.socket_address).is_ok().then_some(())
        });
    }

    /// The lock of the process. A panic of another test does not affect the process, so poisoning is ignored.
    fn process(&self) -> MutexGuard<'_, Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let mut process = self.process();
        // A stopped registry has ended already.
        let _ended = process.kill();
        let _ended = process.wait();
    }
}

fn spawn(settings: &Path) -> Child {
    let log = settings.with_extension("log");
    let log = File::options().create(true).append(true).open(log);
    command("docker-registry")
        .arg("serve")
        .arg(settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.expect("a log can be written"))
        .spawn()
        .expect("docker-registry is installed (deploy/dev/install-tools test)")
}
