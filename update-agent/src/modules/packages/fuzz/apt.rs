//! Outputs of apt.

use super::{LETTERS, is_plain, is_printable};
use crate::fuzz_driver::{fuzz, text};
use crate::model::PackageChange;
use crate::modules::packages::broken_sources;
use crate::modules::packages::independent_groups::{find_groups, parse_records};
use crate::modules::packages::index_targets::{self, IndexTarget, origin_suites, parse_targets};
use crate::modules::packages::parse::{
    PlannedInstall, clean_output, error_summary, parse_names, parse_simulation, parse_sizes,
    parse_uris, split_records,
};
use crate::modules::packages::plan::StepItem;

const SIMULATIONS: &[&str] = &[
    "Reading package lists...\nThe following packages have been kept back:\n   demo-held (1.0 => 1.1)\n\
     The following upgrades have been deferred due to phasing:\n   demo-phased (1.0 => 2.0)\n\
     The following packages will be DOWNGRADED:\n   demo-bad (1.1 => 1.0)\n1 upgraded, 0 newly installed.\n\
     Inst libc6 [2.36-9] (2.36-10 Debian:12.10/stable, Debian-Security:12/stable-security [amd64]) [libc6:i386 on libc6:amd64] [libc6:i386 ]\n\
     Inst libc6:i386 [2.36-9] (2.36-10 Debian:12.10/stable [i386])\nConf libc6 (2.36-10 Debian:12.10/stable [amd64])\n\
     Remv demo-old [1.1]\nPurg demo-gone [1:2~x] [other:amd64 ]\n",
    "Not upgrading:\n  demo (1 => 2)\nNot upgrading yet due to phasing:\n  x (1 => 2)\nDOWNGRADING:\n  y (2 => 1)\n",
    "Inst demo (1.1 Evil\n Inst other (9 x [all])\n\tyy:12/stable\n two [all]) []\nInst z [1] (2  [all])\n",
];

const TARGETS: &[&str] = &[
    "http://deb.debian.org/debian/\tbookworm\toldstable\tbookworm\tDebian\t12.15\n\
     https://flat.example/\t./\t$(SUITE)\t$(CODENAME)\t$(LABEL)\t$(VERSION)\n",
    "https://evil.example/\tevil\tsuite\n two\tcode\tA, Debian:12.15/oldstable,\tB\t12\n x\n",
];

const URIS: &[&str] = &[
    "'http://x/a_1%3a2_all.deb' a_1%3a2_all.deb 722 SHA256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n",
    "'file:/srv/x' y.deb 18446744073709551615 MD5Sum:d41d8cd98f00b204e9800998ecf8427e\nReading...\n",
];

const RECORDS: &[&str] = &[
    "Package: demo\nArchitecture: all\nVersion: 1:3.0~x\nInstalled-Size: 12\nDescription: Installed-Size: 9\n Size: 1\n\n\
     Package: big\nVersion: 1\nArchitecture: amd64\nInstalled-Size: 18014398509481984\n\n",
];

const RELATIONS: &[&str] = &[
    "Package: app\nVersion: 2\nDepends: lib (>= 2), libc6 (>> 2.36) | other:any (<< 1:3~)\nBreaks: web (<= 1)\n\n\
     Package: lib\nVersion: 1\nProvides: libx (= 1), liby\nPre-Depends: web\n\nPackage: web\nVersion: 2\n",
    "Package: lib\nVersion: 2\nConflicts: app (=) | , (= 1), ()\n\nPackage: web\nVersion: 1\n\n\
     Package: app\nVersion: 1\nDepends:\n",
];

const NAMES: &[&str] = &["libc6\ndemo-lib:i386\n\n", "E: x\n demo \r\n"];

const MESSAGES: &[&str] = &[
    "E: Release file for file:/srv/own/dists/own/InRelease is expired.\nW: Failed to fetch http://x/debian/dists/stable/x  404\n",
    "E: The repository 'file:/srv/own own Release' is not signed.\nE: Some index files failed to download.\n",
    "(Reading database ... \r(Reading database ... 5%\rdone)\ndpkg: error processing package x (--configure):\n sub\nE: x\n",
    " demo : Depends: other but it is not installable\nE: Could not get lock /var/lib/apt/lists/lock\n",
];

#[test]
fn simulations_are_parsed_or_refused() {
    fuzz("apt simulation", |rng| {
        let output = text(rng, SIMULATIONS, LETTERS);
        let simulation = match parse_simulation(&output) {
            Ok(simulation) => simulation,
            Err(record) => return assert!(output.contains(record)),
        };
        let lines = output.split('\n').filter(|line| line.starts_with("Inst "));
        assert_eq!(simulation.installs.len(), lines.count(), "a continued line is no record");
        simulation.installs.iter().for_each(check_install);
        assert!(
            simulation.removals.iter().chain(&simulation.downgrades).all(|name| is_plain(name))
        );
        for upgrade in &simulation.held_back {
            assert!(is_plain(&upgrade.package) && is_plain(&upgrade.available), "{upgrade:?}");
        }
    });
}

/// What is planned can be passed to apt, is the name of a file in a folder, and is parsed again from the same line.
fn check_install(install: &PlannedInstall) {
    let PlannedInstall { package, before, after, architecture, origins } = install;
    assert!([package, after, architecture].iter().all(|part| is_plain(part)), "{install:?}");
    assert!(!package.starts_with(['-', '.', ':']), "{install:?}");
    let file = install.file_name();
    assert!(file.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'), "{file}");
    assert!(origins.iter().chain(before).all(|part| is_printable(part)), "{install:?}");

    let before = before.as_ref().map_or_else(String::new, |before| format!("[{before}] "));
    let line =
        format!("Inst {package} {before}({after} {} [{architecture}])\n", origins.join(", "));
    let again = parse_simulation(&line).expect("the same line").installs;
    assert_eq!(again.as_slice(), std::slice::from_ref(install), "{line}");
}

#[test]
fn index_targets_are_parsed_or_refused() {
    fuzz("apt indextargets", |rng| {
        let output = text(rng, TARGETS, LETTERS);
        let targets = match parse_targets(&output) {
            Ok(targets) => targets,
            Err(record) => return assert!(output.contains(record)),
        };
        assert_eq!(targets.len(), split_records(&output).count());
        let lines: Vec<_> = targets.iter().map(print_target).collect();
        assert!(lines.iter().all(|line| is_printable(line)), "{lines:?}");
        for (target, line) in targets.iter().zip(&lines) {
            assert_eq!(parse_targets(line).as_deref(), Ok(std::slice::from_ref(target)));
        }
        // Origins of the simulation, and those that the targets themselves have.
        let origin =
            text(rng, &["Debian:12.15/oldstable", "A, Debian:12.15/oldstable, B:s"], LETTERS);
        let origins: Vec<_> = origin.split(", ").map(str::to_owned).collect();
        origin_suites(&origins, &targets);
        let codenames = index_targets::origin_codenames(&origins, &targets);
        assert!(codenames.iter().all(|name| targets.iter().any(|target| target.codename == *name)));
    });
}

/// A target as apt prints it.
fn print_target(target: &IndexTarget) -> String {
    let IndexTarget { uri, release, suite, codename, label, version } = target;
    [uri, release, suite, codename, label, version].map(String::as_str).join("\t")
}

#[test]
fn files_to_download_are_parsed_or_refused() {
    fuzz("apt --print-uris", |rng| {
        let output = text(rng, URIS, LETTERS);
        let files = match parse_uris(&output) {
            Ok(files) => files,
            Err(line) => return assert!(output.contains(line)),
        };
        for file in files {
            assert!(!file.name.contains('/') && !file.name.starts_with('.'), "{file:?}");
            assert!(file.name.bytes().all(|byte| byte.is_ascii_graphic()), "{file:?}");
            assert!(!file.uri.contains('\n'), "{file:?}");
        }
    });
}

#[test]
fn sizes_are_parsed() {
    fuzz("apt-cache show", |rng| {
        let output = text(rng, RECORDS, LETTERS);
        for ((name, version, architecture), size) in parse_sizes(&output) {
            assert!([&name, &version, &architecture].iter().all(|part| !part.contains('\n')));
            assert!(size.trailing_zeros() >= 10, "{size} is a number of KiB");
        }
    });
}

#[test]
fn each_package_is_in_one_group_whatever_its_relations_are() {
    let item = |name: &str| StepItem {
        package: name.into(),
        change: PackageChange {
            name: name.into(),
            before: Some("1".into()),
            after: Some("2".into()),
            ..PackageChange::default()
        },
    };
    let items = ["app", "lib", "web"].map(item);
    fuzz("relations in apt-cache show", |rng| {
        let output = [text(rng, RELATIONS, LETTERS), text(rng, RELATIONS, LETTERS)].join("\n");
        let records = parse_records(&output);
        for (name, version) in records.keys() {
            assert!(!name.contains('\n') && !version.contains('\n'), "{name:?} {version:?}");
        }
        let mut names = find_groups(&items, &records).concat();
        names.sort();
        assert_eq!(names, ["app", "lib", "web"]);
    });
}

#[test]
fn marked_packages_are_names() {
    fuzz("apt-mark", |rng| {
        let names = parse_names(&text(rng, NAMES, LETTERS));
        assert!(names.iter().all(|name| !name.is_empty() && !name.contains('\n')));
        let lines: Vec<_> = names.iter().map(|name| format!("{name}\n")).collect();
        assert_eq!(parse_names(&lines.concat()), names);
    });
}

#[test]
fn messages_are_summarised() {
    fuzz("apt messages", |rng| {
        let output = text(rng, MESSAGES, LETTERS);
        let cleaned = clean_output(&output);
        assert!(!cleaned.contains('\r') && cleaned.len() <= output.len() + 1);
        assert_eq!(clean_output(&cleaned), cleaned);
        assert!(!error_summary(&cleaned).contains('\n'));
        broken_sources::is_temporary(&output);
    });
}
