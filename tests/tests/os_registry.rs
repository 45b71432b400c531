//! Operating systems from Debian's registry into a project: published by the command line, synced by a real server.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_tests::lab::{Lab, Registry, Rest, Server, until};
use serde_json::{Value, json};

/// What stands before the name of a profile.
const PREFIX: &str = "os-profile/";

const SOON: Duration = Duration::from_mins(1);

/// A lab with a registry and a server that knows it.
struct World {
    server: Server,
    rest: Rest,
    registry: Registry,
    lab: Lab,
}

impl World {
    /// One in which only a user with a password enters the registry, and a project takes these profiles.
    fn of(lab: Lab, profiles: &[&str]) -> Self {
        let registry = Registry::guarded(&lab, "registry");
        let password = lab.path("password");
        fs::write(&password, Registry::PASSWORD).expect("a file");
        let password = password.display().to_string();
        let enabled = json!(profiles).to_string();
        let own = [
            ("ADDRESS", registry.address()),
            ("PLAIN_HTTP", "true".to_owned()),
            ("PREFIX", PREFIX.to_owned()),
            ("PROXY", "none".to_owned()),
            ("USERNAME", Registry::USER.to_owned()),
            ("PASSWORD_FILE", password),
        ];
        let own = own.map(|(key, value)| (format!("REGISTRIES__RELEASE__{key}"), value));
        let wish = [
            ("REGISTRY", "release"),
            ("REVISION", "~0.3.1"),
            ("ENABLED", &enabled),
        ];
        let wish = wish.map(|(key, value)| (format!("DEFAULT__{key}"), value.to_owned()));
        let all = own.into_iter().chain(wish);
        let all = all.map(|(key, value)| (format!("EVENKEELD_OS_RESOURCE_MANAGER__{key}"), value));
        let all: Vec<(String, String)> = all.collect();
        let settings: Vec<(&str, &str)> = all.iter().map(|(k, v)| (&**k, &**v)).collect();
        let server = Server::start_with(&lab, &settings);
        Self {
            rest: server.rest(),
            server,
            registry,
            lab,
        }
    }

    /// A folder with these profiles, whose images have this version.
    fn folder(&self, profiles: &[&str], image: &str) -> PathBuf {
        let folder = self.lab.path(&format!("release-{}-{image}", profiles[0]));
        fs::create_dir_all(&folder).expect("a folder");
        for profile in profiles {
            let yaml = format!(
                "metadata:\n  release: unknown\nspec:\n  name: {profile} {image}\n  type: OS_TYPE_IMMUTABLE\n  \
                 provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  profileName: {profile}\n  \
                 osImageUrl: images/{profile}-{image}.raw\n  osImageVersion: \"{image}\"\n  \
                 osPackageManifestURL: images/{profile}-{image}.json\n  \
                 securityFeature: SECURITY_FEATURE_NONE\n"
            );
            let packages = json!({ "repo": [{ "name": "bash", "version": image }] });
            let files = [
                (format!("{profile}.yaml"), yaml),
                (
                    format!("{profile}-{image}.raw"),
                    format!("the image {profile} {image}"),
                ),
                (format!("{profile}-{image}.json"), packages.to_string()),
            ];
            for (name, content) in files {
                fs::write(folder.join(name), content).expect("a file");
            }
        }
        folder
    }

    /// Publishes these profiles as a revision.
    fn publish(&self, profiles: &[&str], revision: &str, image: &str, more: &[&str]) {
        let folder = self.folder(profiles, image).display().to_string();
        let (to, password) = (self.registry.address(), self.lab.path("password"));
        let password = password.display().to_string();
        let mut words = vec!["os", "publish", &folder, "--to", &to];
        words.extend(["--revision", revision, "--prefix", PREFIX, "--plain-http"]);
        words.extend(["--username", Registry::USER, "--password-file", &password]);
        words.extend(more);
        self.server.cli(&words);
    }

    /// Asks for a sync, and says how it went.
    fn sync(&self) -> Value {
        let asked = number(&self.rest.post("/os-catalogue/sync", &json!({})), "request");
        until("the sync has ended", SOON, || {
            let report = self.rest.get("/os-catalogue/report");
            (!report["outcome"].is_null() && number(&report, "request") >= asked).then_some(report)
        })
    }

    /// The operating systems: each as `profile image revision`.
    fn systems(&self) -> Vec<String> {
        let all = self.rest.get("/compute/os?pageSize=100&orderBy=name");
        let all = all["OperatingSystemResources"]
            .as_array()
            .expect("a list")
            .iter();
        let text = |os: &Value, key: &str| os[key].as_str().unwrap_or_default().to_owned();
        all.map(|os| {
            ["profileName", "imageId", "revision"]
                .map(|key| text(os, key))
                .join(" ")
        })
        .collect()
    }
}

fn number(of: &Value, key: &str) -> u64 {
    let text = of[key].as_str().expect("a number as text");
    text.parse().expect("a number")
}

/// What was found: each as `tag kind`.
fn found(report: &Value) -> Vec<String> {
    let all = report["findings"].as_array().expect("a list").iter();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    // Nobody signs here, and that is told of each.
    all.filter(|row| row["kind"] != "unsigned")
        .map(|row| format!("{} {}", text(row, "tag"), text(row, "kind")))
        .collect()
}

#[track_caller]
fn counts(report: &Value) -> [u64; 4] {
    ["made", "refreshed", "same", "refused"].map(|key| report[key].as_u64().expect("a count"))
}

#[test]
fn operating_systems_come_from_debians_registry_and_follow_it() {
    let Some(lab) = Lab::open() else { return };
    let world = World::of(lab, &["edge", "edge-rt"]);
    world.publish(
        &["edge", "edge-rt"],
        "0.3.1",
        "3.0.1",
        &["--branch", "main"],
    );
    let first = world.sync();
    assert_eq!(first["outcome"], "good", "{first:#}");
    assert_eq!(counts(&first), [2, 0, 0, 0]);
    assert_eq!(world.systems(), ["edge 3.0.1 0.3.1", "edge-rt 3.0.1 0.3.1"]);

    // A patch is taken, a minor release is not.
    world.publish(&["edge"], "0.3.2", "3.0.2", &[]);
    world.publish(&["edge"], "0.4.0", "4.0.0", &[]);
    let patch = world.sync();
    assert_eq!(
        (counts(&patch), found(&patch)),
        ([1, 0, 2, 0], vec![]),
        "{patch:#}"
    );
    let expected = [
        "edge 3.0.1 0.3.1",
        "edge 3.0.2 0.3.2",
        "edge-rt 3.0.1 0.3.1",
    ];
    assert_eq!(world.systems(), expected);

    // A tag is given to another image: that is another operating system, and the old one stays.
    world.publish(&["edge"], "0.3.2", "3.0.3", &["--move"]);
    let moved = world.sync();
    assert_eq!(
        (counts(&moved), found(&moved)),
        ([1, 0, 2, 0], vec!["0.3.2 tag_moved".to_owned()]),
        "{moved:#}"
    );
    assert_eq!(world.systems().len(), 4);

    // A tag is taken away.
    world.registry.remove_tag(&format!("{PREFIX}edge"), "0.3.1");
    let gone = world.sync();
    assert_eq!(found(&gone), ["0.3.1 gone", "0.3.2 tag_moved"], "{gone:#}");
    assert_eq!(world.systems().len(), 4);

    // The registry is away, and comes back.
    world.registry.stop();
    let away = world.sync();
    assert_eq!(away["outcome"], "failed", "{away:#}");
    assert!(
        !away["message"].as_str().unwrap_or_default().is_empty(),
        "{away:#}"
    );
    assert_eq!(world.systems().len(), 4);
    world.registry.start_again();
    world.publish(&["edge-rt"], "0.3.2", "3.0.2", &[]);
    let again = world.sync();
    assert_eq!(
        (&again["outcome"], counts(&again)),
        (&json!("good"), [1, 0, 2, 0]),
        "{again:#}"
    );

    // What was altered where it lies is not taken.
    world.publish(&["edge-rt"], "0.3.3", "3.0.3", &[]);
    let repository = format!("{PREFIX}edge-rt");
    world.registry.spoil(&repository, "0.3.3");
    let altered = world.sync();
    assert_eq!(altered["outcome"], "partly", "{altered:#}");
    assert!(
        found(&altered).contains(&"0.3.3 wrong_digest".to_owned()),
        "{altered:#}"
    );
    assert!(
        world
            .server
            .cli(&["os", "sync-report"])
            .contains("wrong_digest")
    );
}

#[test]
fn two_hundred_profiles_come_although_the_server_is_killed_meanwhile() {
    let Some(lab) = Lab::open() else { return };
    let names: Vec<String> = (0..200).map(|number| format!("edge-{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = World::of(lab, &names);
    world.publish(&names, "0.3.1", "3.0.1", &[]);
    world.rest.post("/os-catalogue/sync", &json!({}));
    until("profiles are being fetched", SOON, || {
        let sync = world.rest.get("/os-catalogue/sync");
        (sync["step"] == "fetching" && sync["finished"].as_u64() > Some(0)).then_some(())
    });
    world.server.kill();
    world.server.restart();
    // Nobody waits for the end of the lease of who is gone.
    world.server.sql("UPDATE os_cycles SET lease_until = now()");
    let report = world.sync();
    assert_eq!(report["outcome"], "good", "{report:#}");
    let [made, refreshed, same, refused] = counts(&report);
    assert_eq!((made + same, refreshed, refused), (200, 0, 0), "{report:#}");
    let rows = world
        .server
        .sql("SELECT count(*), count(DISTINCT os_id) FROM os_inside");
    assert_eq!(rows.trim(), "200|200");
}
