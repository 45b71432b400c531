//! The command lines of dpkg.

use super::apt::{CONFFILES, MOST_NAMES, Tools, unreadable};
use super::files::Deb;
use super::parse::{self, Known};
use crate::model::{Failure, FailureKind};
use crate::runner::{Command, Output};

impl Tools {
    /// Unpacks and configures files without apt. Only with dpkg's front-end lock held.
    pub async fn unpack_files(&self, debs: &[Deb]) -> Result<Output, Failure> {
        let command = self.dpkg_that_changes().with(["--install", "--"]);
        self.run(
            &command.with(debs.iter().map(Deb::path)),
            FailureKind::Apply,
        )
        .await
    }

    /// Configures whatever can be. Only with dpkg's front-end lock held.
    pub async fn configure(&self) -> Result<Output, Failure> {
        let command = self.dpkg_that_changes().with(["--configure", "-a"]);
        self.run(&command, FailureKind::Apply).await
    }

    /// Removes packages without apt. Only with dpkg's front-end lock held.
    pub async fn remove(&self, packages: &[&str]) -> Result<Output, Failure> {
        let command = self.dpkg_that_changes().with(["--remove", "--"]);
        self.run(&command.with(packages.iter().copied()), FailureKind::Apply)
            .await
    }

    fn dpkg_that_changes(&self) -> Command {
        Command::new("dpkg", self.limits().apply)
            .with(CONFFILES)
            .variable("DPKG_FRONTEND_LOCKED", "1")
            .that_changes()
    }

    /// Every package that dpkg knows.
    pub async fn list(&self) -> Result<Vec<Known>, Failure> {
        let format = format!("--showformat={}", parse::LISTING);
        let command = Command::new("dpkg-query", self.limits().look).with(["--show", &format]);
        let output = self.answer(&command, "dpkg-query").await?;
        parse::listing(&output).map_err(|line| unreadable(FailureKind::Verify, line))
    }

    /// The configuration files of packages. A package that is not there has none.
    pub async fn conffiles(&self, packages: &[&str]) -> Result<Vec<String>, Failure> {
        let mut files = Vec::new();
        for some in packages.chunks(MOST_NAMES) {
            let command = Command::new("dpkg-query", self.limits().look)
                .with(["--show", "--showformat=${Conffiles}\n", "--"])
                .with(some.iter().copied());
            // One that is not there makes the status a bad one.
            let output = self.run(&command, FailureKind::Verify).await?;
            let found = parse::conffiles(&output.stdout).into_iter();
            files.extend(found.map(str::to_owned));
        }
        Ok(files)
    }

    /// What is wrong with dpkg's database, in its own words; empty if nothing is. The status says nothing.
    pub async fn audit(&self) -> Result<String, Failure> {
        let command = Command::new("dpkg", self.limits().look).with(["--audit"]);
        let output = self.run(&command, FailureKind::Verify).await?;
        Ok(output.words().trim_end().to_owned())
    }

    /// The architecture of dpkg itself.
    pub async fn architecture(&self) -> Result<String, Failure> {
        let command = Command::new("dpkg", self.limits().look).with(["--print-architecture"]);
        let output = self.answer(&command, "dpkg --print-architecture").await?;
        Ok(output.trim().to_owned())
    }
}
