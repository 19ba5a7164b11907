//! Which paths of a tree belong to a synchronization: rsync's rules of exclusion, and what they mean.

use crate::failure::{Outcome, usage};
use crate::text::printable;

/// Longest rule. With the longest path it costs some millions of steps to match, not more.
const RULE_BYTES_MAX: usize = 4096;
/// Many more than anybody writes.
const RULES_MAX: usize = 65_536;

/// Rules in their order; the first that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    include: bool,
    /// Matches directories only.
    directory: bool,
    /// Matches from the top of the tree on, not below any directory.
    anchored: bool,
    /// Matches the path, not the last name in it.
    path: bool,
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`: any but a slash.
    Any,
    /// `*`: any number of bytes that are no slash.
    Star,
    /// `**`: any number of bytes.
    Stars,
    /// `[a-z]`: not a slash.
    Set {
        negated: bool,
        ranges: Vec<(u8, u8)>,
    },
}

impl Filter {
    /// Reads lines, as those of `--filter-from`: `- PATTERN`, `+ PATTERN`; comments begin with `#` or `;`.
    ///
    /// # Errors
    /// A line is something else.
    pub(crate) fn parse<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Outcome<Self> {
        let mut rules = Vec::new();
        for line in lines {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line.starts_with(b"#") || line.starts_with(b";") {
                continue;
            }
            let (include, pattern) = match line {
                [b'-', b' ', pattern @ ..] => (false, pattern),
                [b'+', b' ', pattern @ ..] => (true, pattern),
                _ => {
                    let shown = printable(line);
                    return Err(usage(format!("'{shown}' is no filter rule")).with_hint(
                        "rules are '- PATTERN' to exclude and '+ PATTERN' to include, one a line",
                    ));
                }
            };
            rules.push(rule(include, pattern)?);
            if rules.len() > RULES_MAX {
                return Err(usage(format!("more than {RULES_MAX} filter rules")));
            }
        }
        Ok(Self(rules))
    }

    /// Whether nothing is ever left out.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the object of this path, from the top of the tree on, is left out.
    pub(super) fn excludes(&self, path: &[u8], directory: bool) -> bool {
        let rule = self.0.iter().find(|rule| rule.matches(path, directory));
        rule.is_some_and(|rule| !rule.include)
    }
}

fn rule(include: bool, pattern: &[u8]) -> Outcome<Rule> {
    let refuse = |why: &str| Err(usage(format!("the pattern '{}' {why}", printable(pattern))));
    if pattern.len() > RULE_BYTES_MAX {
        return Err(usage("a filter rule is too long"));
    }
    let mut text = pattern;
    let directory = text.len() > 1 && text.ends_with(b"/");
    if directory {
        text = &text[..text.len() - 1];
    }
    let anchored = text.starts_with(b"/");
    if anchored {
        text = &text[1..];
    }
    if text.is_empty() {
        return refuse("is empty");
    }
    let path = anchored || text.contains(&b'/') || text.windows(2).any(|two| two == b"**");
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < text.len() {
        at += match text[at] {
            b'*' => {
                let stars = text[at..].iter().take_while(|byte| **byte == b'*').count();
                tokens.push(if stars == 1 {
                    Token::Star
                } else {
                    Token::Stars
                });
                stars
            }
            b'?' => {
                tokens.push(Token::Any);
                1
            }
            b'\\' if at + 1 < text.len() => {
                tokens.push(Token::Byte(text[at + 1]));
                2
            }
            b'[' => match set(&text[at..]) {
                Some((token, length)) => {
                    tokens.push(token);
                    length
                }
                None => return refuse("has a [ without its ]"),
            },
            byte => {
                tokens.push(Token::Byte(byte));
                1
            }
        };
    }
    Ok(Rule {
        include,
        directory,
        anchored,
        path,
        tokens,
    })
}

/// A set of bytes, and how long it is as written.
fn set(text: &[u8]) -> Option<(Token, usize)> {
    let mut at = 1;
    let negated = matches!(text.get(at), Some(b'!' | b'^'));
    at += usize::from(negated);
    let mut ranges = Vec::new();
    let start = at;
    loop {
        let mut byte = *text.get(at)?;
        if byte == b']' && at > start {
            return Some((Token::Set { negated, ranges }, at + 1));
        }
        if byte == b'\\' {
            at += 1;
            byte = *text.get(at)?;
        }
        at += 1;
        let last = match (text.get(at), text.get(at + 1)) {
            (Some(b'-'), Some(last)) if *last != b']' => {
                at += 2;
                *last
            }
            _ => byte,
        };
        ranges.push((byte, last));
    }
}

impl Rule {
    fn matches(&self, path: &[u8], directory: bool) -> bool {
        if self.directory && !directory {
            return false;
        }
        if !self.path {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
            return wild(&self.tokens, name);
        }
        if self.anchored {
            return wild(&self.tokens, path);
        }
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let starts = std::iter::once(0).chain(slashes.map(|(at, _)| at + 1));
        starts
            .into_iter()
            .any(|start| wild(&self.tokens, &path[start..]))
    }
}

/// Whether `text` is of the form of `tokens`: in as many steps as there are pairs of the two, whatever they are.
fn wild(tokens: &[Token], text: &[u8]) -> bool {
    // Where in the text the tokens so far can have come to.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for token in tokens {
        let mut next = vec![false; text.len() + 1];
        match token {
            Token::Star | Token::Stars => {
                let mut open = false;
                for at in 0..=text.len() {
                    open |= reached[at];
                    next[at] = open;
                    if *token == Token::Star && text.get(at) == Some(&b'/') {
                        open = false;
                    }
                }
            }
            _ => {
                for (at, byte) in text.iter().enumerate() {
                    next[at + 1] = reached[at] && token.takes(*byte);
                }
            }
        }
        reached = next;
    }
    reached[text.len()]
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::Any => byte != b'/',
            Self::Set { negated, ranges } => {
                let within = ranges
                    .iter()
                    .any(|(first, last)| (*first..=*last).contains(&byte));
                byte != b'/' && within != *negated
            }
            Self::Star | Self::Stars => false,
        }
    }
}

/// The fuzz target `filters`: a path in the first line, rules in those behind it.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::{Filter, Rule, rule};

    /// Any bytes are rules or are refused; what they match does not depend on how that is found out.
    pub fn filters(data: &[u8]) {
        let mut lines = data.split(|byte| *byte == b'\n');
        let path = lines.next().unwrap_or_default();
        let rules: Vec<&[u8]> = lines.collect();
        if let Ok(filter) = Filter::parse(rules.iter().copied()) {
            let first = |directory| filter.0.iter().find(|rule| rule.matches(path, directory));
            for directory in [false, true] {
                let excluded = first(directory).is_some_and(|rule: &Rule| !rule.include);
                assert_eq!(filter.excludes(path, directory), excluded);
            }
        }
        // A path matches itself, written so that nothing in it means anything.
        let escaped: Vec<u8> = path.iter().flat_map(|byte| [b'\\', *byte]).collect();
        let is_name = !path.contains(&b'/') && !path.is_empty();
        if is_name && let Ok(rule) = rule(false, &escaped) {
            assert!(rule.matches(path, true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excludes(lines: &str, path: &str, directory: bool) -> bool {
        let filter = Filter::parse(lines.lines().map(str::as_bytes)).expect(lines);
        filter.excludes(path.as_bytes(), directory)
    }

    #[test]
    fn as_rsync() {
        for (lines, path, directory, excluded) in [
            ("- *.o", "a/b/c.o", false, true),
            ("- *.o", "a/b/c.oo", false, false),
            ("- /x", "x", false, true),
            ("- /x", "a/x", false, false),
            ("- x", "a/x", true, true),
            ("- x/", "a/x", false, false),
            ("- x/", "a/x", true, true),
            ("- a/x", "b/a/x", false, true),
            ("- a/x", "ba/x", false, false),
            ("- /a/*", "a/b", false, true),
            ("- /a/*", "a/b/c", false, false),
            ("- /a/**", "a/b/c", false, true),
            ("- a**c", "a/b/c", false, true),
            ("- [a-c]?", "b1", false, true),
            ("- [!a-c]?", "b1", false, false),
            ("- []x]", "]", false, true),
            ("- \\*", "*", false, true),
            ("- \\*", "x", false, false),
            ("+ keep.o\n- *.o", "keep.o", false, false),
            ("+ keep.o\n- *.o", "other.o", false, true),
            ("# - x\n; - x\n\n", "x", false, false),
            ("- *", ".x", true, true),
        ] {
            assert_eq!(
                excludes(lines, path, directory),
                excluded,
                "{lines}: {path}"
            );
        }
        for wrong in ["x", "-x", "- ", "- /", "- [a", "! ", "merge f"] {
            assert!(Filter::parse([wrong.as_bytes()]).is_err(), "{wrong}");
        }
    }
}
