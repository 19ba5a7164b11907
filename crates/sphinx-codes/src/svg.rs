//! Line charts as SVG, drawn with nothing but text.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 60.0;

/// Legible on white and on black.
const COLOURS: [&str; 10] = [
    "#1a936f", "#d1495b", "#3d7ec9", "#e07a00", "#8e6bbf", "#12a5b8", "#a0714f", "#e0569b",
    "#77932d", "#808890",
];

/// The colour of text and lines of a drawing that stands alone.
const INK: &str = " color=\"#222\"";
/// The background of a drawing that stands alone.
const PAPER: &str = "<rect width=\"860\" height=\"520\" fill=\"white\"/>\n";

/// What a chart without any point says.
const UNMEASURED: &str = "not measured";

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line with dots.
    Line,
    /// A dashed line without dots.
    Dashes,
    /// A line without dots, for many points.
    Plain,
    /// A dotted line with dots, for what lies on top of another.
    Dotted,
    /// Large hollow shapes only, for values of others.
    Marks,
}

/// Points with a name.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend; it is not there without.
    pub name: String,
    /// How to draw it.
    pub style: Style,
    /// Number of its colour and shape; that of its place in the chart if not
    /// given. Series that belong together share one.
    pub look: Option<usize>,
    /// The points, in the order they are joined.
    pub points: Vec<(f64, f64)>,
    /// Intervals: where on the horizontal axis, from, to.
    pub ranges: Vec<(f64, f64, f64)>,
    /// Single runs, that the points are the middle of.
    pub dots: Vec<(f64, f64)>,
    /// Runs that do not count.
    pub crosses: Vec<(f64, f64)>,
}

impl Series {
    /// A series without intervals.
    #[must_use]
    pub fn new(name: &str, style: Style, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.to_owned(),
            style,
            look: None,
            points,
            ranges: Vec::new(),
            dots: Vec::new(),
            crosses: Vec::new(),
        }
    }

    /// The series with colour and shape number `look`.
    #[must_use]
    pub fn with_look(self, look: usize) -> Self {
        Self {
            look: Some(look),
            ..self
        }
    }
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
    /// Draw the horizontal axis logarithmically.
    pub is_x_logarithmic: bool,
    /// Draw the vertical axis logarithmically.
    pub is_y_logarithmic: bool,
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
        let shown = || values.iter().copied().filter(|value| value.is_finite());
        let positive = || shown().filter(|value| *value > 0.0);
        let high = shown().fold(f64::MIN_POSITIVE, f64::max);
        let low = positive().fold(high, f64::min);
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
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
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
    let of_series = |series: &Series| {
        let all = [&series.points, &series.dots, &series.crosses];
        all.into_iter().flatten().copied().collect::<Vec<_>>()
    };
    let points = || chart.series.iter().flat_map(of_series);
    let ranges = || chart.series.iter().flat_map(|series| &series.ranges);
    let xs: Vec<f64> = points().map(|point| point.0).collect();
    let highs = ranges().map(|(_, _, high)| *high);
    let ys: Vec<f64> = points().map(|point| point.1).chain(highs).collect();
    let x = Axis::new(&xs, chart.is_x_logarithmic, LEFT, WIDTH - RIGHT);
    let y = Axis::new(&ys, chart.is_y_logarithmic, HEIGHT - BOTTOM, TOP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\"{INK}>\n{PAPER}"
    );
    text(&mut out, (LEFT, 24.0), "start", 16, &chart.title);
    if xs.is_empty() {
        let middle = (WIDTH / 2.0, HEIGHT / 2.0);
        text(&mut out, middle, "middle", 16, UNMEASURED);
        out.push_str("</svg>\n");
        return out;
    }
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in x_ticks(&x, &xs) {
        let at = x.place(tick);
        line(&mut out, (at, TOP), (at, bottom), 0.15);
        text(&mut out, (at, bottom + 18.0), "middle", 12, &short(tick));
    }
    for tick in y.ticks() {
        let at = y.place(tick);
        line(&mut out, (LEFT, at), (right, at), 0.15);
        text(&mut out, (LEFT - 8.0, at + 4.0), "end", 12, &short(tick));
    }
    line(&mut out, (LEFT, bottom), (right, bottom), 1.0);
    line(&mut out, (LEFT, TOP), (LEFT, bottom), 1.0);
    let middle = (LEFT + right) / 2.0;
    text(
        &mut out,
        (middle, HEIGHT - 18.0),
        "middle",
        13,
        &chart.x_label,
    );
    text(&mut out, (8.0, TOP - 10.0), "start", 13, &chart.y_label);
    let mut named = 0;
    for (i, series) in chart.series.iter().enumerate() {
        let look = series.look.unwrap_or(i);
        let colour = COLOURS[look % COLOURS.len()];
        let placed: Vec<(f64, f64)> = series
            .points
            .iter()
            .filter(|(px, py)| px.is_finite() && py.is_finite())
            .map(|(px, py)| (x.place(*px), y.place(*py)))
            .collect();
        for (px, low, high) in &series.ranges {
            let at = x.place(*px);
            let (low, high) = (y.place(low.max(0.0)), y.place(*high));
            let _ = writeln!(
                out,
                "<path d=\"M{at:.1} {low:.1}V{high:.1}\" stroke=\"{colour}\" stroke-opacity=\"0.5\" \
                 stroke-width=\"4\"/>"
            );
        }
        for (points, is_counted) in [(&series.dots, true), (&series.crosses, false)] {
            for (px, py) in points
                .iter()
                .filter(|it| it.0.is_finite() && it.1.is_finite())
            {
                run(&mut out, (x.place(*px), y.place(*py)), is_counted, colour);
            }
        }
        draw(&mut out, series.style, &placed, look);
        if series.name.is_empty() {
            continue;
        }
        let at = TOP + 20.0 * f64::from(named) + 8.0;
        named += 1;
        let sample = [(right + 14.0, at), (right + 42.0, at)];
        let sample = if series.style == Style::Marks {
            &sample[..1]
        } else {
            &sample[..]
        };
        draw(&mut out, series.style, sample, look);
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

/// Where the horizontal axis is marked: on a logarithmic one at the points, if
/// they are few, as nobody can read off values between two marks there.
fn x_ticks(axis: &Axis, xs: &[f64]) -> Vec<f64> {
    let mut marks: Vec<f64> = xs.iter().copied().filter(|x| x.is_finite()).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let gaps = marks
        .windows(2)
        .map(|w| axis.place(w[1]) - axis.place(w[0]));
    if axis.is_logarithmic && marks.len() <= 10 && gaps.fold(f64::MAX, f64::min) > 40.0 {
        return marks;
    }
    axis.ticks()
}

fn draw(out: &mut String, style: Style, points: &[(f64, f64)], look: usize) {
    let colour = COLOURS[look % COLOURS.len()];
    if style != Style::Marks && points.len() > 1 {
        let path: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let dashes = match style {
            Style::Dashes => " stroke-dasharray=\"6 4\"",
            Style::Dotted => " stroke-dasharray=\"2 4\"",
            _ => "",
        };
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
            path.join(" ")
        );
    }
    for at in points {
        match style {
            Style::Dashes | Style::Plain => {}
            Style::Line | Style::Dotted => {
                let fill = format!("fill=\"{colour}\"");
                shape(out, *at, 3.5, look, &fill);
            }
            Style::Marks => {
                let stroke = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"");
                shape(out, *at, 7.0, look, &stroke);
            }
        }
    }
}

/// A single run: a dot, or a cross if it does not count.
fn run(out: &mut String, (x, y): (f64, f64), is_counted: bool, colour: &str) {
    let _ = match is_counted {
        true => writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.6\" fill=\"{colour}\" fill-opacity=\"0.6\"/>"
        ),
        false => {
            let (left, top) = (x - 3.0, y - 3.0);
            writeln!(
                out,
                "<path d=\"M{left:.1} {top:.1}l6 6m0 -6l-6 6\" stroke=\"{colour}\" fill=\"none\"/>"
            )
        }
    };
}

/// A shape of about radius `r`: what tells series apart without colour.
fn shape(out: &mut String, at: (f64, f64), r: f64, look: usize, paint: &str) {
    let (x, y) = at;
    let _ = match look % 4 {
        0 => writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\" {paint}/>"
        ),
        1 => {
            let (left, top, d) = (x - r, y - r, 2.0 * r);
            writeln!(
                out,
                "<path d=\"M{left:.1} {top:.1}h{d}v{d}h-{d}z\" {paint}/>"
            )
        }
        2 => {
            let (r, top) = (1.2 * r, y - 1.2 * r);
            writeln!(
                out,
                "<path d=\"M{x:.1} {top:.1}l{r} {0}h-{0}z\" {paint}/>",
                2.0 * r
            )
        }
        _ => {
            let (r, top) = (1.3 * r, y - 1.3 * r);
            writeln!(
                out,
                "<path d=\"M{x:.1} {top:.1}l{r} {r}l-{r} {r}l-{r} -{r}z\" {paint}/>"
            )
        }
    };
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), opacity: f64) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" \
         stroke=\"currentColor\" stroke-opacity=\"{opacity}\"/>"
    );
}

fn text(out: &mut String, at: (f64, f64), anchor: &str, size: u32, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    let (x, y) = at;
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" \
         font-size=\"{size}\" fill=\"currentColor\">{content}</text>"
    );
}

/// A drawing without paper and in the colour of the text around it, to be part of a page.
#[must_use]
pub fn embed(svg: &str) -> String {
    svg.replacen(INK, "", 1).replacen(PAPER, "", 1)
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
                ranges: vec![(1.0, 0.0, 40.0)],
                dots: vec![(1.0, 3.0), (10.0, f64::INFINITY)],
                crosses: vec![(10.0, 1.0)],
                ..Series::new(
                    name,
                    style,
                    vec![(1.0, 2.0), (10.0, 30.0), (11.0, f64::NAN)],
                )
            };
            let chart = Chart {
                title: "A & B".to_owned(),
                x_label: "x".to_owned(),
                y_label: "y".to_owned(),
                is_x_logarithmic: is_logarithmic,
                is_y_logarithmic: is_logarithmic,
                series: vec![
                    series("lines", Style::Line),
                    series("dashes", Style::Dashes),
                    series("dots", Style::Dotted).with_look(0),
                    series("marks <", Style::Marks),
                    series("", Style::Plain),
                ],
            };
            let svg = render(&chart);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
            assert!(svg.contains("A &amp; B") && svg.contains("marks &lt;"));
            // Without a name, there is no sample in the legend.
            assert_eq!(svg.matches("<polyline").count(), 7);
            assert_eq!(svg.matches("r=\"1.6\"").count(), 5);
            assert_eq!(svg.matches("l6 6m0 -6l-6 6").count(), 5);
            assert!(svg.contains("white") && !embed(&svg).contains("white"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    #[test]
    fn a_chart_of_nothing_says_so() {
        let chart = Chart {
            title: "A".to_owned(),
            x_label: "x".to_owned(),
            y_label: "y".to_owned(),
            is_x_logarithmic: false,
            is_y_logarithmic: false,
            series: vec![Series::new("lines", Style::Line, Vec::new())],
        };
        let svg = render(&chart);
        assert!(svg.ends_with("</svg>\n") && svg.contains(UNMEASURED));
        assert!(!svg.contains("<polyline"));
    }
}
