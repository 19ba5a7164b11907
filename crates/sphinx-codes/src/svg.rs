//! Line charts as SVG, drawn with nothing but text.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;

const COLOURS: [&str; 10] = [
    "#0b6e4f", "#c1121f", "#1d3557", "#e07a00", "#6a4c93", "#118ab2", "#7f5539", "#d81159",
    "#4f772d", "#495057",
];

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line with dots.
    Line,
    /// A dashed line without dots.
    Dashes,
    /// Diamonds only, for values of others.
    Marks,
}

/// Points with a name.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How to draw it.
    pub style: Style,
    /// The points, in the order they are joined.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Heading.
    pub title: String,
    /// What the horizontal axis shows.
    pub x_label: String,
    /// What the vertical axis shows.
    pub y_label: String,
    /// Draw both axes logarithmically.
    pub is_logarithmic: bool,
    /// The data.
    pub series: Vec<Series>,
}

/// One axis: values to pixels.
struct Axis {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: &[f64], is_logarithmic: bool, from: f64, to: f64) -> Self {
        let high = values.iter().copied().fold(f64::MIN, f64::max);
        let low = values.iter().copied().fold(f64::MAX, f64::min);
        let (low, high) = if is_logarithmic {
            (low * 0.8, high * 1.25)
        } else {
            (0.0, high * 1.05)
        };
        Self {
            low,
            high,
            is_logarithmic,
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let share = if self.is_logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let first = self.low.log10().floor() as i32;
            let last = self.high.log10().ceil() as i32;
            let decades = (first..=last).map(|e| 10_f64.powi(e));
            let steps: &[f64] = if last - first > 3 {
                &[1.0]
            } else {
                &[1.0, 2.0, 5.0]
            };
            return decades
                .flat_map(|decade| steps.iter().map(move |step| step * decade))
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect();
        }
        let rough = (self.high - self.low) / 8.0;
        let decade = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|s| s * decade);
        let step = step.into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let count = ((self.high - self.low) / step) as usize;
        (0..=count).map(|i| self.low + i as f64 * step).collect()
    }
}

/// The chart as an SVG document.
#[must_use]
pub fn render(chart: &Chart) -> String {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let xs: Vec<f64> = points().map(|point| point.0).collect();
    let ys: Vec<f64> = points().map(|point| point.1).collect();
    let is_log = chart.is_logarithmic;
    let x = Axis::new(&xs, is_log, LEFT, WIDTH - RIGHT);
    let y = Axis::new(&ys, is_log, HEIGHT - BOTTOM, TOP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    text(&mut out, (LEFT, 28.0), "start", 16, &chart.title);
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in x.ticks() {
        let at = x.place(tick);
        line(&mut out, (at, TOP), (at, bottom), "#e5e5e5");
        text(&mut out, (at, bottom + 18.0), "middle", 12, &short(tick));
    }
    for tick in y.ticks() {
        let at = y.place(tick);
        line(&mut out, (LEFT, at), (right, at), "#e5e5e5");
        text(&mut out, (LEFT - 8.0, at + 4.0), "end", 12, &short(tick));
    }
    line(&mut out, (LEFT, bottom), (right, bottom), "#333");
    line(&mut out, (LEFT, TOP), (LEFT, bottom), "#333");
    let middle = (LEFT + right) / 2.0;
    text(
        &mut out,
        (middle, HEIGHT - 18.0),
        "middle",
        13,
        &chart.x_label,
    );
    text(&mut out, (8.0, TOP - 8.0), "start", 13, &chart.y_label);
    for (i, series) in chart.series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let placed: Vec<(f64, f64)> = series
            .points
            .iter()
            .map(|(px, py)| (x.place(*px), y.place(*py)))
            .collect();
        draw(&mut out, series.style, &placed, colour);
        let at = TOP + 20.0 * i as f64 + 8.0;
        let sample = [(right + 14.0, at), (right + 42.0, at)];
        let sample = if series.style == Style::Marks {
            &sample[..1]
        } else {
            &sample[..]
        };
        draw(&mut out, series.style, sample, colour);
        text(
            &mut out,
            (right + 50.0, at + 4.0),
            "start",
            12,
            &series.name,
        );
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, style: Style, points: &[(f64, f64)], colour: &str) {
    if style != Style::Marks && points.len() > 1 {
        let path: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let dashes = if style == Style::Dashes {
            " stroke-dasharray=\"6 4\""
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
            path.join(" ")
        );
    }
    for (x, y) in points {
        let _ = match style {
            Style::Dashes => Ok(()),
            Style::Line => writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            ),
            Style::Marks => writeln!(
                out,
                "<path d=\"M{x:.1} {:.1}l6 6l-6 6l-6 -6z\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                y - 6.0
            ),
        };
    }
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

fn text(out: &mut String, at: (f64, f64), anchor: &str, size: u32, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    let (x, y) = at;
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{content}</text>"
    );
}

/// A number without needless digits.
fn short(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    format!("{rounded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_hold_all_series() {
        for is_logarithmic in [false, true] {
            let series = |name: &str, style| Series {
                name: name.to_owned(),
                style,
                points: vec![(1.0, 2.0), (10.0, 30.0)],
            };
            let chart = Chart {
                title: "A & B".to_owned(),
                x_label: "x".to_owned(),
                y_label: "y".to_owned(),
                is_logarithmic,
                series: vec![
                    series("lines", Style::Line),
                    series("dashes", Style::Dashes),
                    series("marks <", Style::Marks),
                ],
            };
            let svg = render(&chart);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
            assert!(svg.contains("A &amp; B") && svg.contains("marks &lt;"));
            assert_eq!(svg.matches("<polyline").count(), 4);
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
        }
    }
}
