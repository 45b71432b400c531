//! Plain enumerations with the exact texts of the wire.

/// Declares an enumeration whose values have fixed texts. The first value is the one that stands for "nothing said".
macro_rules! wire_enum {
    (
        $(#[$doc:meta])*
        $name:ident { $first:ident = $first_text:literal $(, $variant:ident = $text:literal)* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord,
            serde::Serialize, serde::Deserialize, utoipa::ToSchema,
        )]
        pub enum $name {
            #[doc = concat!("`", $first_text, "`")]
            #[serde(rename = $first_text)]
            #[default]
            $first,
            $(
                #[doc = concat!("`", $text, "`")]
                #[serde(rename = $text)]
                $variant,
            )*
        }

        impl $name {
            /// Every value, in the order of their declaration.
            pub const ALL: &[Self] = &[Self::$first $(, Self::$variant)*];

            /// The text on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_text,
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
