//! Transfer of operating systems to a site: truncated bundles, and a mirror that is killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Parser as _;
use evenkeel_auth::CertificateAuthority;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Ending, Environment, Failure, System};
use evenkeel_kit::{Clock as _, SystemClock};
use evenkeel_registry::{Access, Digest, RegistryError, Repository, Tag, open};
use evenkeel_tests::lab::{Binaries, Lab, Registry, Server, SlowConnection, Web, until};
use reqwest::Certificate;
use serde_json::Value;
use tokio::runtime::Runtime;

/// Repository prefix of the profiles.
const PREFIX: &str = "os-profile/";

/// Folder of EIM's images.
const IMAGE_FOLDER: &str = "files-edge-orch/repository/microvisor/non_rt";

const PROFILES: [&str; 3] = ["edge-a", "edge-b", "edge-c"];

/// Size of an image.
const IMAGE_BYTES: usize = 16 << 20;

/// Number of kills, and bytes of the first image that are downloaded between two kills.
const KILL_COUNT: u64 = 10;
const BYTES_BETWEEN_KILLS: u64 = 1 << 20;

const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

fn profile_yaml(profile: &str) -> String {
    format!(
        "metadata:\n  release: 0.3.1\nspec:\n  name: {profile} 3.0.1\n  type: OS_TYPE_IMMUTABLE\n  \
         provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  profileName: {profile}\n  \
         osImageUrl: {IMAGE_FOLDER}/{profile}.raw.gz\n  osImageVersion: 3.0.1\n  \
         osPackageManifestURL: {IMAGE_FOLDER}/{profile}.json\n  securityFeature: SECURITY_FEATURE_NONE\n"
    )
}

/// Pseudo-random content of this length, different for each profile.
fn image_content(profile: &str, length: usize) -> Vec<u8> {
    let mut state = profile.bytes().map(u64::from).sum::<u64>();
    let mut content = Vec::with_capacity(length);
    while content.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        content.extend_from_slice(&state.to_be_bytes()[..4]);
    }
    content
}

const PACKAGE_LIST: &str = r#"{"repo":[{"name":"bash","version":"5.2"}]}"#;

/// Runs a command line in this process.
async fn run_cli(line: &str) -> Result<Ending, Failure> {
    let arguments = line.split(' ');
    let cli = Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{line}: {error}"));
    cli.run(&mut System {
        out: &mut std::io::sink(),
        notes: &mut std::io::sink(),
        input: &mut std::io::empty(),
        hide_input: |_| (),
        open_browser: &|_| false,
        clock: &SystemClock,
        environment: Environment {
            contexts: PathBuf::from("/nowhere"),
            token: None,
            width: None,
            colour: false,
            interactive: false,
            has_display: false,
        },
    })
    .await
}

/// Every file below a folder, with the digest of its content.
fn file_digests(folder: &Path) -> Vec<(PathBuf, Digest)> {
    let (mut all, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let digest = Digest::compute(&fs::read(&path).expect("a file"));
                all.push((path, digest));
            }
        }
    }
    all.sort();
    all
}

#[tokio::test]
async fn a_truncated_bundle_does_not_change_the_site() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let release = at("release");
    fs::create_dir(&release).expect("a folder");
    for profile in PROFILES {
        fs::write(release.join(format!("{profile}.yaml")), profile_yaml(profile))
            .expect("a profile");
        let file = image_content(profile, 20_000);
        fs::write(release.join(format!("{profile}.raw.gz")), file).expect("an image");
        fs::write(release.join(format!("{profile}.json")), PACKAGE_LIST).expect("a list");
    }
    let home = folder.path().display();
    run_cli(&format!("evenkeel os key {home}/key")).await.expect("a key");
    for (revision, to) in [("0.3.1", "shelf"), ("0.3.0", "site")] {
        let line = format!(
            "evenkeel os publish {home}/release --to oci:{home}/{to} --revision {revision} --key {home}/key"
        );
        run_cli(&line).await.expect("published");
    }
    run_cli(&format!("evenkeel os bundle {home}/whole.tar --from oci:{home}/shelf"))
        .await
        .expect("a bundle");
    let bundle = fs::read(at("whole.tar")).expect("a bundle");
    let before = file_digests(&at("site"));
    let import = |name: &str| format!("evenkeel os import {home}/{name} --to oci:{home}/site");
    for step in 0..200 {
        let cut = bundle.len() * step / 200;
        fs::write(at("cut.tar"), &bundle[..cut]).expect("a bundle");
        let imported = run_cli(&import("cut.tar")).await;
        assert!(matches!(imported, Err(Failure::Transfer { .. })), "{cut}: {imported:?}");
        assert!(!at("cut.tar.unpacked").exists(), "{cut}");
        assert_eq!(file_digests(&at("site")), before, "{cut}");
    }
    // A bundle with one changed byte in an image is rejected as well.
    let own = image_content("edge-b", 20_000);
    let begin = bundle.windows(64).position(|some| *some == own[..64]);
    let mut spoilt = bundle.clone();
    spoilt[begin.expect("the image") + 10_000] ^= 1;
    fs::write(at("spoilt.tar"), &spoilt).expect("a bundle");
    let imported = run_cli(&import("spoilt.tar")).await;
    assert!(matches!(imported, Err(Failure::Transfer { .. })), "{imported:?}");
    assert_eq!(file_digests(&at("site")), before);

    let imported = run_cli(&import("whole.tar")).await;
    assert_eq!(imported.expect("the bundle is complete"), Ending::Done);
    let verify = format!("evenkeel os verify {home}/site --revision ~0.3.0 --key {home}/key.pub");
    assert_eq!(run_cli(&verify).await.expect("verified"), Ending::Done);
}

/// EIM's release service: profiles in a registry, and their files on a slow web server.
struct EimReleaseService {
    lab: Lab,
    runtime: Runtime,
    connection: SlowConnection,
    files: Web,
}

impl EimReleaseService {
    fn start() -> Option<Self> {
        let lab = Lab::open()?;
        let (release, folder) = (lab.path("release"), lab.path("files").join(IMAGE_FOLDER));
        fs::create_dir(&release).expect("a folder");
        fs::create_dir_all(&folder).expect("a folder");
        for profile in PROFILES {
            let yaml = profile_yaml(profile);
            fs::write(release.join(format!("{profile}.yaml")), yaml).expect("a profile");
            let content = image_content(profile, IMAGE_BYTES);
            for folder in [&release, &folder] {
                fs::write(folder.join(format!("{profile}.raw.gz")), &content).expect("an image");
                fs::write(folder.join(format!("{profile}.json")), PACKAGE_LIST).expect("a list");
            }
        }
        let runtime = Runtime::new().expect("a runtime");
        let shelf = lab.path("eim");
        let publish = format!(
            "evenkeel os publish {} --to oci:{} --revision 0.3.1 --prefix {PREFIX}",
            release.display(),
            shelf.display()
        );
        runtime.block_on(run_cli(&publish)).expect("published");
        remove_files(&shelf);
        let files = Web::serve(&lab.path("files"));
        let connection = SlowConnection::to(&files.address().to_string(), Duration::from_millis(4));
        Some(Self { lab, runtime, connection, files })
    }

    /// Starts or resumes mirroring to a registry.
    #[expect(
        clippy::disallowed_methods,
        reason = "the mirror is another program, which the test kills"
    )]
    fn mirror(&self, to: &Registry) -> Child {
        let log = File::options().create(true).append(true).open(self.lab.path("mirror.log"));
        let mut arguments = vec!["os", "mirror", "--revision", "~0.3.1", "--prefix", PREFIX];
        arguments.extend(["--plain-http", "--to-plain-http"]);
        arguments.extend(PROFILES.iter().flat_map(|profile| ["--profile", profile]));
        Command::new(&Binaries::get().cli)
            .args(arguments)
            .args(["--from", &format!("oci:{}", self.lab.path("eim").display())])
            .args(["--files-url", &format!("http://{}", self.connection.address())])
            .args(["--to", &to.address()])
            .arg("--work")
            .arg(self.lab.path("work"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("the command line starts")
    }

    /// Verified bytes of an image in the work folder.
    fn downloaded_bytes(&self, image: &Digest) -> u64 {
        let part = self.lab.path("work").join(format!("{}.part", image.hex()));
        fs::metadata(part).map_or(0, |part| part.len())
    }

    /// Start offsets of the requests for the image of a profile, without the first `before` requests.
    fn requested_offsets(&self, profile: &str, before: usize) -> Vec<u64> {
        let end = format!("{profile}.raw.gz");
        let requests = self.files.requests().into_iter().skip(before);
        let own = requests.filter(|request| request.path.ends_with(&end));
        own.map(|request| request.from).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.lab.path("mirror.log")).unwrap_or_default()
    }
}

/// Removes the files from the registry, because EIM's registry has none.
fn remove_files(shelf: &Path) {
    let index = shelf.join("index.json");
    let text = fs::read_to_string(&index).expect("an index");
    let mut parsed: Value = serde_json::from_str(&text).expect("JSON");
    let all = parsed["manifests"].as_array_mut().expect("manifests");
    all.retain(|one| !one.to_string().contains("/files:"));
    assert_eq!(all.len(), PROFILES.len());
    fs::write(&index, parsed.to_string()).expect("an index");
    for profile in PROFILES {
        let image = Digest::compute(&image_content(profile, IMAGE_BYTES)).hex();
        fs::remove_file(shelf.join("blobs/sha256").join(image)).expect("an image");
    }
}

/// Tags of a profile in a registry.
async fn list_tags(at: &Registry, profile: &str) -> Vec<String> {
    let access =
        Access { plain_http: true, ..Access::new(at.address().parse().expect("an address")) };
    let repository: Repository = format!("{PREFIX}{profile}").parse().expect("a name");
    let registry = open(&access).expect("a registry");
    match registry.tags(&repository).await {
        Ok(tags) => tags.iter().map(Tag::to_string).collect(),
        Err(RegistryError::NotFound) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_killed_mirror_resumes_and_its_files_are_served_under_their_own_paths() {
    let Some(eim) = EimReleaseService::start() else {
        return;
    };
    let registry = Registry::open(&eim.lab, "mirror");
    let first = Digest::compute(&image_content(PROFILES[0], IMAGE_BYTES));
    let mut sure = 0;
    for kill in 1..=KILL_COUNT {
        let before = eim.files.requests().len();
        let mut mirror = eim.mirror(&registry);
        until("enough bytes are downloaded", WAIT_TIMEOUT, || {
            let ended = mirror.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "{ended:?}: {}", eim.log());
            (eim.downloaded_bytes(&first) >= kill * BYTES_BETWEEN_KILLS).then_some(())
        });
        mirror.kill().expect("a child of ours");
        mirror.wait().expect("a child of ours");
        let offsets = eim.requested_offsets(PROFILES[0], before);
        assert!(offsets.iter().all(|from| *from == sure), "{offsets:?}, {sure}");
        sure = eim.downloaded_bytes(&first);
        for profile in PROFILES {
            let tags = eim.runtime.block_on(list_tags(&registry, profile));
            assert_eq!(tags, Vec::<String>::new(), "after kill {kill}");
        }
    }
    let before = eim.files.requests().len();
    let ended = eim.mirror(&registry).wait().expect("a child of ours");
    assert!(ended.success(), "{ended}: {}", eim.log());
    let offsets = eim.requested_offsets(PROFILES[0], before);
    let is_carried_on = !offsets.is_empty() && offsets.iter().all(|from| *from == sure);
    assert!(is_carried_on, "{offsets:?}, {sure}");
    for profile in PROFILES {
        assert_eq!(eim.runtime.block_on(list_tags(&registry, profile)), ["0.3.1"]);
    }

    // From here on, only the mirror is reachable.
    eim.connection.cut();
    check_served_files(&eim, &registry);
}

/// A server that uses only the mirror serves the files under EIM's paths.
fn check_served_files(eim: &EimReleaseService, registry: &Registry) {
    let enabled = format!("[{:?}, {:?}, {:?}]", PROFILES[0], PROFILES[1], PROFILES[2]);
    let of = |key: &str| format!("EVENKEELD_OS_RESOURCE_MANAGER__{key}");
    let address = registry.address();
    let settings = [
        (of("REGISTRIES__MIRROR__ADDRESS"), address.as_str()),
        (of("REGISTRIES__MIRROR__PLAIN_HTTP"), "true"),
        (of("REGISTRIES__MIRROR__PREFIX"), PREFIX),
        (of("REGISTRIES__MIRROR__TRUST"), "off"),
        (of("DEFAULT__REGISTRY"), "mirror"),
        (of("DEFAULT__REVISION"), "~0.3.1"),
        (of("DEFAULT__ENABLED"), &enabled),
        ("EVENKEELD_FILES__LISTEN".to_owned(), "127.0.0.1:0"),
        ("EVENKEELD_FILES__MIN_FREE_BYTES".to_owned(), "0"),
    ];
    let settings: Vec<(&str, &str)> =
        settings.iter().map(|(key, value)| (&**key, *value)).collect();
    let server = Server::start_with(&eim.lab, &settings);
    server.cli(&["os", "sync"]);
    let data = eim.lab.path("server");
    let authority = CertificateAuthority::open(&data.join("ca"), SystemClock.now());
    let authority = authority.expect("an authority");
    let ca = Certificate::from_pem(authority.certificate_pem().as_bytes());
    let token = fs::read_to_string(data.join("operator-token")).expect("a token");
    let client = reqwest::Client::builder()
        .tls_certs_only([ca.expect("a certificate")])
        .no_proxy()
        .build()
        .expect("a client");
    let files = server.address("files");
    let fetch = |path: &str, range: Option<&str>| {
        let mut request = client.get(format!("https://{files}/{path}")).bearer_auth(token.trim());
        if let Some(range) = range {
            request = request.header("range", range);
        }
        eim.runtime.block_on(async {
            let answer = request.send().await.expect("an answer");
            let status = answer.status().as_u16();
            (status, answer.bytes().await.expect("a file").to_vec())
        })
    };
    for profile in PROFILES {
        let own = image_content(profile, IMAGE_BYTES);
        let path = format!("{IMAGE_FOLDER}/{profile}.raw.gz");
        let (status, content) = fetch(&path, None);
        assert_eq!((status, Digest::compute(&content)), (200, Digest::compute(&own)), "{path}");
        let part = fetch(&path, Some("bytes=1000-1999"));
        assert_eq!(part, (206, own[1_000..2_000].to_vec()), "{path}");
        let list = fetch(&format!("{IMAGE_FOLDER}/{profile}.json"), None);
        assert_eq!(list, (200, PACKAGE_LIST.as_bytes().to_vec()), "{profile}");
    }
    assert_eq!(fetch(&format!("{IMAGE_FOLDER}/other.raw.gz"), None).0, 404);
}
