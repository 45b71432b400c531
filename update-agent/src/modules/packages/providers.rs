//! The packages that a policy's names mean to apt: virtual packages, and the qualifiers `:native`
//! and `:any`.

use std::collections::{BTreeMap, BTreeSet};

use super::PackagesModule;
use super::apt::{MAX_NAMES_PER_COMMAND, PackageTools};
use super::parse::{PlannedInstall, apt_name};
use super::plan::{InstalledPackages, PackageObservation, strip_native_architecture};
use super::sources::AptView;
use crate::model::{Failure, FailureKind, PackageMode, PackageSpec};
use crate::runner::Command;

/// The format for `dpkg-query --show` that [`parse_installed`] reads.
const PROVIDES_FORMAT: &str = "${Package}\t${Architecture}\t${db:Status-Status}\t${Provides}\n";

/// Virtual packages, each with the packages that provide it, by their names in apt.
pub type ProviderIndex = BTreeMap<String, BTreeSet<String>>;

impl PackagesModule {
    /// Finds the providers of the required packages that are neither installed nor would be. apt has
    /// accepted their names, so they are virtual or regular expressions.
    pub(super) async fn find_providers(
        &self,
        spec: &PackageSpec,
        observed: &PackageObservation,
        installed: &InstalledPackages<'_>,
        view: AptView,
    ) -> Result<ProviderIndex, Failure> {
        let PackageMode::Exactly(packages) = &spec.mode else {
            return Ok(ProviderIndex::new());
        };
        let is_missing = |name: &str| resolve_requirement(name, observed, installed).is_empty();
        if !packages.iter().any(|package| is_missing(&package.name)) {
            return Ok(ProviderIndex::new());
        }
        let native = &observed.native_architecture;
        let mut providers = ProviderIndex::new();
        parse_installed(&self.tools.show_provides().await?, native, &mut providers);
        let available = self.tools.show_records(&observed.simulation.installs, view).await?;
        parse_available(&available, native, &mut providers);
        Ok(providers)
    }
}

impl PackageTools {
    async fn show_provides(&self) -> Result<String, Failure> {
        let format = format!("--showformat={PROVIDES_FORMAT}");
        let command =
            Command::new("dpkg-query", self.timeouts().query).with_arguments(["--show", &format]);
        self.run_for_stdout(&command, "dpkg-query").await
    }

    /// The records of versions that would be installed, as apt prints them.
    async fn show_records(
        &self,
        installs: &[PlannedInstall],
        view: AptView,
    ) -> Result<String, Failure> {
        let mut text = String::new();
        for some in installs.chunks(MAX_NAMES_PER_COMMAND) {
            let command = Command::new("apt-cache", self.timeouts().query)
                .with_arguments(view.options())
                .with_arguments(["show", "--no-all-versions", "--"])
                .with_arguments(some.iter().map(PlannedInstall::apt_argument));
            text.push_str(&self.run(&command, FailureKind::Plan).await?.stdout);
            text.push('\n');
        }
        Ok(text)
    }
}

/// Adds what the installed packages provide. Other lines are ignored: then the name is not found,
/// and the plan is refused.
fn parse_installed(text: &str, native: &str, providers: &mut ProviderIndex) {
    for line in text.lines() {
        let fields: Vec<_> = line.splitn(4, '\t').collect();
        if let [name, architecture, "installed", provides] = fields[..] {
            add_provider(providers, &apt_name(name, architecture, native), provides);
        }
    }
}

/// Adds what the versions in apt's records provide.
fn parse_available(text: &str, native: &str, providers: &mut ProviderIndex) {
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key == name).then(|| value.trim())
            })
        };
        if let (Some(name), Some(architecture), Some(provides)) =
            (field("Package"), field("Architecture"), field("Provides"))
        {
            add_provider(providers, &apt_name(name, architecture, native), provides);
        }
    }
}

/// Adds a package for each name in its field `Provides`: `NAME (= VERSION), NAME:any, …`.
fn add_provider(index: &mut ProviderIndex, package: &str, provides: &str) {
    let names = provides
        .split(',')
        .filter_map(|one| one.split([' ', '(', ':']).find(|name| !name.is_empty()));
    for name in names {
        index.entry(name.to_owned()).or_default().insert(package.to_owned());
    }
}

/// The packages that a name of a policy stands for: the package itself if it is installed or would
/// be, otherwise the packages that provide it. Empty if there are none.
pub fn resolve_requirement<'a>(
    name: &'a str,
    observed: &'a PackageObservation,
    installed: &InstalledPackages<'_>,
) -> Vec<&'a str> {
    let name = strip_native_architecture(name, &observed.native_architecture);
    if observed.simulation.install(name).is_some() || installed.contains_key(name) {
        return vec![name];
    }
    observed.providers.get(name).into_iter().flatten().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provided_names_are_read_from_dpkg_and_apt() {
        let mut providers = ProviderIndex::new();
        let installed = "exim4\tall\tinstalled\tmail-transport-agent, smtp (= 1.0)\n\
                         postfix\tamd64\tconfig-files\tmail-transport-agent\n\
                         libx\ti386\tinstalled\tlibx-abi-2:any\n\
                         plain\tall\tinstalled\t\n";
        parse_installed(installed, "amd64", &mut providers);
        let available = "Package: nullmailer\nArchitecture: amd64\nVersion: 1\n\
                         Provides: mail-transport-agent\nDescription: Provides: x\n\n\
                         Package: other\nArchitecture: all\n";
        parse_available(available, "amd64", &mut providers);
        let found: Vec<String> = providers
            .iter()
            .map(|(name, all)| {
                format!("{name}: {}", all.iter().cloned().collect::<Vec<_>>().join(" "))
            })
            .collect();
        assert_eq!(
            found,
            ["libx-abi-2: libx:i386", "mail-transport-agent: exim4 nullmailer", "smtp: exim4"]
        );
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn provided_names_are_single_words() {
        let samples = [
            "exim4\tall\tinstalled\tmail-transport-agent, smtp (= 1.0)\nlibx\ti386\tinstalled\tlibx-abi-2:any\n",
            "Package: nullmailer\nArchitecture: amd64\nProvides: mail-transport-agent, x (= 1)\n\nPackage: other\n",
        ];
        fuzz("Provides", |rng| {
            let output = text(rng, &samples, " \n\t,:()=.-0123456789ab");
            let mut providers = ProviderIndex::new();
            parse_installed(&output, "amd64", &mut providers);
            parse_available(&output, "amd64", &mut providers);
            assert!(providers.keys().all(|name| !name.contains([' ', '(', ':', ',', '\n'])));
            assert!(providers.values().all(|packages| !packages.is_empty()));
        });
    }
}
