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
    let depth = depth(text.as_bytes());
    if depth > DEPTH_MAX {
        return Err(format!(
            "is nested {depth} levels deep; at most {DEPTH_MAX} are accepted"
        ));
    }
    Ok(())
}

/// How deep the values of a text that is JSON are nested.
fn depth(json: &[u8]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                now += 1;
                most = most.max(now);
            }
            b']' | b'}' => now = now.saturating_sub(1),
            // A string ends at the first quote that no backslash takes.
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    most
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
        assert_eq!(depth(br#"["[[[\"[", {"]": [1]}]"#), 3);
    }
}
