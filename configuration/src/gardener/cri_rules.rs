//! Gardener's rules of the section for containerd. The product does not offer the section, but a
//! wrong one is invalid first.

use std::collections::BTreeSet;

use super::manifest::{ContainerdConfig, CriConfig, PluginConfig, RegistryConfig, RegistryHost};
use super::rules::{Findings, is_dns_subdomain};
use crate::validation::excerpt;
use crate::yaml::Node;

/// Names of `spec.criConfig`.
pub(super) const NAMES: &[&str] = &["containerd"];

/// Names of `spec.cri`, which releases before the node agent had.
pub(super) const OLD_NAMES: &[&str] = &["containerd", "docker"];

/// Checks a section and its name.
pub(super) fn check(
    path: &str,
    cri: &CriConfig,
    names: &[&str],
    purpose: Option<&str>,
    findings: &mut Findings<'_>,
) {
    if let Some(name) = findings.require(path, "name", cri.name.as_deref()) {
        findings.require_one_of(&format!("{path}.name"), name, names);
    }
    if let Some(driver) = cri.cgroup_driver.as_deref() {
        let accepted = ["cgroupfs", "systemd"];
        findings.require_one_of(&format!("{path}.cgroupDriver"), driver, &accepted);
    }
    let Some(containerd) = &cri.containerd else {
        return;
    };
    let path = format!("{path}.containerd");
    if purpose == Some("provision") {
        findings.add(path, "forbidden: a resource of purpose provision does not set up containerd");
        return;
    }
    check_containerd(&path, containerd, findings);
}

fn check_containerd(path: &str, containerd: &ContainerdConfig, findings: &mut Findings<'_>) {
    findings.require(path, "sandboxImage", containerd.sandbox_image.as_deref());
    let mut upstreams = BTreeSet::new();
    for (index, registry) in containerd.registries.iter().enumerate() {
        let path = format!("{path}.registries[{index}]");
        let upstream = registry.upstream.as_deref().unwrap_or_default();
        if !upstreams.insert(upstream) {
            let message =
                format!("duplicate: another registry has the upstream {}", excerpt(upstream));
            findings.add(format!("{path}.upstream"), message);
        }
        check_registry(&path, registry, findings);
    }
    for (index, plugin) in containerd.plugins.iter().enumerate() {
        check_plugin(&format!("{path}.plugins[{index}]"), plugin, findings);
    }
}

fn check_registry(path: &str, registry: &RegistryConfig, findings: &mut Findings<'_>) {
    if let Some(upstream) = findings.require(path, "upstream", registry.upstream.as_deref())
        && upstream != "_default"
        && !is_host_with_port(upstream)
    {
        let message = format!("invalid: {} is neither host[:port] nor _default", excerpt(upstream));
        findings.add(format!("{path}.upstream"), message);
    }
    if let Some(server) = registry.server.as_deref() {
        check_url(&format!("{path}.server"), server, &["http", "https"], findings);
    }
    for (index, host) in registry.hosts.iter().enumerate() {
        check_host(&format!("{path}.hosts[{index}]"), host, findings);
    }
}

fn check_host(path: &str, host: &RegistryHost, findings: &mut Findings<'_>) {
    if let Some(url) = findings.require(path, "url", host.url.as_deref()) {
        // Gardener accepts every scheme of a host.
        check_url(&format!("{path}.url"), url, &[], findings);
    }
    for (index, capability) in host.capabilities.iter().enumerate() {
        let path = format!("{path}.capabilities[{index}]");
        findings.require_one_of(&path, capability, &["pull", "push", "resolve"]);
    }
}

fn check_plugin(path: &str, plugin: &PluginConfig, findings: &mut Findings<'_>) {
    let operation = plugin.op.as_deref().unwrap_or("add");
    findings.require_one_of(&format!("{path}.op"), operation, &["add", "remove"]);
    if plugin.path.is_empty() {
        findings.add(format!("{path}.path"), "required: the list is absent or empty");
    }
    match &plugin.values {
        Some(_) if operation == "remove" => {
            let message = "forbidden: the operation remove has no values";
            findings.add(format!("{path}.values"), message);
        }
        Some(values) if !matches!(values, Node::Map(_)) => {
            findings.add(format!("{path}.values"), "invalid: write a mapping");
        }
        _ => {}
    }
}

/// Checks an address. No schemes mean that each one is accepted.
fn check_url(path: &str, url: &str, schemes: &[&str], findings: &mut Findings<'_>) {
    let is_valid = url.split_once("://").is_some_and(|(scheme, rest)| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        (schemes.is_empty() || schemes.contains(&scheme))
            && !authority.is_empty()
            && !authority.starts_with(':')
            && !url.contains(|c: char| c.is_whitespace() || c.is_control())
    });
    if !is_valid {
        findings
            .add(path, format!("invalid: {} is not of the form https://host[:port]", excerpt(url)));
    }
}

fn is_host_with_port(text: &str) -> bool {
    match text.rsplit_once(':') {
        None => is_dns_subdomain(text),
        Some((host, port)) => {
            let is_number =
                port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
            is_dns_subdomain(host) && is_number && port.parse::<u16>().is_ok()
        }
    }
}
