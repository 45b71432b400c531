//! Estimates what a filter costs the database for each listed resource.

use super::check::METADATA;
use super::{Edge, EdgePath, FieldCondition, FieldKind, FieldTest, Filter, LabelCondition};

/// A comparison with a column of the listed resource.
const COMPARISON_COST: usize = 1;

/// The search for a text, in addition to [`COMPARISON_COST`]; each further piece of the pattern costs one more.
const PATTERN_COST: usize = 1;

/// The search for a label: about 0.4 µs.
const LABEL_COST: usize = 5;

/// The search for a text in all labels.
const LABELS_AS_TEXT_COST: usize = 8;

/// Another table.
const EDGE_COST: usize = 4;

/// Another table with several rows for one resource.
const MANY_EDGE_COST: usize = 8;

/// A negation.
const NEGATION_COST: usize = 1;

impl Filter {
    /// Maximum cost of a filter that is parsed. The unit is a comparison with a column. A list of 100,000 hosts with such
    /// a filter takes about a second.
    pub const MAX_COST: usize = 100;

    /// Cost from which a filter is expensive: a list of 100,000 hosts with it takes about a fifth of a second. Many such
    /// lists at once would use all processors of the database.
    pub const EXPENSIVE_COST: usize = 20;

    /// The cost for each resource of the list, in comparisons. Ids behind the same path, of which one must match, are
    /// compared at once.
    #[must_use]
    pub fn cost(&self) -> usize {
        match self {
            Self::All(parts) => parts.iter().map(Self::cost).sum(),
            Self::Any(parts) => {
                let (mut cost, mut compared) = (0, Vec::new());
                for part in parts {
                    match part.compared_id() {
                        Some(id) if compared.contains(&id) => {}
                        Some(id) => {
                            compared.push(id);
                            cost += part.cost();
                        }
                        None => cost += part.cost(),
                    }
                }
                cost
            }
            Self::Not(inner) => NEGATION_COST + inner.cost(),
            Self::Test(test) => match (self.compared_id(), test.path.as_slice()) {
                // An id behind one edge is a foreign key.
                (Some(_), [before @ .., last]) if !last.many => COMPARISON_COST + path_cost(before),
                (_, path) => path_cost(path) + test_cost(test),
            },
            Self::Exists(path) => COMPARISON_COST + path_cost(path),
            Self::Label { path, condition, .. } => {
                let searches = match condition {
                    LabelCondition::Present | LabelCondition::Is(_) => 1,
                    LabelCondition::IsNot(_) => 2,
                };
                path_cost(path) + searches * LABEL_COST
            }
        }
    }

    /// The path and the name of the id, if the filter compares nothing but an id.
    fn compared_id(&self) -> Option<(&EdgePath, &'static str)> {
        let Self::Test(FieldTest { path, field, condition }) = self else {
            return None;
        };
        let is_id = matches!(field.kind, FieldKind::Id(_))
            && match condition {
                FieldCondition::Exactly(_) => true,
                FieldCondition::Contains(pattern) => pattern.pieces().len() == 1,
                _ => false,
            };
        is_id.then_some((path, field.name))
    }
}

fn path_cost(path: &[&'static Edge]) -> usize {
    let cost = |edge: &&Edge| if edge.many { MANY_EDGE_COST } else { EDGE_COST };
    path.iter().map(cost).sum()
}

fn test_cost(test: &FieldTest) -> usize {
    match &test.condition {
        FieldCondition::Contains(_) if test.field.name == METADATA => LABELS_AS_TEXT_COST,
        FieldCondition::Contains(pattern) => {
            COMPARISON_COST + PATTERN_COST * pattern.pieces().len()
        }
        _ => COMPARISON_COST,
    }
}
