//! `#[derive(Event)]` for [`pubsub`](https://docs.rs/pubsub): publish your own structs and enums
//! without writing a traversal, and subscribe with typed filters.
//!
//! Use it through `pubsub` with its feature `derive`; this crate is only the macro.
//!
//! # Structs
//!
//! The fields are the keys, in the order in which they are declared: the first one is the most
//! general. For a struct `Reading` the macro makes
//!
//! - `impl Event<ReadingKey> for Reading`,
//! - `ReadingKey`, what a tree of such events stores (and `ReadingKeyRef`, what an event lends),
//! - `ReadingFilter`, a builder of paths: a method for each key. What is not set matches anything.
//!
//! ```
//! use pubsub::{Event, Interest, PubSub};
//!
//! #[derive(Event)]
//! struct Reading {
//!     region: String,
//!     device: u64,
//!     #[event(skip)]
//!     celsius: f64,
//! }
//!
//! let tree = PubSub::<ReadingKey, &str>::new();
//! let europe = ReadingFilter::new().region("eu").path();
//! let device_7_anywhere = ReadingFilter::new().device(7).path();
//! let _a = tree.subscribe("europe", Interest::new([europe]));
//! let _b = tree.subscribe("seven", Interest::new([device_7_anywhere]));
//!
//! let mut got = Vec::new();
//! let mut publish = |reading: Reading| {
//!     tree.publish(&reading, |name| got.push((*name, reading.celsius)));
//! };
//! publish(Reading { region: "eu".into(), device: 1, celsius: 20.5 });
//! publish(Reading { region: "us".into(), device: 7, celsius: 31.0 });
//! assert_eq!(got, [("europe", 20.5), ("seven", 31.0)]);
//! ```
//!
//! # Enums
//!
//! The variant is the first key, its fields are the ones below. The filter of an enum begins with
//! the variant.
//!
//! ```
//! use pubsub::{Event, Interest, PubSub};
//!
//! #[derive(Event)]
//! enum Order {
//!     Created { region: String, #[event(skip, hash)] number: u64 },
//!     Paid(#[event(rename = "method")] Method),
//!     Cancelled,
//! }
//!
//! #[derive(Clone, Debug, PartialEq, Eq, Hash)]
//! enum Method { Card, Cash }
//!
//! let tree = PubSub::<OrderKey, u32>::new();
//! let _1 = tree.subscribe(1, Interest::new([OrderFilter::all().path()]));
//! let _2 = tree.subscribe(2, Interest::new([OrderFilter::created().region("eu").path()]));
//! let _3 = tree.subscribe(3, Interest::new([
//!     OrderFilter::paid().method(Method::Cash).path(),
//!     OrderFilter::cancelled().path(),
//! ]));
//!
//! let reached = |order: Order| {
//!     let mut reached = Vec::new();
//!     tree.publish(&order, |id| reached.push(*id));
//!     reached
//! };
//! assert_eq!(reached(Order::Created { region: "eu".into(), number: 1 }), [1, 2]);
//! assert_eq!(reached(Order::Paid(Method::Card)), [1]);
//! assert_eq!(reached(Order::Paid(Method::Cash)), [1, 3]);
//! assert_eq!(reached(Order::Cancelled), [1, 3]);
//! ```
//!
//! # Attributes
//!
//! On a field:
//!
//! | | |
//! | --- | --- |
//! | `#[event(skip)]` | not a key |
//! | `#[event(rename = "name")]` | what its method in the filter is called; a must for fields of tuples |
//! | `#[event(key = String)]` | the type that the tree stores, for fields that borrow. `String: PartialEq<&str>` must hold, and both must hash alike |
//! | `#[event(hash)]` | its [`stable_hash`](https://docs.rs/pubsub/latest/pubsub/fn.stable_hash.html) picks the member of a shard group with named members |
//! | `#[event(hash_with = path)]` | the same with a function of your own, `fn(&Field) -> u64` |
//!
//! On the struct or enum: `#[event(crate = path)]`, where `pubsub` is if not at `::pubsub`.
//!
//! The type of a key is `Clone + Debug + Eq + Hash`, and for the tree `Send + Sync + 'static`.
//!
//! # What is refused
//!
//! Each with a message that names the field and says what would be right.
//!
//! A key that can't be compared:
//! ```compile_fail
//! #[derive(pubsub::Event)]
//! struct Reading { region: String, celsius: f64 }
//! ```
//! The twin that compiles:
//! ```
//! #[derive(pubsub::Event)]
//! struct Reading { region: String, #[event(skip)] celsius: f64 }
//! ```
//!
//! A key that borrows:
//! ```compile_fail
//! #[derive(pubsub::Event)]
//! struct Line<'a> { source: &'a str }
//! ```
//! ```
//! #[derive(pubsub::Event)]
//! struct Line<'a> { #[event(key = String)] source: &'a str }
//! ```
//!
//! A key without a name:
//! ```compile_fail
//! #[derive(pubsub::Event)]
//! struct Point(u32, u32);
//! ```
//! ```
//! #[derive(pubsub::Event)]
//! struct Point(#[event(rename = "x")] u32, #[event(rename = "y")] u32);
//! ```
//!
//! Two hashes:
//! ```compile_fail
//! #[derive(pubsub::Event)]
//! struct Count { #[event(hash)] name: String, #[event(hash)] id: u32 }
//! ```
//! ```
//! #[derive(pubsub::Event)]
//! struct Count { #[event(hash)] name: String, id: u32 }
//! ```
//!
//! Type parameters:
//! ```compile_fail
//! #[derive(pubsub::Event)]
//! struct Wrapped<T> { inner: T }
//! ```
//! ```
//! #[derive(pubsub::Event)]
//! struct Wrapped { inner: u64 }
//! ```
//!
//! Attributes that don't exist, or contradict each other:
//! ```compile_fail
//! #[derive(pubsub::Event)]
//! struct Line { source: String, #[event(ignore)] text: String }
//! ```
//! ```compile_fail
//! #[derive(pubsub::Event)]
//! struct Line { source: String, #[event(skip, rename = "message")] text: String }
//! ```
//! ```
//! #[derive(pubsub::Event)]
//! struct Line { source: String, #[event(skip)] text: String }
//! ```
//!
//! Filters are typed: a wrong key doesn't compile either.
//! ```compile_fail
//! #[derive(pubsub::Event)]
//! struct Reading { region: String, device: u64 }
//! let _ = ReadingFilter::new().device("seven");
//! ```
//! ```
//! #[derive(pubsub::Event)]
//! struct Reading { region: String, device: u64 }
//! let _ = ReadingFilter::new().device(7);
//! ```
#![forbid(unsafe_code)]

mod expand;
mod input;

use proc_macro::TokenStream;

/// Makes a struct or an enum publishable, with typed filters; see the crate's documentation.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(item: TokenStream) -> TokenStream {
    derive(item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

fn derive(item: proc_macro2::TokenStream) -> syn::Result<proc_macro2::TokenStream> {
    let item = syn::parse2(item)?;
    Ok(expand::expand(&input::Input::read(&item)?))
}

/// The examples of the README run, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
