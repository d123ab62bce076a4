//! Which benchmarks were meant: names, parts of names, and near misses.

use anyhow::{Result, bail};

/// Words that stand for several executables.
const ALIASES: &[(&str, &[&str])] = &[("libs", &["diode", "pubsub", "fanout"])];

/// The names among `all` that any of `filters` means; all of them if there is no filter.
///
/// A name is `EXECUTABLE/BENCHMARK`. A filter is an executable's name, an alias, or a part of a name.
///
/// # Errors
/// When a filter means nothing; the error names what may have been meant.
pub fn select(all: &[String], filters: &[String]) -> Result<Vec<String>> {
    for filter in filters {
        if !all.iter().any(|name| means(filter, name)) {
            bail!(
                "no benchmark is called {filter:?}{}",
                did_you_mean(filter, &words(all))
            );
        }
    }
    Ok(all
        .iter()
        .filter(|name| filters.is_empty() || filters.iter().any(|filter| means(filter, name)))
        .cloned()
        .collect())
}

/// The executables that hold everything that `filters` mean, as far as that shows without asking
/// them: `None` means any.
pub fn executables(all: &[String], filters: &[String]) -> Option<Vec<String>> {
    let mut wanted = Vec::new();
    for filter in filters {
        let first = filter.split('/').next().unwrap_or(filter);
        match ALIASES.iter().find(|(alias, _)| *alias == filter) {
            Some((_, executables)) => wanted.extend(executables.iter().map(|&name| name.into())),
            None if all.iter().any(|name| name == first) => wanted.push(first.to_owned()),
            None => return None,
        }
    }
    wanted.sort();
    wanted.dedup();
    (!wanted.is_empty()).then_some(wanted)
}

fn means(filter: &str, name: &str) -> bool {
    let executable = name.split('/').next().unwrap_or(name);
    let alias = ALIASES.iter().find(|(alias, _)| *alias == filter);
    if let Some((_, executables)) = alias {
        return executables.contains(&executable);
    }
    executable == filter || name.contains(filter)
}

/// What a filter may be: every name, every leading part of one, and the parts alone.
fn words(all: &[String]) -> Vec<String> {
    let mut words: Vec<String> = ALIASES
        .iter()
        .map(|(alias, _)| (*alias).to_owned())
        .collect();
    for name in all {
        words.extend(
            name.match_indices('/')
                .map(|(end, _)| name[..end].to_owned()),
        );
        words.extend(name.split('/').map(String::from));
        words.push(name.clone());
    }
    words.sort();
    words.dedup();
    words
}

/// A part of a sentence that names what is near to `wrong`, or nothing.
pub fn did_you_mean(wrong: &str, known: &[String]) -> String {
    let mut near: Vec<(usize, &String)> = known
        .iter()
        .map(|name| (distance(wrong, name), name))
        .filter(|(distance, name)| *distance <= wrong.len().max(name.len()).div_ceil(3))
        .collect();
    near.sort();
    let near: Vec<_> = near.iter().take(3).map(|(_, name)| name.as_str()).collect();
    match near.as_slice() {
        [] => String::new(),
        near => format!("; did you mean {}?", near.join(" or ")),
    }
}

/// How many letters to insert, remove or replace to make `b` of `a` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<String> {
        [
            "diode/set",
            "pubsub/publish/one",
            "router/router_noop",
            "router/router_fanout/spin/4",
        ]
        .map(String::from)
        .to_vec()
    }

    fn selected(filters: &[&str]) -> Vec<String> {
        let filters: Vec<_> = filters.iter().map(|filter| (*filter).to_owned()).collect();
        select(&all(), &filters).unwrap()
    }

    #[test]
    fn executables_parts_and_aliases() {
        assert_eq!(selected(&[]), all());
        assert_eq!(selected(&["router"]), &all()[2..]);
        assert_eq!(selected(&["fanout/spin"]), &all()[3..]);
        assert_eq!(selected(&["libs"]), &all()[..2]);
        assert_eq!(
            selected(&["noop", "diode"]),
            [all()[0].clone(), all()[2].clone()]
        );
    }

    #[test]
    fn an_unknown_name_is_answered_with_near_ones() {
        let error = select(&all(), &["router_nop".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"router_nop\"") && error.contains("router_noop"),
            "{error}"
        );
        let error = select(&all(), &["diodes".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(error.contains("did you mean diode"), "{error}");
        let error = select(&all(), &["xyzzy42".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn only_what_is_needed_is_built() {
        let all = ["diode", "fanout", "pubsub", "router"].map(String::from);
        let built = |filters: &[&str]| {
            let filters: Vec<_> = filters.iter().map(|filter| (*filter).to_owned()).collect();
            executables(&all, &filters)
        };
        assert_eq!(built(&[]), None);
        assert_eq!(built(&["router_noop"]), None);
        assert_eq!(built(&["router", "x"]), None);
        assert_eq!(
            built(&["router/router_noop"]),
            Some(vec!["router".to_owned()])
        );
        let libs = ["diode", "fanout", "pubsub"].map(String::from).to_vec();
        assert_eq!(built(&["libs", "diode"]), Some(libs));
    }

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
