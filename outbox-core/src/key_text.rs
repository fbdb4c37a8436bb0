//! How `#[derive(Event)]` makes a text of whatever a user names as id or key.

use std::fmt;

/// What can be an aggregate id or an ordering key: everything with a `Display`, and (by [`TextOf`]) an `Option` of it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an aggregate id or an ordering key",
    label = "has no text form",
    note = "ids and keys are texts: implement `std::fmt::Display` for `{Self}`, or name another field or an expression"
)]
pub trait KeyText {
    /// The text.
    fn key_text(&self) -> String;
}

#[diagnostic::do_not_recommend]
impl<T: fmt::Display + ?Sized> KeyText for T {
    fn key_text(&self) -> String {
        self.to_string()
    }
}

/// Holds a value whose type a macro does not know. Its method `text` is found in two ways: the inherent one below for an
/// `Option`, else that of [`TextOfAny`]. The bounds stand at the methods so that a type without a text form is reported
/// as such, and not as a missing method.
#[derive(Debug)]
pub struct TextOf<'a, T: ?Sized>(pub &'a T);

impl<T> TextOf<'_, Option<T>> {
    /// The text, if there is a value.
    #[must_use]
    pub fn text(&self) -> Option<String>
    where
        T: KeyText,
    {
        self.0.as_ref().map(KeyText::key_text)
    }
}

impl<T> TextOf<'_, &Option<T>> {
    /// The text, if there is a value.
    #[must_use]
    pub fn text(&self) -> Option<String>
    where
        T: KeyText,
    {
        self.0.as_ref().map(KeyText::key_text)
    }
}

/// The text of what is no `Option`.
pub trait TextOfAny<T: ?Sized> {
    /// The text; there always is one.
    fn text(&self) -> Option<String>
    where
        T: KeyText;
}

impl<T: ?Sized> TextOfAny<T> for TextOf<'_, T> {
    fn text(&self) -> Option<String>
    where
        T: KeyText,
    {
        Some(self.0.key_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_has_a_text_if_it_has_a_value() {
        let (some, none) = (Some(7_u64), None::<u64>);

        assert_eq!(TextOf(&some).text().as_deref(), Some("7"));
        assert_eq!(TextOf(&&some).text().as_deref(), Some("7"));
        assert_eq!(TextOf(&none).text(), None);
        assert_eq!(TextOf(&"x").text().as_deref(), Some("x"));
        assert_eq!(TextOf("x").text().as_deref(), Some("x"));
    }
}
