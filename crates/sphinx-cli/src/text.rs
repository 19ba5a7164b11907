//! Names and messages from elsewhere, made safe to print.

/// Longest text from a peer that is shown, in characters.
const SHOWN_MAX: usize = 400;
/// How a ticket begins.
pub(crate) const TICKET_PREFIX: &str = "sphx1";
/// From so many characters behind the prefix on it is taken for a ticket, or a part of one.
const TICKET_CHARS_MIN: usize = 16;

/// Bytes of a name for a terminal: control characters and what is not UTF-8 appear as escapes, so
/// that nothing a peer chose can move the cursor, change colours or reorder the line. What has been
/// made printable stays as it is when it passes here again. Tickets are secrets and are not shown.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push_char(&mut shown, c);
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
        if shown.len() > 4 * SHOWN_MAX {
            break;
        }
    }
    let mut shown = without_tickets(&shown);
    match shown.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => {
            shown.truncate(at);
            shown.push('…');
            shown
        }
        None => shown,
    }
}

/// The text with nothing of a ticket but how all of them begin.
pub(crate) fn without_tickets(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.to_ascii_lowercase().find(TICKET_PREFIX) {
        let (before, found) = rest.split_at(at + TICKET_PREFIX.len());
        let secret = found.find(|c: char| !c.is_ascii_alphanumeric());
        let (secret, after) = found.split_at(secret.unwrap_or(found.len()));
        shown.push_str(before);
        shown.push_str(match secret.len() {
            ..TICKET_CHARS_MIN => secret,
            _ => "…",
        });
        rest = after;
    }
    shown + rest
}

/// The line that has started this process, as it can be typed again; but for a ticket, which is a secret.
pub(crate) fn own_command_line() -> String {
    own_command_line_with("")
}

/// The same with one more option, behind the command, unless it stands there already.
pub(crate) fn own_command_line_with(option: &str) -> String {
    let words = std::env::args_os().skip(1);
    let words = words.map(|word| quoted(&printable(word.as_encoded_bytes())));
    let mut line: Vec<String> = ["sphx".to_owned()].into_iter().chain(words).collect();
    if !option.is_empty() && !line.iter().any(|word| word == option) {
        line.insert(line.len().min(2), option.to_owned());
    }
    line.join(" ")
}

/// Words as a line that a shell takes for them.
pub(crate) fn shell_line(words: impl IntoIterator<Item = String>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| quoted(&word)).collect();
    words.join(" ")
}

/// A word as a shell takes it for what it is.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_./:=@%+,-".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

fn push_char(shown: &mut String, c: char) {
    match c {
        c if c.is_control() || reorders(c) => {
            for escaped in c.escape_default() {
                shown.push(escaped);
            }
        }
        c => shown.push(c),
    }
}

/// Marks that change the direction or the visibility of neighbouring text, and line separators.
fn reorders(c: char) -> bool {
    matches!(c,
        '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// Lower-case hexadecimal digits of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        for (word, shown) in [
            ("a/b-c_1.mkv", "a/b-c_1.mkv"),
            ("two words", "'two words'"),
            ("it's", "'it'\\''s'"),
            ("$HOME", "'$HOME'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }

    #[test]
    fn escapes() {
        assert_eq!(printable(b"plain.txt"), "plain.txt");
        assert_eq!(printable("grün 🦀".as_bytes()), "grün 🦀");
        assert_eq!(printable(b"\x1b[2Jboo\r\n"), "\\u{1b}[2Jboo\\r\\n");
        assert_eq!(printable(b"caf\xe9"), "caf\\xe9");
        assert_eq!(
            printable("a\u{202e}gpj.exe".as_bytes()),
            "a\\u{202e}gpj.exe"
        );
    }

    #[test]
    fn tickets_are_not_shown() {
        let secret = "abcdefghijklmnopqrstuvwxyz234567";
        for ticket in [
            format!("sphx1{secret}"),
            format!("SPHX1{secret}").to_uppercase(),
        ] {
            let shown = printable(format!("'{ticket}', \"{ticket}x\" and {ticket}").as_bytes());
            assert!(!shown.to_lowercase().contains("abcd"), "{shown}");
            assert_eq!(shown.matches('…').count(), 3, "{shown}");
            assert_eq!(printable(shown.as_bytes()), shown);
        }
        assert_eq!(printable(b"sphx1.txt and sphx12"), "sphx1.txt and sphx12");
    }

    proptest! {
        #[test]
        fn nothing_moves_the_cursor(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let shown = printable(&bytes);
            prop_assert!(shown.chars().all(|c| !c.is_control() && !reorders(c)));
            prop_assert!(shown.chars().count() <= SHOWN_MAX + 1);
            if shown.chars().count() <= SHOWN_MAX {
                prop_assert_eq!(printable(shown.as_bytes()), shown);
            }
        }
    }
}
