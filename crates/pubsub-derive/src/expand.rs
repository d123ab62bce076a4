//! The code that the macro writes.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::{Lifetime, Type};

use crate::input::{Input, Key, Shape, method_name};

pub(crate) fn expand(input: &Input) -> TokenStream {
    let keys = keys(input);
    let event = event(input);
    let filters = filters(input);
    quote! { #keys #event #filters }
}

/// The names that everything hangs on.
struct Names {
    key: Ident,
    key_ref: Ident,
    filter: Ident,
}

impl Names {
    fn of(input: &Input) -> Self {
        let name = &input.item.ident;
        Names {
            key: format_ident!("{name}Key"),
            key_ref: format_ident!("{name}KeyRef"),
            filter: format_ident!("{name}Filter"),
        }
    }
}

/// The event's lifetimes that its keys have, too.
fn key_lifetimes(input: &Input) -> Vec<Lifetime> {
    let keys = || input.shapes.iter().flat_map(|shape| &shape.keys);
    let declared = input.item.generics.lifetimes().map(|l| l.lifetime.clone());
    declared
        .filter(|lifetime| keys().any(|key| mentions(key.field.to_token_stream(), lifetime)))
        .collect()
}

fn mentions(tokens: TokenStream, lifetime: &Lifetime) -> bool {
    let mut after_quote = false;
    tokens.into_iter().any(|token| {
        let here = match &token {
            TokenTree::Ident(name) => after_quote && *name == lifetime.ident,
            TokenTree::Group(group) => mentions(group.stream(), lifetime),
            _ => false,
        };
        after_quote = matches!(&token, TokenTree::Punct(p) if p.as_char() == '\'');
        here
    })
}

/// Whether an event lends anything; an enum of nothing but unit variants does not.
fn lends(input: &Input) -> bool {
    input.shapes.iter().any(|shape| !shape.keys.is_empty())
}

/// The enum of all keys, owned and borrowed, and how the two compare.
fn keys(input: &Input) -> TokenStream {
    let Names { key, key_ref, .. } = Names::of(input);
    let krate = &input.krate;
    let (name, vis) = (&input.item.ident, &input.item.vis);
    let variants: Vec<&Ident> = input.shapes.iter().filter_map(|s| s.variant).collect();
    let numbers: Vec<u32> = (0..variants.len() as u32).collect();
    let all: Vec<&Key> = input.shapes.iter().flat_map(|s| &s.keys).collect();
    let fields: Vec<&Ident> = all.iter().map(|key| &key.variant).collect();
    let stored: Vec<&Type> = all.iter().map(|key| &key.stored).collect();
    let lent: Vec<&Type> = all.iter().map(|key| key.field).collect();

    let variant_docs = variants
        .iter()
        .map(|v| format!("The first key of `{name}::{v}`."));
    let variant_docs: Vec<String> = variant_docs.collect();
    let field_docs = all.iter().map(|key| {
        let member = &key.member.to_token_stream();
        format!("Key from `{member}`.")
    });
    let field_docs: Vec<String> = field_docs.collect();
    let key_doc = format!("A key of [`{name}`] events, as a tree of subscriptions stores it.");
    let key_ref_doc = format!("A key that a [`{name}`] lends while it is being published.");

    // Both hash alike by construction: the same arms, and fields that hash like what is stored.
    let hash = quote! {
        match self {
            #(Self::#variants => ::core::hash::Hash::hash(&#numbers, state),)*
            #(Self::#fields(key) => ::core::hash::Hash::hash(key, state),)*
        }
    };
    let owned = quote! {
        #[doc = #key_doc]
        #[derive(::core::clone::Clone, ::core::fmt::Debug, ::core::cmp::PartialEq, ::core::cmp::Eq)]
        #vis enum #key {
            #(#[doc = #variant_docs] #variants,)*
            #(#[doc = #field_docs] #fields(#stored),)*
        }

        #[automatically_derived]
        impl ::core::hash::Hash for #key {
            fn hash<H: ::core::hash::Hasher>(&self, state: &mut H) {
                #hash
            }
        }
    };
    if !lends(input) {
        return quote! {
            #owned

            #[automatically_derived]
            impl #krate::Equivalent<#key> for #key {
                fn equivalent(&self, key: &#key) -> bool {
                    self == key
                }
            }
        };
    }
    let lifetimes = key_lifetimes(input);
    quote! {
        #owned

        #[doc = #key_ref_doc]
        #[derive(::core::fmt::Debug)]
        #vis enum #key_ref<'event, #(#lifetimes),*> {
            #(#[doc = #variant_docs] #variants,)*
            #(#[doc = #field_docs] #fields(&'event #lent),)*
        }

        #[automatically_derived]
        impl<'event, #(#lifetimes),*> ::core::hash::Hash for #key_ref<'event, #(#lifetimes),*> {
            #[inline]
            fn hash<H: ::core::hash::Hasher>(&self, state: &mut H) {
                #hash
            }
        }

        #[automatically_derived]
        impl<'event, #(#lifetimes),*> #krate::Equivalent<#key>
            for #key_ref<'event, #(#lifetimes),*>
        {
            #[inline]
            fn equivalent(&self, key: &#key) -> bool {
                match (self, key) {
                    #((Self::#variants, #key::#variants) => true,)*
                    #((Self::#fields(lent), #key::#fields(stored)) => *stored == **lent,)*
                    _ => false,
                }
            }
        }
    }
}

/// The traversal.
fn event(input: &Input) -> TokenStream {
    let Names { key, key_ref, .. } = Names::of(input);
    let krate = &input.krate;
    let name = &input.item.ident;
    let (impl_generics, ty_generics, where_clause) = input.item.generics.split_for_impl();
    let lifetimes = key_lifetimes(input);
    let (lent, lent_type) = if lends(input) {
        (&key_ref, quote!(#key_ref<'event, #(#lifetimes),*>))
    } else {
        (&key, quote!(#key))
    };
    let arms = input.shapes.iter().map(|shape| {
        let pattern = pattern(shape, shape.keys.iter().map(|key| &key.member));
        let first = shape.variant.map(|variant| quote!(#lent::#variant));
        let fields = shape.keys.iter().enumerate().map(|(index, key)| {
            let (variant, binding) = (&key.variant, binding(index));
            quote!(#lent::#variant(#binding))
        });
        let arms = first.into_iter().chain(fields).enumerate();
        let arms = arms.map(|(depth, key)| quote!(#depth => ::core::option::Option::Some(#key),));
        quote! {
            #pattern => match depth {
                #(#arms)*
                _ => ::core::option::Option::None,
            }
        }
    });
    let shard_hash = input
        .shapes
        .iter()
        .any(|shape| shape.hash.is_some())
        .then(|| {
            let arms = input.shapes.iter().map(|shape| {
                let pattern = pattern(shape, shape.hash.iter().map(|hash| &hash.member));
                let first = binding(0);
                match &shape.hash {
                    None => quote!(#pattern => ::core::option::Option::None,),
                    Some(hash) => {
                        let with = match &hash.with {
                            Some(with) => with.to_token_stream(),
                            None => quote!(#krate::stable_hash),
                        };
                        quote!(#pattern => ::core::option::Option::Some(#with(#first)),)
                    }
                }
            });
            quote! {
                fn shard_hash(&self) -> ::core::option::Option<u64> {
                    match self {
                        #(#arms)*
                    }
                }
            }
        });
    quote! {
        #[automatically_derived]
        impl #impl_generics #krate::Event<#key> for #name #ty_generics #where_clause {
            type Key<'event> = #lent_type where Self: 'event;

            #[inline]
            fn key(
                &self,
                depth: usize,
            ) -> ::core::option::Option<<Self as #krate::Event<#key>>::Key<'_>> {
                match self {
                    #(#arms)*
                }
            }

            #shard_hash
        }
    }
}

/// A pattern for the struct or variant that binds some of its members, in order.
fn pattern<'a>(shape: &Shape, members: impl Iterator<Item = &'a syn::Member>) -> TokenStream {
    let variant = shape.variant.map(|variant| quote!(::#variant));
    let bindings = members.enumerate().map(|(index, member)| {
        let binding = binding(index);
        quote!(#member: #binding)
    });
    quote!(Self #variant { #(#bindings,)* .. })
}

fn binding(index: usize) -> Ident {
    format_ident!("key_{index}", span = Span::mixed_site())
}

/// The filter of a struct, or those of an enum: one that begins, and one for each variant.
fn filters(input: &Input) -> TokenStream {
    let Names { key, filter, .. } = Names::of(input);
    let krate = &input.krate;
    let (name, vis) = (&input.item.ident, &input.item.vis);
    let [Shape { variant: None, .. }] = &input.shapes[..] else {
        let parts = input.shapes.iter().filter_map(|shape| {
            let variant = shape.variant?;
            let part = format_ident!("{name}{variant}Filter");
            Some((variant, method_name(variant), part, shape))
        });
        let parts: Vec<_> = parts.collect();
        let begins = parts.iter().map(|(variant, method, part, _)| {
            let doc = format!("All `{name}::{variant}` events, to be narrowed down.");
            quote! {
                #[doc = #doc]
                #[must_use]
                #vis fn #method() -> #part {
                    <#part as ::core::default::Default>::default()
                }
            }
        });
        let parts = parts.iter().map(|(variant, _, part, shape)| {
            let doc = format!(
                "Chooses among `{name}::{variant}` events; begins with [`{filter}`]. What is not \
                 set matches anything."
            );
            let first = quote!(::core::option::Option::Some(#key::#variant),);
            filter_of(input, shape, part, &doc, &first)
        });
        let doc = format!("Chooses among [`{name}`] events: all, or those of one variant.");
        return quote! {
            #[doc = #doc]
            #[derive(::core::clone::Clone, ::core::fmt::Debug)]
            #vis struct #filter(());

            impl #filter {
                /// Every event.
                #[must_use]
                #vis fn all() -> Self {
                    Self(())
                }

                #(#begins)*

                /// The path to subscribe with.
                #[must_use]
                #vis fn path(self) -> #krate::Path<#key> {
                    #krate::Path::root()
                }
            }

            #[automatically_derived]
            impl ::core::convert::From<#filter> for #krate::Path<#key> {
                fn from(filter: #filter) -> Self {
                    filter.path()
                }
            }

            #(#parts)*
        };
    };
    let doc = format!("Chooses among [`{name}`] events. What is not set matches anything.");
    let filter_of = filter_of(input, &input.shapes[0], &filter, &doc, &TokenStream::new());
    quote! {
        #filter_of

        impl #filter {
            /// Every event, to be narrowed down.
            #[must_use]
            #vis fn new() -> Self {
                <Self as ::core::default::Default>::default()
            }
        }
    }
}

/// A builder with a method for each key of `shape`. `first` is what comes before them.
fn filter_of(
    input: &Input,
    shape: &Shape,
    filter: &Ident,
    doc: &str,
    first: &TokenStream,
) -> TokenStream {
    let Names { key, .. } = Names::of(input);
    let krate = &input.krate;
    let vis = &input.item.vis;
    let names: Vec<&Ident> = shape.keys.iter().map(|key| &key.name).collect();
    let stored: Vec<&Type> = shape.keys.iter().map(|key| &key.stored).collect();
    let variants = shape.keys.iter().map(|key| &key.variant);
    let methods = shape.keys.iter().map(|key| {
        let (name, stored) = (&key.name, &key.stored);
        let doc = format!(
            "Only events with this `{}`.",
            name.to_string().trim_start_matches("r#")
        );
        let (given, value) = if is_literal(stored) {
            (quote!(#stored), quote!(key))
        } else {
            let into = quote!(::core::convert::Into);
            (quote!(impl #into<#stored>), quote!(#into::into(key)))
        };
        quote! {
            #[doc = #doc]
            #[must_use]
            #vis fn #name(mut self, key: #given) -> Self {
                self.#name = ::core::option::Option::Some(#value);
                self
            }
        }
    });
    quote! {
        #[doc = #doc]
        #[derive(::core::clone::Clone, ::core::fmt::Debug)]
        #vis struct #filter {
            #(#names: ::core::option::Option<#stored>,)*
        }

        #[automatically_derived]
        impl ::core::default::Default for #filter {
            fn default() -> Self {
                Self { #(#names: ::core::option::Option::None,)* }
            }
        }

        impl #filter {
            #(#methods)*

            /// The path to subscribe with.
            #[must_use]
            #vis fn path(self) -> #krate::Path<#key> {
                #krate::__private::path([
                    #first
                    #(self.#names.map(#key::#variants),)*
                ])
            }
        }

        #[automatically_derived]
        impl ::core::convert::From<#filter> for #krate::Path<#key> {
            fn from(filter: #filter) -> Self {
                filter.path()
            }
        }
    }
}

/// Types that have literals of their own: taking exactly them lets `device(7)` be a `u64`.
fn is_literal(ty: &Type) -> bool {
    let written = ty.to_token_stream().to_string();
    let literal = [
        "bool", "char", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64",
        "u128", "usize",
    ];
    literal.contains(&&*written)
}
