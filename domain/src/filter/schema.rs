//! The resources, fields and edges that filters can use.

mod edges;
mod enumerations;
mod fields;
mod references;
mod suggestions;

/// A resource in filters: a listed one or one that is related to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    Region,
    /// A site, where hosts are located.
    Site,
    Host,
    /// An instance, the system on a host.
    Instance,
    /// An entry of the catalogue of operating systems.
    Os,
    /// An update policy.
    Policy,
    /// An update run.
    Run,
    /// A schedule with one window.
    SingleSchedule,
    /// A schedule whose window repeats.
    RepeatedSchedule,
    /// A provider of hosts.
    Provider,
    /// A configuration for the first boot.
    CustomConfig,
    /// An account that may log in.
    LocalAccount,
    /// A network interface of a host.
    Nic,
    /// A disk of a host.
    Storage,
    /// A USB device of a host.
    Usb,
    /// A graphics processor of a host.
    Gpu,
    /// An address of a network interface.
    IpAddress,
    /// A member of a workload, such as a cluster. EIM has them, Evenkeel never does.
    WorkloadMember,
}

impl Resource {
    pub const ALL: &[Self] = &[
        Self::Region,
        Self::Site,
        Self::Host,
        Self::Instance,
        Self::Os,
        Self::Policy,
        Self::Run,
        Self::SingleSchedule,
        Self::RepeatedSchedule,
        Self::Provider,
        Self::CustomConfig,
        Self::LocalAccount,
        Self::Nic,
        Self::Storage,
        Self::Usb,
        Self::Gpu,
        Self::IpAddress,
        Self::WorkloadMember,
    ];

    /// The plural for error messages.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Region => "regions",
            Self::Site => "sites",
            Self::Host => "hosts",
            Self::Instance => "instances",
            Self::Os => "operating systems",
            Self::Policy => "update policies",
            Self::Run => "update runs",
            Self::SingleSchedule => "single schedules",
            Self::RepeatedSchedule => "repeated schedules",
            Self::Provider => "providers",
            Self::CustomConfig => "custom configs",
            Self::LocalAccount => "local accounts",
            Self::Nic => "network interfaces",
            Self::Storage => "disks",
            Self::Usb => "USB devices",
            Self::Gpu => "graphics processors",
            Self::IpAddress => "addresses",
            Self::WorkloadMember => "members of workloads",
        }
    }

    /// The resource's own fields, at least one.
    #[must_use]
    pub const fn fields(self) -> &'static [FilterField] {
        fields::fields_of(self)
    }

    /// The edges to other resources.
    #[must_use]
    pub const fn edges(self) -> &'static [Edge] {
        edges::edges_of(self)
    }

    /// Whether the field `metadata` holds labels that filters can test by name.
    #[must_use]
    pub const fn has_labels(self) -> bool {
        matches!(self, Self::Region | Self::Site | Self::Host)
    }

    /// The field with this name, in `snake_case` or `camelCase`.
    #[must_use]
    pub fn field(self, name: &str) -> Option<&'static FilterField> {
        self.fields().iter().find(|field| matches_name(field.name, name))
    }

    /// The references by which lists can be ordered, besides the fields.
    #[must_use]
    pub const fn references(self) -> &'static [FilterField] {
        references::references_of(self)
    }

    /// The field or reference with this name, in `snake_case` or `camelCase`.
    #[must_use]
    pub fn order_field(self, name: &str) -> Option<&'static FilterField> {
        let mut references = self.references().iter();
        self.field(name).or_else(|| references.find(|field| matches_name(field.name, name)))
    }

    /// The edge with this name, in `snake_case` or `camelCase`.
    #[must_use]
    pub fn edge(self, name: &str) -> Option<&'static Edge> {
        self.edges().iter().find(|edge| matches_name(edge.name, name))
    }

    /// What to write instead of a JSON member that is not a field.
    pub(super) fn suggestion_for(self, name: &str) -> Option<&'static str> {
        suggestions::suggestion_for(self, name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilterField {
    /// In `snake_case`, such as `host_status_indicator`.
    pub name: &'static str,
    /// Type of its values.
    pub kind: FieldKind,
}

impl FilterField {
    /// The name in the JSON of the API.
    #[must_use]
    pub fn wire_name(&self) -> String {
        camel_case(self.name).collect()
    }
}

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldKind {
    /// An id, with the prefix before its dash.
    Id(&'static str),
    Text,
    /// A text that begins with numbers, such as `0.10.2`. It can be compared by size.
    Version,
    /// A value of an enumeration.
    Enumeration(&'static Enumeration),
    /// A whole number.
    Number,
    /// A boolean.
    Bool,
    /// A time in Unix seconds on the wire, 0 for none.
    UnixSeconds,
    /// A time in RFC 3339 on the wire.
    Rfc3339Time,
}

impl FieldKind {
    /// The name of the type in error messages.
    pub(super) const fn noun(self) -> &'static str {
        match self {
            Self::Id(_) => "an id",
            Self::Text => "a text",
            Self::Version => "a version",
            Self::Enumeration(_) => "an enumeration value",
            Self::Number => "a number",
            Self::Bool => "a boolean",
            Self::UnixSeconds | Self::Rfc3339Time => "a time",
        }
    }
}

/// The values of an enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Enumeration {
    /// Common prefix on the wire, such as `HOST_STATE_`; empty if the wire has the bare names.
    pub prefix: &'static str,
    /// The rest in lower case, as the database stores it.
    pub names: &'static [&'static str],
}

/// Values without the common prefix on the wire: the regular form and the actual one.
const IRREGULAR_WIRE_VALUES: &[(&str, &str)] = &[
    ("KVM_STATE_CONSENT_RECEIVED", "KVM_CONSENT_RECEIVED"),
    ("KVM_STATE_REDIRECTION_RECEIVED", "KVM_REDIRECTION_RECEIVED"),
];

impl Enumeration {
    /// The wire form of the value with this name.
    #[must_use]
    pub fn wire_value(&self, name: &str) -> String {
        if self.prefix.is_empty() {
            return name.to_owned();
        }
        let regular = format!("{}{}", self.prefix, name.to_ascii_uppercase());
        let irregular = IRREGULAR_WIRE_VALUES.iter().find(|(rule, _)| *rule == regular);
        irregular.map_or(regular, |(_, text)| (*text).to_owned())
    }

    /// The name of the value with this wire form.
    #[must_use]
    pub fn name_from_wire(&self, wire: &str) -> Option<&'static str> {
        let mut names = self.names.iter().copied();
        names.find(|name| self.wire_value(name) == wire)
    }

    /// The name of the value `unspecified`, if there is one.
    pub(super) fn unspecified_name(&self) -> Option<&'static str> {
        let mut names = self.names.iter().copied();
        names.find(|name| *name == "unspecified")
    }
}

/// An edge from a resource to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// In `snake_case`, such as `parent_region`.
    pub name: &'static str,
    /// Resource that the edge leads to.
    pub to: Resource,
    /// Whether it leads to any number of resources, not to at most one.
    pub many: bool,
}

impl Edge {
    /// The name in the JSON of the API.
    #[must_use]
    pub fn wire_name(&self) -> String {
        camel_case(self.name).collect()
    }
}

/// The characters of a `snake_case` name in `camelCase`.
fn camel_case(snake: &str) -> impl Iterator<Item = char> {
    let mut begins = false;
    snake.chars().filter_map(move |c| {
        if c == '_' {
            begins = true;
            return None;
        }
        Some(if std::mem::take(&mut begins) { c.to_ascii_uppercase() } else { c })
    })
}

fn matches_name(snake: &str, name: &str) -> bool {
    snake == name || camel_case(snake).eq(name.chars())
}
