//! The image slots of a system, and the parts that image updates need.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use url::Url;

use super::boot_control::{self, BootControl};
use super::slots::SlotFile;
use super::spool::Spool;
use super::web::{WebClient, WebSettings};
use super::{ImageModule, ImageParts};
use crate::config::ImageConfig;
use crate::model::{Failure, FailureKind};
use crate::module_registry::ModuleRegistry;
use crate::node::{self, Node};
use crate::os;
use crate::paths::AgentPaths;

/// The image slots of a system and everything that fills them.
pub struct ImageSystem {
    /// Reads the boot state and arms slots.
    pub boot: Arc<dyn BootControl>,
    /// Record of the slots. There is one instance per process, because it caches the file.
    pub slots: Arc<SlotFile>,
    /// Downloads files.
    pub web: WebClient,
}

impl fmt::Debug for ImageSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageSystem").field("boot", &self.boot.name()).finish_non_exhaustive()
    }
}

impl ImageSystem {
    /// Loads the image slots of the system; `None` if it has no second slot. Fails with advice if
    /// the slots are ambiguous or not usable.
    pub fn load(registry: &ModuleRegistry<'_>) -> Result<Option<Self>, Failure> {
        let (paths, config) = (registry.paths, &registry.config.image);
        let Some(boot) = boot_control::find(paths, Arc::clone(&registry.runner), config)? else {
            return Ok(None);
        };
        let unusable = |reason: String| Failure::new(FailureKind::Unsupported, reason);
        config.check().map_err(unusable)?;
        check_state_partition(paths)?;
        let proxy = registry.config.proxy();
        let proxy = proxy.map_err(|error| unusable(error.to_string()))?;
        // The link to the server reports a damaged certificate.
        let certificate = registry.certificates().ok();
        let certificate = certificate.map(|own| own as Arc<dyn ResolvesClientCert>);
        let settings = web_settings(config, paths);
        let web = WebClient::new(settings, proxy, registry.time_floor(), certificate)?;
        if let Ok(Some(credential)) = node::load_credential(paths) {
            web.set_credential(&credential);
        }
        let slots = SlotFile::open(&paths.slots(), Arc::clone(&registry.clock))?;
        Ok(Some(Self { boot, slots: Arc::new(slots), web }))
    }

    /// The module that writes images into the slots.
    pub fn build_module(&self, registry: &ModuleRegistry<'_>) -> ImageModule {
        let clock = Arc::clone(&registry.clock);
        let spool = Spool::new(registry.paths.spool(), self.web.clone(), Arc::clone(&clock));
        ImageModule::new(ImageParts {
            boot: Arc::clone(&self.boot),
            slots: Arc::clone(&self.slots),
            files: Arc::new(spool),
            owner: Arc::clone(&registry.owner),
            runner: Arc::clone(&registry.runner),
            paths: registry.paths.clone(),
            clock,
            architecture: os::machine(),
            gate: registry.config.gate_settings(),
            reboot_timing: registry.config.reboot_timing(),
            web: Some(self.web.clone()),
        })
    }
}

/// Fails if the record of the slots is on one of them, where a new image would replace it, or in
/// memory.
fn check_state_partition(paths: &AgentPaths) -> Result<(), Failure> {
    if boot_control::is_in_memory(paths, paths.state()) {
        let reason = format!(
            "images cannot be tried while the state directory {} is in memory, where each reboot removes it: mount a partition \
             there, or set `state_dir` to a folder on a partition of its own",
            paths.state().display()
        );
        return Err(Failure::new(FailureKind::Storage, reason));
    }
    let device = |path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let (root, state) = (device(paths.root()), device(paths.state()));
    if state.is_some() && root != state {
        return Ok(());
    }
    let reason = format!(
        "images cannot be tried while the state directory {} is in the root file system, which they replace: set \
         `state_dir` to a folder on a partition of its own",
        paths.state().display()
    );
    Err(Failure::new(FailureKind::Storage, reason))
}

/// Settings for image servers. By default they are verified with the CA of the node's server, if it
/// has one.
fn web_settings(config: &ImageConfig, paths: &AgentPaths) -> WebSettings {
    let mut settings = config.web.clone();
    settings.own_server = server_authority(paths);
    if settings.roots.is_empty() && paths.ca().exists() {
        settings.roots.push(paths.ca());
    }
    settings
}

/// `HOST:PORT` of the server that gets the node's certificate and bearer token; empty if the node is not enrolled.
fn server_authority(paths: &AgentPaths) -> String {
    let server = Node::load(paths).ok().map(|node| node.server);
    let url = server.and_then(|server| Url::parse(&server).ok());
    let host = url.as_ref().and_then(Url::host_str);
    let port = url.as_ref().and_then(Url::port_or_known_default);
    match (host, port) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_on_the_root_is_refused_with_advice() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        paths.prepare().unwrap();
        let failure = check_state_partition(&paths).unwrap_err();
        assert!(failure.reason.contains("state_dir"), "{failure}");
        let paths = AgentPaths::new(root.path(), Some("/proc/self".into()));
        check_state_partition(&paths).unwrap();
        let paths = AgentPaths::new(root.path(), Some("/no/such/folder".into()));
        check_state_partition(&paths).unwrap_err();
    }

    #[test]
    fn a_state_directory_in_memory_is_refused_with_advice() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), Some("/proc/self".into()));
        let mountinfo = paths.inside("/proc/self/mountinfo");
        fs::create_dir_all(mountinfo.parent().unwrap()).unwrap();
        for (fs_type, is_good) in [("ext4", true), ("tmpfs", false), ("ramfs", false)] {
            let mounts = format!(
                "22 1 254:2 / / ro - erofs /dev/root ro\n23 22 0:30 / /proc rw - {fs_type} x rw\n"
            );
            fs::write(&mountinfo, mounts).unwrap();
            assert_eq!(check_state_partition(&paths).is_ok(), is_good, "{fs_type}");
        }
        let failure = check_state_partition(&paths).unwrap_err();
        assert!(failure.reason.contains("state_dir"), "{failure}");
    }

    #[test]
    fn the_servers_ca_is_the_default_for_image_servers() {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        let mut config = ImageConfig::default();
        assert!(web_settings(&config, &paths).roots.is_empty());
        fs::write(paths.ca(), "an authority").unwrap();
        assert_eq!(web_settings(&config, &paths).roots, [paths.ca()]);
        config.web.roots.push("/etc/named.pem".into());
        assert_eq!(web_settings(&config, &paths).roots, config.web.roots);
    }

    #[test]
    fn the_credential_goes_to_the_servers_own_port_only() {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        assert_eq!(server_authority(&paths), "");
        let mut node = Node {
            server: "https://keel.example:50002".into(),
            uuid: uuid::Uuid::from_u128(1),
            host_id: "host-0a1b2c3d".into(),
            instance_id: "inst-0a1b2c3d".into(),
            project: "default".into(),
            credential_expires: None,
            machine: None,
        };
        for (server, authority) in [
            ("https://keel.example:50002", "keel.example:50002"),
            ("https://keel.example", "keel.example:443"),
            ("https://[fd00::1]:50002/", "[fd00::1]:50002"),
        ] {
            node.server = server.into();
            node.save(&paths).unwrap();
            assert_eq!(server_authority(&paths), authority);
        }
    }
}
