//! The commands of docs/backup.md on a machine with a server and a node: a dump and a base backup are taken, the fleet
//! goes on, and each of them is restored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use evenkeel_tests::history::print_progress;
use evenkeel_tests::lab::{BootedNode, Repository};

use super::{read_sections, run_command, wait_for_update};

const PAGE: &str = "docs/backup.md";

/// The time in the commands of the page, to which the database returns.
const EXAMPLE_TIME: &str = "2027-01-31 12:00:00 UTC";

/// The section that follows each restore.
const START: &str = "Start the server after a restore";

/// The first command of that section that lets nodes connect.
const OPEN: &str = "systemctl unset-environment";

/// Connects to the listener for nodes, at its usual port.
const CONNECT: &str = "bash -c 'exec 3<> /dev/tcp/127.0.0.1/50002'";

/// Orders an update, which is the second one of the node. The agent need not wait for its next poll.
const ORDER_UPDATE: &str = "\
    evenkeel policy create second --package demo-extra=1.1; \
    evenkeel instance set-policy \"$(hostname)\" second; \
    evenkeel update now --all --yes --reason 'second update'; \
    systemctl restart evenkeel-agent";

/// Removes the files of the page that belong to no package.
const REMOVE_FILES: &str = "\
    rm -r /etc/systemd/system/evenkeeld.service.d /var/backups/evenkeel; systemctl daemon-reload";

/// The commands of the page by section.
struct BackupPage<'a> {
    machine: &'a BootedNode,
    scripts: BTreeMap<String, String>,
    /// Sections whose commands have run.
    done: BTreeSet<String>,
}

impl<'a> BackupPage<'a> {
    fn read(machine: &'a BootedNode) -> Self {
        let sections = read_sections(PAGE).into_iter();
        let sections = sections.filter(|section| !section.commands.is_empty());
        let scripts = sections.map(|section| (section.title, section.commands.join("\n")));
        Self { machine, scripts: scripts.collect(), done: BTreeSet::new() }
    }

    fn script(&mut self, title: &str) -> String {
        let script = self.scripts.get(title);
        let script = script.unwrap_or_else(|| panic!("{PAGE} has no commands in {title:?}"));
        self.done.insert(title.to_owned());
        script.clone()
    }

    /// Runs the commands of a section in one shell, and returns their output.
    fn run(&mut self, title: &str) -> String {
        let script = self.script(title);
        self.run_script(title, &script)
    }

    /// Runs the commands of a section with another time than the one of the page.
    fn run_with_time(&mut self, title: &str, time: &str) {
        let script = self.script(title);
        assert!(script.contains(EXAMPLE_TIME), "{script}");
        self.run_script(title, &script.replace(EXAMPLE_TIME, time));
    }

    /// Starts the server after a restore, and returns the output of the checks. No node can connect before them.
    fn start_server(&mut self) -> String {
        let script = self.script(START);
        let at = script.find(OPEN).expect("a command that lets nodes connect");
        let (checks, opening) = script.split_at(at);
        let output = self.run_script(START, checks);
        let connection = self.machine.run(&["sh", "-ec", CONNECT]);
        assert!(!connection.status.success(), "nodes can connect before the checks");
        self.run_script(START, opening);
        self.machine.sh(CONNECT);
        output
    }

    fn run_script(&self, title: &str, script: &str) -> String {
        let begun = Instant::now();
        let output = self.machine.sh(script);
        print_progress(&format!("{:?} for {title}", begun.elapsed()));
        output
    }

    /// Fails if the commands of a section have not run.
    fn assert_done(&self) {
        let left = self.scripts.keys().filter(|title| !self.done.contains(*title));
        let left: Vec<_> = left.collect();
        assert!(left.is_empty(), "{PAGE}: commands that did not run: {left:?}");
    }
}

/// Creates a site and returns its ID.
fn create_site(machine: &BootedNode, name: &str) -> String {
    machine.sh(&format!("evenkeel site create {name}"));
    let site = machine.sh(&format!("evenkeel site get {name} -o json"));
    let id = site.split('"').find(|text| text.starts_with("site-"));
    id.unwrap_or_else(|| panic!("no ID: {site}")).to_owned()
}

/// Fails unless the server has only one of two sites and the node, and gives a new site a new ID.
fn check_sites(machine: &BootedNode, kept: &str, (lost, lost_id): (&str, &str)) {
    let sites = machine.sh("evenkeel site list");
    assert!(sites.contains(kept) && !sites.contains(lost), "{sites}");
    machine.sh("evenkeel host get \"$(hostname)\"");
    assert_ne!(create_site(machine, lost), lost_id, "an ID was given twice");
}

/// A dump does not know the last update of the node, which is ordered again after the restore.
fn check_dump(page: &mut BackupPage<'_>, repository: &Repository) {
    let machine = page.machine;
    create_site(machine, "before-dump");
    page.run("Dump the database");
    let lost = create_site(machine, "after-dump");
    repository.publish("demo-extra_1.1");
    run_command(machine, "apt-get -q update");
    machine.sh(ORDER_UPDATE);
    wait_for_update(machine, "demo-extra", "1.1", 2);

    page.run("Restore a dump");
    let output = page.start_server();
    assert!(output.contains("the configuration is valid"), "{output}");
    check_sites(machine, "before-dump", ("after-dump", &lost));
    machine.sh(ORDER_UPDATE);
    wait_for_update(machine, "demo-extra", "1.1", 2);
    let installed = machine.sh("grep -c ' upgrade demo-extra:' /var/log/dpkg.log");
    assert_eq!(installed, "1\n", "the update was installed again");
}

fn check_base_backup(page: &mut BackupPage<'_>) {
    let machine = page.machine;
    page.run("Archive the WAL");
    page.run("Take a base backup");
    create_site(machine, "before-target");
    let time = machine.sh("date --utc '+%F %T.%6N UTC'");
    let lost = create_site(machine, "after-target");
    page.run_with_time("Restore to a point in time", time.trim());
    page.start_server();
    check_sites(machine, "before-target", ("after-target", &lost));
}

/// Runs the commands of the page. The node has had one update, and has version 1.0 of `demo-extra`.
pub fn check_backup_page(machine: &BootedNode, repository: &Repository) {
    let begun = Instant::now();
    let mut page = BackupPage::read(machine);
    check_dump(&mut page, repository);
    check_base_backup(&mut page);
    page.assert_done();
    machine.sh(REMOVE_FILES);
    print_progress(&format!("{:?} for {PAGE}", begun.elapsed()));
}
