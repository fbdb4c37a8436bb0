//! What is taken from records that anybody may have written.

/// What becomes of a record with a header, not one of ours, that is no text: null, or bytes that are no UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnreadableHeaders {
    /// The record cannot be decoded. Nothing is lost in silence.
    #[default]
    Refuse,
    /// The header is left out. For topics to which some agent adds binary headers.
    LeaveOut,
}

/// How much of a record is taken. What exceeds a limit makes the record undecodable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordLimits {
    /// The most headers. Defaults to 128.
    pub headers_max: usize,
    /// The most bytes of a header's name. Defaults to 256.
    pub header_name_bytes_max: usize,
    /// The most bytes of a header's value. Defaults to 16 KiB.
    pub header_value_bytes_max: usize,
    /// The most bytes of a value. Defaults to 16 MiB.
    pub value_bytes_max: usize,
}

impl Default for RecordLimits {
    fn default() -> Self {
        Self {
            headers_max: 128,
            header_name_bytes_max: 256,
            header_value_bytes_max: 16 << 10,
            value_bytes_max: 16 << 20,
        }
    }
}

impl RecordLimits {
    /// Sets the most headers.
    #[must_use]
    pub const fn with_headers_max(mut self, headers: usize) -> Self {
        self.headers_max = headers;
        self
    }

    /// Sets the most bytes of a header's name and of its value.
    #[must_use]
    pub const fn with_header_bytes_max(mut self, name: usize, value: usize) -> Self {
        self.header_name_bytes_max = name;
        self.header_value_bytes_max = value;
        self
    }

    /// Sets the most bytes of a value.
    #[must_use]
    pub const fn with_value_bytes_max(mut self, bytes: usize) -> Self {
        self.value_bytes_max = bytes;
        self
    }
}
