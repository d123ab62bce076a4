//! Just enough Rust to tell code from comments and strings.

/// The source with comments, strings and character literals blanked out, line by line as before.
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = skipped(source, at);
        if end > at {
            code.extend(source[at..end].chars().map(blank));
            at = end;
        } else {
            let next = source[at..].chars().next().unwrap_or(' ');
            code.push(next);
            at += next.len_utf8();
        }
    }
    code
}

fn blank(character: char) -> char {
    if character == '\n' { '\n' } else { ' ' }
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none does.
fn skipped(source: &str, at: usize) -> usize {
    let rest = &source[at..];
    let before = source[..at].chars().next_back();
    let word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return at + rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return at + block_comment(rest);
    }
    if rest.starts_with('"') {
        return at + quoted(rest, '"');
    }
    if !word && rest.starts_with('r') {
        let hashes = rest[1..].bytes().take_while(|&byte| byte == b'#').count();
        if rest[1 + hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = 2 + hashes;
            let end = rest[body..]
                .find(&close)
                .map(|end| body + end + close.len());
            return at + end.unwrap_or(rest.len());
        }
    }
    if !word && rest.starts_with('\'') {
        // A lifetime has no closing quote behind its first character.
        let mut characters = rest[1..].chars();
        let first = characters.next();
        if first == Some('\\') || characters.next() == Some('\'') {
            return at + quoted(rest, '\'');
        }
    }
    at
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (offset, character) in rest.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if character == '\\' {
            escaped = true;
        } else if character == quote {
            return offset + quote.len_utf8();
        }
    }
    rest.len()
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::code_only;

    #[test]
    fn comments_and_strings_are_blanked() {
        let source =
            "let a = \"un\\\"safe\"; // unsafe\nlet b = 'x'; /* unsafe /* nested */ */ f()";
        let code = code_only(source);
        assert!(!code.contains("safe"), "{code}");
        assert!(code.contains("let b =") && code.contains("f()"), "{code}");
        assert_eq!(code.lines().count(), 2);
    }

    #[test]
    fn raw_strings_and_quotes_in_characters() {
        let code = code_only("let a = r#\"unsafe \" \"#; let q = '\"'; let e = '\\''; unsafe {}");
        assert_eq!(code.matches("unsafe").count(), 1, "{code}");
    }

    #[test]
    fn lifetimes_are_code() {
        let source = "fn f<'a>(x: &'a str) -> &'a str { x }";
        assert_eq!(code_only(source), source);
    }
}
