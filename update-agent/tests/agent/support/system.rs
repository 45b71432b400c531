//! apt and dpkg of a world in which every package stands alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::TestClock;
use evenkeel_update_agent::modules::packages::hex;
use evenkeel_update_agent::runner::{Command, Output, RunError, Runner};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

const ARCHIVES: &str = "var/lib/evenkeel-agent/archives";

#[derive(Debug, Default)]
pub struct Packages {
    /// Name to version and state.
    pub installed: BTreeMap<String, (String, String)>,
    pub automatic: BTreeSet<String>,
    /// Name to the version that the sources offer.
    pub offered: BTreeMap<String, String>,
    /// Their postinst fails.
    pub broken: BTreeSet<String>,
    /// apt would remove these to do what is asked.
    pub in_the_way: Vec<String>,
    /// What `apt-get update` says when it fails.
    pub refresh_error: String,
    /// A person marked them to stay.
    pub held: BTreeSet<String>,
    /// apt cannot update them without more than an update.
    pub kept_back: BTreeSet<String>,
    /// `dpkg-query` says this when it cannot read the list of packages.
    pub list_error: String,
    /// `apt-mark auto` says this when it fails.
    pub mark_error: String,
    /// The next installation is not done at its deadline, and goes on beside the agent: it unpacks the first package,
    /// says so, and waits until somebody holds dpkg's lock and says that in the file `held`.
    pub slow: bool,
    /// What `dpkg --audit` finds beside the states of the packages.
    pub audit: String,
    /// An installation makes dpkg's audit find this.
    pub mess: String,
    /// An installation asks for a reboot.
    pub asks_for_reboot: bool,
    /// An installation takes so long by this clock.
    pub takes: Option<(TestClock, TimeDelta)>,
    /// The next installation stops after the first package was unpacked, and stays there.
    pub hang: bool,
}

/// The tools of a system. Every change is noted.
pub struct FakeSystem {
    root: PathBuf,
    pub packages: Mutex<Packages>,
    /// Told when an installation hangs.
    pub hanging: Notify,
    log: Mutex<Vec<String>>,
}

fn said(stdout: impl Into<String>) -> Output {
    Output {
        status: Some(0),
        stdout: stdout.into(),
        stderr: String::new(),
    }
}

fn failed(text: &str) -> Output {
    Output {
        status: Some(100),
        stdout: text.into(),
        stderr: String::new(),
    }
}

fn content(name: &str, version: &str) -> String {
    format!("the package {name} in version {version}")
}

/// The package and version of `/folder/NAME_VERSION_all.deb`.
fn of_path(path: &str) -> (String, String) {
    let file = path.rsplit('/').next().unwrap();
    let mut parts = file.split('_').map(str::to_owned);
    (parts.next().unwrap(), parts.next().unwrap())
}

fn of_order(order: &str) -> (String, String) {
    let (name, version) = order.split_once('=').unwrap();
    (name.to_owned(), version.to_owned())
}

/// What `apt-cache show` says of versions.
fn records(orders: &[&str]) -> Output {
    let mut text = String::new();
    for order in orders {
        let (name, version) = of_order(order);
        writeln!(
            text,
            "Package: {name}\nArchitecture: all\nVersion: {version}\nInstalled-Size: 5\n"
        )
        .unwrap();
    }
    said(text)
}

fn uris(orders: &[&str]) -> Output {
    let mut text = String::new();
    for order in orders {
        let (name, version) = of_order(order);
        let content = content(&name, &version);
        let digest = hex(&Sha256::digest(&content));
        let file = format!("{name}_{version}_all.deb");
        writeln!(
            text,
            "'http://x/{file}' {file} {} SHA256:{digest}",
            content.len()
        )
        .unwrap();
    }
    said(text)
}

impl FakeSystem {
    pub fn new(root: PathBuf) -> Self {
        fs::create_dir_all(root.join("var/lib/dpkg")).unwrap();
        Self {
            root,
            packages: Mutex::new(Packages::default()),
            hanging: Notify::new(),
            log: Mutex::new(Vec::new()),
        }
    }

    pub fn note(&self, what: &str) {
        self.log.lock().unwrap().push(what.to_owned());
    }

    /// What was done so far; forgets it.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// `name version state`, one package a line.
    pub fn listing(&self) -> String {
        let packages = self.packages.lock().unwrap();
        let lines = packages.installed.iter();
        let lines = lines.map(|(name, (version, state))| format!("{name} {version} {state}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn simulate(&self, wanted: &[(String, String)]) -> Output {
        let packages = self.packages.lock().unwrap();
        let mut text = String::from("Reading package lists...\n");
        let stays =
            |name: &String| packages.held.contains(name) || packages.kept_back.contains(name);
        let (kept, wanted): (Vec<_>, Vec<_>) = wanted.iter().partition(|(name, _)| stays(name));
        if !kept.is_empty() {
            text.push_str("The following packages have been kept back:\n");
        }
        for (name, version) in kept {
            let before = &packages.installed[name].0;
            writeln!(text, "   {name} ({before} => {version})").unwrap();
        }
        for (name, version) in wanted {
            let before = packages.installed.get(name).map(|(version, _)| version);
            match before {
                Some(before) if before == version => {}
                Some(before) => {
                    writeln!(text, "Inst {name} [{before}] ({version} stable [all])").unwrap();
                }
                None => writeln!(text, "Inst {name} ({version} stable [all])").unwrap(),
            }
        }
        for name in &packages.in_the_way {
            writeln!(text, "Remv {name} [1]").unwrap();
        }
        said(text)
    }

    fn latest(&self) -> Vec<(String, String)> {
        let packages = self.packages.lock().unwrap();
        let offered = packages.offered.iter();
        offered
            .filter(|(name, _)| packages.installed.contains_key(*name))
            .map(|(name, version)| (name.clone(), version.clone()))
            .collect()
    }

    fn resolve(&self, name: &str) -> (String, String) {
        if name.contains('=') {
            return of_order(name);
        }
        let packages = self.packages.lock().unwrap();
        let version = packages.offered.get(name).cloned();
        (name.to_owned(), version.unwrap_or_default())
    }

    fn download(&self, orders: &[String]) -> Output {
        self.note(&format!("download {}", orders.join(" ")));
        for order in orders {
            let (name, version) = of_order(order);
            let file = self
                .root
                .join(ARCHIVES)
                .join(format!("{name}_{version}_all.deb"));
            fs::write(file, content(&name, &version)).unwrap();
        }
        said("")
    }

    /// apt's helper: for each file its URI, its path, its hash and its size.
    fn download_files(&self, arguments: &[&str]) -> Output {
        let mut halves = arguments.split(|word| *word == "download-file");
        let files = halves.nth(1).unwrap().chunks(4);
        let orders = files.map(|file| {
            let (name, version) = of_path(file[1]);
            format!("{name}={version}")
        });
        self.download(&orders.collect::<Vec<_>>())
    }

    fn unpack(&self, path: &str) -> String {
        assert!(
            self.root.join(path.trim_start_matches('/')).is_file(),
            "{path} is not there"
        );
        let (name, version) = of_path(path);
        let mut packages = self.packages.lock().unwrap();
        packages.automatic.remove(&name);
        let unpacked = (version, "unpacked".to_owned());
        packages.installed.insert(name.clone(), unpacked);
        name
    }

    /// Configures whatever is not; the names of those that fail.
    fn configure(&self) -> Output {
        let mut packages = self.packages.lock().unwrap();
        let Packages {
            installed, broken, ..
        } = &mut *packages;
        let mut text = String::new();
        for (name, (_, state)) in installed
            .iter_mut()
            .filter(|(_, (_, state))| state != "installed")
        {
            if broken.contains(name) {
                "half-configured".clone_into(state);
                writeln!(text, "{name}: postinst fails on purpose").unwrap();
                writeln!(text, "dpkg: error processing package {name} (--configure):").unwrap();
            } else {
                "installed".clone_into(state);
            }
        }
        if text.is_empty() {
            said("")
        } else {
            failed(&text)
        }
    }

    async fn install(&self, paths: &[&str]) -> Result<Output, RunError> {
        self.note("install");
        if std::mem::take(&mut self.packages.lock().unwrap().slow) {
            self.unpack(paths[0]);
            self.hanging.notify_one();
            while !self.root.join("held").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            return Err(RunError::Deadline {
                program: "apt-get".into(),
                after: Duration::from_mins(1),
                said: String::new(),
            });
        }
        let hang = std::mem::take(&mut self.packages.lock().unwrap().hang);
        for path in paths {
            self.unpack(path);
            if hang {
                self.hanging.notify_one();
                std::future::pending::<()>().await;
            }
        }
        self.leave_traces(paths);
        Ok(self.configure())
    }

    /// What an installation does beside unpacking and configuring.
    fn leave_traces(&self, paths: &[&str]) {
        let mut packages = self.packages.lock().unwrap();
        if let Some((clock, time)) = &packages.takes {
            clock.advance(*time);
        }
        packages.audit = format!("{}{}", packages.audit, packages.mess);
        if packages.asks_for_reboot {
            let run = self.root.join("run");
            fs::create_dir_all(&run).unwrap();
            fs::write(run.join("reboot-required"), "").unwrap();
            let names: Vec<_> = paths.iter().map(|path| of_path(path).0 + "\n").collect();
            fs::write(run.join("reboot-required.pkgs"), names.concat()).unwrap();
        }
    }

    fn list(&self) -> Output {
        let packages = self.packages.lock().unwrap();
        if !packages.list_error.is_empty() {
            return failed(&packages.list_error);
        }
        let mut text = String::new();
        for (name, (version, state)) in &packages.installed {
            let want = if packages.held.contains(name) {
                "hold"
            } else {
                "install"
            };
            writeln!(text, "{name}\tall\t{version}\t{want}\t{state}\tok\t4").unwrap();
        }
        said(text)
    }

    fn audit(&self) -> Output {
        let packages = self.packages.lock().unwrap();
        let messy = packages
            .installed
            .iter()
            .filter(|(_, (_, state))| state != "installed");
        let names: Vec<_> = messy.map(|(name, _)| format!(" {name}\n")).collect();
        let mut text = packages.audit.clone();
        if !names.is_empty() {
            writeln!(text, "These packages are in a mess:\n{}", names.concat()).unwrap();
        }
        // The status says nothing, as with the real one.
        said(text)
    }

    async fn apt_get(&self, arguments: &[&str], operands: &[&str]) -> Result<Output, RunError> {
        let paths = operands.first().is_some_and(|path| path.starts_with('/'));
        if paths && !arguments.contains(&"--simulate") {
            let sure = ["install", "--no-remove"];
            assert!(
                sure.iter().all(|word| arguments.contains(word)),
                "{arguments:?}"
            );
            return self.install(operands).await;
        }
        Ok(self.apt_get_looks(arguments, operands, paths))
    }

    /// apt as it changes no package.
    fn apt_get_looks(&self, arguments: &[&str], operands: &[&str], paths: bool) -> Output {
        let has = |word: &str| arguments.contains(&word);
        if has("update") {
            self.note("refresh");
            let error = self.packages.lock().unwrap().refresh_error.clone();
            return if error.is_empty() {
                said("")
            } else {
                failed(&error)
            };
        }
        if has("--print-uris") {
            return uris(operands);
        }
        if has("indextargets") {
            return said("http://x/\tstable\tstable\tstable\t$(LABEL)\t$(VERSION)\n");
        }
        if has("--simulate") && (has("upgrade") || has("dist-upgrade")) {
            return self.simulate(&self.latest());
        }
        assert!(has("--simulate"), "{arguments:?}");
        let wanted = operands.iter().map(|operand| {
            if paths {
                of_path(operand)
            } else {
                self.resolve(operand)
            }
        });
        self.simulate(&wanted.collect::<Vec<_>>())
    }

    fn dpkg(&self, arguments: &[&str], operands: &[&str]) -> Output {
        let has = |word: &str| arguments.contains(&word);
        if has("--print-architecture") {
            return said("amd64\n");
        }
        if has("--audit") {
            return self.audit();
        }
        if has("--install") {
            self.note("dpkg --install");
            for path in operands {
                self.unpack(path);
            }
            self.leave_traces(operands);
            return self.configure();
        }
        assert!(has("--configure"), "{arguments:?}");
        self.note("dpkg --configure");
        self.configure()
    }

    fn mark(&self, arguments: &[&str], operands: &[&str]) -> Output {
        let mut packages = self.packages.lock().unwrap();
        if arguments.contains(&"showauto") {
            let names: Vec<_> = packages
                .automatic
                .iter()
                .map(|name| format!("{name}\n"))
                .collect();
            return said(names.concat());
        }
        if !packages.mark_error.is_empty() {
            return failed(&packages.mark_error);
        }
        packages
            .automatic
            .extend(operands.iter().map(|&name| name.to_owned()));
        drop(packages);
        self.note("mark");
        said("")
    }
}

#[async_trait::async_trait]
impl Runner for FakeSystem {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let arguments: Vec<_> = command.arguments.iter().map(String::as_str).collect();
        let mut halves = arguments.split(|word| *word == "--");
        let options = halves.next().unwrap_or_default();
        let operands = halves.next().unwrap_or_default();
        Ok(match command.program.as_str() {
            "apt-get" => self.apt_get(options, operands).await?,
            "apt-cache" => records(operands),
            "/usr/lib/apt/apt-helper" => self.download_files(options),
            "dpkg-query" if arguments.iter().any(|word| word.contains("Conffiles")) => said(""),
            "dpkg-query" => self.list(),
            "dpkg" => self.dpkg(options, operands),
            "apt-mark" => self.mark(options, operands),
            other => panic!("nobody knows {other}"),
        })
    }
}
