//! Operating systems from Debian's registry in a project: published with the command line, synced by
//! a real server.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_tests::lab::{Lab, Registry, Rest, Server, until};
use serde_json::{Value, json};

/// Repository prefix of the profiles.
const PREFIX: &str = "os-profile/";

const WAIT_TIMEOUT: Duration = Duration::from_mins(1);

/// A lab with a registry and a server that uses it.
struct RegistryTest {
    server: Server,
    rest: Rest,
    registry: Registry,
    lab: Lab,
}

impl RegistryTest {
    /// Sets up a registry with a password, and a project that selects these profiles.
    fn new(lab: Lab, profiles: &[&str]) -> Self {
        let registry = Registry::with_password(&lab, "registry");
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
        let defaults = [("REGISTRY", "release"), ("REVISION", "~0.3.1"), ("ENABLED", &enabled)];
        let defaults = defaults.map(|(key, value)| (format!("DEFAULT__{key}"), value.to_owned()));
        let all = own.into_iter().chain(defaults);
        let all = all.map(|(key, value)| (format!("EVENKEELD_OS_RESOURCE_MANAGER__{key}"), value));
        let all: Vec<(String, String)> = all.collect();
        let settings: Vec<(&str, &str)> = all.iter().map(|(k, v)| (&**k, &**v)).collect();
        let server = Server::start_with(&lab, &settings);
        let test = Self { rest: server.rest(), server, registry, lab };
        // The start of the server and the new project each request a sync. Both have ended when this
        // one has, so that only the syncs of the tests find what the tests publish.
        test.sync();
        test
    }

    /// Writes a folder with these profiles and this image version.
    fn write_release(&self, profiles: &[&str], image: &str) -> PathBuf {
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
                (format!("{profile}-{image}.raw"), format!("the image {profile} {image}")),
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
        let folder = self.write_release(profiles, image).display().to_string();
        let (to, password) = (self.registry.address(), self.lab.path("password"));
        let password = password.display().to_string();
        let mut arguments = vec!["os", "publish", &folder, "--to", &to];
        arguments.extend(["--revision", revision, "--prefix", PREFIX, "--plain-http"]);
        arguments.extend(["--username", Registry::USER, "--password-file", &password]);
        arguments.extend(more);
        self.server.cli(&arguments);
    }

    /// Requests a sync and returns its report.
    fn sync(&self) -> Value {
        let request = read_number(&self.rest.post("os-catalogue/sync", &json!({})), "request");
        until("the sync has ended", WAIT_TIMEOUT, || {
            let report = self.rest.get("os-catalogue/report");
            (!report["outcome"].is_null() && read_number(&report, "request") >= request)
                .then_some(report)
        })
    }

    /// Operating systems of the project, each as `profile image revision`.
    fn list_systems(&self) -> Vec<String> {
        let all = self.rest.get("compute/os?pageSize=100&orderBy=name");
        let all = all["OperatingSystemResources"].as_array().expect("a list").iter();
        let text = |os: &Value, key: &str| os[key].as_str().unwrap_or_default().to_owned();
        all.map(|os| ["profileName", "imageId", "revision"].map(|key| text(os, key)).join(" "))
            .collect()
    }
}

fn read_number(of: &Value, key: &str) -> u64 {
    let text = of[key].as_str().expect("a number as text");
    text.parse().expect("a number")
}

/// Findings of a report, each as `tag kind`.
fn finding_lines(report: &Value) -> Vec<String> {
    let all = report["findings"].as_array().expect("a list").iter();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    // Nothing here is signed, and each tag has a finding about that.
    all.filter(|row| row["kind"] != "unsigned")
        .map(|row| format!("{} {}", text(row, "tag"), text(row, "kind")))
        .collect()
}

#[track_caller]
fn sync_counts(report: &Value) -> [u64; 4] {
    ["created", "refreshed", "unchanged", "refused"]
        .map(|key| report[key].as_u64().expect("a count"))
}

/// The registry is unreachable and then returns.
fn check_outage(test: &mut RegistryTest) {
    test.registry.stop();
    let away = test.sync();
    assert_eq!(away["outcome"], "failed", "{away:#}");
    assert!(!away["message"].as_str().unwrap_or_default().is_empty(), "{away:#}");
    assert_eq!(test.list_systems().len(), 4);
    test.registry.restart();
    test.publish(&["edge-rt"], "0.3.2", "3.0.2", &[]);
    let again = test.sync();
    assert_eq!(
        (&again["outcome"], sync_counts(&again)),
        (&json!("succeeded"), [1, 0, 2, 0]),
        "{again:#}"
    );
}

#[test]
fn operating_systems_come_from_debians_registry_and_follow_it() {
    let Some(lab) = Lab::open() else { return };
    let mut test = RegistryTest::new(lab, &["edge", "edge-rt"]);
    test.publish(&["edge", "edge-rt"], "0.3.1", "3.0.1", &["--branch", "main"]);
    let first = test.sync();
    assert_eq!(first["outcome"], "succeeded", "{first:#}");
    assert_eq!(sync_counts(&first), [2, 0, 0, 0]);
    assert_eq!(test.list_systems(), ["edge 3.0.1 0.3.1", "edge-rt 3.0.1 0.3.1"]);

    // A patch release is added, a minor release is not.
    test.publish(&["edge"], "0.3.2", "3.0.2", &[]);
    test.publish(&["edge"], "0.4.0", "4.0.0", &[]);
    let patch = test.sync();
    assert_eq!((sync_counts(&patch), finding_lines(&patch)), ([1, 0, 2, 0], vec![]), "{patch:#}");
    let expected = ["edge 3.0.1 0.3.1", "edge 3.0.2 0.3.2", "edge-rt 3.0.1 0.3.1"];
    assert_eq!(test.list_systems(), expected);

    // A tag moves to another image: a new operating system is added and the old one stays.
    test.publish(&["edge"], "0.3.2", "3.0.3", &["--move"]);
    let moved = test.sync();
    assert_eq!(
        (sync_counts(&moved), finding_lines(&moved)),
        ([1, 0, 2, 0], vec!["0.3.2 tag_moved".to_owned()]),
        "{moved:#}"
    );
    assert_eq!(test.list_systems().len(), 4);

    // A tag is removed.
    test.registry.remove_tag(&format!("{PREFIX}edge"), "0.3.1");
    let removed = test.sync();
    assert_eq!(finding_lines(&removed), ["0.3.1 gone", "0.3.2 tag_moved"], "{removed:#}");
    assert_eq!(test.list_systems().len(), 4);

    check_outage(&mut test);

    // A file that was altered in the registry is rejected.
    test.publish(&["edge-rt"], "0.3.3", "3.0.3", &[]);
    let repository = format!("{PREFIX}edge-rt");
    test.registry.corrupt(&repository, "0.3.3");
    let altered = test.sync();
    assert_eq!(altered["outcome"], "partial", "{altered:#}");
    assert!(finding_lines(&altered).contains(&"0.3.3 wrong_digest".to_owned()), "{altered:#}");
    assert!(test.server.cli(&["os", "sync-report"]).contains("wrong_digest"));
}

#[test]
fn two_hundred_profiles_are_synced_although_the_server_is_killed_meanwhile() {
    let Some(lab) = Lab::open() else { return };
    let names: Vec<String> = (0..200).map(|number| format!("edge-{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let test = RegistryTest::new(lab, &names);
    test.publish(&names, "0.3.1", "3.0.1", &[]);
    test.rest.post("os-catalogue/sync", &json!({}));
    until("profiles are being fetched", WAIT_TIMEOUT, || {
        let sync = test.rest.get("os-catalogue/sync");
        (sync["step"] == "fetching" && sync["finished"].as_u64() > Some(0)).then_some(())
    });
    test.server.kill();
    test.server.restart();
    // Ends the lease of the killed server, so that the test need not wait for it.
    test.server.sql("UPDATE os_cycles SET lease_until = now()");
    let report = test.sync();
    assert_eq!(report["outcome"], "succeeded", "{report:#}");
    let [created, refreshed, same, refused] = sync_counts(&report);
    assert_eq!((created + same, refreshed, refused), (200, 0, 0), "{report:#}");
    let rows = test.server.sql("SELECT count(*), count(DISTINCT os_id) FROM os_details");
    assert_eq!(rows.trim(), "200|200");
}
