//! Output of apt: recorded in Debian, and in the form that derivatives of Debian print. The derivatives are not run here, so
//! their output could not be recorded, and their packages are invented: see `docs/supported-systems.md`.

use std::collections::BTreeSet;

use super::index_targets::{origin_labels, origin_suites, parse_targets};
use super::parse::parse_simulation;

/// Output of `apt-get --simulate --verbose-versions dist-upgrade` in minimal systems with Debian's updates and security
/// updates, recorded in November 2026, and the origin of the updates.
const RECORDED: [(&str, &str); 2] = [
    (include_str!("recorded/debian-12.txt"), "Debian-Security:12/oldstable-security"),
    (include_str!("recorded/debian-13.txt"), "Debian-Security:13/stable-security"),
];

#[test]
fn each_upgrade_that_apt_lists_in_debian_is_planned() {
    for (text, origin) in RECORDED {
        let simulation = parse_simulation(text).unwrap_or_else(|line| panic!("{line:?}"));
        let upgrades = simulation.installs.iter().map(|install| {
            let before = install.before.as_deref().unwrap_or("-");
            format!("{} ({before} => {})", install.package, install.after)
        });
        let mut upgrades: Vec<String> = upgrades.collect();
        upgrades.sort();
        let mut listed: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("   ")).collect();
        listed.sort_unstable();
        assert_eq!(upgrades, listed);
        let count = format!("\n{} upgraded, 0 newly installed, 0 to remove", upgrades.len());
        assert!(text.contains(&count), "{count:?}");
        assert!(simulation.installs.iter().all(|install| install.origins == [origin]), "{origin}");
        assert!(simulation.removals.is_empty() && simulation.held_back.is_empty());
    }
}

/// The parts of each planned installation, one per line.
fn planned(text: &str) -> String {
    let simulation = parse_simulation(text).unwrap_or_else(|line| panic!("{line:?}"));
    let lines = simulation.installs.iter().map(|install| {
        format!(
            "{} {} -> {} {} from {}",
            install.package,
            install.before.as_deref().unwrap_or("-"),
            install.after,
            install.architecture,
            install.origins.join(" | ")
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn ubuntu_names_two_pockets_and_advertises_ubuntu_pro() {
    let text = "\
Reading package lists...
Building dependency tree...
Reading state information...
Calculating upgrade...
Get more security updates through Ubuntu Pro with 'esm-apps' enabled:
  demo-esm libdemo-esm2
Learn more about Ubuntu Pro at https://ubuntu.com/pro
#
# An OpenSSL vulnerability has recently been fixed:
#   the vulnerability is described at https://ubuntu.com/security
#
The following upgrades have been deferred due to phasing:
   demo-phased (1.0-0ubuntu1 => 1.0-0ubuntu1.1)
The following packages will be upgraded:
   demo-tool (2:8.2-1ubuntu2 => 2:8.2-1ubuntu2.18)
2 upgraded, 1 newly installed, 0 to remove and 1 not upgraded.
1 standard LTS security update
Inst demo-tool [2:8.2-1ubuntu2] (2:8.2-1ubuntu2.18 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy-security [amd64]) []
Inst demo-data [2:8.2-1ubuntu2] (2:8.2-1ubuntu2.18 Ubuntu:22.04/jammy-updates [all])
Inst demo-esm (1.4-2ubuntu3+esm1 UbuntuESMApps:22.04/jammy-apps-security [arm64])
Conf demo-tool (2:8.2-1ubuntu2.18 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy-security [amd64])
";
    insta::assert_snapshot!(planned(text), @r"
    demo-tool 2:8.2-1ubuntu2 -> 2:8.2-1ubuntu2.18 amd64 from Ubuntu:22.04/jammy-updates | Ubuntu:22.04/jammy-security
    demo-data 2:8.2-1ubuntu2 -> 2:8.2-1ubuntu2.18 all from Ubuntu:22.04/jammy-updates
    demo-esm - -> 1.4-2ubuntu3+esm1 arm64 from UbuntuESMApps:22.04/jammy-apps-security
    ");
    let held_back = parse_simulation(text).unwrap().held_back;
    assert_eq!(held_back.len(), 1);
    assert_eq!(held_back[0].package, "demo-phased");
    assert!(held_back[0].phased);
}

#[test]
fn raspberry_pi_os_has_a_label_with_spaces_and_a_source_of_debian() {
    let text = "\
The following packages will be upgraded:
   demo-config (20260101 => 20260201)
   demo-camera:armhf (0.1-1 => 0.2-1)
3 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.
Inst demo-config [20260101] (20260201 Raspberry Pi Foundation:stable [all])
Inst demo-camera:armhf [0.1-1] (0.2-1 Raspberry Pi Foundation:stable [armhf])
Inst demo-media [8:7.1-0+deb13u1+rpt1] (8:7.1-0+deb13u1+rpt2 Raspberry Pi Foundation:stable, Debian:13.4/stable [arm64])
Inst demo-base [12.4+deb12u10] (12.4+deb12u11 Raspbian:12.11/stable [armhf])
";
    insta::assert_snapshot!(planned(text), @r"
    demo-config 20260101 -> 20260201 all from Raspberry Pi Foundation:stable
    demo-camera:armhf 0.1-1 -> 0.2-1 armhf from Raspberry Pi Foundation:stable
    demo-media 8:7.1-0+deb13u1+rpt1 -> 8:7.1-0+deb13u1+rpt2 arm64 from Raspberry Pi Foundation:stable | Debian:13.4/stable
    demo-base 12.4+deb12u10 -> 12.4+deb12u11 armhf from Raspbian:12.11/stable
    ");
}

#[test]
fn a_version_of_a_derivative_has_the_suites_and_labels_of_its_indexes() {
    let text = "\
http://archive.ubuntu.com/ubuntu/\tjammy\tjammy\tjammy\tUbuntu\t22.04
http://archive.ubuntu.com/ubuntu/\tjammy-updates\tjammy-updates\tjammy\tUbuntu\t22.04
http://security.ubuntu.com/ubuntu/\tjammy-security\tjammy-security\tjammy\tUbuntu\t22.04
https://esm.ubuntu.com/apps/ubuntu/\tjammy-apps-security\tjammy-apps-security\tjammy\tUbuntuESMApps\t22.04
http://raspbian.raspberrypi.com/raspbian/\tbookworm\tstable\tbookworm\tRaspbian\t12.11
http://archive.raspberrypi.com/debian/\tbookworm\tstable\tbookworm\tRaspberry Pi Foundation\t$(VERSION)
";
    let targets = parse_targets(text).unwrap_or_else(|line| panic!("{line:?}"));
    let describe = |origins: &[&str]| {
        let origins: Vec<String> = origins.iter().map(|&origin| origin.to_owned()).collect();
        let join = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(" ");
        (join(origin_suites(&origins, &targets)), join(origin_labels(&origins, &targets)))
    };
    let cases: [(&[&str], &str, &str); 4] = [
        (
            &["Ubuntu:22.04/jammy-updates", "Ubuntu:22.04/jammy-security"],
            "jammy jammy-security jammy-updates",
            "Ubuntu",
        ),
        (
            &["UbuntuESMApps:22.04/jammy-apps-security"],
            "jammy jammy-apps-security",
            "UbuntuESMApps",
        ),
        (&["Raspbian:12.11/stable"], "bookworm stable", "Raspbian"),
        (&["Raspberry Pi Foundation:stable"], "bookworm stable", "Raspberry Pi Foundation"),
    ];
    for (origins, suites, labels) in cases {
        assert_eq!(describe(origins), (suites.to_owned(), labels.to_owned()), "{origins:?}");
    }
}
