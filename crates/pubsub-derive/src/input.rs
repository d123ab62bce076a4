//! What the user wrote, checked: every mistake is found here, with a message that names the field
//! and says what would be right.

use std::collections::HashMap;

use proc_macro2::{Ident, Span};
use quote::{ToTokens, format_ident};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Fields, GenericParam, LitStr, Member, Result, Type};

/// A struct or an enum to derive for.
pub(crate) struct Input<'a> {
    pub(crate) item: &'a DeriveInput,
    /// Where `pubsub` is.
    pub(crate) krate: syn::Path,
    /// One for a struct, one per variant of an enum.
    pub(crate) shapes: Vec<Shape<'a>>,
}

/// A struct, or a variant.
pub(crate) struct Shape<'a> {
    /// None for a struct.
    pub(crate) variant: Option<&'a Ident>,
    pub(crate) keys: Vec<Key<'a>>,
    pub(crate) hash: Option<Hash>,
}

/// A field that is a key.
pub(crate) struct Key<'a> {
    pub(crate) member: Member,
    /// The method in the filter.
    pub(crate) name: Ident,
    /// The variant in the enum of all keys.
    pub(crate) variant: Ident,
    pub(crate) field: &'a Type,
    /// What the tree stores.
    pub(crate) stored: Type,
}

/// The field that picks the member of a shard group.
pub(crate) struct Hash {
    pub(crate) member: Member,
    /// None: the stable hash.
    pub(crate) with: Option<syn::Path>,
}

/// The most keys below the root, as in `pubsub::Path::MAX_DEPTH`.
const MAX_DEPTH: usize = 255;

impl<'a> Input<'a> {
    pub(crate) fn read(item: &'a DeriveInput) -> Result<Self> {
        for parameter in &item.generics.params {
            if !matches!(parameter, GenericParam::Lifetime(_)) {
                return Err(Error::new(
                    parameter.span(),
                    format!(
                        "`{}` can't be an event with type or const parameters, since its keys need \
                         one type each: derive for a struct with concrete types",
                        item.ident
                    ),
                ));
            }
        }
        let shapes = match &item.data {
            Data::Struct(data) => {
                let shape = Shape::read(None, &data.fields)?;
                if shape.keys.is_empty() {
                    return Err(Error::new(
                        item.ident.span(),
                        format!(
                            "`{}` has no field that is a key, so nobody could subscribe to some of \
                             its events: give it at least one that is not skipped",
                            item.ident
                        ),
                    ));
                }
                vec![shape]
            }
            Data::Enum(data) if data.variants.is_empty() => {
                return Err(Error::new(
                    item.ident.span(),
                    format!("`{}` has no variants, hence no events", item.ident),
                ));
            }
            Data::Enum(data) => data
                .variants
                .iter()
                .map(|variant| Shape::read(Some(&variant.ident), &variant.fields))
                .collect::<Result<_>>()?,
            Data::Union(data) => {
                return Err(Error::new(
                    data.union_token.span(),
                    "`Event` can be derived for structs and enums, not for unions",
                ));
            }
        };
        let input = Input {
            item,
            krate: container_attributes(item)?,
            shapes,
        };
        input.check_names()?;
        Ok(input)
    }

    /// All names that end up side by side must differ.
    fn check_names(&self) -> Result<()> {
        let mut keys = HashMap::new();
        let mut variants = HashMap::new();
        for shape in &self.shapes {
            if let Some(variant) = shape.variant {
                check_reserved(
                    &method_name(variant),
                    &format!("variant `{variant}`"),
                    &["all", "path"],
                )?;
            }
            if let Some(variant) = shape.variant
                && let Some(other) = variants.insert(method_name(variant).to_string(), variant)
            {
                return Err(Error::new(
                    variant.span(),
                    format!(
                        "variants `{other}` and `{variant}` give one name in the filter: call one \
                         of them something else"
                    ),
                ));
            }
            if let Some(variant) = shape.variant {
                keys.insert(variant.to_string(), variant.clone());
            }
        }
        for key in self.shapes.iter().flat_map(|shape| &shape.keys) {
            if let Some(other) = keys.insert(key.variant.to_string(), key.name.clone()) {
                return Err(Error::new(
                    key.name.span(),
                    format!(
                        "`{}` and `{other}` give one key: choose another name for one of them with \
                         #[event(rename = \"...\")]",
                        key.name
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl<'a> Shape<'a> {
    fn read(variant: Option<&'a Ident>, fields: &'a Fields) -> Result<Self> {
        let mut keys = Vec::new();
        let mut hash: Option<(String, Hash)> = None;
        for (member, field) in fields.members().zip(fields) {
            let title = title(&member);
            let mut attributes = FieldAttributes::read(field, &title)?;
            if let Some(with) = attributes.hash.take() {
                let this = Hash {
                    member: member.clone(),
                    with,
                };
                if let Some((other, _)) = hash.replace((title.clone(), this)) {
                    return Err(Error::new(
                        field.span(),
                        format!(
                            "{other} and {title} both have a hash, but an event has one: keep one of them"
                        ),
                    ));
                }
            }
            if !attributes.skip {
                keys.push(Key::read(variant, member, field, attributes)?);
            }
        }
        if keys.len() + usize::from(variant.is_some()) > MAX_DEPTH {
            return Err(Error::new(
                fields.span(),
                format!(
                    "{} keys are more than a path can have ({MAX_DEPTH}): skip some",
                    keys.len()
                ),
            ));
        }
        Ok(Shape {
            variant,
            keys,
            hash: hash.map(|(_, hash)| hash),
        })
    }
}

impl<'a> Key<'a> {
    fn read(
        variant: Option<&Ident>,
        member: Member,
        field: &'a Field,
        attributes: FieldAttributes,
    ) -> Result<Self> {
        let title = title(&member);
        let name = match (attributes.rename, &member) {
            (Some(name), _) => name,
            (None, Member::Named(name)) => name.clone(),
            (None, Member::Unnamed(_)) => {
                return Err(Error::new(
                    field.span(),
                    format!(
                        "{title} has no name, which its filter needs: give it one with \
                         #[event(rename = \"...\")], or leave it out with #[event(skip)]"
                    ),
                ));
            }
        };
        check_reserved(&name, &title, &["new", "path"])?;
        let stored = match attributes.key {
            Some(stored) => stored,
            None => {
                check_key_type(&field.ty, &title)?;
                field.ty.clone()
            }
        };
        let prefix = variant.map(Ident::to_string).unwrap_or_default();
        Ok(Key {
            member,
            variant: format_ident!("{prefix}{}", pascal_case(&name), span = name.span()),
            name,
            field: &field.ty,
            stored,
        })
    }
}

/// A filter has methods of its own.
fn check_reserved(name: &Ident, title: &str, reserved: &[&str]) -> Result<()> {
    if reserved.iter().any(|reserved| name == reserved) {
        return Err(Error::new(
            name.span(),
            format!(
                "{title}: the filter has a method `{name}` already, so choose another name (for \
                 fields with #[event(rename = \"...\")])"
            ),
        ));
    }
    Ok(())
}

/// Finds the types that can't be keys and are easily taken for one. What else is missing, the
/// compiler says.
fn check_key_type(ty: &Type, title: &str) -> Result<()> {
    let written = ty.to_token_stream().to_string();
    let message = match ty {
        Type::Path(_) if written == "f32" || written == "f64" => format!(
            "{title} can't be a key: `{written}` has neither `Eq` nor `Hash`. Leave it out with \
             #[event(skip)], or make it an integer"
        ),
        Type::Reference(_) => format!(
            "{title} borrows, but the tree must own its keys: name the owned type, for example \
             #[event(key = String)]"
        ),
        _ => return Ok(()),
    };
    Err(Error::new(ty.span(), message))
}

#[derive(Default)]
struct FieldAttributes {
    skip: bool,
    rename: Option<Ident>,
    key: Option<Type>,
    hash: Option<Option<syn::Path>>,
}

impl FieldAttributes {
    fn read(field: &Field, title: &str) -> Result<Self> {
        let mut attributes = FieldAttributes::default();
        for attribute in field.attrs.iter().filter(|a| a.path().is_ident("event")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("skip") {
                    attributes.skip = true;
                } else if meta.path.is_ident("rename") {
                    let name: LitStr = meta.value()?.parse()?;
                    attributes.rename = Some(name.parse().map_err(|_| {
                        let name = name.value();
                        meta.error(format!("{title}: `{name}` can't be the name of a method"))
                    })?);
                } else if meta.path.is_ident("key") {
                    attributes.key = Some(meta.value()?.parse()?);
                } else if meta.path.is_ident("hash") {
                    attributes.hash = Some(None);
                } else if meta.path.is_ident("hash_with") {
                    attributes.hash = Some(Some(meta.value()?.parse()?));
                } else {
                    let path = meta.path.to_token_stream();
                    return Err(meta.error(format!(
                        "{title}: there is no attribute `{path}`; there are skip, rename, key, hash \
                         and hash_with"
                    )));
                }
                Ok(())
            })?;
        }
        for (given, name) in [
            (attributes.rename.is_some(), "rename"),
            (attributes.key.is_some(), "key"),
        ] {
            if attributes.skip && given {
                return Err(Error::new(
                    field.span(),
                    format!("{title} is skipped, so `{name}` has no effect: remove one of the two"),
                ));
            }
        }
        Ok(attributes)
    }
}

fn container_attributes(item: &DeriveInput) -> Result<syn::Path> {
    let mut krate = syn::parse_quote!(::pubsub);
    for attribute in item.attrs.iter().filter(|a| a.path().is_ident("event")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                let path = meta.path.to_token_stream();
                return Err(meta.error(format!(
                    "`{}`: there is no attribute `{path}` here; there is crate (and some for fields)",
                    item.ident
                )));
            }
            krate = meta.value()?.call(syn::Path::parse_mod_style)?;
            Ok(())
        })?;
    }
    Ok(krate)
}

/// How messages call a field.
fn title(member: &Member) -> String {
    match member {
        Member::Named(name) => format!("field `{name}`"),
        Member::Unnamed(index) => format!("field {}", index.index),
    }
}

/// `device_id` as the variant `DeviceId`.
fn pascal_case(name: &Ident) -> String {
    let name = name.to_string();
    let words = name.trim_start_matches("r#").split('_');
    words
        .flat_map(|word| {
            let mut letters = word.chars();
            let first = letters.next().into_iter().flat_map(char::to_uppercase);
            first.chain(letters).collect::<Vec<_>>()
        })
        .collect()
}

/// The variant `DeviceLost` as the function `device_lost`.
pub(crate) fn method_name(variant: &Ident) -> Ident {
    let mut method = String::new();
    let mut after_lower = false;
    for letter in variant.to_string().trim_start_matches("r#").chars() {
        if letter.is_uppercase() && after_lower {
            method.push('_');
        }
        after_lower = !letter.is_uppercase() && letter != '_';
        method.extend(letter.to_lowercase());
    }
    // `Type` gives the keyword `type`.
    syn::parse_str(&method).unwrap_or_else(|_| Ident::new_raw(&method, Span::call_site()))
}

#[cfg(test)]
mod tests {
    //! Each mistake has a message that names the culprit and says what would be right.

    use quote::quote;

    fn error(item: proc_macro2::TokenStream) -> String {
        let error = crate::derive(item).expect_err("a mistake");
        error.to_string()
    }

    #[test]
    fn mistakes_name_the_field_and_what_is_right() {
        let cases = [
            (
                quote!(
                    struct R {
                        region: String,
                        celsius: f64,
                    }
                ),
                "field `celsius` can't be a key: `f64` has neither `Eq` nor `Hash`. Leave it out \
                 with #[event(skip)], or make it an integer",
            ),
            (
                quote!(
                    struct L<'a> {
                        source: &'a str,
                    }
                ),
                "field `source` borrows, but the tree must own its keys: name the owned type, for \
                 example #[event(key = String)]",
            ),
            (
                quote!(
                    struct P(u32, #[event(rename = "y")] u32);
                ),
                "field 0 has no name, which its filter needs: give it one with \
                 #[event(rename = \"...\")], or leave it out with #[event(skip)]",
            ),
            (
                quote!(
                    struct C {
                        #[event(hash)]
                        name: String,
                        #[event(hash_with = f)]
                        id: u32,
                    }
                ),
                "field `name` and field `id` both have a hash, but an event has one: keep one of \
                 them",
            ),
            (
                quote!(
                    struct W<T> {
                        inner: T,
                    }
                ),
                "`W` can't be an event with type or const parameters, since its keys need one type \
                 each: derive for a struct with concrete types",
            ),
            (
                quote!(
                    struct L {
                        #[event(ignore)]
                        text: String,
                    }
                ),
                "field `text`: there is no attribute `ignore`; there are skip, rename, key, hash \
                 and hash_with",
            ),
            (
                quote!(
                    struct L {
                        id: u8,
                        #[event(skip, rename = "message")]
                        text: String,
                    }
                ),
                "field `text` is skipped, so `rename` has no effect: remove one of the two",
            ),
            (
                quote!(
                    struct L {
                        id: u8,
                        #[event(skip, key = String)]
                        text: String,
                    }
                ),
                "field `text` is skipped, so `key` has no effect: remove one of the two",
            ),
            (
                quote!(
                    struct L {
                        #[event(rename = "not a name")]
                        text: String,
                    }
                ),
                "field `text`: `not a name` can't be the name of a method",
            ),
            (
                quote!(
                    struct L {
                        path: String,
                    }
                ),
                "field `path`: the filter has a method `path` already, so choose another name (for \
                 fields with #[event(rename = \"...\")])",
            ),
            (
                quote!(
                    enum E {
                        One,
                        All,
                    }
                ),
                "variant `All`: the filter has a method `all` already, so choose another name (for \
                 fields with #[event(rename = \"...\")])",
            ),
            (
                quote!(
                    struct L {
                        foo_bar: String,
                        fooBar: String,
                    }
                ),
                "`fooBar` and `foo_bar` give one key: choose another name for one of them with \
                 #[event(rename = \"...\")]",
            ),
            (
                quote!(
                    enum E {
                        A { b: u8 },
                        AB,
                    }
                ),
                "`b` and `AB` give one key: choose another name for one of them with \
                 #[event(rename = \"...\")]",
            ),
            (
                quote!(
                    enum E {
                        AB,
                        Ab,
                    }
                ),
                "variants `AB` and `Ab` give one name in the filter: call one of them something \
                 else",
            ),
            (
                quote!(
                    struct L {
                        #[event(skip)]
                        text: String,
                    }
                ),
                "`L` has no field that is a key, so nobody could subscribe to some of its events: \
                 give it at least one that is not skipped",
            ),
            (
                quote!(
                    enum E {}
                ),
                "`E` has no variants, hence no events",
            ),
            (
                quote!(union U { a: u8 }),
                "`Event` can be derived for structs and enums, not for unions",
            ),
            (
                quote!(
                    #[event(skip)]
                    struct L {
                        text: String,
                    }
                ),
                "`L`: there is no attribute `skip` here; there is crate (and some for fields)",
            ),
        ];
        for (item, message) in cases {
            assert_eq!(error(item), message);
        }
    }

    #[test]
    fn more_keys_than_a_path_can_have_are_refused() {
        let fields = (0..256).map(|number| quote::format_ident!("f{number}"));
        let message = error(quote!(struct Wide { #(#fields: u8,)* }));
        assert_eq!(
            message,
            "256 keys are more than a path can have (255): skip some"
        );
    }

    #[test]
    fn names_are_turned_into_names() {
        let method = |name| super::method_name(&syn::parse_str(name).expect("a name")).to_string();
        assert_eq!(method("DeviceLost"), "device_lost");
        assert_eq!(method("HTTPRequest"), "httprequest");
        assert_eq!(method("V2Log"), "v2_log");
        assert_eq!(method("Type"), "r#type");
        let pascal = |name| super::pascal_case(&syn::parse_str(name).expect("a name"));
        assert_eq!(pascal("device_id"), "DeviceId");
        assert_eq!(pascal("r#type"), "Type");
        assert_eq!(pascal("x"), "X");
    }
}
