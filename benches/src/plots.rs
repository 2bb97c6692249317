//! Line plots as SVG files in `docs/plots`.

use std::ops::Range;

use anyhow::Context;
use plotters::prelude::*;

use crate::plots_folder;
use crate::results::Plot;

const SIZE: (u32, u32) = (860, 420);
/// One for each line, told apart by the colour-blind too (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// One line of a plot: its name and its points, from left to right.
pub type Line = (String, Vec<(f64, f64)>);

/// What an axis shows.
#[derive(Debug, Clone, Copy)]
pub struct Axis<'a> {
    /// With its unit.
    pub title: &'a str,
    /// By powers of ten; values of 0 and below are left out.
    pub logarithmic: bool,
}

/// Draws `lines` into `docs/plots/FILE`. Linear axes begin at 0.
///
/// # Errors
/// The file cannot be written.
pub fn draw(file: &str, title: &str, x: Axis<'_>, y: Axis<'_>, lines: &[Line]) -> anyhow::Result<Plot> {
    std::fs::create_dir_all(plots_folder())?;
    let path = plots_folder().join(file);
    let shown = |(px, py): &(f64, f64)| (!x.logarithmic || *px > 0.0) && (!y.logarithmic || *py > 0.0);
    let lines: Vec<Line> = lines
        .iter()
        .map(|(name, points)| (name.clone(), points.iter().copied().filter(shown).collect()))
        .collect();
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let across = range(points().map(|(px, _)| px), x.logarithmic);
    let up = range(points().map(|(_, py)| py), y.logarithmic);

    // Where lines rarely are: what falls begins above on the left, what grows ends above on the right.
    let falls = |(_, points): &Line| points.first().map(|p| p.1) > points.last().map(|p| p.1);
    let position = match lines.iter().all(falls) {
        true => SeriesLabelPosition::LowerLeft,
        false => SeriesLabelPosition::LowerRight,
    };
    let area = SVGBackend::new(&path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area);
    chart.caption(title, ("sans-serif", 18)).margin(12).x_label_area_size(44).y_label_area_size(64);
    // The scale of an axis is part of the chart's type.
    macro_rules! draw_on {
        ($across:expr, $up:expr) => {{
            let mut chart = chart.build_cartesian_2d($across, $up)?;
            chart.configure_mesh().x_desc(x.title).y_desc(y.title).light_line_style(WHITE).draw()?;
            for (number, (name, points)) in lines.iter().enumerate() {
                let style = COLOURS[number % COLOURS.len()].stroke_width(2);
                chart
                    .draw_series(LineSeries::new(points.iter().copied(), style))?
                    .label(name)
                    .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
            }
            let mut legend = chart.configure_series_labels();
            legend.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
            legend.position(position).draw()?;
        }};
    }
    match (x.logarithmic, y.logarithmic) {
        (false, false) => draw_on!(across, up),
        (true, false) => draw_on!(across.log_scale(), up),
        (false, true) => draw_on!(across, up.log_scale()),
        (true, true) => draw_on!(across.log_scale(), up.log_scale()),
    }
    area.present().with_context(|| path.display().to_string())?;
    Ok(Plot { file: file.into(), title: title.into() })
}

/// From the least (0 on a linear axis) to a little above the most.
fn range(values: impl Iterator<Item = f64> + Clone, logarithmic: bool) -> Range<f64> {
    let most = values.clone().reduce(f64::max).unwrap_or(1.0);
    if logarithmic {
        let least = values.reduce(f64::min).unwrap_or(most / 10.0);
        return least..most.max(least * 1.1);
    }
    0.0..if most > 0.0 { most * 1.05 } else { 1.0 }
}
