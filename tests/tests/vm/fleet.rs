//! One fleet in which nodes of packages and nodes of images are updated under one schedule, each by a policy of its own;
//! and the whole way of a release, from the folder of whoever publishes it to the machine that has booted it.

use std::fs;

use chrono::{DateTime, Utc};
use evenkeel_tests::history::{machine_time, say};
use evenkeel_tests::lab::vm::{
    ARCHITECTURE, Kind, PROFILE, Release, Slot, Vm, VmFleet, Vms, judge,
};
use evenkeel_tests::lab::{Binaries, Lab, Node, Repository, Running, events};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::node::UPDATE;
use crate::{NEW, OLD};

/// Where the agent is on the node of packages.
const AGENT: &str = "/srv/evenkeel-agent";

/// What stands before the name of a profile in the registry.
const PREFIX: &str = "os/";

/// The windows of the fleet open so long after they were made, in seconds: long enough to prepare for them on a busy
/// machine.
const AHEAD: i64 = 150;

/// A server that takes what is published, and gives it to nodes.
fn served(vms: &Vms, registry: &str) -> VmFleet {
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
        ("EVENKEELD_FILES__KEEP_FREE".to_owned(), "0"),
    ];
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(key, value)| (key.as_str(), *value))
        .collect();
    vms.fleet_with(&settings)
}

/// Publishes a release as an operator does it, and waits until the server has taken it.
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
    let words = ["os", "publish", &folder, "--to", registry];
    let called = ["--revision", "1.0.1", "--prefix", PREFIX];
    fleet
        .server
        .cli(&[&words[..], &called, &["--image-key", &key]].concat());
    fleet.server.cli(&["os", "sync"]);
    let found = fleet
        .rest
        .get(&format!("/compute/os?filter=imageId%3D%22{version}%22"));
    let os = &found["OperatingSystemResources"][0];
    assert_eq!(os["sha256"], release.sha256.as_str(), "{found:#}");
    assert_eq!(os["imageSignatures"], json!([release.signature]));
    let id = os["resourceId"].as_str().expect("an id");
    fleet.knows(version, id);
}

/// A node of packages that has joined, and its agent.
struct Packages {
    instance: String,
    node: Node,
    agent: Running,
}

impl Packages {
    fn join(lab: &Lab, fleet: &VmFleet, repository: &Repository) -> Self {
        let node = Node::new(lab, "packages")
            .with(&Binaries::get().agent, AGENT)
            .with(repository.folder(), Repository::INSIDE);
        node.sh(&format!(
            "cp {}/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any; \
             apt-get -q -y install demo-hello=1.0",
            Repository::INSIDE
        ));
        let made = fleet.rest.post("/join-tokens", &json!({}));
        let token = made["token"].as_str().expect("a token");
        let server = format!("https://{}", fleet.server.address("southbound"));
        let uuid = Uuid::new_v4().to_string();
        node.succeed(&[
            AGENT, "enroll", "--server", &server, "--token", token, "--uuid", &uuid,
        ]);
        let path = format!("/compute/instances?filter=host.uuid%3D%22{uuid}%22");
        let found = fleet.rest.get(&path);
        let instance = found["instances"][0]["resourceId"].as_str();
        Self {
            instance: instance.expect("an instance").to_owned(),
            agent: node.start(&[AGENT, "run"]),
            node,
        }
    }
}

/// A site with these instances, and its one schedule. Returns when that opens.
fn schedule(fleet: &VmFleet, instances: &[&str]) -> DateTime<Utc> {
    let site = fleet.rest.post("/sites", &json!({ "name": "one" }));
    let site = site["resourceId"].as_str().expect("an id");
    for instance in instances {
        let instance = fleet.rest.get(&format!("/compute/instances/{instance}"));
        let host = instance["host"]["resourceId"].as_str().expect("a host");
        let path = format!("/compute/hosts/{host}");
        fleet.rest.patch(&path, &json!({ "siteId": site }));
    }
    let start = machine_time().timestamp() + AHEAD;
    fleet.rest.post(
        "/schedules/single",
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

/// Assigns a policy of its own to an instance.
fn assign(fleet: &VmFleet, instance: &str, policy: &Value) -> String {
    let made = fleet.rest.post("/os-update-policies", policy);
    let id = made["resourceId"].as_str().expect("an id").to_owned();
    let path = format!("/compute/instances/{instance}");
    fleet.rest.patch(&path, &json!({ "osUpdatePolicyID": id }));
    id
}

/// The one list of runs, when all of them are over: with their events, those of packages behind those of images.
fn runs(fleet: &VmFleet, vm: &mut Vm) -> Vec<Value> {
    let list = vm.until("both runs end", UPDATE, || {
        let list = fleet.rest.get("/os-update-runs");
        let runs = list["osUpdateRuns"].as_array().expect("a list").clone();
        let is_over = |run: &Value| run["endTime"].as_u64() > Some(0);
        (runs.len() == 2 && runs.iter().all(is_over)).then_some(runs)
    });
    let ids = list.iter().filter_map(|run| run["resourceId"].as_str());
    let mut runs: Vec<Value> = ids
        .map(|id| fleet.rest.get(&format!("/os-update-runs/{id}")))
        .collect();
    runs.sort_by_key(|run| run["target"]["kind"].to_string());
    runs
}

/// When something happened in a run first.
#[track_caller]
fn time_of(run: &Value, name: &str) -> DateTime<Utc> {
    let mut all = run["events"].as_array().into_iter().flatten();
    let event = all.find(|event| event["event"] == name);
    let time = event.and_then(|event| event["time"].as_str());
    time.expect("such an event").parse().expect("a time")
}

#[test]
fn packages_and_images_are_updated_under_one_schedule_and_the_image_comes_from_what_was_published()
{
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let Some(lab) = Lab::open() else { return };
    let registry = format!("oci:{}", lab.path("registry").display());
    fs::create_dir(lab.path("registry")).expect("a folder for the registry");
    let repository = Repository::new(&lab, "repo");
    repository.publish("_1.1_");
    let fleet = served(&vms, &registry);
    let old = vms.release(OLD, Kind::Good);
    let mut vm = vms.machine(&fleet, &old, "image");
    fleet.join(&mut vm);
    let packages = Packages::join(&lab, &fleet, &repository);

    let of_images = json!({ "name": "images", "updatePolicy": "UPDATE_POLICY_LATEST" });
    let of_images = assign(&fleet, vm.instance(), &of_images);
    let of_packages = json!({
        "name": "packages",
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.1",
    });
    let of_packages = assign(&fleet, &packages.instance, &of_packages);
    let new = vms.release(NEW, Kind::Good);
    publish(&vms, &fleet, &new, &registry);
    let opens = schedule(&fleet, &[vm.instance(), &packages.instance]);

    let runs = runs(&fleet, &mut vm);
    for (run, kind, policy) in [
        (&runs[0], "image", &of_images),
        (&runs[1], "packages", &of_packages),
    ] {
        assert_eq!(run["target"]["kind"], kind, "{run:#}");
        assert_eq!(run["state"], "succeeded", "{run:#}");
        assert_eq!(run["policy"]["resourceId"], policy.as_str());
        // All is there before the window opens, and nothing begins before.
        assert!(time_of(run, "downloaded") < opens, "{run:#}");
        assert!(time_of(run, "began") >= opens, "{run:#}");
        let all = events(run);
        say(&format!("{kind}: {all:?}"));
        assert_eq!(
            (all.first(), all.last()),
            (Some(&"downloading"), Some(&"finished"))
        );
    }
    assert_eq!(runs[0]["image"]["before"], OLD);
    assert_eq!(runs[0]["image"]["booted"], NEW);
    // One boot of that node at a time.
    drop(packages.agent);
    assert_eq!(packages.node.package("demo-hello"), "1.1 installed");
    let asked = fleet.web.asked();
    assert!(asked.is_empty(), "nothing lies at {asked:?}");
    assert_eq!(fleet.agrees(&mut vm, &[&new]).slot, Slot::B);
    assert_eq!(judge(&fleet, &mut vm, &[&new]), NEW);
}
