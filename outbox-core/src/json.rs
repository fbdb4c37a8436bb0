//! Whether a text is JSON that every store takes and every handler can read.

use serde::de::IgnoredAny;

/// How deep values may be nested. Decoders stop at 128 levels, and stores at what their stack holds.
const DEPTH_MAX: usize = 127;

/// Checks a text; the error continues a sentence about it.
///
/// A store that finds the fault itself would do so inside the caller's transaction, and end it.
pub(crate) fn check(text: &str) -> Result<(), String> {
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        let (line, column) = (error.line(), error.column());
        return Err(format!("is no JSON (line {line}, column {column})"));
    }
    let Shape { depth, half } = shape(text.as_bytes());
    if let Some(at) = half {
        return Err(format!(
            "holds half of a surrogate pair at byte {at}; no text can have one"
        ));
    }
    if depth > DEPTH_MAX {
        return Err(format!(
            "is nested {depth} levels deep; at most {DEPTH_MAX} are accepted"
        ));
    }
    Ok(())
}

/// What a text that is JSON holds and a decoder may stumble over.
#[derive(Debug, Default, PartialEq)]
struct Shape {
    /// How deep its values are nested.
    depth: usize,
    /// Where the first escape stands that is half of a surrogate pair. JSON has it; no decoder makes a text of it.
    half: Option<usize>,
}

fn shape(json: &[u8]) -> Shape {
    let (mut now, mut shape) = (0_usize, Shape::default());
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        at += 1;
        match byte {
            b'[' | b'{' => {
                now += 1;
                shape.depth = shape.depth.max(now);
            }
            b']' | b'}' => now = now.saturating_sub(1),
            b'"' => at = after_string(json, at, &mut shape.half),
            _ => {}
        }
    }
    shape
}

/// Where a string ends: after the first quote that no backslash takes.
fn after_string(json: &[u8], mut at: usize, half: &mut Option<usize>) -> usize {
    while let Some(byte) = json.get(at) {
        at += match byte {
            b'"' => return at + 1,
            b'\\' => match (surrogate(json, at), surrogate(json, at + 6)) {
                (None, _) => 2,
                (Some(Half::High), Some(Half::Low)) => 12,
                _ => {
                    half.get_or_insert(at);
                    6
                }
            },
            _ => 1,
        };
    }
    at
}

enum Half {
    High,
    Low,
}

/// Which half of a surrogate pair the escape stands for that begins there, if any.
fn surrogate(json: &[u8], at: usize) -> Option<Half> {
    match json.get(at..at + 4)? {
        [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'A' | b'b' | b'B'] => Some(Half::High),
        [b'\\', b'u', b'd' | b'D', b'c'..=b'f' | b'C'..=b'F'] => Some(Half::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_json_passes_as_it_is() {
        let deepest = format!("{}{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));

        for text in ["null", " {\"a\": [1e400, \"\\\"[\"]} ", "\"\u{1F980}\"", &deepest] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        assert!(serde_json::from_str::<serde_json::Value>(&deepest).is_ok());
    }

    #[test]
    fn what_is_wrong_is_said_without_the_text() {
        let too_deep = format!("{}{}", "[".repeat(200), "]".repeat(200));

        assert_eq!(
            check("{\"secret\": no}"),
            Err("is no JSON (line 1, column 13)".to_owned())
        );
        for text in ["", "1 2", "NaN", "\"a\0b\"", "[1,]"] {
            assert!(check(text).is_err(), "{text}");
        }
        assert_eq!(
            check(&too_deep),
            Err("is nested 200 levels deep; at most 127 are accepted".to_owned())
        );
    }

    #[test]
    fn brackets_in_strings_do_not_count() {
        assert_eq!(shape(br#"["[[[\"[", {"]": [1]}]"#).depth, 3);
    }

    #[test]
    fn half_of_a_surrogate_pair_is_no_text() {
        let whole = [
            r#"["\ud83d\ude00", "\uD83D\uDE00"]"#,
            r#""\\ud800""#,
            r#""\ue000\u0000\ud7ff""#,
        ];
        for text in whole {
            assert_eq!(check(text), Ok(()), "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}");
        }
        let halves = [
            (r#"{"a": "\ud83d"}"#, 7),
            (r#"["\ude00\ud83d"]"#, 2),
            (r#""\uD83D\ud83d\ude00""#, 1),
            (r#""\\\uDFFF""#, 3),
            (r#"{"\udead": 1}"#, 2),
            (r#""\ud83d\\\ude00""#, 1),
        ];
        for (text, at) in halves {
            let problem = format!("holds half of a surrogate pair at byte {at}; no text can have one");
            assert_eq!(check(text), Err(problem), "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(text).is_err(), "{text}");
        }
    }
}
