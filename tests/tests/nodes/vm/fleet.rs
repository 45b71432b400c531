//! One fleet in which package nodes and image nodes are updated under one schedule, each by its own
//! policy; and the whole path of a release, from the publisher's folder to the machine that boots it.

use std::fs;

use chrono::{DateTime, Utc};
use evenkeel_tests::history::{machine_time, print_progress};
use evenkeel_tests::lab::vm::{
    ARCHITECTURE, PROFILE, Release, ReleaseKind, Slot, Vm, VmFleet, Vms, judge,
};
use evenkeel_tests::lab::{Binaries, Lab, Node, Repository, Running, events};
use serde_json::{Value, json};
use uuid::Uuid;

use super::node::UPDATE_TIMEOUT;
use super::{NEW_VERSION, OLD_VERSION};

/// Path of the agent on the package node.
const AGENT_PATH: &str = "/srv/evenkeel-agent";

/// Repository prefix of the profiles in the registry.
const PREFIX: &str = "os/";

/// Delay of the windows in seconds: long enough to prepare the updates on a busy machine.
const WINDOW_DELAY_SECONDS: i64 = 150;

/// A server that syncs with a registry and serves its files to nodes.
fn fleet_with_registry(vms: &Vms, registry: &str) -> VmFleet {
    let of = |key: &str| format!("EVENKEELD_OS_RESOURCE_MANAGER__{key}");
    let enabled = json!([PROFILE]).to_string();
    let settings = [
        (of("REGISTRIES__RELEASE__ADDRESS"), registry),
        (of("REGISTRIES__RELEASE__PREFIX"), PREFIX),
        (of("REGISTRIES__RELEASE__TRUST"), "off"),
        (of("AT_START"), "false"),
        (of("DEFAULT__REGISTRY"), "release"),
        (of("DEFAULT__REVISION"), "~1.0"),
        (of("DEFAULT__ENABLED"), &enabled),
        ("EVENKEELD_FILES__LISTEN".to_owned(), "127.0.0.1:0"),
        ("EVENKEELD_FILES__MIN_FREE_BYTES".to_owned(), "0"),
    ];
    let settings: Vec<(&str, &str)> =
        settings.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    vms.fleet_with(&settings)
}

/// Publishes a release as an operator does, and syncs the server with it.
fn publish(vms: &Vms, fleet: &VmFleet, release: &Release, registry: &str) {
    let folder = fleet.path("release");
    fs::create_dir(&folder).expect("a folder");
    let version = &release.version;
    let yaml = format!(
        "appVersion: apps/v1\nmetadata:\n  release: unset\nspec:\n  name: {PROFILE} {version}\n  \
         type: OS_TYPE_IMMUTABLE\n  provider: OS_PROVIDER_KIND_INFRA\n  architecture: {ARCHITECTURE}\n  \
         profileName: {PROFILE}\n  osImageUrl: files/{PROFILE}/{PROFILE}-{version}.raw\n  \
         osImageVersion: \"{version}\"\n  osPackageManifestURL: files/{PROFILE}/packages.json\n  \
         securityFeature: SECURITY_FEATURE_NONE\n"
    );
    let packages = r#"{"repo":[{"name":"busybox","version":"1.35"}]}"#;
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a file");
    write(&format!("{PROFILE}.yaml"), &yaml);
    write("packages.json", packages);
    let image = folder.join(format!("{PROFILE}-{version}.raw"));
    fs::copy(&release.file, image).expect("an image");
    let key = fleet.path("image-key.pem");
    fs::write(&key, vms.key().pem()).expect("a key");
    let (folder, key) = (folder.display().to_string(), key.display().to_string());
    let arguments = ["os", "publish", &folder, "--to", registry];
    let called = ["--revision", "1.0.1", "--prefix", PREFIX];
    fleet.server.cli(&[&arguments[..], &called, &["--image-key", &key]].concat());
    fleet.server.cli(&["os", "sync"]);
    let response = fleet.rest.get(&format!("compute/os?filter=imageId%3D%22{version}%22"));
    let os = &response["OperatingSystemResources"][0];
    assert_eq!(os["sha256"], release.sha256.as_str(), "{response:#}");
    assert_eq!(os["imageSignatures"], json!([release.signature]));
    let id = os["resourceId"].as_str().expect("an id");
    fleet.record_catalog_id(version, id);
}

/// A package node that has joined, and its agent.
struct PackageNode {
    instance: String,
    node: Node,
    agent: Running,
}

impl PackageNode {
    fn join(lab: &Lab, fleet: &VmFleet, repository: &Repository) -> Self {
        let node = Node::new(lab, "packages")
            .with_file(&Binaries::get().agent, AGENT_PATH)
            .with_file(repository.folder(), Repository::INSIDE);
        node.sh(&format!(
            "cp {}/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any; \
             apt-get -q -y install demo-hello=1.0",
            Repository::INSIDE
        ));
        let created = fleet.rest.post("join-tokens", &json!({}));
        let token = created["token"].as_str().expect("a token");
        let server = format!("https://{}", fleet.server.address("southbound"));
        let uuid = Uuid::new_v4().to_string();
        node.succeed(&[
            AGENT_PATH, "enroll", "--server", &server, "--token", token, "--uuid", &uuid,
        ]);
        let path = format!("compute/instances?filter=host.uuid%3D%22{uuid}%22");
        let response = fleet.rest.get(&path);
        let instance = response["instances"][0]["resourceId"].as_str();
        Self {
            instance: instance.expect("an instance").to_owned(),
            agent: node.start(&[AGENT_PATH, "run"]),
            node,
        }
    }
}

/// Creates a site with these instances and one schedule. Returns the start of its window.
fn create_schedule(fleet: &VmFleet, instances: &[&str]) -> DateTime<Utc> {
    let site = fleet.rest.post("sites", &json!({ "name": "one" }));
    let site = site["resourceId"].as_str().expect("an id");
    for instance in instances {
        let instance = fleet.rest.get(&format!("compute/instances/{instance}"));
        let host = instance["host"]["resourceId"].as_str().expect("a host");
        let path = format!("compute/hosts/{host}");
        fleet.rest.patch(&path, &json!({ "siteId": site }));
    }
    let start = machine_time().timestamp() + WINDOW_DELAY_SECONDS;
    fleet.rest.post(
        "schedules/single",
        &json!({
            "name": "one",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": start,
            "endSeconds": start + 7_200,
            "targetSiteId": site,
        }),
    );
    DateTime::from_timestamp(start, 0).expect("a time of this century")
}

/// Creates a policy and assigns it to an instance.
fn assign_policy(fleet: &VmFleet, instance: &str, policy: &Value) -> String {
    let created = fleet.rest.post("os-update-policies", policy);
    let id = created["resourceId"].as_str().expect("an id").to_owned();
    let path = format!("compute/instances/{instance}");
    fleet.rest.patch(&path, &json!({ "osUpdatePolicyID": id }));
    id
}

/// All runs with their events, after all of them have ended. Image runs come before package runs.
fn finished_runs(fleet: &VmFleet, vm: &mut Vm) -> Vec<Value> {
    let list = vm.until("both runs end", UPDATE_TIMEOUT, || {
        let list = fleet.rest.get("os-update-runs");
        let runs = list["osUpdateRuns"].as_array().expect("a list").clone();
        let is_over = |run: &Value| run["endTime"].as_u64() > Some(0);
        (runs.len() == 2 && runs.iter().all(is_over)).then_some(runs)
    });
    let ids = list.iter().filter_map(|run| run["resourceId"].as_str());
    let mut runs: Vec<Value> =
        ids.map(|id| fleet.rest.get(&format!("os-update-runs/{id}"))).collect();
    runs.sort_by_key(|run| run["target"]["kind"].to_string());
    runs
}

/// Time of the first event of this kind in a run.
#[track_caller]
fn event_time(run: &Value, name: &str) -> DateTime<Utc> {
    let mut all = run["events"].as_array().into_iter().flatten();
    let event = all.find(|event| event["event"] == name);
    let time = event.and_then(|event| event["time"].as_str());
    time.expect("such an event").parse().expect("a time")
}

#[test]
fn packages_and_images_are_updated_under_one_schedule_and_the_image_comes_from_what_was_published()
{
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let Some(lab) = Lab::open() else { return };
    let registry = format!("oci:{}", lab.path("registry").display());
    fs::create_dir(lab.path("registry")).expect("a folder for the registry");
    let repository = Repository::new(&lab, "repo");
    repository.publish("_1.1_");
    let fleet = fleet_with_registry(&vms, &registry);
    let old = vms.release(OLD_VERSION, ReleaseKind::Good);
    let mut vm = vms.machine(&fleet, &old, "image");
    fleet.join(&mut vm);
    let packages = PackageNode::join(&lab, &fleet, &repository);

    let of_images = json!({ "name": "images", "updatePolicy": "UPDATE_POLICY_LATEST" });
    let of_images = assign_policy(&fleet, vm.instance(), &of_images);
    let of_packages = json!({
        "name": "packages",
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.1",
    });
    let of_packages = assign_policy(&fleet, &packages.instance, &of_packages);
    let new = vms.release(NEW_VERSION, ReleaseKind::Good);
    publish(&vms, &fleet, &new, &registry);
    let opens = create_schedule(&fleet, &[vm.instance(), &packages.instance]);

    let runs = finished_runs(&fleet, &mut vm);
    for (run, kind, policy) in
        [(&runs[0], "image", &of_images), (&runs[1], "packages", &of_packages)]
    {
        assert_eq!(run["target"]["kind"], kind, "{run:#}");
        assert_eq!(run["state"], "succeeded", "{run:#}");
        assert_eq!(run["policy"]["resourceId"], policy.as_str());
        // Everything is downloaded before the window opens, and nothing starts before.
        assert!(event_time(run, "downloaded") < opens, "{run:#}");
        assert!(event_time(run, "began") >= opens, "{run:#}");
        let all = events(run);
        print_progress(&format!("{kind}: {all:?}"));
        assert_eq!((all.first(), all.last()), (Some(&"downloading"), Some(&"finished")));
    }
    assert_eq!(runs[0]["image"]["before"], OLD_VERSION);
    assert_eq!(runs[0]["image"]["booted"], NEW_VERSION);
    // The package node can be booted only once at a time.
    drop(packages.agent);
    assert_eq!(packages.node.package("demo-hello"), "1.1 installed");
    let requests = fleet.web.requests();
    assert!(requests.is_empty(), "there are no files at {requests:?}");
    assert_eq!(fleet.until_consistent(&mut vm, &[&new]).slot, Slot::B);
    assert_eq!(judge(&fleet, &mut vm, &[&new]), NEW_VERSION);
}
