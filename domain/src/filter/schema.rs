//! What can be asked of which resource.

mod edges;
mod enumerations;
mod fields;
mod instead;

/// A resource that filters speak of: those that are listed, and what hangs on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Part of the world.
    Region,
    /// Where hosts stand.
    Site,
    /// A machine.
    Host,
    /// What runs on a host.
    Instance,
    /// An entry of the catalogue of operating systems.
    Os,
    /// What should run.
    Policy,
    /// What happened.
    Run,
    /// A window that opens once.
    SingleSchedule,
    /// A window that opens again and again.
    RepeatedSchedule,
    /// Who brings hosts.
    Provider,
    /// Configuration of a first start.
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
    /// What the ancestor had and we never have, such as members of clusters.
    Nothing,
}

impl Resource {
    /// Every resource.
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
        Self::Nothing,
    ];

    /// What many of them are called.
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
            Self::Nothing => "members of workloads",
        }
    }

    /// Its own fields, at least one.
    #[must_use]
    pub const fn fields(self) -> &'static [Field] {
        fields::of(self)
    }

    /// What it leads to.
    #[must_use]
    pub const fn edges(self) -> &'static [Edge] {
        edges::of(self)
    }

    /// Whether its field `metadata` holds labels that can be asked for one by one.
    #[must_use]
    pub const fn has_labels(self) -> bool {
        matches!(self, Self::Region | Self::Site | Self::Host)
    }

    /// The field with this name, in `snake_case` or `camelCase`.
    #[must_use]
    pub fn field(self, name: &str) -> Option<&'static Field> {
        self.fields()
            .iter()
            .find(|field| is_called(field.name, name))
    }

    /// The edge with this name, in `snake_case` or `camelCase`.
    #[must_use]
    pub fn edge(self, name: &str) -> Option<&'static Edge> {
        self.edges().iter().find(|edge| is_called(edge.name, name))
    }

    /// What to write instead of a member of the JSON that is no field.
    pub(super) fn instead_of(self, name: &str) -> Option<&'static str> {
        instead::of(self, name)
    }
}

/// A field of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// In `snake_case`, such as `host_status_indicator`.
    pub name: &'static str,
    /// What it holds.
    pub kind: FieldKind,
}

impl Field {
    /// The name as the JSON has it.
    #[must_use]
    pub fn wire_name(&self) -> String {
        camel(self.name).collect()
    }
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldKind {
    /// An id, with what stands before its dash.
    Id(&'static str),
    /// A text.
    Text,
    /// One of a few values.
    Enumeration(&'static Enumeration),
    /// A whole number.
    Number,
    /// True or false.
    Truth,
    /// A time in Unix seconds on the wire, 0 for none.
    Seconds,
    /// A time in RFC 3339 on the wire.
    Moment,
}

impl FieldKind {
    /// What an error calls it.
    pub(super) const fn noun(self) -> &'static str {
        match self {
            Self::Id(_) => "an id",
            Self::Text => "a text",
            Self::Enumeration(_) => "one of a few values",
            Self::Number => "a number",
            Self::Truth => "true or false",
            Self::Seconds | Self::Moment => "a time",
        }
    }
}

/// The values of a field that can have only a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Enumeration {
    /// What each begins with on the wire, such as `HOST_STATE_`; empty if the wire has the bare names.
    pub prefix: &'static str,
    /// The rest in lower case, as the database has it.
    pub names: &'static [&'static str],
}

/// What the wire calls a few values that do not begin as the others do.
const IRREGULAR: &[(&str, &str)] = &[
    ("KVM_STATE_CONSENT_RECEIVED", "KVM_CONSENT_RECEIVED"),
    ("KVM_STATE_REDIRECTION_RECEIVED", "KVM_REDIRECTION_RECEIVED"),
];

impl Enumeration {
    /// The text on the wire of the value with this name.
    #[must_use]
    pub fn wire(&self, name: &str) -> String {
        if self.prefix.is_empty() {
            return name.to_owned();
        }
        let regular = format!("{}{}", self.prefix, name.to_ascii_uppercase());
        let irregular = IRREGULAR.iter().find(|(rule, _)| *rule == regular);
        irregular.map_or(regular, |(_, text)| (*text).to_owned())
    }

    /// The name of the value with this text on the wire.
    #[must_use]
    pub fn name_of(&self, wire: &str) -> Option<&'static str> {
        let mut names = self.names.iter().copied();
        names.find(|name| self.wire(name) == wire)
    }

    /// The name of the value that says nothing, if there is one.
    pub(super) fn name_of_nothing(&self) -> Option<&'static str> {
        let mut names = self.names.iter().copied();
        names.find(|name| *name == "unspecified")
    }
}

/// A way from a resource to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// In `snake_case`, such as `parent_region`.
    pub name: &'static str,
    /// Where it leads.
    pub to: Resource,
    /// Whether it leads to any number of them, not to one at most.
    pub many: bool,
}

impl Edge {
    /// The name as the JSON has it.
    #[must_use]
    pub fn wire_name(&self) -> String {
        camel(self.name).collect()
    }
}

/// The letters of a name in `snake_case` as `camelCase` has them.
fn camel(snake: &str) -> impl Iterator<Item = char> {
    let mut begins = false;
    snake.chars().filter_map(move |c| {
        if c == '_' {
            begins = true;
            return None;
        }
        Some(if std::mem::take(&mut begins) {
            c.to_ascii_uppercase()
        } else {
            c
        })
    })
}

fn is_called(snake: &str, name: &str) -> bool {
    snake == name || camel(snake).eq(name.chars())
}
