//! Drawings as pixels, with a font of our own: nothing has to be installed.

use resvg::{
    tiny_skia::{Pixmap, Transform},
    usvg::{Options, Tree},
};

/// A subset of DejaVu Sans; its licence is beside it.
const FONT: &[u8] = include_bytes!("../../assets/dejavu-sans-subset.ttf");
const FONT_NAME: &str = "DejaVu Sans";

/// Pixels per unit of the drawing.
const SCALE: f32 = 2.0;

/// Renders an SVG document as PNG; nothing if it is not one.
pub fn png(svg: &str) -> Option<Vec<u8>> {
    let mut options = Options {
        font_family: FONT_NAME.to_owned(),
        ..Options::default()
    };
    let fonts = options.fontdb_mut();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family(FONT_NAME);
    let tree = Tree::from_str(svg, &options).ok()?;
    let size = tree.size().to_int_size().scale_by(SCALE)?;
    let mut pixels = Pixmap::new(size.width(), size.height())?;
    let scale = Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, scale, &mut pixels.as_mut());
    pixels.encode_png().ok()
}

#[cfg(test)]
mod tests {
    use sphinx_codes::svg::{Chart, Series, Style, render};

    use super::*;

    #[test]
    fn text_becomes_pixels() {
        let chart = |title: &str| Chart {
            title: title.to_owned(),
            x_label: "x".to_owned(),
            y_label: "y".to_owned(),
            is_x_logarithmic: false,
            is_y_logarithmic: false,
            series: vec![Series::new("s", Style::Line, vec![(1.0, 2.0), (3.0, 4.0)])],
        };
        let with = png(&render(&chart("A title with ≥ 5 × δ"))).unwrap();
        let without = png(&render(&chart(""))).unwrap();
        assert!(with.starts_with(b"\x89PNG"));
        assert!(
            with.len() > without.len() + 500,
            "{} {}",
            with.len(),
            without.len()
        );
        assert_eq!(png("no drawing"), None);
    }
}
