//! Values as people write them, with their units.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};

use super::units;

/// One value or several.
#[derive(Clone, Debug)]
pub(super) struct Values<T>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Values<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value or a list")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
                let one = serde::de::value::StrDeserializer::new(text);
                Ok(vec![T::deserialize(one)?])
            }

            // Numbers go to the type of the value, which says what unit is missing.
            fn visit_i64<E: Error>(self, number: i64) -> Result<Vec<T>, E> {
                let one = serde::de::value::I64Deserializer::new(number);
                Ok(vec![T::deserialize(one)?])
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Vec<T>, E> {
                let one = serde::de::value::F64Deserializer::new(number);
                Ok(vec![T::deserialize(one)?])
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Vec<T>, A::Error> {
                let one = serde::de::value::MapAccessDeserializer::new(map);
                Ok(vec![T::deserialize(one)?])
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<Vec<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = seq.next_element()? {
                    all.push(one);
                }
                Ok(all)
            }
        }
        let visitor = Visitor(std::marker::PhantomData);
        deserializer.deserialize_any(visitor).map(Values)
    }
}

/// Text, or a number, which is enough for zero and for shares below one.
struct Written(String);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Written;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a quantity with its unit, as text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Written, E> {
                Ok(Written(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Text that a parser of `sphinx-units` turns into a value.
macro_rules! value {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $parse:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(super) struct $name(pub(super) $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let Written(text) = Written::deserialize(deserializer)?;
                $parse(&text).map($name).map_err(D::Error::custom)
            }
        }
    };
}

value!(
    /// Bits per second.
    Rate, u64, units::rate
);
value!(
    /// Bytes, at least one.
    Size, u64, units::size_positive
);
value!(
    /// A time that is not zero.
    Time, Duration, units::duration_positive
);
value!(
    /// A time that is not zero and mostly some seconds.
    Period, Duration, units::period_positive
);
value!(
    /// A share from 0 to 1.
    Share, f64, units::fraction
);
