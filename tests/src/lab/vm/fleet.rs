//! A server for machines: what it is told of them, what they are told by it, and what lies between.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::machine::{Told, Vm};
use super::release::{ARCHITECTURE, PROFILE, Release};
use crate::lab::{Rest, Server, SlowLine, Web};

/// Where a machine finds this one.
const OUTSIDE: &str = "10.0.2.2";

/// How long a machine may take to its first words as a node.
const JOINS: Duration = Duration::from_mins(8);

/// The settings that make the server give files to nodes.
const FILES: &str = "EVENKEELD_FILES__LISTEN";

/// A server, and the machines that it knows.
#[derive(Debug)]
pub struct VmFleet {
    /// The server.
    pub server: Server,
    /// An operator's session.
    pub rest: Rest,
    /// What leads from the machines to the server.
    pub line: SlowLine,
    /// Where images lie.
    pub web: Web,
    token: String,
    files: String,
    /// What the catalogue calls the releases, by version.
    published: Mutex<BTreeMap<String, String>>,
    /// Last, so that it goes last.
    folder: TempDir,
}

impl VmFleet {
    /// A server without nodes, with these settings beside the usual ones.
    #[track_caller]
    pub(super) fn new(folder: TempDir, settings: &[(&str, &str)]) -> Self {
        let names = json!([OUTSIDE]).to_string();
        let usual = [
            ("EVENKEELD_SOUTHBOUND__NAMES", names.as_str()),
            ("EVENKEELD_MAINTENANCE_MANAGER__POLL_INTERVAL", "1s"),
        ];
        let server = Server::start_in(folder.path(), &[&usual[..], settings].concat());
        let has_files = settings.iter().any(|(name, _)| *name == FILES);
        let rest = server.rest();
        let token = rest.post("/join-tokens", &json!({}));
        let images = folder.path().join("images");
        fs::create_dir(&images).expect("a folder");
        Self {
            line: SlowLine::to(&server.address("southbound"), Duration::ZERO),
            web: Web::of(&images),
            token: token["token"].as_str().expect("a token").to_owned(),
            files: if has_files {
                format!("https://{OUTSIDE}:{}", port(&server.address("files")))
            } else {
                String::new()
            },
            published: Mutex::default(),
            server,
            rest,
            folder,
        }
    }

    /// What a machine's firmware says of it.
    pub(super) fn told(&self) -> Told {
        Told {
            server: format!("https://{OUTSIDE}:{}", self.line.address().port()),
            token: self.token.clone(),
            files: self.files.clone(),
        }
    }

    /// A path in the folder that the web server serves.
    pub fn image(&self, name: &str) -> PathBuf {
        self.folder.path().join("images").join(name)
    }

    /// A path of its own, which nobody serves.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where machines fetch what lies at [`VmFleet::image`].
    pub fn address(&self, name: &str) -> String {
        format!("http://{OUTSIDE}:{}/{name}", self.web.address().port())
    }

    /// Makes a release known, unless it is. Returns what the catalogue calls it.
    #[track_caller]
    pub fn publish(&self, release: &Release) -> String {
        if let Some(known) = self.known(&release.version) {
            return known;
        }
        let name = format!("{}.raw", release.version);
        let copy = self.image(&name);
        let copied = fs::hard_link(&release.file, &copy);
        copied
            .or_else(|_| fs::copy(&release.file, &copy).map(drop))
            .expect("an image");
        self.offer(release, &json!({ "imageUrl": self.address(&name) }))
    }

    /// Makes a release known, with some fields otherwise than they should be.
    #[track_caller]
    pub fn offer(&self, release: &Release, otherwise: &Value) -> String {
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
        let made = self.rest.post("/compute/os", &os);
        self.knows(&release.version, text(&made, "resourceId"))
    }

    /// What the catalogue calls the release of this version; none if it has none.
    pub fn known(&self, version: &str) -> Option<String> {
        let published = self.published.lock();
        let published = published.unwrap_or_else(PoisonError::into_inner);
        published.get(version).cloned()
    }

    /// Notes what the catalogue calls a release that came into it by another way.
    pub fn knows(&self, version: &str, os: &str) -> String {
        let published = self.published.lock();
        let mut published = published.unwrap_or_else(PoisonError::into_inner);
        published.insert(version.to_owned(), os.to_owned());
        os.to_owned()
    }

    /// Switches a machine on for the first time, and waits until the server knows what runs on it.
    #[track_caller]
    pub fn join(&self, vm: &mut Vm) {
        vm.start();
        let path = format!("/compute/instances?filter=host.uuid%3D%22{}%22", vm.uuid());
        vm.instance = vm.until("the machine joins", JOINS, || {
            let list = self.rest.get(&path);
            let id = list["instances"][0]["resourceId"].as_str();
            id.map(str::to_owned)
        });
        let path = format!("/compute/instances/{}", vm.instance);
        vm.until("the server knows its slots", JOINS, || {
            let node = self.rest.get(&path);
            let slots = node["slots"].as_array().map_or(0, Vec::len);
            (slots == 2).then_some(())
        });
    }

    /// A machine's instance, with all that the server knows of it.
    #[track_caller]
    pub fn node(&self, vm: &Vm) -> Value {
        let path = format!("/compute/instances/{}", vm.instance());
        self.rest.get(&path)
    }

    /// Makes a policy that wants an operating system, or the newest, and assigns it to a machine.
    #[track_caller]
    pub fn want(&self, vm: &Vm, os: Option<&str>) {
        let policy = os.map_or_else(
            || json!({ "updatePolicy": "UPDATE_POLICY_LATEST" }),
            |os| json!({ "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": os }),
        );
        self.want_with(vm, &policy);
    }

    /// Makes a policy of these fields and assigns it to a machine.
    #[track_caller]
    pub fn want_with(&self, vm: &Vm, fields: &Value) {
        let mut policy = json!({ "name": "wanted" });
        let members = policy.as_object_mut().expect("an object");
        members.extend(fields.as_object().expect("an object").clone());
        let policy = self.rest.post("/os-update-policies", &policy);
        self.rest.patch(
            &format!("/compute/instances/{}", vm.instance()),
            &json!({ "osUpdatePolicyID": text(&policy, "resourceId") }),
        );
    }

    /// Orders an update now: for this machine a window is open at once, for an hour.
    #[track_caller]
    pub fn order(&self, vm: &Vm) {
        let path = format!("/compute/instances/{}/order", vm.instance());
        self.rest.put(&path, &json!({ "kind": "now" }));
    }

    /// Publishes a release, and orders that a machine runs it.
    #[track_caller]
    pub fn update(&self, vm: &Vm, release: &Release) {
        let os = self.publish(release);
        self.want(vm, Some(&os));
        self.order(vm);
    }

    /// All runs of a machine, in full, the first one first.
    #[track_caller]
    pub fn runs(&self, vm: &Vm) -> Vec<Value> {
        let filter = format!("instance.resourceId%3D%22{}%22", vm.instance());
        let path = format!("/os-update-runs?pageSize=100&filter={filter}");
        let list = self.rest.get(&path);
        let runs = list["osUpdateRuns"].as_array().expect("a list").iter();
        let ids = runs.map(|run| text(run, "resourceId").to_owned());
        let mut runs: Vec<Value> = ids
            .map(|id| self.rest.get(&format!("/os-update-runs/{id}")))
            .collect();
        runs.sort_by_key(|run| text(&run["timestamps"], "createdAt").to_owned());
        runs
    }

    /// Waits until the last run that a machine had for a version is over, and returns it in full.
    #[track_caller]
    pub fn ended(&self, vm: &mut Vm, version: &str, limit: Duration) -> Value {
        let (what, instance) = (format!("the run for {version} ends"), vm.instance.clone());
        let filter = format!("instance.resourceId%3D%22{instance}%22");
        let path = format!("/os-update-runs?pageSize=100&filter={filter}");
        let found = vm.until(&what, limit, || {
            let answer = self.rest.get(&path);
            let runs = answer["osUpdateRuns"].as_array().expect("a list").iter();
            let own = runs.filter(|run| run["target"]["imageId"] == version);
            let last = own.max_by_key(|run| text(&run["timestamps"], "createdAt").to_owned())?;
            let is_over = last["endTime"].as_u64() > Some(0);
            is_over.then(|| text(last, "resourceId").to_owned())
        });
        self.rest.get(&format!("/os-update-runs/{found}"))
    }
}

/// The port of an address.
fn port(address: &str) -> &str {
    address.rsplit(':').next().unwrap_or_default()
}

/// A text of an answer.
///
/// # Panics
/// There is none of that name.
#[track_caller]
pub(super) fn text<'a>(answer: &'a Value, name: &str) -> &'a str {
    let text = answer[name].as_str();
    text.unwrap_or_else(|| panic!("no {name} in {answer:#}"))
}
