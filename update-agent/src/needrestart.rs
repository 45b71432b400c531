//! needrestart, which restarts services after updates that people make with apt.

use crate::paths::AgentPaths;

/// The program.
pub const NEEDRESTART: &str = "/usr/sbin/needrestart";

/// What changes for a machine with needrestart when the agent updates it: the [`runner`](crate::runner)
/// sets `NEEDRESTART_SUSPEND`.
pub const NEEDRESTART_NOTE: &str = "needrestart restarts no services during updates of the agent; the agent restarts \
                                    them instead, if the policy has `--restart-services`, except those that the \
                                    configuration of needrestart excludes";

/// Whether needrestart is installed.
pub fn has_needrestart(paths: &AgentPaths) -> bool {
    paths.inside(NEEDRESTART).is_file()
}
