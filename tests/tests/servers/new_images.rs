//! Time from the sync of a new image until the update is shown for each of 10,000 nodes.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_kit::{Clock as _, SystemClock};
use evenkeel_pg::PrivatePostgres;
use evenkeel_store::testing::fill::{self, ProjectSize};
use evenkeel_store::{Store, StoreOptions, projects};
use evenkeel_tests::history::print_progress;
use evenkeel_tests::lab::{Lab, Server, until};
use tokio::runtime::Runtime;

const NODES: u32 = 10_000;

/// Repository prefix of the profiles.
const PREFIX: &str = "os/";

/// Maximum duration of each step.
const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

/// A server with the registry `release`, a folder in OCI layout.
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

    /// Publishes an image of the profile `edge` as a revision, and syncs the server with it.
    fn publish_and_sync(&self, revision: &str, image: &str) {
        let folder = self.write_release(revision, image);
        let registry = format!("oci:{}", self.lab.path("registry").display());
        let folder = folder.display().to_string();
        let publish = ["os", "publish", &folder, "--to", &registry];
        let called = ["--revision", revision, "--prefix", PREFIX];
        self.server.cli(&[&publish[..], &called].concat());
        self.server.cli(&["os", "sync"]);
        let has = format!("SELECT count(*) FROM os_profiles WHERE image_id = '{image}'");
        assert_eq!(self.server.sql(&has).trim(), "1", "{image} is in the catalogue");
    }

    fn write_release(&self, revision: &str, image: &str) -> PathBuf {
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

    /// Adds [`NODES`] nodes that run an image.
    fn add_nodes(&self, image: &str) {
        let filled = async {
            let postgres = self.lab.path("server").join("postgres");
            let url = PrivatePostgres::find_running(&postgres).expect("a lock");
            let options =
                StoreOptions { statement_timeout: WAIT_TIMEOUT, ..StoreOptions::default() };
            let store = Store::connect(&url.expect("a Postgres that runs"), options).await?;
            let now = SystemClock.now();
            let tx = store.fleet().await?;
            let (project, _) = projects::ensure_default(&tx, now).await?;
            drop(tx);
            let size = ProjectSize { hosts: NODES, sites: 10 };
            fill::seed_nodes(&store, project.id, size, now).await?;
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

    /// Number of nodes for which this image is available.
    fn count_notified_nodes(&self, image: &str) -> u64 {
        let sql = format!(
            "SELECT count(*) FROM node_states WHERE os_update_available = 'edge {image}' \
             AND available_digest = sha256(convert_to('edge {image}', 'UTF8'))"
        );
        self.server.sql(&sql).trim().parse().expect("a number")
    }

    /// Waits until the server has updated the nodes of all changed image series.
    fn wait_until_followed(&self) {
        let behind = "SELECT count(*) FROM image_series WHERE change_count > applied_count";
        until("the image series are followed", WAIT_TIMEOUT, || {
            (self.server.sql(behind).trim() == "0").then_some(())
        });
    }
}

#[test]
fn a_new_image_reaches_ten_thousand_nodes_and_an_older_one_changes_nothing() {
    let Some(site) = Site::open() else { return };
    let selection = ["--registry", "release", "--revision", "~1.0"];
    let enabled = ["--enable", "edge"];
    let settings = [&["os", "settings"][..], &selection, &enabled].concat();
    site.server.cli(&settings);
    site.publish_and_sync("1.0.1", "3.0.9");
    site.wait_until_followed();
    site.add_nodes("3.0.9");
    assert_eq!(site.count_notified_nodes("3.0.10"), 0);

    site.publish_and_sync("1.0.2", "3.0.10");
    // Measured with the clock of the database, which also recorded the end of the sync.
    let since = until("every node is notified", WAIT_TIMEOUT, || {
        let everybody = site.count_notified_nodes("3.0.10") == u64::from(NODES);
        let since = "SELECT extract(epoch FROM clock_timestamp() - max(ended_at)) FROM os_cycles";
        everybody.then(|| site.server.sql(since))
    });
    print_progress(&format!(
        "new image: {NODES} nodes were notified {} s after the end of the sync",
        since.trim()
    ));

    site.publish_and_sync("1.0.3", "3.0.2");
    site.wait_until_followed();
    assert_eq!(site.count_notified_nodes("3.0.10"), u64::from(NODES), "the other image is older");
    let newest =
        "compute/instances?pageSize=1&filter=osUpdateAvailable%20%3D%20%22edge%203.0.10%22";
    let listed = site.server.rest().get(newest);
    assert_eq!(listed["totalElements"], NODES);
}
