//! The Debian packages of the project, made from the programs of the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::Binaries;
use super::boot::skip_test;
use super::machine::{command, succeed};
use crate::architecture::tree;

/// Copies the files that packages contain, gives them other times, and packs the copy.
const PACK_COPY_SCRIPT: &str = r#"
cd "$1"; cp -r deploy docs CHANGELOG.md Cargo.toml "$2/"
find "$2" -exec touch -d '2030-05-06 07:08:09' {} +
umask 077
"$2/deploy/package/pack" "$3" "$4" "$2/out"
"#;

/// Runs the script that configures the package of the server, with stand-ins for systemd and for the user database. The
/// first argument is a folder; the next two are the exit statuses of policy-rc.d and of a start.
const CONFIGURE_SERVER_SCRIPT: &str = r#"
script=$PWD/deploy/package/evenkeel-server/postinst
cd "$1"; export POLICY="$2" START="$3"; shift 3
mkdir -p programs systemd data; touch data/operator-token
add() { printf '#!/bin/sh\n%s\n' "$2" > "programs/$1"; chmod 755 "programs/$1"; }
add deb-systemd-helper ''
add getent ''
add policy-rc.d 'exit "$POLICY"'
add systemctl 'case $* in
  *show*) echo "ready; log in with: evenkeel login --server https://h:8443 --ca /ca.pem" ;;
  *start*) exit "$START" ;;
esac'
sed -e "s#/run/systemd/system#$PWD/systemd#" -e "s#^data=.*#data=$PWD/data#" "$script" > script
PATH=$PWD/programs:$PATH sh script "$@"
"#;

/// Checks a release with the public key in its repository.
const CHECK_RELEASE_SCRIPT: &str = r#"
cd "$1"; export GNUPGHOME="$2"
sha256sum --quiet --check SHA256SUMS
test "$(find . -type f ! -name 'SHA256SUMS*' | wc -l)" = "$(wc -l < SHA256SUMS)"
gpg --batch --dearmor < apt/evenkeel.asc > "$2/key.gpg"
gpgv --keyring "$2/key.gpg" SHA256SUMS.asc SHA256SUMS
gpgv --keyring "$2/key.gpg" apt/dists/stable/InRelease
gpgv --keyring "$2/key.gpg" apt/dists/stable/Release.gpg apt/dists/stable/Release
"#;

/// Unpacks a package, appends a line to a file, changes the version, and packs it again.
const CHANGE_SCRIPT: &str = r#"
dpkg-deb --raw-extract "$1" "$2"
echo '# A line of the newer version.' >> "$2/$4"
sed -i "s/^Version: .*/Version: $5/" "$2/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -z1 --build "$2" "$3" > /dev/null
"#;

/// The packages `evenkeel-server`, `evenkeel` and `evenkeel-agent` in one version, and an apt repository for them.
#[derive(Debug)]
pub struct PackageSet {
    programs: PathBuf,
    folder: PathBuf,
}

impl PackageSet {
    /// Names of the packages.
    pub const NAMES: [&str; 3] = ["evenkeel-server", "evenkeel", "evenkeel-agent"];

    /// Folder of the repository on a machine, as the documents name it.
    pub const INSIDE: &str = "/srv/evenkeel";

    /// Takes the programs of the tests, without their symbols, and an empty folder for the packages.
    pub fn new(folder: &Path) -> Self {
        let programs = folder.join("programs");
        fs::create_dir_all(&programs).expect("a folder for programs");
        let built = Binaries::get();
        for (program, name) in [
            (&built.server, "evenkeeld"),
            (&built.cli, "evenkeel"),
            (&built.agent, "evenkeel-agent"),
        ] {
            succeed(command("strip").arg("-o").arg(programs.join(name)).arg(program));
        }
        Self { programs, folder: folder.to_owned() }
    }

    /// Packs all programs as this version, and returns the paths of the packages in the order of [`Self::NAMES`].
    #[track_caller]
    pub fn pack(&self, version: &str) -> Vec<PathBuf> {
        let mut packing = pack_command(&self.programs, &self.folder.join("debs"));
        let paths = succeed(packing.env("VERSION", version));
        paths.lines().map(PathBuf::from).collect()
    }

    /// Packs all programs as this version and adds them to the repository. Returns the folder of the repository.
    #[track_caller]
    pub fn publish(&self, version: &str) -> PathBuf {
        let debs = self.pack(version);
        let repository = self.folder.join("apt");
        let script = tree::root().join("deploy/package/make-repository");
        succeed(command(script).arg(&repository).args(debs));
        repository
    }

    /// Packs all programs as this version into another folder: from a copy of the repository, as if on another date, with
    /// another umask and time zone.
    #[track_caller]
    pub fn pack_elsewhere(&self, version: &str) -> Vec<PathBuf> {
        let copy = self.folder.join("a/copy/in/another/folder");
        fs::create_dir_all(&copy).expect("a folder for a copy");
        let time =
            succeed(command("git").current_dir(tree::root()).args(["log", "-1", "--format=%ct"]));
        let mut packing = command("sh");
        packing.args(["-ec", PACK_COPY_SCRIPT, "pack"]).arg(tree::root()).arg(&copy);
        packing.arg(architecture()).arg(&self.programs);
        packing.env("FAST", "1").env("VERSION", version).env("TZ", "Asia/Tokyo");
        let paths = succeed(packing.env("SOURCE_DATE_EPOCH", time.trim()));
        paths.lines().map(PathBuf::from).collect()
    }

    /// Makes a newer version of a package whose configuration file has one more line. Returns its path.
    #[track_caller]
    pub fn change_configuration(&self, deb: &Path, file: &str, version: &str) -> PathBuf {
        let unpacked = self.folder.join("unpacked");
        let changed = self.folder.join("debs").join(format!("changed_{version}.deb"));
        let mut changing = command("sh");
        changing.args(["-ec", CHANGE_SCRIPT, "change"]).arg(deb).arg(&unpacked).arg(&changed);
        succeed(changing.arg(file).arg(version));
        changed
    }

    /// Makes a release of the programs for this architecture, signed with a test key. Returns its folder.
    #[track_caller]
    pub fn make_release(&self) -> PathBuf {
        let mut making = command(tree::root().join("deploy/package/release"));
        making.env("FAST", "1").env("CARGO", env!("CARGO")).env("PROGRAMS", &self.programs);
        making.env("DIST", self.folder.join("dist"));
        making.env("CARGO_TARGET_DIR", self.folder.join("target"));
        let folder = succeed(making.arg(architecture()));
        PathBuf::from(folder.trim())
    }

    /// Folder of the packages.
    pub fn debs(&self) -> PathBuf {
        self.folder.join("debs")
    }
}

/// Checks all checksums and signatures of a release.
pub fn check_release(release: &Path) -> Output {
    let keys = tempfile::tempdir().expect("a temporary folder");
    let mut checking = command("sh");
    checking.args(["-ec", CHECK_RELEASE_SCRIPT, "check"]).arg(release).arg(keys.path());
    checking.output().expect("a shell starts")
}

/// Runs the script that configures the package of the server, in a folder with stand-ins for system programs. `policy` and
/// `start` are the exit statuses of policy-rc.d and of a start of the server; `arguments` are those of dpkg.
pub fn configure_server(folder: &Path, policy: &str, start: &str, arguments: &[&str]) -> Output {
    let mut configuring = command("sh");
    configuring.current_dir(tree::root());
    configuring.args(["-ec", CONFIGURE_SERVER_SCRIPT, "configure"]).arg(folder);
    configuring.args([policy, start]).args(arguments).output().expect("a shell starts")
}

/// What lintian finds in packages: its exit status and its report, errors and warnings only. `None` if lintian is
/// missing, unless these tests are required.
pub fn run_lintian(debs: &[PathBuf]) -> Option<Output> {
    if command("lintian").arg("--version").output().is_err() {
        return skip_test("lintian is missing");
    }
    let mut linting = command("lintian");
    linting.args(["--allow-root", "--profile", "debian", "--tag-display-limit", "0"]);
    let output = linting.args(["--fail-on", "error,warning"]).args(debs).output();
    Some(output.expect("lintian starts"))
}

/// The bill of materials of the programs.
#[track_caller]
pub fn make_bill_of_materials() -> Value {
    let script = tree::root().join("deploy/package/make-sbom");
    let text = succeed(command(script).env("CARGO", env!("CARGO")));
    serde_json::from_str(&text).expect("JSON")
}

/// Packs an agent in a folder and returns the path of its package.
#[track_caller]
pub fn build_debian_package(agent: &Path, folder: &Path) -> PathBuf {
    let programs = folder.join("programs");
    fs::create_dir_all(&programs).expect("a folder for programs");
    fs::copy(agent, programs.join("evenkeel-agent")).expect("a copy of the agent");
    let path = succeed(pack_command(&programs, folder).arg("evenkeel-agent"));
    PathBuf::from(path.trim())
}

/// A command that packs programs and compresses them fast.
fn pack_command(programs: &Path, out: &Path) -> Command {
    let mut packing = command(tree::root().join("deploy/package/pack"));
    packing.env("FAST", "1").arg(architecture()).arg(programs).arg(out);
    packing
}

pub(super) fn architecture() -> String {
    let name = succeed(command("dpkg").arg("--print-architecture"));
    name.trim().to_owned()
}
