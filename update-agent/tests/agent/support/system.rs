//! Fake apt and dpkg for packages without dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::TestClock;
use evenkeel_update_agent::runner::{Command, DeadlineAction, Output, RunError, Runner};
use tokio::sync::Notify;

use super::tool_output::{
    content, deadline_error, error_output, parse_order, parse_path, print_uris, show_records,
    success_output,
};

/// Folder into which apt downloads.
const STAGING: &str = "var/lib/evenkeel-agent/archives/staging";

#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent event that can be combined with the others"
)]
pub struct FakePackages {
    /// Name to version and state.
    pub installed: BTreeMap<String, (String, String)>,
    pub automatic: BTreeSet<String>,
    /// Name to the version that the sources offer.
    pub offered: BTreeMap<String, String>,
    /// Packages whose postinst fails.
    pub broken: BTreeSet<String>,
    /// Packages that no package needs any more.
    pub unused: BTreeSet<String>,
    /// No kernel can be configured while there is an unused one.
    pub boot_is_full: bool,
    /// Error text of the removal of packages, which leaves a trigger pending; empty if it succeeds.
    pub removal_error: String,
    /// Packages that apt would remove for the requested change.
    pub removals: Vec<String>,
    /// Error text of `apt-get update`; empty if it succeeds.
    pub refresh_error: String,
    /// Error text of the simulation of an update; empty if it succeeds.
    pub simulation_error: String,
    /// Packages on hold.
    pub held: BTreeSet<String>,
    /// Packages that apt keeps back because of their dependencies.
    pub blocked: BTreeSet<String>,
    /// Error text of `dpkg-query` if it cannot read the list of packages; empty if it succeeds.
    pub list_error: String,
    /// Error text of `apt-mark auto`; empty if it succeeds.
    pub mark_error: String,
    /// The next installation exceeds its timeout and continues in the background: it unpacks the first package, notifies
    /// `hanging`, and waits until a test holds dpkg's lock and creates the file `held`.
    pub exceeds_timeout: bool,
    /// The next installation is killed at its timeout, after all packages are unpacked.
    pub killed_at_timeout: bool,
    /// Output of `dpkg --audit` in addition to the packages that are not installed.
    pub audit: String,
    /// Audit finding that an installation causes.
    pub audit_after_install: String,
    /// An installation requires a reboot.
    pub requires_reboot: bool,
    /// A person creates the inhibit file during an installation.
    pub inhibited_meanwhile: bool,
    /// Exit status of the owner's programs, by their path; 0 for the others.
    pub program_status: BTreeMap<String, i32>,
    /// The same, changed by an installation.
    pub program_status_after_install: BTreeMap<String, i32>,
    /// An installation takes this long, on this clock.
    pub install_duration: Option<(TestClock, TimeDelta)>,
    /// The next installation hangs after the first package was unpacked.
    pub hang: bool,
    /// Download limit of each `apt-get update`, as apt's option; empty if there was none.
    pub list_rates: Vec<String>,
    /// Output of `apt-config dump`.
    pub apt_settings: String,
}

/// The tools of a system. Every change is logged.
pub struct FakeSystem {
    root: PathBuf,
    pub packages: Mutex<FakePackages>,
    /// Notified when an installation hangs.
    pub hanging: Notify,
    log: Mutex<Vec<String>>,
}

impl FakeSystem {
    pub fn new(root: PathBuf) -> Self {
        fs::create_dir_all(root.join("var/lib/dpkg")).unwrap();
        Self {
            root,
            packages: Mutex::new(FakePackages::default()),
            hanging: Notify::new(),
            log: Mutex::new(Vec::new()),
        }
    }

    pub fn log_action(&self, what: &str) {
        self.log.lock().unwrap().push(what.to_owned());
    }

    /// Returns and clears the log.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// `name version state`, one package per line.
    pub fn listing(&self) -> String {
        let packages = self.packages.lock().unwrap();
        let lines = packages.installed.iter();
        let lines = lines.map(|(name, (version, state))| format!("{name} {version} {state}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn simulate(&self, requested: &[(String, String)]) -> Output {
        let packages = self.packages.lock().unwrap();
        if !packages.simulation_error.is_empty() {
            return error_output(&packages.simulation_error);
        }
        let mut text = String::from("Reading package lists...\n");
        let stays = |name: &String| packages.held.contains(name) || packages.blocked.contains(name);
        let (held_back, updates): (Vec<_>, Vec<_>) =
            requested.iter().partition(|(name, _)| stays(name));
        if !held_back.is_empty() {
            text.push_str("The following packages have been kept back:\n");
        }
        for (name, version) in held_back {
            let before = &packages.installed[name].0;
            writeln!(text, "   {name} ({before} => {version})").unwrap();
        }
        for (name, version) in updates {
            let before = packages.installed.get(name).map(|(version, _)| version);
            match before {
                Some(before) if before == version => {}
                Some(before) => {
                    writeln!(text, "Inst {name} [{before}] ({version} stable [all])").unwrap();
                }
                None => writeln!(text, "Inst {name} ({version} stable [all])").unwrap(),
            }
        }
        for name in &packages.removals {
            writeln!(text, "Remv {name} [1]").unwrap();
        }
        success_output(text)
    }

    /// Output of `apt-cache madison`: the offered versions of some packages.
    fn list_versions(&self, names: &[&str]) -> Output {
        let packages = self.packages.lock().unwrap();
        let mut text = String::new();
        for name in names {
            let version = &packages.offered[*name];
            writeln!(text, " {name} | {version} | http://x stable/main all Packages").unwrap();
        }
        success_output(text)
    }

    fn latest_versions(&self) -> Vec<(String, String)> {
        let packages = self.packages.lock().unwrap();
        let offered = packages.offered.iter();
        offered
            .filter(|(name, _)| packages.installed.contains_key(*name))
            .map(|(name, version)| (name.clone(), version.clone()))
            .collect()
    }

    fn resolve(&self, name: &str) -> (String, String) {
        if name.contains('=') {
            return parse_order(name);
        }
        let packages = self.packages.lock().unwrap();
        let version = packages.offered.get(name).cloned();
        (name.to_owned(), version.unwrap_or_default())
    }

    fn download(&self, orders: &[String]) -> Output {
        self.log_action(&format!("download {}", orders.join(" ")));
        for order in orders {
            let (name, version) = parse_order(order);
            let file = self.root.join(STAGING).join(format!("{name}_{version}_all.deb"));
            fs::write(file, content(&name, &version)).unwrap();
        }
        success_output("")
    }

    /// The apt helper, with the URI, path, hash and size of each file as arguments.
    fn download_files(&self, arguments: &[&str]) -> Output {
        let mut halves = arguments.split(|argument| *argument == "download-file");
        let files = halves.nth(1).unwrap().chunks(4);
        let orders = files.map(|file| {
            let (name, version) = parse_path(file[1]);
            format!("{name}={version}")
        });
        self.download(&orders.collect::<Vec<_>>())
    }

    fn unpack(&self, path: &str) -> String {
        assert!(self.root.join(path.trim_start_matches('/')).is_file(), "{path} does not exist");
        let (name, version) = parse_path(path);
        let mut packages = self.packages.lock().unwrap();
        packages.automatic.remove(&name);
        let unpacked = (version, "unpacked".to_owned());
        packages.installed.insert(name.clone(), unpacked);
        name
    }

    /// Configures every package that is not installed yet. Fails with the text of dpkg if a postinst fails.
    fn configure(&self) -> Output {
        let mut packages = self.packages.lock().unwrap();
        let FakePackages { installed, broken, unused, boot_is_full, .. } = &mut *packages;
        let is_kernel = |name: &String| name.starts_with("linux-image-");
        let lacks_space = *boot_is_full && unused.iter().any(is_kernel);
        let mut text = String::new();
        for (name, (_, state)) in
            installed.iter_mut().filter(|(_, (_, state))| state != "installed")
        {
            if broken.contains(name) || (lacks_space && is_kernel(name)) {
                "half-configured".clone_into(state);
                writeln!(text, "{name}: postinst fails on purpose").unwrap();
                writeln!(text, "dpkg: error processing package {name} (--configure):").unwrap();
            } else {
                "installed".clone_into(state);
            }
        }
        if text.is_empty() { success_output("") } else { error_output(&text) }
    }

    async fn install(&self, paths: &[&str]) -> Result<Output, RunError> {
        self.log_action("install");
        if std::mem::take(&mut self.packages.lock().unwrap().exceeds_timeout) {
            self.unpack(paths[0]);
            self.hanging.notify_one();
            while !self.root.join("held").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            return Err(deadline_error(DeadlineAction::Kill));
        }
        let hang = std::mem::take(&mut self.packages.lock().unwrap().hang);
        for path in paths {
            self.unpack(path);
            if hang {
                self.hanging.notify_one();
                std::future::pending::<()>().await;
            }
        }
        if std::mem::take(&mut self.packages.lock().unwrap().killed_at_timeout) {
            return Err(deadline_error(DeadlineAction::EndScripts));
        }
        self.apply_side_effects(paths);
        Ok(self.configure())
    }

    /// Applies the effects of an installation other than unpacking and configuring.
    fn apply_side_effects(&self, paths: &[&str]) {
        let mut packages = self.packages.lock().unwrap();
        if let Some((clock, time)) = &packages.install_duration {
            clock.advance(*time);
        }
        packages.audit = format!("{}{}", packages.audit, packages.audit_after_install);
        let changed = std::mem::take(&mut packages.program_status_after_install);
        packages.program_status.extend(changed);
        if packages.inhibited_meanwhile {
            let folder = self.root.join("etc/evenkeel");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("inhibit"), "a demonstration\n").unwrap();
        }
        if packages.requires_reboot {
            let run = self.root.join("run");
            fs::create_dir_all(&run).unwrap();
            fs::write(run.join("reboot-required"), "").unwrap();
            let names: Vec<_> = paths.iter().map(|path| parse_path(path).0 + "\n").collect();
            fs::write(run.join("reboot-required.pkgs"), names.concat()).unwrap();
        }
    }

    fn list(&self) -> Output {
        let packages = self.packages.lock().unwrap();
        if !packages.list_error.is_empty() {
            return error_output(&packages.list_error);
        }
        let mut text = String::new();
        for (name, (version, state)) in &packages.installed {
            let want = if packages.held.contains(name) { "hold" } else { "install" };
            writeln!(text, "{name}\tall\t{version}\t{want}\t{state}\tok\t4").unwrap();
        }
        success_output(text)
    }

    fn audit(&self) -> Output {
        let packages = self.packages.lock().unwrap();
        let inconsistent = packages.installed.iter().filter(|(_, (_, state))| state != "installed");
        let names: Vec<_> = inconsistent.map(|(name, _)| format!(" {name}\n")).collect();
        let mut text = packages.audit.clone();
        if !names.is_empty() {
            writeln!(text, "These packages are in a mess:\n{}", names.concat()).unwrap();
        }
        // As the real one, the audit exits with 0 even if it has findings.
        success_output(text)
    }

    async fn apt_get(&self, arguments: &[&str], operands: &[&str]) -> Result<Output, RunError> {
        if operands.first().is_some_and(|operand| operand.ends_with('-')) {
            return Ok(self.remove(arguments, operands));
        }
        let paths = operands.first().is_some_and(|path| path.starts_with('/'));
        if paths && !arguments.contains(&"--simulate") {
            let sure = ["install", "--no-remove"];
            assert!(sure.iter().all(|argument| arguments.contains(argument)), "{arguments:?}");
            return self.install(operands).await;
        }
        Ok(self.apt_get_query(arguments, operands, paths))
    }

    /// Removes packages, given as `NAME-` to apt and as `NAME` to dpkg.
    fn remove(&self, arguments: &[&str], operands: &[&str]) -> Output {
        let names = operands.iter().map(|operand| operand.trim_end_matches('-').to_owned());
        let names: Vec<_> = names.collect();
        if arguments.contains(&"--simulate") {
            let lines: Vec<_> = names.iter().map(|name| format!("Remv {name} [1]\n")).collect();
            return success_output(lines.concat());
        }
        self.log_action(&format!("remove {}", names.join(" ")));
        let mut packages = self.packages.lock().unwrap();
        if !packages.removal_error.is_empty() {
            let pending = ("2".into(), "triggers-pending".into());
            packages.installed.insert("lib".into(), pending);
            return error_output(&packages.removal_error);
        }
        for name in names {
            packages.installed.remove(&name);
            packages.unused.remove(&name);
        }
        success_output("")
    }

    /// The calls of `apt-get` that change no package.
    fn apt_get_query(&self, arguments: &[&str], operands: &[&str], paths: bool) -> Output {
        let has = |argument: &str| arguments.contains(&argument);
        if has("update") {
            self.log_action("refresh");
            let rate =
                arguments.iter().find(|option| option.starts_with("Acquire::http::Dl-Limit="));
            let rate = rate.map_or_else(String::new, |option| (*option).to_owned());
            self.packages.lock().unwrap().list_rates.push(rate);
            let error = self.packages.lock().unwrap().refresh_error.clone();
            return if error.is_empty() { success_output("") } else { error_output(&error) };
        }
        if has("--print-uris") {
            return print_uris(operands);
        }
        if has("indextargets") {
            return success_output("http://x/\tstable\tstable\tstable\t$(LABEL)\t$(VERSION)\n");
        }
        if has("--simulate") && (has("upgrade") || has("dist-upgrade")) {
            let mut output = self.simulate(&self.latest_versions());
            if has("--auto-remove") {
                let in_use = arguments.iter().find_map(|argument| {
                    argument.strip_prefix("APT::NeverAutoRemove::=^(")?.strip_suffix(")$")
                });
                let in_use = in_use.unwrap_or_default().replace('\\', "");
                let in_use: Vec<_> = in_use.split('|').collect();
                for name in &self.packages.lock().unwrap().unused {
                    if !in_use.contains(&name.as_str()) {
                        writeln!(output.stdout, "Remv {name} [1]").unwrap();
                    }
                }
            }
            return output;
        }
        assert!(has("--simulate"), "{arguments:?}");
        let requested = operands
            .iter()
            .map(|operand| if paths { parse_path(operand) } else { self.resolve(operand) });
        self.simulate(&requested.collect::<Vec<_>>())
    }

    fn dpkg(&self, arguments: &[&str], operands: &[&str]) -> Output {
        let has = |argument: &str| arguments.contains(&argument);
        if has("--print-architecture") {
            return success_output("amd64\n");
        }
        if has("--audit") {
            return self.audit();
        }
        if has("--install") {
            self.log_action("dpkg --install");
            for path in operands {
                self.unpack(path);
            }
            self.apply_side_effects(operands);
            return self.configure();
        }
        if has("--remove") {
            return self.remove(arguments, operands);
        }
        assert!(has("--configure"), "{arguments:?}");
        self.log_action("dpkg --configure");
        self.configure()
    }

    /// A hook or a health check of the machine's owner.
    fn owner_program(&self, path: &str) -> Output {
        self.log_action(path);
        let status = self.packages.lock().unwrap().program_status.get(path).copied();
        Output { status: Some(status.unwrap_or(0)), ..Output::default() }
    }

    fn mark(&self, arguments: &[&str], operands: &[&str]) -> Output {
        let mut packages = self.packages.lock().unwrap();
        if arguments.contains(&"showauto") {
            let names: Vec<_> = packages.automatic.iter().map(|name| format!("{name}\n")).collect();
            return success_output(names.concat());
        }
        if !packages.mark_error.is_empty() {
            return error_output(&packages.mark_error);
        }
        if arguments.contains(&"manual") {
            packages.automatic.retain(|name| !operands.contains(&name.as_str()));
        } else {
            packages.automatic.extend(operands.iter().map(|&name| name.to_owned()));
        }
        drop(packages);
        self.log_action("mark");
        success_output("")
    }
}

#[async_trait::async_trait]
impl Runner for FakeSystem {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let arguments: Vec<_> = command.arguments.iter().map(String::as_str).collect();
        let mut halves = arguments.split(|argument| *argument == "--");
        let options = halves.next().unwrap_or_default();
        let operands = halves.next().unwrap_or_default();
        Ok(match command.program.as_str() {
            "apt-get" => self.apt_get(options, operands).await?,
            "apt-cache" if options.contains(&"madison") => self.list_versions(operands),
            "apt-cache" => show_records(operands),
            "/usr/lib/apt/apt-helper" => self.download_files(options),
            "dpkg-query" if arguments.iter().any(|argument| argument.contains("Conffiles")) => {
                success_output("")
            }
            "dpkg-query" => self.list(),
            "dpkg" => self.dpkg(options, operands),
            "apt-mark" => self.mark(options, operands),
            "apt-config" => success_output(self.packages.lock().unwrap().apt_settings.clone()),
            path if path.starts_with("/etc/evenkeel/") => self.owner_program(path),
            other => panic!("unknown program {other}"),
        })
    }
}
