//! Operating systems on their way to a site: in a file that is cut off, and by a mirror that is killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Parser as _;
use evenkeel_auth::CertificateAuthority;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Ending, Environment, Failure, World};
use evenkeel_kit::{Clock as _, SystemClock};
use evenkeel_registry::{Access, Digest, RegistryError, Repository, Tag, open};
use evenkeel_tests::lab::{Binaries, Lab, Registry, Server, SlowLine, Web, until};
use reqwest::Certificate;
use serde_json::Value;
use tokio::runtime::Runtime;

/// What stands before the name of a profile.
const PREFIX: &str = "os-profile/";

/// Where the ancestor's images lie.
const FOLDER: &str = "files-edge-orch/repository/microvisor/non_rt";

const PROFILES: [&str; 3] = ["edge-a", "edge-b", "edge-c"];

/// How large an image is.
const IMAGE: usize = 16 << 20;

/// How often a mirror is killed, and how much more of the first image is there each time, in bytes.
const KILLS: u64 = 10;
const BETWEEN: u64 = 1 << 20;

const PATIENCE: Duration = Duration::from_mins(2);

fn yaml(profile: &str) -> String {
    format!(
        "metadata:\n  release: 0.3.1\nspec:\n  name: {profile} 3.0.1\n  type: OS_TYPE_IMMUTABLE\n  \
         provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  profileName: {profile}\n  \
         osImageUrl: {FOLDER}/{profile}.raw.gz\n  osImageVersion: 3.0.1\n  \
         osPackageManifestURL: {FOLDER}/{profile}.json\n  securityFeature: SECURITY_FEATURE_NONE\n"
    )
}

/// A content that cannot be guessed from its length, another one for each profile.
fn image(profile: &str, length: usize) -> Vec<u8> {
    let mut state = profile.bytes().map(u64::from).sum::<u64>();
    let mut content = Vec::with_capacity(length);
    while content.len() < length {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        content.extend_from_slice(&state.to_be_bytes()[..4]);
    }
    content
}

const PACKAGES: &str = r#"{"repo":[{"name":"bash","version":"5.2"}]}"#;

/// Runs a line of the command line in this process.
async fn typed(line: &str) -> Result<Ending, Failure> {
    let words = line.split(' ');
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    cli.run(&mut World {
        out: &mut std::io::sink(),
        notes: &mut std::io::sink(),
        input: &mut std::io::empty(),
        hide: |_| (),
        clock: &SystemClock,
        environment: Environment {
            contexts: PathBuf::from("/nowhere"),
            token: None,
            terminal: false,
            colour: false,
            interactive: false,
        },
    })
    .await
}

/// Every file below a folder, with the digest of its content.
fn content(folder: &Path) -> Vec<(PathBuf, Digest)> {
    let (mut all, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let digest = Digest::of(&fs::read(&path).expect("a file"));
                all.push((path, digest));
            }
        }
    }
    all.sort();
    all
}

#[tokio::test]
async fn a_bundle_that_was_cut_anywhere_leaves_the_site_as_it_was() {
    let place = tempfile::tempdir().expect("a folder");
    let at = |name: &str| place.path().join(name);
    let release = at("release");
    fs::create_dir(&release).expect("a folder");
    for profile in PROFILES {
        fs::write(release.join(format!("{profile}.yaml")), yaml(profile)).expect("a profile");
        let file = image(profile, 20_000);
        fs::write(release.join(format!("{profile}.raw.gz")), file).expect("an image");
        fs::write(release.join(format!("{profile}.json")), PACKAGES).expect("a list");
    }
    let home = place.path().display();
    typed(&format!("evenkeel os key {home}/key"))
        .await
        .expect("a key");
    for (revision, to) in [("0.3.1", "shelf"), ("0.3.0", "site")] {
        let line = format!(
            "evenkeel os publish {home}/release --to oci:{home}/{to} --revision {revision} --key {home}/key"
        );
        typed(&line).await.expect("published");
    }
    typed(&format!(
        "evenkeel os bundle {home}/whole.tar --from oci:{home}/shelf"
    ))
    .await
    .expect("a bundle");
    let whole = fs::read(at("whole.tar")).expect("a bundle");
    let before = content(&at("site"));
    let import = |name: &str| format!("evenkeel os import {home}/{name} --to oci:{home}/site");
    for place in 0..200 {
        let cut = whole.len() * place / 200;
        fs::write(at("cut.tar"), &whole[..cut]).expect("a bundle");
        let imported = typed(&import("cut.tar")).await;
        assert!(
            matches!(imported, Err(Failure::Moving { .. })),
            "{cut}: {imported:?}"
        );
        assert!(!at("cut.tar.unpacked").exists(), "{cut}");
        assert_eq!(content(&at("site")), before, "{cut}");
    }
    // Nor does one in which a byte of an image is another one.
    let own = image("edge-b", 20_000);
    let begin = whole.windows(64).position(|some| *some == own[..64]);
    let mut spoilt = whole.clone();
    spoilt[begin.expect("the image") + 10_000] ^= 1;
    fs::write(at("spoilt.tar"), &spoilt).expect("a bundle");
    let imported = typed(&import("spoilt.tar")).await;
    assert!(
        matches!(imported, Err(Failure::Moving { .. })),
        "{imported:?}"
    );
    assert_eq!(content(&at("site")), before);

    let imported = typed(&import("whole.tar")).await;
    assert_eq!(imported.expect("it is whole"), Ending::Done);
    let verify = format!("evenkeel os verify {home}/site --revision ~0.3.0 --key {home}/key.pub");
    assert_eq!(typed(&verify).await.expect("verified"), Ending::Done);
}

/// The ancestor's release service: profiles in a registry, and the files that they name beside it, on a slow line.
struct Ancestor {
    lab: Lab,
    runtime: Runtime,
    line: SlowLine,
    files: Web,
}

impl Ancestor {
    fn open() -> Option<Self> {
        let lab = Lab::open()?;
        let (release, folder) = (lab.path("release"), lab.path("files").join(FOLDER));
        fs::create_dir(&release).expect("a folder");
        fs::create_dir_all(&folder).expect("a folder");
        for profile in PROFILES {
            let yaml = yaml(profile);
            fs::write(release.join(format!("{profile}.yaml")), yaml).expect("a profile");
            let content = image(profile, IMAGE);
            for folder in [&release, &folder] {
                fs::write(folder.join(format!("{profile}.raw.gz")), &content).expect("an image");
                fs::write(folder.join(format!("{profile}.json")), PACKAGES).expect("a list");
            }
        }
        let runtime = Runtime::new().expect("a runtime");
        let shelf = lab.path("ancestor");
        let publish = format!(
            "evenkeel os publish {} --to oci:{} --revision 0.3.1 --prefix {PREFIX}",
            release.display(),
            shelf.display()
        );
        runtime.block_on(typed(&publish)).expect("published");
        without_files(&shelf);
        let files = Web::of(&lab.path("files"));
        let line = SlowLine::to(&files.address().to_string(), Duration::from_millis(4));
        Some(Self {
            lab,
            runtime,
            line,
            files,
        })
    }

    /// Begins to mirror it to a registry, or carries on with that.
    #[expect(
        clippy::disallowed_methods,
        reason = "it is another program, to be killed"
    )]
    fn mirror(&self, to: &Registry) -> Child {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.lab.path("mirror.log"));
        let mut words = vec!["os", "mirror", "--revision", "~0.3.1", "--prefix", PREFIX];
        words.extend(["--plain-http", "--to-plain-http"]);
        words.extend(PROFILES.iter().flat_map(|profile| ["--profile", profile]));
        Command::new(&Binaries::get().cli)
            .args(words)
            .args([
                "--from",
                &format!("oci:{}", self.lab.path("ancestor").display()),
            ])
            .args(["--files-url", &format!("http://{}", self.line.address())])
            .args(["--to", &to.address()])
            .arg("--work")
            .arg(self.lab.path("work"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("the command line starts")
    }

    /// How much of an image is sure, in bytes.
    fn kept(&self, image: &Digest) -> u64 {
        let part = self.lab.path("work").join(format!("{}.part", image.hex()));
        fs::metadata(part).map_or(0, |part| part.len())
    }

    /// From where on the image of a profile was asked for, but for the first `before` requests.
    fn asked(&self, profile: &str, before: usize) -> Vec<u64> {
        let end = format!("{profile}.raw.gz");
        let asked = self.files.asked().into_iter().skip(before);
        let own = asked.filter(|asked| asked.path.ends_with(&end));
        own.map(|asked| asked.from).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.lab.path("mirror.log")).unwrap_or_default()
    }
}

/// Takes away what the ancestor has not: the files in the registry.
fn without_files(shelf: &Path) {
    let index = shelf.join("index.json");
    let text = fs::read_to_string(&index).expect("an index");
    let mut said: Value = serde_json::from_str(&text).expect("JSON");
    let all = said["manifests"].as_array_mut().expect("manifests");
    all.retain(|one| !one.to_string().contains("/files:"));
    assert_eq!(all.len(), PROFILES.len());
    fs::write(&index, said.to_string()).expect("an index");
    for profile in PROFILES {
        let image = Digest::of(&image(profile, IMAGE)).hex();
        fs::remove_file(shelf.join("blobs/sha256").join(image)).expect("an image");
    }
}

/// The tags of a profile in a registry.
async fn tags(at: &Registry, profile: &str) -> Vec<String> {
    let access = Access {
        plain_http: true,
        ..Access::to(at.address().parse().expect("an address"))
    };
    let repository: Repository = format!("{PREFIX}{profile}").parse().expect("a name");
    let registry = open(&access).expect("a registry");
    match registry.tags(&repository).await {
        Ok(tags) => tags.iter().map(Tag::to_string).collect(),
        Err(RegistryError::NotThere) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_mirror_that_is_killed_goes_on_and_its_files_are_served_under_their_own_paths() {
    let Some(ancestor) = Ancestor::open() else {
        return;
    };
    let registry = Registry::open(&ancestor.lab, "mirror");
    let first = Digest::of(&image(PROFILES[0], IMAGE));
    let mut sure = 0;
    for kill in 1..=KILLS {
        let before = ancestor.files.asked().len();
        let mut mirror = ancestor.mirror(&registry);
        until("enough has come", PATIENCE, || {
            let ended = mirror.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "{ended:?}: {}", ancestor.log());
            (ancestor.kept(&first) >= kill * BETWEEN).then_some(())
        });
        mirror.kill().expect("a child of ours");
        mirror.wait().expect("a child of ours");
        let asked = ancestor.asked(PROFILES[0], before);
        assert!(asked.iter().all(|from| *from == sure), "{asked:?}, {sure}");
        sure = ancestor.kept(&first);
        for profile in PROFILES {
            let tags = ancestor.runtime.block_on(tags(&registry, profile));
            assert_eq!(tags, Vec::<String>::new(), "after kill {kill}");
        }
    }
    let before = ancestor.files.asked().len();
    let ended = ancestor.mirror(&registry).wait().expect("a child of ours");
    assert!(ended.success(), "{ended}: {}", ancestor.log());
    let asked = ancestor.asked(PROFILES[0], before);
    let is_carried_on = !asked.is_empty() && asked.iter().all(|from| *from == sure);
    assert!(is_carried_on, "{asked:?}, {sure}");
    for profile in PROFILES {
        assert_eq!(
            ancestor.runtime.block_on(tags(&registry, profile)),
            ["0.3.1"]
        );
    }

    // From here on there is no way out.
    ancestor.line.cut();
    serves(&ancestor, &registry);
}

/// A server that knows the mirror alone gives the files under the ancestor's own paths.
fn serves(ancestor: &Ancestor, registry: &Registry) {
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
        ("EVENKEELD_FILES__KEEP_FREE".to_owned(), "0"),
    ];
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(key, value)| (&**key, *value))
        .collect();
    let server = Server::start_with(&ancestor.lab, &settings);
    server.cli(&["os", "sync"]);
    let data = ancestor.lab.path("server");
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
        let mut request = client
            .get(format!("https://{files}/{path}"))
            .bearer_auth(token.trim());
        if let Some(range) = range {
            request = request.header("range", range);
        }
        ancestor.runtime.block_on(async {
            let answer = request.send().await.expect("an answer");
            let status = answer.status().as_u16();
            (status, answer.bytes().await.expect("a file").to_vec())
        })
    };
    for profile in PROFILES {
        let own = image(profile, IMAGE);
        let path = format!("{FOLDER}/{profile}.raw.gz");
        let (status, whole) = fetch(&path, None);
        assert_eq!(
            (status, Digest::of(&whole)),
            (200, Digest::of(&own)),
            "{path}"
        );
        let part = fetch(&path, Some("bytes=1000-1999"));
        assert_eq!(part, (206, own[1_000..2_000].to_vec()), "{path}");
        let list = fetch(&format!("{FOLDER}/{profile}.json"), None);
        assert_eq!(list, (200, PACKAGES.as_bytes().to_vec()), "{profile}");
    }
    assert_eq!(fetch(&format!("{FOLDER}/other.raw.gz"), None).0, 404);
}
