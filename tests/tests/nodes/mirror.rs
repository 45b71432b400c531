//! Updates and security updates of Debian 12 and 13 from a real mirror, on a node with ssh, a web server, a database and a
//! kernel. The agent must reach the same state as apt, also after a power cut, and the run must record every change.
//!
//! The root contains the last point release without its later updates. If none of them concerns ssh, the web server, the
//! database or the kernel, dpkg's database gets an older version of it (`tests/lab/age-packages`), so that in every test
//! each of the four is updated. Some configuration files were changed or deleted before, one package is on hold.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_MIRROR` | must be `all`, otherwise the tests are skipped |
//!
//! Without a mirror the tests are skipped as well: no setting can make them possible then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use evenkeel_tests::history::print_progress;
use evenkeel_tests::lab::{
    Binaries, Fleet, Lab, Member, Node, Suite, describe_output, events, find_debian_sources, until,
};
use evenkeel_tests::root_state::{RootState, VersionChange};
use serde_json::{Value, json};
use uuid::Uuid;

/// The newest kernel of this architecture.
const KERNEL_PACKAGE: &str =
    if cfg!(target_arch = "aarch64") { "linux-image-arm64" } else { "linux-image-amd64" };

/// Packages of the root.
const PACKAGES: [&str; 5] =
    ["openssh-server", "nginx", "postgresql", KERNEL_PACKAGE, "initramfs-tools"];

/// Beginnings of the names of packages that every update changes.
const CHANGED_PACKAGES: [&str; 4] = ["openssh-server", "nginx", "postgresql-1", "linux-image-"];

/// A package with a pending update that is on hold.
const HELD_PACKAGE: &str = "base-files";

/// Makes updates of packages pending. Runs on the node.
const AGE_SCRIPT: &str = include_str!("../../lab/age-packages");

/// Gives a root apt sources, name servers, a machine ID, and a hook like that of unattended-upgrades, which requests a
/// reboot for a new kernel. Prints the names of the packages whose update the tests need.
const PREPARE_SCRIPT: &str = r#"
printf '%s\n' "$1" > /etc/apt/sources.list.d/debian.sources
rm -f /etc/resolv.conf; printf '%s\n' "$2" > /etc/resolv.conf
echo 0123456789abcdef0123456789abcdef > /etc/machine-id
cat > /etc/kernel/postinst.d/zz-reboot-required <<'END'
#!/bin/sh
touch /run/reboot-required
echo "linux-image-$1" >> /run/reboot-required.pkgs
END
chmod 755 /etc/kernel/postinst.d/zz-reboot-required
: > /var/log/dpkg.log
apt-get -q update --error-on=any > /dev/null
echo openssh-server nginx "$3" "$4"
dpkg-query -W -f '${db:Status-Status} ${Package}\n' 'postgresql-[0-9]*' | sed -n 's/^installed //p'
"#;

/// Changes configuration files as their owner would. For the first three files, dpkg's database gets another digest of the
/// old version, so the new version of the package has a change of its own, and dpkg has a question about it.
const CHANGE_FILES_SCRIPT: &str = r#"
for file in /etc/nginx/nginx.conf /etc/pam.d/sshd /etc/logrotate.d/nginx; do
  grep -q "^ $file [0-9a-f]" /var/lib/dpkg/status
  sed -i "s|^ $file [0-9a-f]*| $file 0123456789abcdef0123456789abcdef|" /var/lib/dpkg/status
done
for file in /etc/nginx/nginx.conf /etc/pam.d/sshd /etc/nginx/mime.types /etc/ssh/sshd_config; do
  echo '# changed by hand' >> "$file"
done
rm /etc/logrotate.d/nginx /etc/nginx/fastcgi.conf
"#;

/// The update as a person makes it with apt, without questions.
const APT_SCRIPT: &str = "apt-get -q -y -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
                          --with-new-pkgs upgrade";

/// The names of pending updates.
const LIST_PENDING_SCRIPT: &str =
    "apt-get -q -s --with-new-pkgs upgrade | sed -n 's/^Inst \\([^ ]*\\).*/\\1/p'";

/// Succeeds while dpkg extracts the files of a kernel, when at least 100 of them are on the disk.
const FIND_KERNEL_UNPACK_SCRIPT: &str =
    r#"[ "$(find /usr/lib/modules -name '*.dpkg-new' | head -n 100 | wc -l)" = 100 ]"#;

/// Maximum time from the start of an update until dpkg unpacks the kernel.
const UNPACK_TIMEOUT: Duration = Duration::from_mins(20);

/// A release of Debian with pending updates, and the same root after apt has made them.
#[derive(Debug)]
struct PendingUpdates {
    fleet: &'static Fleet,
    base: PathBuf,
    /// Layer with the changes that make the updates pending.
    layer: PathBuf,
    suite: Suite,
    before: RootState,
    after: RootState,
}

impl PendingUpdates {
    /// The updates of a release, prepared once. `None` if these tests are skipped.
    fn get(suite: Suite) -> Option<&'static Self> {
        static BOOKWORM: OnceLock<Result<PendingUpdates, String>> = OnceLock::new();
        static TRIXIE: OnceLock<Result<PendingUpdates, String>> = OnceLock::new();
        if !is_enabled() {
            print_skipped("set EVENKEEL_MIRROR=all to run it");
            return None;
        }
        let updates = match suite {
            Suite::Bookworm => &BOOKWORM,
            Suite::Trixie => &TRIXIE,
        };
        let updates = updates.get_or_init(|| Self::prepare(suite)).as_ref();
        updates.inspect_err(|why| print_skipped(why)).ok()
    }

    /// Prepares the updates, or returns why the tests are skipped.
    fn prepare(suite: Suite) -> Result<Self, String> {
        let sources = find_debian_sources(suite)
            .map_err(|why| format!("there is no mirror of {suite}: {why}"))?;
        let lab = Lab::open_with(Some(suite), &PACKAGES);
        let lab = lab.ok_or("no Debian root can be entered here")?;
        let fleet = Fleet::shared().ok_or("no Debian root can be entered here")?;
        let seed = Node::on_base(lab.base(), fleet.path(&format!("mirror-{suite}-seed")));
        make_updates_pending(&seed, &sources, suite);
        let before = RootState::read(&seed);

        let node = Node::on_base(lab.base(), fleet.path(&format!("mirror-{suite}-apt")))
            .on_layer(&seed.layer());
        node.sh(APT_SCRIPT);
        let after = RootState::read(&node);
        assert_eq!(node.sh(LIST_PENDING_SCRIPT), "", "apt left updates");
        assert_eq!(after.audit(), [""; 0]);
        let changes = before.package_changes(&after);
        print_progress(&format!("{suite}: apt changes {} packages", changes.len()));
        for start in CHANGED_PACKAGES {
            assert!(changes.keys().any(|name| name.starts_with(start)), "{start}: {changes:#?}");
        }
        let retained = before.retained_conffiles(&after);
        for path in ["/etc/nginx/nginx.conf", "/etc/pam.d/sshd", "/etc/logrotate.d/nginx"] {
            assert!(retained.contains(path), "{path}: {retained:?}");
        }
        Ok(Self { fleet, base: lab.base().to_owned(), layer: seed.layer(), suite, before, after })
    }

    /// A node with these updates that has joined, and whose policy requests them.
    fn join(&self, name: &str) -> Member<'static> {
        let work = self.fleet.path(&format!("mirror-{}-{name}", self.suite));
        let node = Node::on_base(&self.base, work).on_layer(&self.layer);
        let node = self.fleet.equip(node, &Binaries::get().agent);
        let server = self.fleet.server.address("southbound");
        let uuid = Uuid::new_v4().to_string();
        let member = self.fleet.enroll_node(node, &server, &["--uuid", &uuid]);
        // `apt-get upgrade` removes nothing.
        member.assign_latest(&json!({ "reboot": "NEVER", "unusedPackages": "KEEP" }));
        member
    }

    /// Asserts that a node is in the state that apt reaches, and that its only run records every change.
    #[track_caller]
    fn assert_done(&self, member: &Member<'_>) {
        let state = RootState::read(&member.node);
        assert_eq!(self.after.differences(&state), [""; 0], "apt (-) and the agent (+) differ");
        let run = member.only_run();
        assert_eq!(run["state"], "succeeded", "{run:#}");
        let changes = self.before.package_changes(&state);
        assert_eq!(recorded_changes(&run), changes, "{run:#}");
        let all_events = ["downloading", "downloaded", "began", "verify_begun", "finished"];
        assert_eq!(events(&run), all_events);
        let report = &run["report"];
        let retained = self.before.retained_conffiles(&state);
        assert_eq!(texts(&report["preservedConffiles"]), retained, "{run:#}");
        assert_eq!(report["rebootRequired"], true, "{run:#}");
        let mut reasons = texts(&report["rebootReasons"]).into_iter();
        assert!(reasons.any(|reason| reason.contains("linux-image-")), "{run:#}");
        let held_back = report["heldBack"].as_array().expect("a list");
        let held = held_back.iter().find(|package| package["name"] == HELD_PACKAGE);
        assert_eq!(held.expect("the package on hold")["cause"], "hold", "{run:#}");
        let mut held_back = held_back.iter().filter_map(|package| package["name"].as_str());
        assert!(!held_back.any(|name| changes.contains_key(name)), "{run:#}");
        assert!(downloaded_bytes(&run) > 0, "{run:#}");
    }
}

/// Adds a mirror to a root and makes updates of the packages pending whose update the tests need.
fn make_updates_pending(node: &Node, sources: &str, suite: Suite) {
    let name_servers = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let prepare = ["sh", "-ec", PREPARE_SCRIPT, "prepare", sources, &name_servers];
    let names = node.succeed(&[&prepare[..], &[KERNEL_PACKAGE, HELD_PACKAGE]].concat());
    let age = ["sh", "-ec", AGE_SCRIPT, "age-packages"];
    let age = age.into_iter().chain(names.split_whitespace()).collect::<Vec<_>>();
    let ages = node.succeed(&age);
    print_progress(&format!("{suite}: {}", ages.trim().replace('\n', ", ")));
    node.sh(CHANGE_FILES_SCRIPT);
    node.succeed(&["apt-mark", "hold", HELD_PACKAGE]);
}

/// The package changes that a run records. Asserts that each is recorded as done.
#[track_caller]
fn recorded_changes(run: &Value) -> BTreeMap<String, VersionChange> {
    let mut changes = BTreeMap::new();
    for package in run["packages"].as_array().expect("packages") {
        assert_eq!(package["status"], "done", "{package:#}");
        assert_eq!(package["state"], "installed", "{package:#}");
        assert_eq!(package["version"], package["after"], "{package:#}");
        let text = |field: &str| package[field].as_str().expect("a text").to_owned();
        let twice = changes.insert(text("name"), (text("before"), text("after")));
        assert_eq!(twice, None, "{package:#} is recorded twice");
    }
    changes
}

/// The elements of a list of texts.
#[track_caller]
fn texts(list: &Value) -> BTreeSet<String> {
    let texts = list.as_array().expect("a list").iter();
    texts.map(|text| text.as_str().expect("a text").to_owned()).collect()
}

fn downloaded_bytes(run: &Value) -> u64 {
    let phases = run["report"]["phases"].as_array().into_iter().flatten();
    phases.filter_map(|phase| phase["bytes"].as_u64()).sum()
}

fn print_skipped(why: &str) {
    let name = thread::current().name().unwrap_or_default().to_owned();
    print_progress(&format!("skipped {name}: {why}"));
}

#[expect(clippy::disallowed_methods, reason = "the one switch of these tests")]
fn is_enabled() -> bool {
    match std::env::var("EVENKEEL_MIRROR").as_deref() {
        Ok("all") => true,
        Ok("") | Err(_) => false,
        Ok(other) => panic!("EVENKEEL_MIRROR={other}: expected `all` or nothing"),
    }
}

fn compare_with_apt(suite: Suite) {
    let Some(updates) = PendingUpdates::get(suite) else {
        return;
    };
    let member = updates.join("whole");
    member.update_to("succeeded");
    updates.assert_done(&member);
    assert_eq!(member.only_run()["report"]["interruptions"], json!([]));
}

/// Cuts the power while dpkg unpacks the kernel, and starts the agent again, as at the next boot.
fn compare_with_apt_after_a_power_cut(suite: Suite) {
    let Some(updates) = PendingUpdates::get(suite) else {
        return;
    };
    let member = updates.join("cut");
    member.order_now();
    let mut boot = member.start_agent(&["run"]);
    until("dpkg unpacks the kernel", UNPACK_TIMEOUT, || {
        assert!(boot.exit_status().is_none(), "the agent ended:\n{}", boot.log());
        let output = member.node.run_inside(&["sh", "-c", FIND_KERNEL_UNPACK_SCRIPT]);
        output.status.success().then_some(())
    });
    boot.kill();
    let audit = member.node.audit();
    assert!(audit.contains("linux-image-"), "{audit}");
    let output = member.agent_once();
    assert!(output.status.success(), "{}", describe_output(&output));
    updates.assert_done(&member);
    let run = member.only_run();
    let interruptions = run["report"]["interruptions"].as_array().expect("a list");
    let phases: Vec<_> = interruptions.iter().map(|one| &one["phase"]).collect();
    assert_eq!(phases, ["apply"], "{run:#}");
}

#[test]
fn updates_of_debian_12_have_the_same_result_as_with_apt() {
    compare_with_apt(Suite::Bookworm);
}

#[test]
fn updates_of_debian_13_have_the_same_result_as_with_apt() {
    compare_with_apt(Suite::Trixie);
}

#[test]
fn a_power_cut_while_the_kernel_is_unpacked_does_not_change_the_result_on_debian_12() {
    compare_with_apt_after_a_power_cut(Suite::Bookworm);
}

#[test]
fn a_power_cut_while_the_kernel_is_unpacked_does_not_change_the_result_on_debian_13() {
    compare_with_apt_after_a_power_cut(Suite::Trixie);
}
