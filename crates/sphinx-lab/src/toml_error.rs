//! What is wrong with a TOML file, in one line.

/// `line 3, column 8: …`. The library draws the place over several lines, which neither a line of
/// JSON nor one of an error can hold.
pub(crate) fn in_one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', ", ");
    let before = error.span().and_then(|span| text.get(..span.start));
    match before {
        Some(before) => {
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
            format!("line {line}, column {column}: {message}")
        }
        None => message,
    }
}
