//! How long it takes from a new image that is published until each of 10,000 nodes is known to have something new.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_kit::{Clock as _, SystemClock};
use evenkeel_pg::PrivatePostgres;
use evenkeel_store::testing::fill::{self, Size};
use evenkeel_store::{Store, StoreOptions, projects};
use evenkeel_tests::history::say;
use evenkeel_tests::lab::{Lab, Server, until};
use tokio::runtime::Runtime;

const NODES: u32 = 10_000;

/// Where the profiles lie in the registry.
const PREFIX: &str = "os/";

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_mins(2);

/// A server, and the folder in OCI layout that it knows as the registry `release`.
struct Site {
    server: Server,
    lab: Lab,
}

impl Site {
    fn open() -> Option<Self> {
        let lab = Lab::open()?;
        let registry = format!("oci:{}", lab.path("registry").display());
        fs::create_dir(lab.path("registry")).expect("a folder for the registry");
        let of = |key: &str| format!("EVENKEELD_OS_RESOURCE_MANAGER__{key}");
        let [address, prefix, trust, at_start] = [
            of("REGISTRIES__RELEASE__ADDRESS"),
            of("REGISTRIES__RELEASE__PREFIX"),
            of("REGISTRIES__RELEASE__TRUST"),
            of("AT_START"),
        ];
        let settings = [
            (address.as_str(), registry.as_str()),
            (&prefix, PREFIX),
            (&trust, "off"),
            (&at_start, "false"),
        ];
        let server = Server::start_with(&lab, &settings);
        Some(Self { server, lab })
    }

    /// Publishes an image of the profile `edge` as a revision, and waits until the server has taken it.
    fn brings(&self, revision: &str, image: &str) {
        let folder = self.release(revision, image);
        let registry = format!("oci:{}", self.lab.path("registry").display());
        let folder = folder.display().to_string();
        let publish = ["os", "publish", &folder, "--to", &registry];
        let called = ["--revision", revision, "--prefix", PREFIX];
        self.server.cli(&[&publish[..], &called].concat());
        self.server.cli(&["os", "sync"]);
        let has = format!("SELECT count(*) FROM os_profiles WHERE image_id = '{image}'");
        assert_eq!(self.server.sql(&has).trim(), "1", "{image} is there");
    }

    fn release(&self, revision: &str, image: &str) -> PathBuf {
        let folder = self.lab.path(&format!("release-{revision}"));
        fs::create_dir(&folder).expect("a folder for a release");
        let yaml = format!(
            "appVersion: apps/v1\nmetadata:\n  release: {revision}\nspec:\n  name: edge {image}\n  \
             type: OS_TYPE_IMMUTABLE\n  provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  \
             profileName: edge\n  osImageUrl: files/edge/edge-{image}.raw.gz\n  osImageVersion: {image}\n  \
             osPackageManifestURL: files/edge/packages.json\n  securityFeature: SECURITY_FEATURE_NONE\n"
        );
        let packages = r#"{"repo":[{"name":"bash","version":"5.2"}]}"#;
        for (name, text) in [
            ("edge.yaml".to_owned(), yaml.as_str()),
            (format!("edge-{image}.raw.gz"), image),
            ("packages.json".to_owned(), packages),
        ] {
            fs::write(folder.join(name), text).expect("a file of a release");
        }
        folder
    }

    /// Nodes that run an image, as many as [`NODES`].
    fn fill(&self, image: &str) {
        let filled = async {
            let postgres = self.lab.path("server").join("postgres");
            let url = PrivatePostgres::kept_elsewhere(&postgres).expect("a lock");
            let options = StoreOptions {
                statement_timeout: PATIENCE,
                ..StoreOptions::default()
            };
            let store = Store::connect(&url.expect("a Postgres that runs"), options).await?;
            let now = SystemClock.now();
            let tx = store.fleet().await?;
            let (project, _) = projects::ensure_default(&tx, now).await?;
            drop(tx);
            let size = Size {
                hosts: NODES,
                sites: 10,
            };
            fill::nodes(&store, project.id, size, now).await?;
            store.close().await;
            Ok::<_, evenkeel_store::StoreError>(())
        };
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(filled).expect("a fleet");
        self.server.sql(&format!(
            "UPDATE node_states n SET os_id = o.id, os_update_available = '', available_digest = sha256('') \
             FROM os_profiles o WHERE o.tenant_id = n.tenant_id AND o.image_id = '{image}'"
        ));
        self.server.sql("VACUUM (ANALYZE)");
    }

    /// How many nodes something is new for.
    fn told(&self, image: &str) -> u64 {
        let sql = format!(
            "SELECT count(*) FROM node_states WHERE os_update_available = 'edge {image}' \
             AND available_digest = sha256(convert_to('edge {image}', 'UTF8'))"
        );
        self.server.sql(&sql).trim().parse().expect("a number")
    }

    /// Waits until no line of images has changed that nodes were not told of.
    fn is_followed(&self) {
        let behind = "SELECT count(*) FROM image_lines WHERE changed > followed";
        until("the lines are followed", PATIENCE, || {
            (self.server.sql(behind).trim() == "0").then_some(())
        });
    }
}

#[test]
fn a_new_image_is_known_for_ten_thousand_nodes_and_an_older_one_is_no_news() {
    let Some(site) = Site::open() else { return };
    let wish = ["--registry", "release", "--revision", "~1.0"];
    let enabled = ["--enable", "edge"];
    let settings = [&["os", "settings"][..], &wish, &enabled].concat();
    site.server.cli(&settings);
    site.brings("1.0.1", "3.0.9");
    site.is_followed();
    site.fill("3.0.9");
    assert_eq!(site.told("3.0.10"), 0);

    site.brings("1.0.2", "3.0.10");
    // The clock of the database, which also noted when the sync ended.
    let since = until("every node is told", PATIENCE, || {
        let everybody = site.told("3.0.10") == u64::from(NODES);
        let since = "SELECT extract(epoch FROM clock_timestamp() - max(ended_at)) FROM os_cycles";
        everybody.then(|| site.server.sql(since))
    });
    say(&format!(
        "os news: {NODES} nodes were told of an image {} s after the sync had ended",
        since.trim()
    ));

    site.brings("1.0.3", "3.0.2");
    site.is_followed();
    assert_eq!(site.told("3.0.10"), u64::from(NODES), "it is older");
    let newest =
        "/compute/instances?pageSize=1&filter=osUpdateAvailable%20%3D%20%22edge%203.0.10%22";
    let listed = site.server.rest().get(newest);
    assert_eq!(listed["totalElements"], NODES);
}
