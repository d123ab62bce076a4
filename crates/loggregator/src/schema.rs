//! Messages as plain structs over borrowed bytes, each described once: its struct, how it is read,
//! written, and checked for required fields follow from the description.
//!
//! This is for what a generated codec can't do: proto2 strings that need not be UTF-8, required
//! fields, known numbers with an unexpected wire type (unknown fields, no error), and no allocation
//! for text. Unknown fields are passed over, not kept; whoever forwards a message forwards its bytes.

use std::borrow::Cow;

use crate::wire::{Cursor, FIXED64, LEN, Result, VARINT, key, put_varint};

/// A string of v1 as it is on the wire: bytes that should be UTF-8, but need not be.
pub type Text<'a> = Cow<'a, [u8]>;

/// What a field can hold.
pub(crate) trait Value<'a>: Default {
    const WIRE_TYPE: u32;

    /// Reads a value behind its key. What comes later wins; in messages, field by field.
    fn merge(&mut self, at: &mut Cursor<'a>, level: usize) -> Result<()>;

    /// Appends the value behind its key.
    fn put(&self, buf: &mut Vec<u8>);

    /// The first required field that isn't there.
    fn missing(&self) -> Option<&'static str> {
        None
    }

    /// Appends key and value.
    fn put_field(&self, number: u32, buf: &mut Vec<u8>) {
        put_varint(buf, key(number, Self::WIRE_TYPE).into());
        self.put(buf);
    }
}

/// The fields of a message; made by [`messages`].
pub(crate) trait Fields<'a> {
    /// Reads all fields up to the cursor's end; they are at `level`.
    fn merge_fields(&mut self, at: Cursor<'a>, level: usize) -> Result<()>;

    /// Appends the fields that are there, in the order of their numbers.
    fn put_fields(&self, buf: &mut Vec<u8>);

    /// The first required field that isn't there, here or in a message that is.
    fn missing_field(&self) -> Option<&'static str>;
}

impl<'a> Value<'a> for i64 {
    const WIRE_TYPE: u32 = VARINT;

    fn merge(&mut self, at: &mut Cursor<'a>, _: usize) -> Result<()> {
        *self = at.varint()? as i64;
        Ok(())
    }

    fn put(&self, buf: &mut Vec<u8>) {
        put_varint(buf, *self as u64);
    }
}

/// Also enums, which are open: any number is one.
impl<'a> Value<'a> for i32 {
    const WIRE_TYPE: u32 = VARINT;

    fn merge(&mut self, at: &mut Cursor<'a>, _: usize) -> Result<()> {
        *self = at.varint()? as i32;
        Ok(())
    }

    fn put(&self, buf: &mut Vec<u8>) {
        i64::from(*self).put(buf);
    }
}

impl<'a> Value<'a> for u64 {
    const WIRE_TYPE: u32 = VARINT;

    fn merge(&mut self, at: &mut Cursor<'a>, _: usize) -> Result<()> {
        *self = at.varint()?;
        Ok(())
    }

    fn put(&self, buf: &mut Vec<u8>) {
        put_varint(buf, *self);
    }
}

impl<'a> Value<'a> for f64 {
    const WIRE_TYPE: u32 = FIXED64;

    fn merge(&mut self, at: &mut Cursor<'a>, _: usize) -> Result<()> {
        *self = f64::from_le_bytes(at.fixed64()?);
        Ok(())
    }

    fn put(&self, buf: &mut Vec<u8>) {
        buf.extend_from_slice(&self.to_le_bytes());
    }
}

impl<'a> Value<'a> for Text<'a> {
    const WIRE_TYPE: u32 = LEN;

    fn merge(&mut self, at: &mut Cursor<'a>, _: usize) -> Result<()> {
        *self = Cow::Borrowed(at.nested()?.rest());
        Ok(())
    }

    fn put(&self, buf: &mut Vec<u8>) {
        put_bytes(buf, self);
    }
}

/// Appends a length and as many bytes.
pub(crate) fn put_bytes(buf: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(buf, bytes.len() as u64);
    buf.extend_from_slice(bytes);
}

/// Appends what `content` appends, with its length before it.
pub(crate) fn put_nested(buf: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let start = buf.len();
    content(buf);
    let end = buf.len();
    put_varint(buf, (end - start) as u64);
    // The length was appended; it belongs before the content.
    let len = buf.len() - end;
    buf[start..].rotate_right(len);
}

/// Describes messages. A field has its number, a label (`required`, `optional` or `repeated`; only
/// [`Value::missing`] tells the first two apart), a name and a type that is a [`Value`].
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $vis:vis struct $name:ident<'a> {
            $( $(#[$field_doc:meta])* $number:literal $label:ident $field:ident: $type:ty, )*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq)]
        $vis struct $name<'a> {
            $( $(#[$field_doc])* pub $field: messages!(@type $label $type), )*
        }

        impl<'a> $crate::schema::Fields<'a> for $name<'a> {
            fn merge_fields(
                &mut self,
                mut at: $crate::wire::Cursor<'a>,
                level: usize,
            ) -> $crate::wire::Result<()> {
                use $crate::schema::Value;
                while let Some(key) = at.next_key()? {
                    $(
                        if key == $crate::wire::key($number, <$type as Value>::WIRE_TYPE) {
                            messages!(@slot $label self.$field).merge(&mut at, level)?;
                            continue;
                        }
                    )*
                    at.skip(key, level)?;
                }
                Ok(())
            }

            fn put_fields(&self, buf: &mut Vec<u8>) {
                use $crate::schema::Value;
                $( self.$field.iter().for_each(|value| value.put_field($number, buf)); )*
            }

            fn missing_field(&self) -> Option<&'static str> {
                use $crate::schema::Value;
                $(
                    if let Some(missing) = self.$field.iter().find_map(Value::missing) {
                        return Some(missing);
                    }
                    messages!(@check $label self.$field, concat!(stringify!($name), ".", stringify!($field)));
                )*
                None
            }
        }

        impl<'a> $crate::schema::Value<'a> for $name<'a> {
            const WIRE_TYPE: u32 = $crate::wire::LEN;

            fn merge(
                &mut self,
                at: &mut $crate::wire::Cursor<'a>,
                level: usize,
            ) -> $crate::wire::Result<()> {
                $crate::schema::Fields::merge_fields(self, at.nested()?, level + 1)
            }

            fn put(&self, buf: &mut Vec<u8>) {
                $crate::schema::put_nested(buf, |buf| {
                    $crate::schema::Fields::put_fields(self, buf);
                });
            }

            fn missing(&self) -> Option<&'static str> {
                $crate::schema::Fields::missing_field(self)
            }
        }
    )*};
    (@type repeated $type:ty) => { Vec<$type> };
    (@type $label:ident $type:ty) => { Option<$type> };
    (@slot repeated $self:ident.$field:ident) => {{
        $self.$field.push(Default::default());
        $self.$field.last_mut().expect("just pushed")
    }};
    (@slot $label:ident $self:ident.$field:ident) => { $self.$field.get_or_insert_default() };
    (@check required $self:ident.$field:ident, $name:expr) => {
        if $self.$field.is_none() {
            return Some($name);
        }
    };
    (@check $label:ident $self:ident.$field:ident, $name:expr) => {};
}
pub(crate) use messages;
