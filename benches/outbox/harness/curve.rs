//! A picture of rates over time.

use std::fmt::Write;

const LEFT: f64 = 70.0;
const RIGHT: f64 = 670.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 240.0;
const COLOURS: [&str; 2] = ["#4a7ebb", "#c0504d"];

/// Draws one line per contestant through its rates, which are at even distances, as SVG.
pub(crate) fn curves(title: &str, lines: &[(&str, Vec<f64>)]) -> String {
    let highest = lines
        .iter()
        .flat_map(|(_, rates)| rates)
        .copied()
        .fold(1.0, f64::max);
    // Four steps of whole ten thousands.
    let step = (highest / 40_000.0).ceil() * 10_000.0;
    let y_of = |rate: f64| BOTTOM - rate / (4.0 * step) * (BOTTOM - TOP);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='720' height='300' font-family='sans-serif' font-size='13'>\n\
         <rect width='720' height='300' fill='white'/>\n\
         <text x='{LEFT}' y='24' font-weight='bold'>{title}</text>\n\
         <path d='M{LEFT} {TOP} V{BOTTOM} H{RIGHT}' fill='none' stroke='#444'/>\n"
    );
    for n in 0..=4 {
        let rate = f64::from(n) * step;
        let (y, thousands) = (y_of(rate) + 4.0, rate / 1000.0);
        let _ = writeln!(
            svg,
            "<text x='62' y='{y:.0}' text-anchor='end'>{thousands:.0} k</text>"
        );
    }
    for (n, (label, rates)) in lines.iter().enumerate() {
        let x_of = |part: usize| LEFT + part as f64 * (RIGHT - LEFT) / (rates.len() - 1).max(1) as f64;
        let points: Vec<_> = rates
            .iter()
            .enumerate()
            .map(|(part, rate)| format!("{:.0},{:.0}", x_of(part), y_of(*rate)))
            .collect();
        let (x, colour, points) = (90 + n * 200, COLOURS[n % COLOURS.len()], points.join(" "));
        let _ = writeln!(
            svg,
            "<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2'/>\n\
             <rect x='{x}' y='264' width='14' height='10' fill='{colour}'/><text x='{}' y='274'>{label}</text>",
            x + 20
        );
    }
    svg + "</svg>\n"
}
