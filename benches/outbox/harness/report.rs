//! What a benchmark found: medians, and ratios beside what they should be.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::median;

/// What a ratio should be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing was promised.
    None,
}

impl Target {
    fn met(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(bound) => Some(value >= bound),
            Self::AtMost(bound) => Some(value <= bound),
            Self::None => None,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(bound) => format!("at least {bound}"),
            Self::AtMost(bound) => format!("at most {bound}"),
            Self::None => String::new(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Report {
    name: &'static str,
    /// Labels in the order in which they came, and of each the values of each measure.
    samples: Vec<(String, BTreeMap<&'static str, Vec<f64>>)>,
    ratios: Vec<(String, f64, Target)>,
    facts: BTreeMap<&'static str, Value>,
    /// What says more than a bar per contestant.
    picture: Option<String>,
}

impl Report {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            samples: Vec::new(),
            ratios: Vec::new(),
            facts: BTreeMap::new(),
            picture: None,
        }
    }

    /// One round of one contestant.
    pub(crate) fn add(&mut self, label: &str, measures: &[(&'static str, f64)]) {
        let known = self.samples.iter().position(|(known, _)| known == label);
        let place = known.unwrap_or_else(|| {
            self.samples.push((label.to_owned(), BTreeMap::new()));
            self.samples.len() - 1
        });
        let mut line = format!("   {label:34}");
        for (measure, value) in measures {
            line += &format!("  {measure} {value:.2}");
            self.samples[place].1.entry(measure).or_default().push(*value);
        }
        println!("{line}");
    }

    pub(crate) fn median(&self, label: &str, measure: &str) -> f64 {
        let found = self.samples.iter().find(|(known, _)| known == label);
        let values = found.and_then(|(_, measures)| measures.get(measure));
        values.map_or(f64::NAN, |values| median(values))
    }

    /// The ratio of two contestants' medians.
    pub(crate) fn compare(&mut self, measure: &'static str, label: &str, floor: &str, target: Target) {
        let ratio = self.median(label, measure) / self.median(floor, measure);
        self.ratio(format!("{measure}: {label} / {floor}"), ratio, target);
    }

    pub(crate) fn ratio(&mut self, name: String, value: f64, target: Target) {
        self.ratios.push((name, value, target));
    }

    pub(crate) fn fact(&mut self, name: &'static str, value: impl Into<Value>) {
        self.facts.insert(name, value.into());
    }

    pub(crate) fn picture(&mut self, svg: String) {
        self.picture = Some(svg);
    }

    /// Prints the ratios, and writes the JSON and the chart.
    pub(crate) fn finish(self) {
        println!("   --");
        for (name, value, target) in &self.ratios {
            let verdict = match target.met(*value) {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "",
            };
            println!("   {name:66} {value:8.2}  {:14} {verdict}", target.text());
        }
        let json = serde_json::to_string_pretty(&self.json()).unwrap();
        self.write("json", &json);
        self.write(
            "svg",
            &self.picture.as_ref().map_or_else(|| self.chart(), Clone::clone),
        );
    }

    fn write(&self, kind: &str, text: &str) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{}.{kind}", self.name)), text).unwrap();
    }

    fn json(&self) -> Value {
        let of = |measures: &BTreeMap<&'static str, Vec<f64>>| -> Value {
            measures
                .iter()
                .map(|(name, values)| {
                    (
                        (*name).to_owned(),
                        json!({ "median": median(values), "values": values }),
                    )
                })
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let samples: serde_json::Map<_, _> = self
            .samples
            .iter()
            .map(|(label, measures)| (label.clone(), of(measures)))
            .collect();
        let ratios: Vec<_> = self
            .ratios
            .iter()
            .map(|(name, value, target)| {
                json!({ "what": name, "value": value, "target": target.text(), "met": target.met(*value) })
            })
            .collect();
        json!({ "name": self.name, "facts": self.facts, "measured": samples, "ratios": ratios })
    }

    /// A bar per contestant, for the first measure of each.
    fn chart(&self) -> String {
        let first = |measures: &BTreeMap<&'static str, Vec<f64>>| {
            let (name, values) = measures.iter().next().expect("something measured");
            (*name, median(values))
        };
        let bars: Vec<_> = self
            .samples
            .iter()
            .map(|(label, measures)| (label, first(measures)))
            .collect();
        let longest = bars.iter().map(|(_, (_, value))| *value).fold(0.0, f64::max);
        let height = bars.len() * 24 + 30;
        let mut svg = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='760' height='{height}' font-family='sans-serif' font-size='13'>\n\
             <rect width='760' height='{height}' fill='white'/><text x='8' y='18' font-weight='bold'>{}</text>\n",
            self.name
        );
        for (n, (label, (measure, value))) in bars.iter().enumerate() {
            let (y, width) = (n * 24 + 28, value / longest * 300.0);
            svg += &format!(
                "<text x='8' y='{}'>{label}</text><rect x='300' y='{y}' width='{width:.1}' height='18' fill='#4a7ebb'/>\
                 <text x='{:.1}' y='{}'>{value:.1} {measure}</text>\n",
                y + 14,
                width + 306.0,
                y + 14
            );
        }
        svg + "</svg>\n"
    }
}
