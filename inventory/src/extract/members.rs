//! The fields that a body may have.

use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// Names of the fields of a type, as its `Deserialize` implementation requests them.
pub fn members<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // Ends with an error by design: the deserializer has no data.
    drop(T::deserialize(MemberCollector(&mut names)));
    names
}

/// A deserializer without data that records the requested fields.
struct MemberCollector<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for MemberCollector<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = names;
        Err(Error::custom("there is nothing to read"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("only objects have members"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_api::assignment::AssignmentInput;
    use evenkeel_api::pause::PauseInput;

    use super::*;

    #[test]
    fn a_body_has_the_members_that_its_type_has() {
        assert_eq!(members::<PauseInput>(), ["reason"]);
        assert_eq!(
            members::<AssignmentInput>(),
            ["osUpdatePolicyId", "maxConcurrent", "stopAfterFailures"]
        );
        assert!(members::<String>().is_empty());
    }
}
