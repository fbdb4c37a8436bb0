//! As much of Kafka's protocol as the model broker speaks.

pub(crate) fn number(bytes: &[u8]) -> i64 {
    bytes.iter().fold(0, |value, byte| value << 8 | i64::from(*byte))
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as i16).to_be_bytes());
    out.extend(text.as_bytes());
}

pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    pub(crate) fn int16(&mut self) -> i16 {
        number(self.take(2)) as i16
    }

    pub(crate) fn int32(&mut self) -> i32 {
        number(self.take(4)) as i32
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = self.int16();
        (length >= 0).then(|| String::from_utf8_lossy(self.take(length as usize)).into_owned())
    }

    pub(crate) fn varint(&mut self) -> i64 {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = self.take(1)[0];
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return (value >> 1) as i64 ^ -((value & 1) as i64);
            }
            shift += 7;
        }
    }
}

/// A record batch of version 2, not compressed.
pub(crate) struct Batch<'a> {
    pub(crate) producer: i64,
    pub(crate) epoch: i16,
    pub(crate) first_sequence: i32,
    pub(crate) values: Vec<&'a [u8]>,
}

impl<'a> Batch<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Self {
        let mut reader = Reader(&bytes[61..]);
        let count = number(&bytes[57..61]);
        Self {
            producer: number(&bytes[43..51]),
            epoch: number(&bytes[51..53]) as i16,
            first_sequence: number(&bytes[53..57]) as i32,
            values: (0..count).map(|_| value(&mut reader)).collect(),
        }
    }
}

fn value<'a>(reader: &mut Reader<'a>) -> &'a [u8] {
    let length = reader.varint() as usize;
    let mut record = Reader(reader.take(length));
    record.take(1);
    record.varint();
    record.varint();
    let key = record.varint();
    record.take(key.max(0) as usize);
    let value = record.varint();
    record.take(value.max(0) as usize)
}
