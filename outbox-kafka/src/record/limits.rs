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

/// How many headers (or attributes) of the mapping's own are left out of [`RecordLimits::headers_max`]. No format writes
/// so many, even with those of a dead letter that was published again.
pub(super) const OWN_HEADERS_MAX: usize = 32;

/// How much of a record is taken. What exceeds a limit makes the record undecodable.
///
/// Whatever a publisher accepts is taken by default, in every format: it checks the bytes of an event's headers
/// ([`HEADER_BYTES_MAX`](outbox_core::HEADER_BYTES_MAX) together), which may be thousands of short ones. Only a plain
/// `INSERT`, which nobody checks for that, can write more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordLimits {
    /// The most headers of an event. Up to 32 that the mapping writes itself (`outbox-…`, `ce_…`, `content-type`) are not
    /// counted; what they are beyond that is. Defaults to 10,000, more than fit in what a publisher accepts.
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
            headers_max: 10_000,
            header_name_bytes_max: 256,
            header_value_bytes_max: 16 << 10,
            value_bytes_max: 16 << 20,
        }
    }
}

impl RecordLimits {
    /// Refuses more headers than are taken, given how many are the mapping's own.
    pub(super) fn check_count(&self, what: &str, own: usize, others: usize) -> Result<(), String> {
        let (count, most) = (others + own.saturating_sub(OWN_HEADERS_MAX), self.headers_max);
        if count > most {
            return Err(format!("it has {count} {what}, at most {most} are taken"));
        }
        Ok(())
    }

    /// Sets the most headers of an event, those of the mapping not counted.
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
