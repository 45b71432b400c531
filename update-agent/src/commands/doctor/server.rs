//! Whether the server can be reached, proves itself, accepts the node, and has the same time.

use chrono::TimeDelta;

use super::Finding;
use crate::agent::of_clock;
use crate::commands::run;
use crate::commands::workshop::Workshop;
use crate::link::LinkError;
use crate::node::Node;
use crate::status;

/// Speaks to the server once, as the agent does. A machine that is not enrolled has none: that is another finding.
pub async fn look(workshop: &Workshop<'_>) -> Vec<Finding> {
    let Ok(node) = Node::load(workshop.place) else {
        return Vec::new();
    };
    let link = match run::link(workshop, &node) {
        Ok(link) => link,
        Err(error) => {
            return vec![Finding::bad(
                "server",
                format!("{error:#}"),
                "mend what is named, or enrol again",
            )];
        }
    };
    match link.probe().await {
        Ok(now) => {
            let good = format!("{} answers, proves itself and knows this node", node.server);
            let ahead = now.map(|server| workshop.clock.now() - server);
            vec![Finding::good("server", good), clock(ahead)]
        }
        Err(error) => {
            let last = status::read(&workshop.place.status()).unwrap_or_default();
            let ahead = last.clock_ahead_seconds.and_then(TimeDelta::try_seconds);
            vec![
                Finding::bad("server", error.to_string(), advice(&error)),
                clock(ahead),
            ]
        }
    }
}

fn advice(error: &LinkError) -> &'static str {
    match error {
        LinkError::Unavailable(text) if text.contains("certificate") => {
            "the server's certificate is refused: if its authority was replaced, enrol again with a new join token; if \
             it is expired or not valid yet, look at the clocks of both"
        }
        LinkError::Unavailable(_) => {
            "look at the network, the name service, the firewall and `proxy` in the configuration; what is prepared \
             begins without the server if it gave leave ahead"
        }
        LinkError::Busy { .. } => "wait a while, and look at the server if it lasts",
        LinkError::Denied(_) => {
            "the credential is not accepted: enrol again, and ask who runs the server whether this host is still trusted"
        }
        LinkError::Refused(_) | LinkError::Nonsense(_) => {
            "agent and server may be too far apart: update the older one"
        }
        LinkError::Setup(_) => "enrol again",
    }
}

fn clock(ahead: Option<TimeDelta>) -> Finding {
    match ahead {
        None => Finding::doubtful("clock", "cannot be compared with the server's", ""),
        Some(ahead) => match of_clock(ahead) {
            None => Finding::good("clock", "agrees with the server's"),
            Some(trouble) => Finding::bad("clock", trouble, ""),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Outcome;

    #[test]
    fn a_clock_that_is_wrong_is_bad_and_one_that_nobody_knows_is_noted() {
        assert_eq!(clock(None).outcome, Outcome::Doubtful);
        assert_eq!(clock(Some(TimeDelta::seconds(3))).outcome, Outcome::Good);
        assert_eq!(clock(Some(TimeDelta::hours(-3))).outcome, Outcome::Bad);
    }

    #[test]
    fn a_certificate_that_is_refused_is_told_from_a_network_that_is_down() {
        let refused = LinkError::Unavailable("invalid peer certificate: Expired".into());
        assert!(advice(&refused).contains("clocks"));
        let down = LinkError::Unavailable("connection refused".into());
        assert!(advice(&down).contains("network"));
    }
}
