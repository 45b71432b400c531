//! Every other node disconnects, and all of them come back together.

/// Presence of the nodes of a driver.
#[derive(Clone, Debug, Default)]
pub struct ReturningNodes {
    /// Presence by index; empty before the first disconnection.
    presence: Vec<Presence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// The node never disconnected.
    Present,
    Away,
    /// The node came back, and waits for an answer.
    Back,
    /// The node came back, and was answered.
    Answered,
}

impl ReturningNodes {
    /// Marks every other node as away. Returns their indices.
    pub fn disconnect_half(&mut self, nodes: usize) -> Vec<usize> {
        let state = |index: usize| match index % 2 {
            0 => Presence::Present,
            _ => Presence::Away,
        };
        self.presence = (0..nodes).map(state).collect();
        self.indices_with(Presence::Away)
    }

    /// Marks the nodes that are away as back. Returns their indices.
    pub fn reconnect(&mut self) -> Vec<usize> {
        let indices = self.indices_with(Presence::Away);
        for state in &mut self.presence {
            if *state == Presence::Away {
                *state = Presence::Back;
            }
        }
        indices
    }

    /// Whether a node is disconnected.
    pub fn is_away(&self, index: usize) -> bool {
        self.presence_of(index) == Presence::Away
    }

    /// Whether a node came back.
    pub fn is_back(&self, index: usize) -> bool {
        matches!(self.presence_of(index), Presence::Back | Presence::Answered)
    }

    /// Records an answer to a node. Returns whether it is the first one since the node came back.
    pub fn record_answer(&mut self, index: usize) -> bool {
        let state = self.presence.get_mut(index);
        let Some(state) = state.filter(|state| **state == Presence::Back) else {
            return false;
        };
        *state = Presence::Answered;
        true
    }

    fn presence_of(&self, index: usize) -> Presence {
        self.presence.get(index).copied().unwrap_or(Presence::Present)
    }

    fn indices_with(&self, presence: Presence) -> Vec<usize> {
        let all = self.presence.iter().enumerate();
        let matching = all.filter(|(_, stand)| **stand == presence);
        matching.map(|(index, _)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_node_disconnects_and_is_counted_once_when_it_is_answered_again() {
        let mut returning_nodes = ReturningNodes::default();
        assert!(!returning_nodes.is_away(1) && !returning_nodes.is_back(1));
        assert_eq!(returning_nodes.disconnect_half(5), [1, 3]);
        assert!(returning_nodes.is_away(3) && !returning_nodes.is_away(2));
        assert!(!returning_nodes.record_answer(3), "the last answer of an earlier call");
        assert_eq!(returning_nodes.reconnect(), [1, 3]);
        assert!(
            returning_nodes.is_back(3)
                && !returning_nodes.is_away(3)
                && !returning_nodes.is_back(2)
        );
        assert!(!returning_nodes.record_answer(2), "the node never disconnected");
        assert!(
            returning_nodes.record_answer(3) && !returning_nodes.record_answer(3),
            "only the first answer counts"
        );
        assert!(returning_nodes.is_back(3), "the node stays a returned one");
    }

    #[test]
    fn a_single_node_does_not_disconnect() {
        assert!(ReturningNodes::default().disconnect_half(1).is_empty());
    }
}
