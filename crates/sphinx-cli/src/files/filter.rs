//! Which paths of a tree belong to a synchronization: rsync's rules of exclusion, and what they mean.

use crate::failure::{Outcome, usage};
use crate::text::printable;

/// Longest rule. With the longest path it costs some millions of steps to match, not more.
const RULE_BYTES_MAX: usize = 4096;
/// Most rules of a filter: many more than anybody writes.
const RULES_MAX: usize = 65_536;

/// Rules in their order; the first that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    include: bool,
    /// Matches directories only.
    directory: bool,
    start: Start,
    /// `**` at its beginning, which also stands for nothing before the slash that a path from the top does not have.
    from_above: bool,
    /// `***` at its end, which also stands for a directory's path without its slash.
    to_itself: bool,
    tokens: Vec<Token>,
}

/// Where in a path what matches begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// At the top of the tree.
    Top,
    /// This number of names before the end of the path.
    Last(usize),
    /// At any name of the path.
    Anywhere,
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

    /// Whether there are no rules, so that nothing is left out.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the object of this path, from the top of the tree on, is left out.
    pub(super) fn excludes(&self, path: &[u8], directory: bool) -> bool {
        let rule = self.0.iter().find(|rule| rule.matches(path, directory));
        rule.is_some_and(|rule| !rule.include)
    }

    /// Whether a directory of this path is left out, by itself or with another one that it is in.
    pub(super) fn leaves_out(&self, path: &[u8]) -> bool {
        if self.is_empty() {
            return false;
        }
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut ends = slashes.map(|(at, _)| at).chain([path.len()]);
        ends.any(|end| self.excludes(&path[..end], true))
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
    let from_above = text.starts_with(b"**");
    let anchored = text.starts_with(b"/");
    if anchored {
        text = &text[1..];
    }
    if text.is_empty() {
        return refuse("is empty");
    }
    let slashes = text.iter().filter(|byte| **byte == b'/').count();
    let start = match text.windows(2).any(|two| two == b"**") {
        _ if anchored || from_above => Start::Top,
        true => Start::Anywhere,
        false => Start::Last(slashes + 1),
    };
    let mut tokens = Vec::new();
    // Where there is nothing to be taken literally, a backslash is itself.
    let wild = text.iter().any(|byte| b"*?[".contains(byte));
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
            b'\\' if wild => match text.get(at + 1) {
                Some(byte) => {
                    tokens.push(Token::Byte(*byte));
                    2
                }
                None => return refuse("ends with a \\ that nothing follows"),
            },
            b'[' => match set(&text[at..]) {
                Ok((token, length)) => {
                    tokens.push(token);
                    length
                }
                Err(why) => return refuse(why),
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
        start,
        from_above,
        to_itself: text.ends_with(b"***"),
        tokens,
    })
}

/// A set of bytes, and how long it is as written; or what is wrong with it.
fn set(text: &[u8]) -> Result<(Token, usize), &'static str> {
    let byte_at = |at: usize| text.get(at).copied().ok_or("has a [ without its ]");
    let mut at = 1;
    let negated = matches!(text.get(at), Some(b'!' | b'^'));
    at += usize::from(negated);
    let mut ranges = Vec::new();
    let start = at;
    loop {
        let mut byte = byte_at(at)?;
        if byte == b']' && at > start {
            return Ok((Token::Set { negated, ranges }, at + 1));
        }
        if let Some((name, length)) = class_name(&text[at..]) {
            let class = CLASSES.iter().find(|(known, _)| *known == name);
            let (_, class) = class.ok_or("names a class of characters that there is not")?;
            ranges.extend_from_slice(class);
            at += length;
            continue;
        }
        if byte == b'\\' {
            at += 1;
            byte = byte_at(at)?;
        }
        at += 1;
        let last = match (text.get(at), text.get(at + 1)) {
            (Some(b'-'), Some(last)) if *last != b']' => {
                let escaped = usize::from(*last == b'\\');
                at += 2 + escaped;
                byte_at(at - 1)?
            }
            _ => byte,
        };
        ranges.push((byte, last));
    }
}

/// The name in `[:name:]`, and how long that is.
fn class_name(text: &[u8]) -> Option<(&[u8], usize)> {
    let name = text.strip_prefix(b"[:")?;
    let end = name.iter().position(|byte| *byte == b']')?;
    Some((name[..end].strip_suffix(b":")?, end + 3))
}

/// The name of a class, and the ranges that make it.
type Class = (&'static [u8], &'static [(u8, u8)]);

/// The character classes of POSIX, for ASCII only.
const CLASSES: [Class; 12] = [
    (b"alnum", &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')]),
    (b"alpha", &[(b'A', b'Z'), (b'a', b'z')]),
    (b"blank", &[(b'\t', b'\t'), (b' ', b' ')]),
    (b"cntrl", &[(0, 31), (127, 127)]),
    (b"digit", &[(b'0', b'9')]),
    (b"graph", &[(b'!', b'~')]),
    (b"lower", &[(b'a', b'z')]),
    (b"print", &[(b' ', b'~')]),
    (
        b"punct",
        &[(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')],
    ),
    (b"space", &[(b'\t', b'\r'), (b' ', b' ')]),
    (b"upper", &[(b'A', b'Z')]),
    (b"xdigit", &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')]),
];

impl Rule {
    fn matches(&self, path: &[u8], directory: bool) -> bool {
        if self.directory && !directory {
            return false;
        }
        let text = [b"/", path, b"/"].concat();
        let end = text.len() - usize::from(!(self.to_itself && directory));
        let text = &text[usize::from(!self.from_above)..end];
        let slashes = text.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut names = std::iter::once(0).chain(slashes.map(|(at, _)| at + 1));
        // Where in the text the tokens so far can have come to.
        let mut reached = vec![false; text.len() + 1];
        match self.start {
            Start::Top => reached[0] = true,
            Start::Last(count) => match names.nth_back(count - 1) {
                Some(at) => reached[at] = true,
                None => return false,
            },
            Start::Anywhere => names.for_each(|at| reached[at] = true),
        }
        wild(&self.tokens, text, reached)
    }
}

/// Whether `text` is of the form of `tokens` from one of the places on that are `reached`: in as many steps as there are
/// pairs of the two, whatever they are.
fn wild(tokens: &[Token], text: &[u8], mut reached: Vec<bool>) -> bool {
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
        // Most rules are about something else, as their first byte says.
        if !next.contains(&true) {
            return false;
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
        let mut escaped: Vec<u8> = path.to_vec();
        if path.iter().any(|byte| b"*?[".contains(byte)) {
            escaped = path.iter().flat_map(|byte| [b'\\', *byte]).collect();
        }
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
            ("- [a-\\c]", "b", false, true),
            ("- **/x", "x", false, true),
            ("- **/x", "a/b/x", false, true),
            ("- **/x", "ax", false, false),
            ("- **/a/x", "a/x", false, true),
            ("- **a/x", "ba/x", false, true),
            ("- /**/x", "x", false, false),
            ("- /**/x", "a/x", false, true),
            ("- a/**/x", "a/x", false, false),
            ("- a/**/x", "b/a/c/d/x", false, true),
            ("- d/***", "d", true, true),
            ("- d/***", "a/d", true, true),
            ("- d/***", "d", false, false),
            ("- d/***", "d/f", false, true),
            ("- d/***/", "d", true, true),
            ("- d/**", "d", true, false),
            ("+ /d/***\n- *", "d", true, false),
            ("+ /d/***\n- *", "d/e/f", false, false),
            ("+ /d/***\n- *", "e/d", true, true),
            ("- a/b*", "c/a/bb", false, true),
            ("- a/b*", "ca/bb", false, false),
            ("- [!/]x", "bx", false, false),
            ("- [[:digit:]]a", "1a", false, true),
            ("- [[:digit:]]a", "aa", false, false),
            ("- [![:digit:]]a", "1a", false, false),
            ("- [^[:digit:]b]a", "aa", false, true),
            ("- [[:upper:][:digit:]_]", "Q", false, true),
            ("- [[:alpha:]-z]", "-", false, true),
            ("- [[:a]", ":", false, true),
            ("- [[:]]", ":]", false, true),
            ("- []x]", "]", false, true),
            ("- \\*", "*", false, true),
            ("- \\*", "x", false, false),
            ("- a\\b", "a\\b", false, true),
            ("- a\\b", "ab", false, false),
            ("- a\\b*", "ab", false, true),
            ("- a\\", "a\\", false, true),
            ("+ keep.o\n- *.o", "keep.o", false, false),
            ("+ keep.o\n- *.o", "other.o", false, true),
            ("# - x\n; - x\n\n", "x", false, false),
            ("- *", ".x", true, true),
            ("- Icon\r", "Icon", false, false),
        ] {
            assert_eq!(
                excludes(lines, path, directory),
                excluded,
                "{lines}: {path}"
            );
        }
        let filter = Filter::parse([&b"- /a/b/"[..]]).expect("a rule");
        for (path, left_out) in [("a", false), ("a/b", true), ("a/b/c/d", true), ("b", false)] {
            assert_eq!(filter.leaves_out(path.as_bytes()), left_out, "{path}");
        }
        for wrong in [
            "x",
            "-x",
            "- ",
            "- /",
            "- [a",
            "- [a-\\",
            "- [[:digit:]",
            "- [[:figit:]]",
            "- [[::]]",
            "- *\\",
            "! ",
            "merge f",
        ] {
            assert!(Filter::parse([wrong.as_bytes()]).is_err(), "{wrong}");
        }
    }
}
