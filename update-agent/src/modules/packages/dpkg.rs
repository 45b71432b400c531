//! Runs dpkg.

use super::apt::{CONFFILE_OPTIONS, MAX_NAMES_PER_COMMAND, PackageTools, unreadable_line};
use super::files::Deb;
use super::parse::{self, DpkgPackage};
use crate::model::{Failure, FailureKind};
use crate::runner::{Command, Output};

/// dpkg's folder with the scripts, the triggers and the list of files of each installed package.
pub(super) const DPKG_INFO_FOLDER: &str = "/var/lib/dpkg/info";

impl PackageTools {
    /// Unpacks and configures files without apt. The caller must hold dpkg's front-end lock.
    pub async fn install_with_dpkg(&self, debs: &[Deb]) -> Result<Output, Failure> {
        let command = self.dpkg_command().with_arguments(["--install", "--"]);
        self.run(&command.with_arguments(debs.iter().map(Deb::path)), FailureKind::Apply).await
    }

    /// Configures all pending packages. The caller must hold dpkg's front-end lock.
    pub async fn configure_all(&self) -> Result<Output, Failure> {
        let command = self.dpkg_command().with_arguments(["--configure", "-a"]);
        self.run(&command, FailureKind::Apply).await
    }

    /// Removes packages without apt. The caller must hold dpkg's front-end lock.
    pub async fn remove_packages(&self, packages: &[&str]) -> Result<Output, Failure> {
        let command = self.dpkg_command().with_arguments(["--remove", "--"]);
        self.run(&command.with_arguments(packages.iter().copied()), FailureKind::Apply).await
    }

    fn dpkg_command(&self) -> Command {
        Command::new("dpkg", self.timeouts().apply)
            .with_arguments(CONFFILE_OPTIONS)
            .with_variable("DPKG_FRONTEND_LOCKED", "1")
            .for_change()
            .with_optional_record()
    }

    /// Lists the packages in dpkg's database.
    pub async fn list_packages(&self) -> Result<Vec<DpkgPackage>, Failure> {
        let format = format!("--showformat={}", parse::LIST_FORMAT);
        let command =
            Command::new("dpkg-query", self.timeouts().query).with_arguments(["--show", &format]);
        let output = self.run_for_stdout(&command, "dpkg-query").await?;
        parse::parse_list(&output).map_err(|line| unreadable_line(FailureKind::Verify, line))
    }

    /// Lists the configuration files of packages. A package that is not installed has none.
    pub async fn list_conffiles(&self, packages: &[&str]) -> Result<Vec<String>, Failure> {
        let mut files = Vec::new();
        for some in packages.chunks(MAX_NAMES_PER_COMMAND) {
            let command = Command::new("dpkg-query", self.timeouts().query)
                .with_arguments(["--show", "--showformat=${Conffiles}\n", "--"])
                .with_arguments(some.iter().copied());
            // An uninstalled package makes the exit status nonzero.
            let output = self.run(&command, FailureKind::Verify).await?;
            let paths = parse::parse_conffiles(&output.stdout).into_iter();
            files.extend(paths.map(str::to_owned));
        }
        Ok(files)
    }

    /// The problems in dpkg's database, as dpkg prints them; empty if there are none. The exit status is ignored.
    pub async fn audit(&self) -> Result<String, Failure> {
        let command = Command::new("dpkg", self.timeouts().query).with_arguments(["--audit"]);
        let output = self.run(&command, FailureKind::Verify).await?;
        Ok(output.combined_output().trim_end().to_owned())
    }

    /// dpkg's native architecture.
    pub async fn architecture(&self) -> Result<String, Failure> {
        let command =
            Command::new("dpkg", self.timeouts().query).with_arguments(["--print-architecture"]);
        let output = self.run_for_stdout(&command, "dpkg --print-architecture").await?;
        Ok(output.trim().to_owned())
    }
}
