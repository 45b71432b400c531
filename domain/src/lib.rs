//! Domain model: hosts, policies, windows, runs and decisions.
//!
//! The crate is pure: no clock, no files, no network, no database. Time is an argument. Texts are validated where they are
//! parsed, so values of these types are always valid.

/// Declares an enum with stable names, which the database stores and the logs show.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[$variant_doc])* #[serde(rename = $name)] $variant),+
        }

        impl $type {
            /// All values, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The stable name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            /// The value with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub mod agent_start;
pub mod assignment;
pub mod change_seal;
pub mod condition;
pub mod custom_config;
pub mod decide;
pub mod eim;
pub mod filter;
pub mod hardware;
pub mod host;
pub mod id;
pub mod instance;
pub mod invalid;
pub mod join_token;
pub mod key_block;
pub mod local_account;
pub mod location;
pub mod lookup;
pub mod notification;
pub mod order;
pub mod os;
pub mod package;
pub mod package_source;
pub mod pause;
pub mod policy;
pub mod provider;
pub mod run;
pub mod schedule;
pub mod status;
pub mod tenant;
pub mod text;
pub mod window;

/// An instant, always in UTC.
pub type Time = chrono::DateTime<chrono::Utc>;
