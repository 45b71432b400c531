//! Enumerations with fixed texts in JSON.

/// Declares an enumeration whose values have fixed texts in JSON. The first value is the default.
macro_rules! wire_enum {
    (
        $(#[doc = $doc:literal])*
        $name:ident { $first:ident = $first_text:literal $(, $variant:ident = $text:literal)* $(,)? }
    ) => {
        $(#[doc = $doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
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
            /// All values, in the order of declaration.
            pub const ALL: &[Self] = &[Self::$first $(, Self::$variant)*];

            /// Returns the text of the value in JSON.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_text,
                    $(Self::$variant => $text,)*
                }
            }
        }

        // Not derived: the derive macro does not see the texts behind this macro.
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .description(Some(concat!($($doc),*).trim()))
                    .enum_values(Some(Self::ALL.iter().map(|value| value.as_str())))
                    .into()
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
