//! Trees as text.

use crate::page::Cell;

/// A node of a tree.
#[derive(Clone, Debug, Default)]
pub struct Branch {
    /// Text of the node.
    pub cells: Vec<Cell>,
    /// Children of the node.
    pub children: Vec<Branch>,
}

impl Branch {
    /// The lines of trees: the line drawing, and the text of the node.
    pub fn lines(roots: &[Self]) -> Vec<(String, &[Cell])> {
        let mut lines = Vec::new();
        for root in roots {
            lines.push((String::new(), root.cells.as_slice()));
            root.add_inner("", &mut lines);
        }
        lines
    }

    fn add_inner<'a>(&'a self, before: &str, lines: &mut Vec<(String, &'a [Cell])>) {
        let last = self.children.len().saturating_sub(1);
        for (at, branch) in self.children.iter().enumerate() {
            let (fork, below) =
                if at == last { ("└── ", "    ") } else { ("├── ", "│   ") };
            lines.push((format!("{before}{fork}"), branch.cells.as_slice()));
            branch.add_inner(&format!("{before}{below}"), lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(name: &str, inner: Vec<Branch>) -> Branch {
        Branch { cells: vec![name.into()], children: inner }
    }

    #[test]
    fn children_are_indented_below_their_parent() {
        let south = branch("south", vec![branch("ulm", Vec::new())]);
        let tree =
            [branch("emea", vec![south, branch("bonn", Vec::new())]), branch("apac", Vec::new())];
        let lines = Branch::lines(&tree);
        let before: Vec<_> = lines.iter().map(|(before, _)| before.as_str()).collect();
        assert_eq!(before, ["", "├── ", "│   └── ", "└── ", ""]);
        assert_eq!(lines[2].1, [Cell::from("ulm")]);
    }
}
