//! Looking up an owned key by something borrowed.
//!
//! A tree owns its keys (`String`, `Arc<str>`, an enum of the user's), while an event usually only
//! borrows them (`&str`). [`Equivalent`] says when the two mean the same key, so that publishing
//! never has to build an owned one.

use std::borrow::Borrow;

/// Compares an event's borrowed key with a key that the tree owns.
///
/// Whoever implements both this and [`Hash`](std::hash::Hash) for a key type must keep them
/// consistent: if `a.equivalent(&k)`, then `a` and `k` hash alike. A reference to anything that the
/// tree's key can be borrowed as (`&str` for `String` or `Arc<str>`, `&K` for any `K`) already
/// implements it, and so do integers, `bool` and `char` by value.
///
/// ```
/// use pubsub::Equivalent;
/// use std::hash::{Hash, Hasher};
///
/// /// What the tree owns.
/// #[derive(Clone, PartialEq, Eq)]
/// enum Key { Name(String), Number(u32) }
///
/// /// What an event lends.
/// enum KeyRef<'a> { Name(&'a str), Number(u32) }
///
/// impl Key {
///     fn lend(&self) -> KeyRef<'_> {
///         match self { Key::Name(name) => KeyRef::Name(name), Key::Number(n) => KeyRef::Number(*n) }
///     }
/// }
///
/// impl Hash for KeyRef<'_> {
///     fn hash<H: Hasher>(&self, state: &mut H) {
///         match self {
///             KeyRef::Name(name) => (0u8, name).hash(state),
///             KeyRef::Number(number) => (1u8, number).hash(state),
///         }
///     }
/// }
///
/// // One definition of the hash for both, so that they can't drift apart.
/// impl Hash for Key {
///     fn hash<H: Hasher>(&self, state: &mut H) { self.lend().hash(state) }
/// }
///
/// impl Equivalent<Key> for KeyRef<'_> {
///     fn equivalent(&self, key: &Key) -> bool {
///         match (self, key) {
///             (KeyRef::Name(a), Key::Name(b)) => a == b,
///             (KeyRef::Number(a), Key::Number(b)) => a == b,
///             _ => false,
///         }
///     }
/// }
///
/// assert!(KeyRef::Name("a").equivalent(&Key::Name("a".into())));
/// assert!(!KeyRef::Number(7).equivalent(&Key::Name("7".into())));
/// ```
pub trait Equivalent<K: ?Sized> {
    /// Whether this is the same key as the tree's `key`.
    fn equivalent(&self, key: &K) -> bool;
}

impl<Q, K> Equivalent<K> for &Q
where
    Q: Eq + ?Sized,
    K: Borrow<Q> + ?Sized,
{
    #[inline]
    fn equivalent(&self, key: &K) -> bool {
        **self == *key.borrow()
    }
}

macro_rules! by_value {
    ($($key:ty)*) => {$(
        impl Equivalent<$key> for $key {
            #[inline]
            fn equivalent(&self, key: &$key) -> bool {
                self == key
            }
        }
    )*};
}

by_value!(bool char i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize);
