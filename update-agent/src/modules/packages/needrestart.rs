//! Services that an update does not restart: those that needrestart excludes where it is installed, otherwise a list of the
//! agent.

use std::collections::BTreeSet;

use super::apt::PackageTools;
use super::rules::matches_pattern;
use crate::model::Failure;
use crate::needrestart::has_needrestart;
use crate::paths::AgentPaths;
use crate::runner::Command;

/// Remains when the package is removed.
const NEEDRESTART_CONFIG: &str = "/etc/needrestart/needrestart.conf";

/// Prints those of the given services that needrestart would not restart by itself: the first matching entry of
/// `override_rc` in the order of the patterns decides, and `blacklist_rc` excludes.
///
/// The configuration is a Perl program, which also loads `conf.d`, so only Perl can read it, as needrestart does.
/// `needrestart -b` is no replacement: it lists the services of `override_rc` like all others, and only those that it
/// has found to be stale itself.
const PRINT_EXCLUDED: &str = r#"
our %nrconf = (verbosity => 0, defno => 0, blacklist_rc => [], override_rc => {});
our $LOGPREF = '[main]';
my $file = shift;
eval do { local (@ARGV, $/) = $file; <> };
die $@ if $@;
for my $name (@ARGV) {
    my $restart = !$nrconf{defno};
    for my $pattern (sort keys %{$nrconf{override_rc}}) {
        next unless $name =~ /$pattern/;
        $restart = $nrconf{override_rc}->{$pattern};
        last;
    }
    $restart = 0 if grep { $name =~ /$_/ } @{$nrconf{blacklist_rc}};
    print "$name\n" unless $restart;
}
"#;

/// Services whose restart would end the agent or the sessions of users, whatever needrestart says.
const NEVER_RESTARTED: [&str; 3] = ["evenkeel-agent*", "user@*", "session-*"];

/// Services that are not restarted if needrestart is not installed: a restart would take down users, the network,
/// containers or virtual machines, or start a job again that runs once.
const EXCLUDED_BY_DEFAULT: [&str; 66] = [
    // The message bus, logins, terminals and screens.
    "dbus*",
    "systemd-logind*",
    "elogind*",
    "getty@*",
    "serial-getty@*",
    "console-getty*",
    "container-getty@*",
    "autovt@*",
    "display-manager*",
    "gdm*",
    "greetd*",
    "kdm*",
    "lightdm*",
    "lxdm*",
    "nodm*",
    "sddm*",
    "slim*",
    "wdm*",
    "xdm*",
    // The network.
    "network*",
    "NetworkManager*",
    "ModemManager*",
    "wpa_supplicant*",
    "iwd*",
    "hostapd*",
    "ifup@*",
    "connman*",
    "dhcpcd*",
    "wg-quick@*",
    "wicked*",
    "openvpn*",
    "openconnect*",
    "xl2tpd*",
    "ppp*",
    "tinc*",
    "strongswan*",
    "libreswan*",
    "openswan*",
    "freeswan*",
    "ipsec*",
    "bird*",
    "quagga*",
    "frr*",
    "bluetooth*",
    // Containers, virtual machines and file systems.
    "docker*",
    "containerd*",
    "podman*",
    "crio*",
    "k3s*",
    "lxc*",
    "lxd*",
    "incus*",
    "libvirt*",
    "virtlogd*",
    "virtlockd*",
    "virtqemud*",
    "xendomains*",
    "zfs-fuse*",
    "mythtv-backend*",
    // Jobs that run once.
    "emergency.service",
    "rescue.service",
    "rc-local.service",
    "apt-daily*",
    "unattended-upgrades*",
    "packagekit*",
    "cron-*",
];

impl PackageTools {
    /// Those of the services that must not be restarted.
    pub(super) async fn find_excluded_services(
        &self,
        paths: &AgentPaths,
        names: &[&String],
    ) -> BTreeSet<String> {
        let mut excluded = match self.find_needrestart_exclusions(paths, names).await {
            Ok(Some(excluded)) => excluded,
            Ok(None) => matching_names(&EXCLUDED_BY_DEFAULT, names),
            Err(failure) => {
                tracing::warn!(error = %failure, "cannot use the configuration of needrestart; the agent uses its own list");
                matching_names(&EXCLUDED_BY_DEFAULT, names)
            }
        };
        excluded.extend(matching_names(&NEVER_RESTARTED, names));
        excluded
    }

    /// The services that needrestart excludes; `None` if it is not installed.
    async fn find_needrestart_exclusions(
        &self,
        paths: &AgentPaths,
        names: &[&String],
    ) -> Result<Option<BTreeSet<String>>, Failure> {
        let is_installed = has_needrestart(paths) && paths.inside(NEEDRESTART_CONFIG).is_file();
        if !is_installed || names.is_empty() {
            return Ok(None);
        }
        let command = Command::new("perl", self.timeouts().query)
            .with_arguments(["-e", PRINT_EXCLUDED, "--", NEEDRESTART_CONFIG])
            .with_arguments(names.iter().map(|name| name.as_str()));
        let output = self.run_for_stdout(&command, "the configuration of needrestart").await?;
        Ok(Some(output.lines().map(str::to_owned).collect()))
    }
}

fn matching_names(patterns: &[&str], names: &[&String]) -> BTreeSet<String> {
    let is_match = |name: &str| patterns.iter().any(|pattern| matches_pattern(pattern, name));
    names.iter().filter(|name| is_match(name.as_str())).map(|name| (*name).clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::modules::packages::apt::PackageToolTimeouts;
    use crate::needrestart::NEEDRESTART;
    use crate::runner::{HostRunner, Output, RunError, Runner};

    /// Runs Perl of this machine with the files of another root.
    struct OtherRoot(std::path::PathBuf);

    #[async_trait::async_trait]
    impl Runner for OtherRoot {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            let mut command = command.clone();
            for argument in &mut command.arguments {
                if argument == NEEDRESTART_CONFIG {
                    *argument = self.0.join(&argument[1..]).display().to_string();
                }
            }
            HostRunner::new(Path::new("/")).run(&command).await
        }
    }

    /// The excluded ones of some services, on a machine with this configuration of needrestart.
    async fn excluded(config: Option<&str>, names: &[&str]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        if let Some(config) = config {
            for (file, text) in [(NEEDRESTART, ""), (NEEDRESTART_CONFIG, config)] {
                let path = root.path().join(&file[1..]);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
        }
        let minute = Duration::from_mins(1);
        let timeouts = PackageToolTimeouts {
            query: minute,
            refresh: minute,
            download: minute,
            apply: minute,
            lock: minute,
        };
        let tools = PackageTools::new(Arc::new(OtherRoot(root.path().to_owned())), timeouts);
        let paths = AgentPaths::new(root.path(), None);
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let names: Vec<&String> = names.iter().collect();
        tools.find_excluded_services(&paths, &names).await.into_iter().collect()
    }

    #[tokio::test]
    async fn without_needrestart_nothing_that_users_or_the_network_need_is_restarted() {
        let needed = [
            "ModemManager.service",
            "NetworkManager.service",
            "apt-daily-upgrade.service",
            "bird.service",
            "containerd.service",
            "cron-daily.service",
            "dbus-broker.service",
            "dbus.service",
            "evenkeel-agent.service",
            "frr.service",
            "gdm3.service",
            "getty@tty1.service",
            "libvirtd.service",
            "networking.service",
            "openvpn@office.service",
            "strongswan-starter.service",
            "systemd-logind.service",
            "unattended-upgrades.service",
            "user@1000.service",
            "virtlogd.service",
            "wpa_supplicant.service",
        ];
        assert_eq!(excluded(None, &needed).await, needed);
        let others = ["ssh.service", "cron.service", "systemd-journald.service", "nginx.service"];
        assert_eq!(excluded(None, &others).await, [""; 0]);
    }

    #[tokio::test]
    async fn the_configuration_of_needrestart_decides_where_it_is_installed() {
        let config = "
            $nrconf{override_rc} = { qr(^dbus) => 0, qr(^ssh) => 0 };
            $nrconf{override_rc}->{qr(^postgresql)} = 0;
            $nrconf{override_rc}->{qr(^ssh)} = 1;
            push(@{$nrconf{blacklist_rc}}, qr(^cups));
        ";
        let names = [
            "NetworkManager.service",
            "cups.service",
            "dbus.service",
            "postgresql@15-main.service",
            "ssh.service",
            "user@0.service",
        ];
        assert_eq!(
            excluded(Some(config), &names).await,
            ["cups.service", "dbus.service", "postgresql@15-main.service", "user@0.service"]
        );
        let none_by_default = "$nrconf{defno} = 1; $nrconf{override_rc} = { qr(^cron) => 1 };";
        let names = ["cron.service", "ssh.service"];
        assert_eq!(excluded(Some(none_by_default), &names).await, ["ssh.service"]);
    }

    #[tokio::test]
    async fn an_invalid_configuration_of_needrestart_is_replaced_by_the_own_list() {
        let names = ["NetworkManager.service", "ssh.service"];
        assert_eq!(excluded(Some("$nrconf{"), &names).await, ["NetworkManager.service"]);
    }
}
