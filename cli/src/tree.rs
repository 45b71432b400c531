//! Trees, for people.

use crate::view::Cell;

/// A thing with what is in it.
#[derive(Clone, Debug, Default)]
pub struct Branch {
    /// What is shown of it.
    pub words: Vec<Cell>,
    /// What is in it.
    pub inner: Vec<Branch>,
}

impl Branch {
    /// The lines of trees: what stands before the words, and the words.
    pub fn lines(roots: &[Self]) -> Vec<(String, &[Cell])> {
        let mut lines = Vec::new();
        for root in roots {
            lines.push((String::new(), root.words.as_slice()));
            root.add_inner("", &mut lines);
        }
        lines
    }

    fn add_inner<'a>(&'a self, before: &str, lines: &mut Vec<(String, &'a [Cell])>) {
        let last = self.inner.len().saturating_sub(1);
        for (at, branch) in self.inner.iter().enumerate() {
            let (fork, below) = if at == last {
                ("└── ", "    ")
            } else {
                ("├── ", "│   ")
            };
            lines.push((format!("{before}{fork}"), branch.words.as_slice()));
            branch.add_inner(&format!("{before}{below}"), lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(name: &str, inner: Vec<Branch>) -> Branch {
        Branch {
            words: vec![name.into()],
            inner,
        }
    }

    #[test]
    fn what_is_in_a_thing_hangs_below_it() {
        let south = branch("south", vec![branch("ulm", Vec::new())]);
        let tree = [
            branch("emea", vec![south, branch("bonn", Vec::new())]),
            branch("apac", Vec::new()),
        ];
        let lines = Branch::lines(&tree);
        let before: Vec<_> = lines.iter().map(|(before, _)| before.as_str()).collect();
        assert_eq!(before, ["", "├── ", "│   └── ", "└── ", ""]);
        assert_eq!(lines[2].1, [Cell::from("ulm")]);
    }
}
