//! Kinds of changed resources, and what happened to them.

/// The kind of a changed resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// A project itself.
    Project,
    /// The settings of a project.
    Settings,
    Host,
    /// An instance, or a report of its node.
    Instance,
    /// An OS profile.
    Os,
    /// An update policy.
    Policy,
    /// An assignment of a policy.
    Assignment,
    /// A single schedule.
    Single,
    /// A repeated schedule.
    Repeated,
    Run,
    Region,
    Site,
    Pause,
    /// An order to update now or not to update.
    Order,
    /// A slot of an assignment.
    Slot,
    /// A resource that does not affect decisions.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Created.
    Insert,
    /// Changed.
    Update,
    Delete,
}

impl ChangeKind {
    /// The kind that the triggers of the migrations write.
    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "project" => Self::Project,
            "project_settings" => Self::Settings,
            "host" => Self::Host,
            "instance" => Self::Instance,
            "os" => Self::Os,
            "policy" => Self::Policy,
            "assignment" => Self::Assignment,
            "single_schedule" => Self::Single,
            "repeated_schedule" => Self::Repeated,
            "run" => Self::Run,
            "region" => Self::Region,
            "site" => Self::Site,
            "pause" => Self::Pause,
            "update_order" => Self::Order,
            "slot" => Self::Slot,
            _ => Self::Other,
        }
    }
}

impl Operation {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "insert" => Some(Self::Insert),
            "update" => Some(Self::Update),
            "delete" => Some(Self::Delete),
            _ => None,
        }
    }
}
