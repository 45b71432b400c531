//! Outputs and files of dpkg, and those of ucf.

use std::collections::BTreeSet;
use std::fs;

use super::LETTERS;
use crate::fuzz_driver::{fuzz, text};
use crate::modules::packages::parse::{DpkgPackage, parse_conffiles, parse_list};
use crate::modules::packages::{audit, baseline, dpkg, services, staging};
use crate::paths::AgentPaths;

const LISTS: &[&str] = &[
    "demo-bad\tall\t1.1\tinstall\thalf-configured\tok\t\nlibc6\ti386\t2.36-9\thold\tinstalled\tok\t13000\n",
    "demo-hello\t\t\tunknown\tnot-installed\tok\t\nx\tall\t1\tinstall\tinstalled\treinstreq\t18446744073709551615\n",
];

const CONFFILES: &[&str] = &[
    "\n /etc/demo/conf 52a92d20a2cd30900f8afacd347bd9a0\n /etc/demo/a b 52a92d20a2cd30900f8afacd347bd9a0 obsolete\n",
    " /etc/gone newconffile\n /etc/x 52a92d20a2cd30900f8afacd347bd9a0 obsolete remove-on-upgrade\n",
];

const AUDITS: &[&str] = &[
    "The following packages are only half configured, probably due to problems\nconfiguring them:\n demo-bad     test\n\n\
     The following packages are missing the list control file:\n demo-lib  x\n libc6:i386  GNU C Library\n",
    "dpkg: error: database is gone\n",
];

const HASHES: &[&str] = &[
    "52a92d20a2cd30900f8afacd347bd9a0  /etc/default/grub\n00\t/etc/a b.conf \n",
    "/etc/x\n52a92d20a2cd30900f8afacd347bd9a0 etc/relative\n\n",
];

const FILE_LISTS: &[&str] = &[
    "/.\n/lib\n/lib/systemd/system/demo.service\n/lib/systemd/system/demo@.service\n/usr/share/doc/demo\n",
    "/lib/systemd/system/a b.service\r\n.service\n/x.service/y\n",
];

const USERS: &[&str] = &[
    "root:x:0:0:root:/root:/bin/bash\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n",
    "_apt:x:-1:99999999999:\n_apt2:x:1\n",
];

#[test]
fn package_lists_are_parsed_or_refused() {
    fuzz("dpkg-query", |rng| {
        let output = text(rng, LISTS, LETTERS);
        let packages = match parse_list(&output) {
            Ok(packages) => packages,
            Err(line) => return assert!(output.contains(line)),
        };
        let lines: String = packages.iter().map(print_package).collect();
        assert_eq!(parse_list(&lines).as_ref(), Ok(&packages));
        for package in &packages {
            assert!(!package.needs_reinstall() || package.is_present(), "{package:?}");
            assert!(!(package.needs_reinstall() && package.is_settled()), "{package:?}");
        }
    });
}

/// A package as dpkg-query prints it.
fn print_package(package: &DpkgPackage) -> String {
    let DpkgPackage { name, architecture, version, want, state, flag, size } = package;
    let size = size >> 10;
    format!("{name}\t{architecture}\t{version}\t{want}\t{state}\t{flag}\t{size}\n")
}

#[test]
fn conffiles_are_absolute_paths() {
    fuzz("conffiles", |rng| {
        let output = text(rng, CONFFILES, LETTERS);
        let paths = parse_conffiles(&output);
        assert!(paths.iter().all(|path| path.starts_with('/') && !path.contains('\n')));
        let lines: Vec<_> =
            paths.iter().map(|path| format!(" {path} 0123456789abcdef\n")).collect();
        assert_eq!(parse_conffiles(&lines.concat()), paths);
    });
}

#[test]
fn audits_are_parsed() {
    fuzz("dpkg --audit", |rng| {
        let (now, before) = (text(rng, AUDITS, LETTERS), text(rng, AUDITS, LETTERS));
        assert!(audit::new_findings(&now, &now).is_empty());
        let findings = audit::new_findings(&now, &before);
        for (problem, package) in &findings {
            assert!(!problem.contains('\n') && !package.contains(char::is_whitespace));
        }
        let affected = audit::affected_packages(&findings);
        assert!(affected.is_sorted() && !affected.contains(&String::new()));
    });
}

#[test]
fn users_are_found_by_their_name() {
    fuzz("passwd", |rng| {
        let passwd = text(rng, USERS, LETTERS);
        if staging::find_user(&passwd, "_apt").is_some() {
            assert!(passwd.lines().any(|line| line.starts_with("_apt:")));
        }
    });
}

#[test]
fn files_of_ucf_are_absolute_paths() {
    fuzz("hashfile", |rng| {
        let paths = baseline::parse_ucf_files(&text(rng, HASHES, LETTERS));
        assert!(paths.iter().all(|path| path.starts_with('/') && !path.contains('\n')));
        let lines: Vec<_> = paths.iter().map(|path| format!("00  {path}\n")).collect();
        assert_eq!(baseline::parse_ucf_files(&lines.concat()), paths);
    });
}

#[test]
fn units_in_file_lists_are_names_of_services() {
    let root = tempfile::tempdir().unwrap();
    let paths = AgentPaths::new(root.path(), None);
    let folder = paths.inside(dpkg::DPKG_INFO_FOLDER);
    fs::create_dir_all(&folder).unwrap();
    let package = parse_list("demo\tall\t1\tinstall\tinstalled\tok\t\n").unwrap().remove(0);
    let units_of = |list: &str| -> BTreeSet<String> {
        fs::write(folder.join("demo.list"), list).unwrap();
        services::find_units(&paths, &package)
    };
    fuzz("file list", |rng| {
        let units = units_of(&text(rng, FILE_LISTS, LETTERS));
        for unit in &units {
            assert!(unit.strip_suffix(".service").is_some(), "{unit:?}");
            assert!(!unit.contains(['/', '\n']), "{unit:?}");
        }
        let lines: Vec<_> = units.iter().map(|unit| format!("/x/{unit}\n")).collect();
        assert_eq!(units_of(&lines.concat()), units);
    });
}
