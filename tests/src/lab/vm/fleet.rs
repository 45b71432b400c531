//! A server for emulated machines, with a network connection and a web server.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::machine::{FirmwareConfig, Vm};
use super::release::{ARCHITECTURE, PROFILE, Release};
use crate::lab::{Rest, Server, SlowConnection, Web};

/// Address of this machine, as emulated machines see it.
const HOST_ADDRESS: &str = "10.0.2.2";

/// How long a machine may take to join.
const JOIN_TIMEOUT: Duration = Duration::from_mins(8);

/// Setting that makes the server offer files to nodes.
const FILES_LISTEN_VARIABLE: &str = "EVENKEELD_FILES__LISTEN";

/// A server and its machines.
#[derive(Debug)]
pub struct VmFleet {
    pub server: Server,
    /// REST session of an operator.
    pub rest: Rest,
    /// Connection from the machines to the server.
    pub connection: SlowConnection,
    /// Web server of the images.
    pub web: Web,
    token: String,
    files_url: String,
    /// IDs of the published releases, by version.
    catalog_ids: Mutex<BTreeMap<String, String>>,
    /// Last field, so that it is dropped last.
    folder: TempDir,
}

impl VmFleet {
    /// Starts a server without nodes, with these settings in addition to the usual ones.
    #[track_caller]
    pub(super) fn new(folder: TempDir, settings: &[(&str, &str)]) -> Self {
        let names = json!([HOST_ADDRESS]).to_string();
        let usual = [
            ("EVENKEELD_SOUTHBOUND__SERVER_NAMES", names.as_str()),
            ("EVENKEELD_MAINTENANCE_MANAGER__POLL_INTERVAL", "1s"),
        ];
        let server = Server::start_in(folder.path(), &[&usual[..], settings].concat());
        let has_files = settings.iter().any(|(name, _)| *name == FILES_LISTEN_VARIABLE);
        let rest = server.rest();
        let token = rest.post("join-tokens", &json!({}));
        let images = folder.path().join("images");
        fs::create_dir(&images).expect("a folder");
        Self {
            connection: SlowConnection::to(&server.address("southbound"), Duration::ZERO),
            web: Web::serve(&images),
            token: token["token"].as_str().expect("a token").to_owned(),
            files_url: if has_files {
                format!("https://{HOST_ADDRESS}:{}", port(&server.address("files")))
            } else {
                String::new()
            },
            catalog_ids: Mutex::default(),
            server,
            rest,
            folder,
        }
    }

    /// Configuration that the firmware of a machine passes to its agent.
    pub(super) fn firmware_config(&self) -> FirmwareConfig {
        FirmwareConfig {
            server: format!("https://{HOST_ADDRESS}:{}", self.connection.address().port()),
            token: self.token.clone(),
            files: self.files_url.clone(),
        }
    }

    /// Path of an image in the folder of the web server.
    pub fn image_path(&self, name: &str) -> PathBuf {
        self.folder.path().join("images").join(name)
    }

    /// Path in the folder of the fleet, outside of the web server.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// URL of the image at [`VmFleet::image_path`].
    pub fn image_url(&self, name: &str) -> String {
        format!("http://{HOST_ADDRESS}:{}/{name}", self.web.address().port())
    }

    /// Publishes a release if it is not published yet. Returns its ID.
    #[track_caller]
    pub fn publish(&self, release: &Release) -> String {
        if let Some(id) = self.catalog_id(&release.version) {
            return id;
        }
        let name = format!("{}.raw", release.version);
        let copy = self.image_path(&name);
        let copied = fs::hard_link(&release.file, &copy);
        copied.or_else(|_| fs::copy(&release.file, &copy).map(drop)).expect("an image");
        self.publish_with(release, &json!({ "imageUrl": self.image_url(&name) }))
    }

    /// Publishes a release with some fields changed. Returns its ID.
    #[track_caller]
    pub fn publish_with(&self, release: &Release, otherwise: &Value) -> String {
        let mut os = json!({
            "name": format!("{PROFILE} {}", release.version),
            "osType": "OS_TYPE_IMMUTABLE",
            "osProvider": "OS_PROVIDER_KIND_INFRA",
            "securityFeature": "SECURITY_FEATURE_NONE",
            "architecture": ARCHITECTURE,
            "profileName": PROFILE,
            "imageId": release.version,
            "sha256": release.sha256,
            "imageSignatures": [release.signature],
        });
        let fields = os.as_object_mut().expect("an object");
        fields.extend(otherwise.as_object().expect("an object").clone());
        let created = self.rest.post("compute/os", &os);
        self.record_catalog_id(&release.version, text(&created, "resourceId"))
    }

    /// ID of the published release with this version.
    pub fn catalog_id(&self, version: &str) -> Option<String> {
        let published = self.catalog_ids.lock();
        let published = published.unwrap_or_else(PoisonError::into_inner);
        published.get(version).cloned()
    }

    /// Stores the ID of a release that was published in another way.
    pub fn record_catalog_id(&self, version: &str, os: &str) -> String {
        let published = self.catalog_ids.lock();
        let mut published = published.unwrap_or_else(PoisonError::into_inner);
        published.insert(version.to_owned(), os.to_owned());
        os.to_owned()
    }

    /// Switches a machine on for the first time and waits until the server knows its slots.
    #[track_caller]
    pub fn join(&self, vm: &mut Vm) {
        vm.start();
        let path = format!("compute/instances?filter=host.uuid%3D%22{}%22", vm.uuid());
        vm.instance = vm.until("the machine joins", JOIN_TIMEOUT, || {
            let list = self.rest.get(&path);
            let id = list["instances"][0]["resourceId"].as_str();
            id.map(str::to_owned)
        });
        let path = format!("compute/instances/{}", vm.instance);
        vm.until("the server knows its slots", JOIN_TIMEOUT, || {
            let node = self.rest.get(&path);
            let slots = node["slots"].as_array().map_or(0, Vec::len);
            (slots == 2).then_some(())
        });
    }

    /// Instance of a machine, as the server returns it.
    #[track_caller]
    pub fn node(&self, vm: &Vm) -> Value {
        let path = format!("compute/instances/{}", vm.instance());
        self.rest.get(&path)
    }

    /// Creates a policy for an operating system, or for the newest one, and assigns it to a machine.
    #[track_caller]
    pub fn assign_os(&self, vm: &Vm, os: Option<&str>) {
        let policy = os.map_or_else(
            || json!({ "updatePolicy": "UPDATE_POLICY_LATEST" }),
            |os| json!({ "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": os }),
        );
        self.assign_new_policy(vm, &policy);
    }

    /// Creates a policy with these fields and assigns it to a machine.
    #[track_caller]
    pub fn assign_new_policy(&self, vm: &Vm, fields: &Value) {
        let mut policy = json!({ "name": "test" });
        let members = policy.as_object_mut().expect("an object");
        members.extend(fields.as_object().expect("an object").clone());
        let policy = self.rest.post("os-update-policies", &policy);
        self.rest.patch(
            &format!("compute/instances/{}", vm.instance()),
            &json!({ "osUpdatePolicyID": text(&policy, "resourceId") }),
        );
    }

    /// Orders an update now: a window of this machine is open at once, for an hour.
    #[track_caller]
    pub fn order_update(&self, vm: &Vm) {
        let path = format!("compute/instances/{}/order", vm.instance());
        self.rest.put(&path, &json!({ "kind": "now" }));
    }

    /// Publishes a release, and orders an update of a machine to it.
    #[track_caller]
    pub fn update(&self, vm: &Vm, release: &Release) {
        let os = self.publish(release);
        self.assign_os(vm, Some(&os));
        self.order_update(vm);
    }

    /// All runs of a machine with details, the oldest first.
    #[track_caller]
    pub fn runs(&self, vm: &Vm) -> Vec<Value> {
        let filter = format!("instance.resourceId%3D%22{}%22", vm.instance());
        let path = format!("os-update-runs?pageSize=100&filter={filter}");
        let list = self.rest.get(&path);
        let runs = list["osUpdateRuns"].as_array().expect("a list").iter();
        let ids = runs.map(|run| text(run, "resourceId").to_owned());
        let mut runs: Vec<Value> =
            ids.map(|id| self.rest.get(&format!("os-update-runs/{id}"))).collect();
        runs.sort_by_key(|run| text(&run["timestamps"], "createdAt").to_owned());
        runs
    }

    /// Waits for the end of the last run of a machine for a version, and returns it with details.
    #[track_caller]
    pub fn wait_for_run_end(&self, vm: &mut Vm, version: &str, limit: Duration) -> Value {
        let (what, instance) = (format!("the run for {version} ends"), vm.instance.clone());
        let filter = format!("instance.resourceId%3D%22{instance}%22");
        let path = format!("os-update-runs?pageSize=100&filter={filter}");
        let id = vm.until(&what, limit, || {
            let answer = self.rest.get(&path);
            let runs = answer["osUpdateRuns"].as_array().expect("a list").iter();
            let own = runs.filter(|run| run["target"]["imageId"] == version);
            let last = own.max_by_key(|run| text(&run["timestamps"], "createdAt").to_owned())?;
            let is_over = last["endTime"].as_u64() > Some(0);
            is_over.then(|| text(last, "resourceId").to_owned())
        });
        self.rest.get(&format!("os-update-runs/{id}"))
    }
}

fn port(address: &str) -> &str {
    address.rsplit(':').next().unwrap_or_default()
}

/// A text field of an object.
///
/// # Panics
/// There is no such text.
#[track_caller]
pub(super) fn text<'a>(answer: &'a Value, name: &str) -> &'a str {
    let text = answer[name].as_str();
    text.unwrap_or_else(|| panic!("no {name} in {answer:#}"))
}
