//! The images of the server and the command line, and the commands of docs/containers.md with the compose file.

use std::fs;
use std::path::Path;
use std::slice;
use std::time::Duration;

use evenkeel_tests::architecture::{documents, tree};
use evenkeel_tests::lab::{
    Binaries, Containers, IMAGE_NAMES, Node, build_images, container_name, describe_output,
    read_archive, until,
};
use serde_json::Value;
use uuid::Uuid;

const PAGE: &str = "docs/containers.md";

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version that the page upgrades to.
const NEXT_VERSION: &str = "0.2.0";

const BUSYBOX: &str = "/usr/libexec/evenkeel/busybox";

const SCRAPE_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum size of the archive of the server, with a program that is not optimized.
const MAX_ARCHIVE_BYTES: u64 = 150_000_000;

/// The commands below a heading of the page.
fn page_commands(title: &str) -> Vec<String> {
    let page = fs::read_to_string(tree::root().join(PAGE)).expect("the page");
    let is_titled = |part: &&str| {
        let heading = part.lines().next().unwrap_or_default();
        heading.trim_start_matches('#').trim() == title
    };
    let part = page.split("\n#").find(is_titled).unwrap_or_else(|| panic!("no part {title}"));
    let commands = documents::commands(part);
    assert!(!commands.is_empty(), "{title} has no commands");
    commands
}

/// Reads a file of an archive as JSON.
fn read_json(archive: &Path, name: &str) -> Value {
    let text = read_archive(archive, name);
    serde_json::from_str(&text).expect("JSON")
}

/// Reads a blob of an archive by its descriptor.
fn read_blob(archive: &Path, descriptor: &Value) -> Value {
    let digest = descriptor["digest"].as_str().expect("a digest");
    read_json(archive, &format!("blobs/{}", digest.replace(':', "/")))
}

/// Checks the description of an image, and returns the digest of its layer with Debian's files.
fn check_image(archive: &Path, name: &str) -> Value {
    let index = read_json(archive, "index.json");
    let [described] = index["manifests"].as_array().expect("manifests").as_slice() else {
        panic!("not one image: {index}");
    };
    let full_name = format!("localhost/{name}:{VERSION}");
    assert_eq!(described["annotations"]["io.containerd.image.name"], full_name);
    let manifest = read_blob(archive, described);
    let config = read_blob(archive, &manifest["config"])["config"].clone();
    assert_eq!(config["User"], "65532:65532");
    for label in ["title", "description", "version", "revision", "created", "licenses"] {
        let value = &config["Labels"][format!("org.opencontainers.image.{label}")];
        assert!(value.as_str().is_some_and(|text| !text.is_empty()), "{name}: {label}");
    }
    assert_eq!(config["Labels"]["org.opencontainers.image.version"], VERSION);
    assert_eq!(config["Healthcheck"].is_null(), name == "evenkeel");
    let docker = &read_json(archive, "manifest.json")[0];
    assert_eq!(docker["RepoTags"][0], full_name);
    assert_eq!(docker["Layers"].as_array().map(Vec::len), Some(2));
    manifest["layers"][0]["digest"].clone()
}

#[test]
fn the_images_describe_their_programs_and_have_the_same_bytes_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let archives = build_images(&folder.path().join("one"), &IMAGE_NAMES, &[]);
    let [server, cli] = archives.as_slice() else { panic!("other archives: {archives:?}") };
    let bases = [check_image(server, "evenkeel-server"), check_image(cli, "evenkeel")];
    assert_eq!(bases[0], bases[1], "both images have the same files of Debian");
    let size = fs::metadata(server).expect("an archive").len();
    assert!(size < MAX_ARCHIVE_BYTES, "{size}");

    let other = [("TZ", "Asia/Tokyo"), ("LC_ALL", "C.UTF-8")];
    let repeated = build_images(&folder.path().join("two"), &["evenkeel"], &other);
    let bytes = |path: &Path| fs::read(path).expect("an archive");
    assert!(bytes(&repeated[0]) == bytes(cli), "the second build differs");
    let newer = build_images(&folder.path().join("new"), &["evenkeel"], &[("VERSION", "9.9")]);
    assert!(bytes(&newer[0]) != bytes(cli), "the comparison cannot fail");
}

#[test]
fn the_compose_file_names_this_version() {
    let path = tree::root().join("deploy/compose/compose.yaml");
    let text = fs::read_to_string(path).expect("the compose file");
    let default = format!("${{EVENKEEL_VERSION:-{VERSION}}}");
    assert_eq!(text.matches("${EVENKEEL_VERSION:-").count(), 2);
    assert_eq!(text.matches(&default).count(), 2, "a service has another version");
}

/// Whether every command of the page is run, or only those until the first login.
#[expect(clippy::disallowed_methods, reason = "a switch of this test")]
fn is_complete() -> bool {
    std::env::var_os("EVENKEEL_CONTAINERS").is_some_and(|value| value == "all")
}

#[test]
fn the_commands_of_the_page_about_containers_work() {
    let Some(containers) = Containers::open() else { return };
    containers.run(containers.checkout(), &page_commands("Start"));
    wait_until_healthy(&containers);
    check_restrictions(&containers);
    let output = containers.run(&containers.folder(), &page_commands("Create the first user"));
    assert!(output.contains("alice"), "{output}");
    check_published_port(&containers);
    if is_complete() {
        start_prometheus(&containers);
        enrol_node(&containers);
        check_prometheus(&containers);
    }
    // The restart policy starts a server again that was killed.
    containers.kill("server");
    wait_until_healthy(&containers);
    check_published_port(&containers);
    if is_complete() {
        upgrade(&containers);
        back_up_and_restore(&containers);
    }
}

/// Upgrades to images with the next version. The data stays.
fn upgrade(containers: &Containers) {
    for name in IMAGE_NAMES {
        let image = format!("localhost/{name}");
        let next = format!("{image}:{NEXT_VERSION}");
        containers.podman(&["tag", &format!("{image}:{VERSION}"), &next]);
    }
    containers.run(&containers.folder(), &page_commands("Upgrade"));
    wait_until_healthy(containers);
    let name = container_name("server");
    let image = containers.podman(&["inspect", "--format", "{{.ImageName}}", &name]);
    assert!(image.trim().ends_with(NEXT_VERSION), "{image}");
    check_data(containers);
}

/// Removes all data after a backup, and restores it. Podman does not wait until Postgres is healthy, and the page says so.
fn back_up_and_restore(containers: &Containers) {
    let run = |commands: &[String]| containers.run(&containers.folder(), commands);
    run(&page_commands("Back up and restore"));
    run(&page_commands("Remove"));
    assert_eq!(containers.podman(&["volume", "ls", "--quiet"]), "");
    let commands = page_commands("Restore");
    let (start, rest) = commands.split_at(1);
    run(start);
    containers.until_healthy("postgres");
    run(rest);
    wait_until_healthy(containers);
    check_data(containers);
}

fn wait_until_healthy(containers: &Containers) {
    for service in ["postgres", "server"] {
        containers.until_healthy(service);
    }
}

/// The containers run without privileges, and the root file system of the server is read-only.
fn check_restrictions(containers: &Containers) {
    let format = "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.RestartPolicy.Name}}";
    let server = container_name("server");
    let postgres = container_name("postgres");
    for (name, user, cat) in
        [(&server, "65532", [BUSYBOX, "cat"].as_slice()), (&postgres, "999", ["cat"].as_slice())]
    {
        let restrictions = containers.podman(&["inspect", "--format", format, name]);
        assert_eq!(restrictions.trim(), "true unless-stopped", "{name}");
        let mut show = vec!["exec", name.as_str()];
        show.extend_from_slice(cat);
        show.push("/proc/1/status");
        let status = containers.podman(&show);
        for line in [
            format!("Uid:\t{user}\t{user}\t{user}\t{user}"),
            "CapEff:\t0000000000000000".to_owned(),
            "CapBnd:\t0000000000000000".to_owned(),
            "NoNewPrivs:\t1".to_owned(),
        ] {
            assert!(status.lines().any(|other| other == line), "{name}: {line}: {status}");
        }
    }
    let touch = |path: &str| containers.try_podman(&["exec", &server, BUSYBOX, "touch", path]);
    let refused = describe_output(&touch("/usr/file"));
    assert!(refused.contains("Read-only file system"), "{refused}");
    let written = touch("/var/lib/evenkeel/file");
    assert!(written.status.success(), "{}", describe_output(&written));
    let shell = containers.try_podman(&["exec", &server, "sh", "-c", "true"]);
    assert!(!shell.status.success(), "the image of the server has a shell");
}

/// The command line of this machine reaches the REST API through the published port, with the certificate of the authority.
fn check_published_port(containers: &Containers) {
    let commands = [
        "evenkeel login --username alice --password-file secrets/alice",
        "evenkeel user list --output json",
    ];
    let output = containers.run(&containers.folder(), &commands.map(str::to_owned));
    assert!(output.contains("\"alice\""), "{output}");
}

/// Enrols a node of the lab with the commands of the page, over the published port.
fn enrol_node(containers: &Containers) {
    let commands = page_commands("Enrol a node");
    let [create, enrol, start, list] = commands.as_slice() else {
        panic!("other commands: {commands:?}");
    };
    containers.run(&containers.folder(), slice::from_ref(create));
    let node = Node::new(containers.lab(), "node")
        .with_file(&Binaries::get().agent, "/usr/bin/evenkeel-agent")
        .with_file(&containers.folder().join("secrets/join-token"), "/join-token");
    let enrolled = node.sh(&format!("{} --uuid {}", containers.adapt(enrol), Uuid::new_v4()));
    assert!(enrolled.contains("enrolled as host-"), "{enrolled}");
    assert_eq!(start, "systemctl start evenkeel-agent");
    node.sh("evenkeel-agent run --once");
    let listed = containers.run(&containers.folder(), slice::from_ref(list));
    assert!(listed.contains("host-"), "{listed}");
}

/// The user and the node are there.
fn check_data(containers: &Containers) {
    let commands =
        ["docker compose --profile cli run --rm -T cli login --username alice < secrets/alice"];
    containers.run(&containers.folder(), &commands.map(str::to_owned));
    let hosts = containers.run(
        &containers.folder(),
        &["docker compose --profile cli run --rm -T cli host list --quiet".to_owned()],
    );
    assert!(hosts.contains("host-"), "{hosts}");
}

/// Starts Prometheus of the compose file, which scrapes more often here.
fn start_prometheus(containers: &Containers) {
    containers.build_prometheus();
    let commands = [
        "sed -i 's/30s/1s/' prometheus.yml",
        "docker compose --profile monitoring up --detach prometheus",
    ];
    containers.run(&containers.folder(), &commands.map(str::to_owned));
}

/// Prometheus has read the alerts, and scrapes the server by its name.
fn check_prometheus(containers: &Containers) {
    containers.until_healthy("prometheus");
    let name = container_name("prometheus");
    let get = |path: &str| {
        let url = format!("http://127.0.0.1:9090/api/v1/{path}");
        containers.podman(&["exec", &name, "wget", "-q", "-O", "-", &url])
    };
    assert!(get("rules").contains("EvenkeelServerDown"));
    until("Prometheus scrapes the server", SCRAPE_TIMEOUT, || {
        let answer = get("query?query=evenkeel_ready");
        (answer.contains("server:9464") && answer.contains("\"1\"]")).then_some(())
    });
}
