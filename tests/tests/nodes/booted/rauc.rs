//! Bundles that RAUC installs on a machine that boots, with the agent's real calls of RAUC.
//!
//! The slots are files. A container always boots the same root, so the boot loader of this machine is
//! a unit: it selects a slot, counts its boot, and sets the `os-release` of the image in that slot.
//! RAUC reaches it with its custom backend.

use serde_json::json;

use super::*;
use crate::rauc_bundles::{
    BUNDLES, Bundles, LAST_IMAGE, RAUC_PACKAGES, SYSTEM_CONF, make_bundle, make_key, write_file,
};

/// Version of the image that the machine has at first.
const OLD_VERSION: &str = "1.0";

/// A version that is never healthy.
const UNHEALTHY_VERSION: &str = "1.2";

/// A version whose agent does not start.
const VERSION_WITHOUT_AGENT: &str = "1.4";

/// The guard of an image for RAUC, as an image has it.
const GUARD_SCRIPT: &str = include_str!("../../../../deploy/image/rauc-trial-guard");
const GUARD_UNIT: &str = include_str!("../../../../deploy/image/evenkeel-rauc-trial.service");

/// The unit that confirms boots before the machine is enrolled, and its script.
const CONFIRM_SCRIPT: &str = include_str!("../../../../deploy/image/rauc-confirm-boot");
const CONFIRM_UNIT: &str = include_str!("../../../../deploy/image/evenkeel-rauc-confirm.service");

/// Time limit of an update.
const UPDATE_TIMEOUT: Duration = Duration::from_mins(5);

/// The boot loader. It starts the first slot of `order` that has boots left. Also creates what a
/// container lacks: loop devices, a watchdog, `panic=`, and a partition for the state.
const LOADER: &str = r#"#!/bin/sh
set -e
cd /srv/loader
for slot in $(cat order); do
  left=$(cat "left-$slot")
  [ "$left" -gt 0 ] || continue
  echo $((left - 1)) > "left-$slot"
  echo "$slot" > booted
  break
done
[ -e /dev/loop-control ] || mknod /dev/loop-control c 10 237
for number in $(seq 0 63); do
  [ -e "/dev/loop$number" ] || mknod "/dev/loop$number" b 7 "$number"
done
# A reset must not reach this machine. The agent then restarts the container.
: > /run/sysrq-trigger
if [ -e /proc/sysrq-trigger ]; then mount --bind /run/sysrq-trigger /proc/sysrq-trigger; fi
echo 'root=/dev/slot panic=10' > /run/cmdline
mount --bind /run/cmdline /proc/cmdline
mount -t tmpfs tmpfs /sys/class
mkdir -p /sys/class/watchdog/watchdog0 /var/lib/evenkeel-agent
mount -o loop /srv/state.img /var/lib/evenkeel-agent
case $(cat booted) in A) number=0 ;; *) number=1 ;; esac
unsquashfs -cat "/srv/slots/rootfs.$number" etc/os-release > /run/os-release
cp /run/os-release /usr/lib/os-release
if grep -q '^IMAGE_VERSION=1.4$' /run/os-release; then mount --bind /bin/false /usr/bin/evenkeel-agent; fi
"#;

/// The backend with which RAUC controls the boot loader. It stops at the point in the file `cut`, until
/// the power is cut there.
const BACKEND: &str = r#"#!/bin/sh
cd /srv/loader || exit 1
stop_at() {
  if [ "$(cat cut 2> /dev/null)" = "$1" ]; then
    : > reached
    sleep infinity
  fi
}
stop_at "before $*"
case $1 in
  get-primary)
    for slot in $(cat order); do
      [ "$(cat "left-$slot")" = 0 ] || { echo "$slot"; exit 0; }
    done
    exit 1 ;;
  set-primary)
    if [ "$2" = A ]; then echo A B > order; else echo B A > order; fi
    echo 3 > "left-$2" ;;
  get-state) if [ "$(cat "left-$2")" = 0 ]; then echo bad; else echo good; fi ;;
  set-state) if [ "$3" = good ]; then echo 3 > "left-$2"; else echo 0 > "left-$2"; fi ;;
  get-current) cat booted ;;
esac
stop_at "after $*"
"#;

const LOADER_UNIT: &str = "[Unit]
Before=rauc.service evenkeel-agent.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/test-loader
[Install]
WantedBy=multi-user.target
";

/// Neither RAUC nor the agent may start without the boot loader.
const AFTER_LOADER: &str = "[Unit]
Requires=test-loader.service
After=test-loader.service
";

const RAUC_SERVICE: &str = "[Service]
ExecStart=
ExecStart=/bin/sh -c 'exec rauc --mount=/run/rauc --override-boot-slot=$(cat /srv/loader/booted) service'
";

const AGENT_CONFIG: &str = "max_poll_interval = \"5s\"
[image]
boot_control = \"rauc\"
watchdog = \"ignore\"
[image.web]
plain_http = true
[image.health]
deadline = \"20s\"
stable = \"2s\"
";

const HEALTH_CHECK: &str = "#!/bin/sh\n! grep -q '^IMAGE_VERSION=1.2$' /etc/os-release\n";

/// Creates a machine with two slots. The first one holds the old version.
fn node_with_slots(lab: &Lab, profile: &str) -> Node {
    let node = Node::new(lab, "node");
    node.sh("rm -f /usr/sbin/policy-rc.d; mkdir -p /srv/slots /srv/loader");
    for key in ["good", "foreign"] {
        make_key(&node, key);
    }
    for (path, content) in [
        ("/usr/lib/test-loader", LOADER),
        ("/usr/lib/test-backend", BACKEND),
        ("/etc/rauc/system.conf", SYSTEM_CONF),
        ("/etc/systemd/system/test-loader.service", LOADER_UNIT),
        ("/usr/lib/evenkeel/rauc-trial-guard", GUARD_SCRIPT),
        ("/etc/systemd/system/evenkeel-rauc-trial.service", GUARD_UNIT),
        ("/usr/lib/evenkeel/rauc-confirm-boot", CONFIRM_SCRIPT),
        ("/etc/systemd/system/evenkeel-rauc-confirm.service", CONFIRM_UNIT),
        ("/etc/systemd/system/evenkeel-rauc-confirm.service.d/loader.conf", AFTER_LOADER),
        ("/etc/systemd/system/rauc.service.d/loader.conf", AFTER_LOADER),
        ("/etc/systemd/system/rauc.service.d/slot.conf", RAUC_SERVICE),
        ("/etc/systemd/system/evenkeel-agent.service.d/loader.conf", AFTER_LOADER),
        // The agent's package must not ask about a file that exists.
        ("/etc/dpkg/dpkg.cfg.d/test", "force-confold\n"),
        ("/etc/evenkeel/agent.toml", AGENT_CONFIG),
        ("/etc/evenkeel/limits.toml", "[image]\nunsigned_images = true\n"),
        ("/etc/evenkeel/health.d/version", HEALTH_CHECK),
    ] {
        write_file(&node, path, content);
    }
    make_bundle(&node, profile, OLD_VERSION, "good", 0);
    node.sh(&format!(
        "chmod 755 /usr/lib/test-loader /usr/lib/test-backend /etc/evenkeel/health.d/version
         chmod 644 /etc/evenkeel/limits.toml
         truncate -s 8M /srv/slots/rootfs.0 /srv/slots/rootfs.1
         dd if={LAST_IMAGE} of=/srv/slots/rootfs.0 conv=notrunc status=none
         truncate -s 128M /srv/state.img
         mkfs.ext4 -q /srv/state.img
         cd /srv/loader
         echo A B > order; echo 3 > left-A; echo 0 > left-B; echo A > booted
         mkdir -p /etc/systemd/system/multi-user.target.wants /etc/systemd/system/sysinit.target.wants
         ln -s ../test-loader.service ../evenkeel-rauc-confirm.service /etc/systemd/system/multi-user.target.wants/
         ln -s ../evenkeel-rauc-trial.service /etc/systemd/system/sysinit.target.wants/"
    ));
    node
}

/// Orders an update to a version.
fn order_update(member: &Member<'_>, os: &str) {
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "targetOsId": os,
    }));
    member.order_now();
}

/// The run for a version when it has ended.
fn ended_run(member: &Member<'_>, version: &str) -> Value {
    until(&format!("the run for {version} has ended"), UPDATE_TIMEOUT, || {
        let is_its = |run: &Value| run["target"]["imageId"] == version;
        let mut runs = member.runs().into_iter().filter(is_its);
        runs.find(|run| run["endTime"].as_u64() > Some(0))
    })
}

/// Orders an update to a version. Returns its run when it has ended.
fn update(member: &Member<'_>, version: &str, os: &str) -> Value {
    order_update(member, os);
    ended_run(member, version)
}

/// Waits until the first agent has accepted the running image.
fn until_image_is_good(machine: &BootedNode) {
    until("the running image is recorded as good", WAIT_TIMEOUT, || {
        let shown = slots(machine);
        (shown["slots"][0]["state"] == "good").then_some(())
    });
}

/// The slots as the agent reports them.
fn slots(machine: &BootedNode) -> Value {
    let shown = machine.sh("evenkeel-agent image show --output json");
    serde_json::from_str(&shown).expect("JSON")
}

#[test]
fn bundles_are_tried_and_kept_or_reverted_and_a_foreign_bundle_is_refused() {
    let Some(lab) = BootedNode::open_lab_with(RAUC_PACKAGES) else {
        return;
    };
    let Some(fleet) = Fleet::shared() else { return };
    let deb = build_agent_package(&lab);
    let profile = "rauc-edge";
    let node = node_with_slots(&lab, profile);
    for (version, key) in [
        ("1.1", "good"),
        (UNHEALTHY_VERSION, "good"),
        (VERSION_WITHOUT_AGENT, "good"),
        ("1.3", "foreign"),
    ] {
        make_bundle(&node, profile, version, key, 0);
    }
    let bundles = Bundles::serve(fleet, profile, &node.layer().join(BUNDLES));
    let versions = [OLD_VERSION, "1.1", UNHEALTHY_VERSION, VERSION_WITHOUT_AGENT, "1.3"];
    let [_, good, unhealthy, without_agent, foreign] =
        versions.map(|version| bundles.publish(&node, version));

    let machine = BootedNode::start(&lab, "node", &[(deb.as_path(), AGENT_DEB)]);
    machine.until_up();
    until("the boot of a machine that is not enrolled is confirmed", WAIT_TIMEOUT, || {
        (machine.sh("cat /srv/loader/left-A") == "3\n").then_some(())
    });
    let member = enroll_machine(&machine, node, fleet);
    until_image_is_good(&machine);
    let shown = slots(&machine);
    assert_eq!(shown["boot_control"], "rauc", "{shown:#}");
    assert_eq!(shown["booted"], "root-a", "{shown:#}");

    let run = update(&member, "1.1", &good);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(run["image"]["booted"], "1.1", "{run:#}");
    assert_eq!(machine.boots(), 2);
    let shown = slots(&machine);
    assert_eq!(shown["booted"], "root-b", "{shown:#}");
    assert_eq!(machine.sh("cd /srv/loader; cat order left-B"), "B A\n3\n");

    let run = update(&member, UNHEALTHY_VERSION, &unhealthy);
    assert_eq!(run["state"], "reverted", "{run:#}");
    assert_eq!(run["image"]["booted"], "1.1", "{run:#}");
    assert_eq!(machine.boots(), 4);
    assert_eq!(machine.sh("cd /srv/loader; cat order booted left-A"), "B A\nB\n0\n");
    let shown = slots(&machine);
    assert_eq!(shown["bad"][0]["image"], UNHEALTHY_VERSION, "{shown:#}");

    // Only the guard ends this trial.
    let run = update(&member, VERSION_WITHOUT_AGENT, &without_agent);
    assert_eq!(run["state"], "reverted", "{run:#}");
    assert_eq!(run["image"]["booted"], "1.1", "{run:#}");
    assert_eq!(machine.boots(), 6);
    assert_eq!(machine.sh("cd /srv/loader; cat order booted left-A"), "B A\nB\n0\n");

    let run = update(&member, "1.3", &foreign);
    assert_ne!(run["state"], "succeeded", "{run:#}");
    assert!(run["reason"].to_string().contains("does not accept the image"), "{run:#}");
    assert_eq!(machine.boots(), 6);
    assert_eq!(slots(&machine)["booted"], "root-b");
}

/// Everything that runs is killed, as by a power cut. What was written is not lost, because it is in
/// the page cache of the machine around the container.
#[test]
fn a_power_loss_inside_a_command_of_rauc_leaves_an_image_that_starts_and_the_run_ends() {
    let Some(lab) = BootedNode::open_lab_with(RAUC_PACKAGES) else {
        return;
    };
    let Some(fleet) = Fleet::shared() else { return };
    let agent = strip(&Binaries::get().agent, lab.path("agent"));
    let deb = build_debian_package(&agent, &lab.path("package"));
    let profile = "rauc-power-loss";
    let node = node_with_slots(&lab, profile);
    let updates = [
        // Nothing starts the slot, and it is written again.
        ("1.5", "before set-state B bad", "succeeded", "1.5"),
        // The mark exists, and nothing starts the slot. The image counts as failed.
        ("1.6", "before set-primary A", "reverted", "1.5"),
        // The slot is armed.
        ("1.7", "after set-primary A", "succeeded", "1.7"),
    ];
    for (version, ..) in updates {
        make_bundle(&node, profile, version, "good", 0);
    }
    let bundles = Bundles::serve(fleet, profile, &node.layer().join(BUNDLES));
    bundles.publish(&node, OLD_VERSION);
    let systems = updates.map(|(version, ..)| bundles.publish(&node, version));

    let mounts = [(deb.as_path(), AGENT_DEB)];
    let mut machine = BootedNode::start(&lab, "node", &mounts);
    machine.until_up();
    let member = enroll_machine(&machine, node, fleet);
    until_image_is_good(&machine);
    for ((version, point, state, booted), os) in updates.into_iter().zip(&systems) {
        machine.sh(&format!("echo '{point}' > /srv/loader/cut"));
        order_update(&member, os);
        until(&format!("RAUC is {point}"), UPDATE_TIMEOUT, || {
            let reached = machine.run(&["test", "-e", "/srv/loader/reached"]);
            reached.status.success().then_some(())
        });
        drop(machine);
        member.node.sh("rm /srv/loader/cut /srv/loader/reached");
        machine = BootedNode::start(&lab, "node", &mounts);
        machine.until_up();
        let run = ended_run(&member, version);
        assert_eq!(run["state"], state, "{point}: {run:#}");
        assert_eq!(run["image"]["booted"], booted, "{point}: {run:#}");
    }
}
