//! The results as one page that needs nothing but itself.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};
use sphinx_codes::svg::embed;

use crate::figures::Figure;

/// What the page is called.
const PAGE: &str = "index.html";

/// Legible on a telephone and on a desk, by day and by night.
const STYLE: &str = "\
:root{color-scheme:light dark}\
body{margin:0 auto;max-width:62rem;padding:0 1rem 4rem;font:1rem/1.5 system-ui,sans-serif;\
background:Canvas;color:CanvasText;overflow-wrap:break-word}\
h1{font-size:1.8rem}h2{margin-top:3.5rem;border-top:1px solid #8886;padding-top:1rem}\
nav ul{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;padding:0;list-style:none}\
.scroll{overflow-x:auto;margin:1rem 0}\
table{border-collapse:collapse;font-size:.9rem}\
th,td{border-bottom:1px solid #8884;padding:.25rem .7rem .25rem 0;text-align:left;\
vertical-align:top;min-width:3rem}\
figure{margin:1rem 0}figure svg{display:block;width:100%;min-width:36rem;height:auto}\
code{background:#8882;padding:.1em .3em;border-radius:.2em}\
.files{font-size:.85rem}\
";

/// Renders what `sphx lab figure` wrote into `directory` as `index.html` in it; the figures that are
/// there, in order.
///
/// # Errors
///
/// Those of reading and writing; `NotFound` if there is no figure.
pub fn site(directory: &Path) -> io::Result<(PathBuf, Vec<Figure>)> {
    let mut sections = String::new();
    let mut links = String::new();
    let mut found = Vec::new();
    for figure in Figure::ALL {
        let name = figure.name();
        let text = match fs::read_to_string(directory.join(format!("{name}.md"))) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let title = text.lines().next().unwrap_or_default();
        let title = escape(title.trim_start_matches('#').trim());
        links += &format!("<li><a href=\"#{name}\">{title}</a></li>\n");
        sections += &format!("<section id=\"{name}\">\n{}", section(directory, &text)?);
        sections += &files(directory, figure)?;
        sections += "</section>\n";
        found.push(figure);
    }
    if found.is_empty() {
        let what = "there are no figures; sphx lab figure all makes them";
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    }
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Sphinx: results</title>\n<link rel=\"icon\" href=\"data:,\">\n\
         <style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>Sphinx: results</h1>\n<p>Every figure of the paper (IPCCC 2019), measured again, and some \
         beyond it. Peers run on the same emulated link, in the same run, with the same loss rates. Each \
         section ends with the command that makes it.</p>\n<nav><ul>\n{links}</ul></nav>\n<main>\n\
         {sections}</main>\n</body>\n</html>\n"
    );
    let path = directory.join(PAGE);
    fs::write(&path, page)?;
    Ok((path, found))
}

/// A figure's text; drawings become part of it.
fn section(directory: &Path, text: &str) -> io::Result<String> {
    let mut events = Vec::new();
    let mut image: Option<(String, String)> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match (event, &mut image) {
            (Event::Start(Tag::Image { dest_url, .. }), _) => {
                image = Some((dest_url.to_string(), String::new()));
            }
            (Event::End(TagEnd::Image), Some((file, title))) => {
                events.push(raw(figure(directory, file, title)?));
                image = None;
            }
            (Event::Text(text), Some((_, title))) => *title += &text,
            // The page has its own first heading.
            (Event::Start(Tag::Heading { level, .. }), _) => {
                events.push(raw(format!("<h{}>", level as usize + 1)));
            }
            (Event::End(TagEnd::Heading(level)), _) => {
                events.push(raw(format!("</h{}>\n", level as usize + 1)));
            }
            (Event::Start(tag @ Tag::Table(_)), _) => {
                events.push(raw("<div class=\"scroll\">".to_owned()));
                events.push(Event::Start(tag));
            }
            (Event::End(end @ TagEnd::Table), _) => {
                events.push(Event::End(end));
                events.push(raw("</div>\n".to_owned()));
            }
            (other, _) => events.push(other),
        }
    }
    let mut out = String::new();
    html::push_html(&mut out, events.into_iter());
    // A drawing is no part of a paragraph.
    Ok(out
        .replace("<p><figure", "<figure")
        .replace("</figure></p>", "</figure>"))
}

fn raw(html: String) -> Event<'static> {
    Event::InlineHtml(CowStr::from(html))
}

fn figure(directory: &Path, file: &str, title: &str) -> io::Result<String> {
    // Only files beside the text.
    let name = Path::new(file).file_name().unwrap_or_default();
    let drawing = fs::read_to_string(directory.join(name))?;
    let title = escape(title);
    let labelled = format!("<svg role=\"img\" aria-label=\"{title}\"");
    let drawing = embed(&drawing).replacen("<svg", &labelled, 1);
    Ok(format!(
        "<figure><div class=\"scroll\">{drawing}</div></figure>"
    ))
}

/// Links to the data, and to the runs that it is of.
fn files(directory: &Path, figure: Figure) -> io::Result<String> {
    let name = &figure.name();
    let sources = figure.sources().into_iter();
    let sources: Vec<String> = sources.map(|(name, _)| format!("{name}.ndjson")).collect();
    let is_of = |file: &str, name: &str| {
        let rest = file.strip_prefix(name).unwrap_or_default();
        rest.starts_with('.') || rest.starts_with('-')
    };
    // The name of a figure may be the beginning of another one's.
    let longer: Vec<String> = Figure::ALL
        .iter()
        .map(|figure| figure.name())
        .filter(|other| is_of(other, name))
        .collect();
    let mut names: Vec<String> = fs::read_dir(directory)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|file| {
            let own = is_of(file, name) && !longer.iter().any(|other| is_of(file, other));
            let ends = [".csv", ".png", ".ndjson"];
            sources.contains(file) || own && ends.iter().any(|end| file.ends_with(end))
        })
        .collect();
    names.sort();
    let links: Vec<String> = names
        .iter()
        .map(|file| format!("<a href=\"{0}\">{0}</a>", escape(file)))
        .collect();
    Ok(format!("<p class=\"files\">{}</p>\n", links.join(" · ")))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_its_drawings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(site(path).is_err());
        let text = "# Figure 9: a & b\n\nText.\n\n![A & B](fig9-goodput.svg)\n\n| a | b |\n|---|---|\n\
             | 1 | 2 |\n\nReproduce this: `sphx lab figure 9`\n";
        fs::write(path.join("fig9.md"), text).unwrap();
        assert!(site(path).is_err(), "the drawing is missing");
        fs::write(
            path.join("fig9-goodput.svg"),
            "<svg><path d=\"M0 0\"/></svg>\n",
        )
        .unwrap();
        fs::write(path.join("fig9-goodput.csv"), "a\n").unwrap();
        let (page, figures) = site(path).unwrap();
        assert_eq!(figures, [Figure::Goodput]);
        let html = fs::read_to_string(page).unwrap();
        for part in [
            "<h2>Figure 9: a &amp; b</h2>",
            "<svg role=\"img\" aria-label=\"A &amp; B\"><path",
            "<table>",
            "href=\"fig9-goodput.csv\"",
            "<code>sphx lab figure 9</code>",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
        assert!(
            !html.contains("http") && !html.contains("<p><figure"),
            "{html}"
        );
    }

    #[test]
    fn files_of_figures_with_longer_names_are_not_ones_own() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["snoop.csv", "snoop-cubic.png", "snoop-ber.csv"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let links = |figure| files(directory.path(), figure).unwrap();
        assert_eq!(links(Figure::Snoop).matches("href").count(), 2);
        assert_eq!(links(Figure::SnoopBer).matches("href").count(), 1);
    }

    #[test]
    fn runs_are_linked_whatever_their_name() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "table1.csv",
            "fig9.ndjson",
            "fig10.ndjson",
            "fig9-virtual.ndjson",
            "multipath-virtual.ndjson",
        ] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let links = |figure| files(directory.path(), figure).unwrap();
        let table = links(Figure::Table1);
        assert_eq!(table.matches("href").count(), 3, "{table}");
        for file in ["table1.csv", "fig9.ndjson", "fig10.ndjson"] {
            assert!(table.contains(&format!(">{file}<")), "{table}");
        }
        let delay = links(Figure::MultipathDelay);
        assert!(delay.contains(">multipath-virtual.ndjson<"), "{delay}");
    }
}
