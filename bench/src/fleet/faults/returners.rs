//! Every other node: they leave together, and come back together.

/// Where the nodes of a driver are.
#[derive(Clone, Debug, Default)]
pub struct Returners {
    /// By place; empty if nobody ever left.
    stands: Vec<Stand>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// It never left.
    Here,
    Away,
    /// It came back, and waits for an answer.
    Back,
    /// It came back, and was answered.
    Answered,
}

impl Returners {
    /// Every other one of so many nodes leaves. Returns their places.
    pub fn leave(&mut self, nodes: usize) -> Vec<usize> {
        let stand = |place: usize| match place % 2 {
            0 => Stand::Here,
            _ => Stand::Away,
        };
        self.stands = (0..nodes).map(stand).collect();
        self.places(Stand::Away)
    }

    /// Those that are away come back. Returns their places.
    pub fn come_back(&mut self) -> Vec<usize> {
        let places = self.places(Stand::Away);
        for stand in &mut self.stands {
            if *stand == Stand::Away {
                *stand = Stand::Back;
            }
        }
        places
    }

    /// Whether a node is away.
    pub fn is_away(&self, place: usize) -> bool {
        self.stand(place) == Stand::Away
    }

    /// Whether a node came back.
    pub fn is_back(&self, place: usize) -> bool {
        matches!(self.stand(place), Stand::Back | Stand::Answered)
    }

    /// A node was answered. Returns whether it waited for that since it came back.
    pub fn answered(&mut self, place: usize) -> bool {
        let stand = self.stands.get_mut(place);
        let Some(stand) = stand.filter(|stand| **stand == Stand::Back) else {
            return false;
        };
        *stand = Stand::Answered;
        true
    }

    fn stand(&self, place: usize) -> Stand {
        self.stands.get(place).copied().unwrap_or(Stand::Here)
    }

    fn places(&self, wanted: Stand) -> Vec<usize> {
        let all = self.stands.iter().enumerate();
        let those = all.filter(|(_, stand)| **stand == wanted);
        those.map(|(place, _)| place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_nodes_leave_and_each_is_back_once_it_is_answered() {
        let mut returners = Returners::default();
        assert!(!returners.is_away(1) && !returners.is_back(1));
        assert_eq!(returners.leave(5), [1, 3]);
        assert!(returners.is_away(3) && !returners.is_away(2));
        assert!(!returners.answered(3), "a last answer from before");
        assert_eq!(returners.come_back(), [1, 3]);
        assert!(returners.is_back(3) && !returners.is_away(3) && !returners.is_back(2));
        assert!(!returners.answered(2), "it never left");
        assert!(returners.answered(3) && !returners.answered(3), "once");
        assert!(returners.is_back(3), "it stays one of them");
    }

    #[test]
    fn nobody_leaves_where_there_is_only_one() {
        assert!(Returners::default().leave(1).is_empty());
    }
}
