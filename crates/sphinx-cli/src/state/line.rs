//! Lines of words: `laptop permit=tunnel expires=2027-01-01`. Words with spaces stand in quotes, as for a shell; from a `#` that begins
//! a word on it is a comment.

/// Longest name of a ticket, a client, a server.
const NAME_MAX: usize = 64;

/// A line's words; none for an empty one.
pub(crate) fn words(line: &str) -> Result<Vec<String>, String> {
    if line.chars().any(|c| c.is_control() && c != '\t') {
        return Err("a control character".to_owned());
    }
    shlex::split(line).ok_or_else(|| "a quote that does not end".to_owned())
}

/// A word in quotes if it needs them.
pub(crate) fn quoted(word: &str) -> String {
    // Fails only for a NUL, which no word of a line contains.
    shlex::try_quote(word).map_or_else(|_| "''".to_owned(), |word| word.into_owned())
}

/// `key=value`.
pub(crate) fn setting(word: &str) -> Result<(&str, &str), String> {
    let split = word.split_once('=').filter(|(key, _)| !key.is_empty());
    split.ok_or_else(|| format!("'{word}' is no setting: write key=value"))
}

/// Checks a name, which is used in files, on command lines and in events.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let is_name = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= NAME_MAX
        && (text.bytes()).all(|c| c.is_ascii_alphanumeric() || b"-_.@".contains(&c))
        && !text
            .to_ascii_lowercase()
            .starts_with(crate::text::TICKET_PREFIX);
    match is_name {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "'{}' is no name: letters, digits, - _ . and @, at most {NAME_MAX}, a letter or digit first",
            crate::text::printable(text.as_bytes())
        )),
    }
}

/// The message where a setting is unknown, with the one that was probably meant.
pub(crate) fn unknown(what: &str, key: &str, known: &[&str]) -> String {
    let near =
        nearest(key, known).map_or_else(String::new, |near| format!("; did you mean {near}?"));
    format!(
        "there is no {what} '{key}'{near} There are {}",
        known.join(", ")
    )
}

/// The word that is written almost like this one.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known.iter().map(|it| (strsim::jaro_winkler(word, it), *it));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(score, _)| *score > 0.8).map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_words() {
        let all = words("a b='c d' # not this").unwrap();
        assert_eq!(all, ["a", "b=c d"]);
        assert_eq!(words("   ").unwrap(), Vec::<String>::new());
        assert_eq!(words("# all of it").unwrap(), Vec::<String>::new());
        assert!(words("a 'b").is_err() && words("a\u{1b}[31m").is_err());
        for word in ["a", "a b", "it's", "a#b", "#", "\"", "a=b c"] {
            assert_eq!(words(&quoted(word)).unwrap(), [word]);
        }
    }

    #[test]
    fn names_are_short_and_plain() {
        for good in ["laptop", "a.b-c_d@e", "7"] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for wrong in [
            "",
            "-a",
            "a b",
            "a/b",
            "..",
            "ä",
            "sphx1abc",
            &"a".repeat(65),
        ] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_probably_meant() {
        let known = ["permit", "expires", "rate"];
        assert_eq!(nearest("permits", &known), Some("permit"));
        assert_eq!(nearest("expire", &known), Some("expires"));
        assert_eq!(nearest("zzz", &known), None);
    }
}
