//! Checks whether the server can be reached, is authentic, accepts the node, and has the same time.

use chrono::TimeDelta;

use super::DoctorFinding;
use super::setup::check_certificates;
use crate::agent::clock_warning;
use crate::link::LinkError;
use crate::module_registry::ModuleRegistry;
use crate::node::Node;
use crate::status;

/// Calls the server once, as the agent does. Another check fails for a machine that is not enrolled
/// or has no usable certificate, and for an invalid proxy.
pub async fn check_server(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let Ok(node) = Node::load(registry.paths) else {
        return Vec::new();
    };
    if check_certificates(registry).is_err() || registry.config.proxy().is_err() {
        return Vec::new();
    }
    let link = match registry.connect(&node) {
        Ok(link) => link,
        Err(error) => {
            return vec![DoctorFinding::failed(
                "server",
                format!("{error:#}"),
                "fix the reported problem, or enrol again",
            )];
        }
    };
    match link.probe().await {
        Ok(now) => {
            let good = format!("{} answers, is authentic and accepts this node", node.server);
            let ahead = now.map(|server| registry.clock.now() - server);
            vec![DoctorFinding::passed("server", good), check_clock(ahead)]
        }
        Err(error) => {
            let last = status::read_status(&registry.paths.status()).unwrap_or_default();
            let ahead = last.clock_ahead_seconds.and_then(TimeDelta::try_seconds);
            vec![
                DoctorFinding::failed("server", error.to_string(), connection_advice(&error)),
                check_clock(ahead),
            ]
        }
    }
}

fn connection_advice(error: &LinkError) -> &'static str {
    match error {
        LinkError::Unavailable(text) if text.contains("certificate") => {
            "the server's certificate is refused: if its CA was replaced, enrol again with a new join token; if the \
             certificate is expired or not valid yet, check the clocks of both machines"
        }
        LinkError::Unavailable(_) => {
            "check the network, DNS, the firewall and `proxy` in the configuration; a prepared update starts without the \
             server if there is an offline grant"
        }
        LinkError::Busy { .. } => {
            "the server is overloaded: try again later, and check the server if this persists"
        }
        LinkError::Unauthenticated(_) => {
            "the agent renews an expired certificate at its next contact: check that it runs. If `evenkeel-agent status` \
             shows that the certificate is not renewed, enrol again with a new join token"
        }
        LinkError::Denied(_) => {
            "the server does not trust or know this host: ask its operator why. To use the machine again, delete its host \
             on the server if there is one, and enrol again with a new join token"
        }
        LinkError::Refused(_) | LinkError::InvalidAnswer(_) => {
            "the versions of agent and server may be incompatible: update the older one"
        }
        LinkError::Setup(_) => "enrol again",
    }
}

fn check_clock(ahead: Option<TimeDelta>) -> DoctorFinding {
    match ahead {
        None => DoctorFinding::warning("clock", "cannot be compared with the server's", ""),
        Some(ahead) => match clock_warning(ahead) {
            None => DoctorFinding::passed("clock", "agrees with the server's"),
            Some(warning) => DoctorFinding::failed("clock", warning, ""),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::CheckOutcome;

    #[test]
    fn a_wrong_clock_fails_and_an_unknown_one_is_a_warning() {
        assert_eq!(check_clock(None).outcome, CheckOutcome::Warning);
        assert_eq!(check_clock(Some(TimeDelta::seconds(3))).outcome, CheckOutcome::Passed);
        assert_eq!(check_clock(Some(TimeDelta::hours(-3))).outcome, CheckOutcome::Failed);
    }

    #[test]
    fn an_expired_certificate_of_the_node_is_left_to_the_agent() {
        let expired = LinkError::Unauthenticated("the certificate expired".into());
        assert!(connection_advice(&expired).contains("renews an expired certificate"));
        let invalidated = LinkError::Denied("the host is not trusted".into());
        assert!(connection_advice(&invalidated).contains("enrol again"));
    }

    #[test]
    fn a_rejected_certificate_differs_from_a_network_failure() {
        let refused = LinkError::Unavailable("invalid peer certificate: Expired".into());
        assert!(connection_advice(&refused).contains("clocks"));
        let down = LinkError::Unavailable("connection refused".into());
        assert!(connection_advice(&down).contains("network"));
    }
}
