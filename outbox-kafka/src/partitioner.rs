//! Which partition a key belongs to.

/// The partition of a key among `partitions`, as Kafka's Java client and everything compatible with it choose it.
///
/// Producers that disagree about this put one key on two partitions, where it has no order. It is the hash murmur2
/// with Kafka's seed, its sign bit cleared, modulo the number of partitions.
#[must_use]
pub fn partition_of(key: &[u8], partitions: std::num::NonZeroU32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions.get()
}

fn murmur2(key: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;

    // The length wraps for keys over 4 GiB, which no broker takes.
    let mut hash = SEED ^ u32::try_from(key.len()).unwrap_or(u32::MAX);
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let word = word
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u32::from(*byte));
        let word = word.wrapping_mul(MULTIPLIER);
        let word = (word ^ word >> 24).wrapping_mul(MULTIPLIER);
        hash = hash.wrapping_mul(MULTIPLIER) ^ word;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let rest = rest
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u32::from(*byte));
        hash = (hash ^ rest).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(MULTIPLIER);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_java_client() {
        // Known pairs of Kafka's own hash; negative ones as Java prints them.
        let known: [(&str, i32); 4] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("abc", 479_470_107),
        ];

        for (key, hash) in known {
            assert_eq!(murmur2(key.as_bytes()), hash.cast_unsigned(), "{key}");
        }
    }

    #[test]
    fn a_partition_is_always_one_of_the_topics() {
        for partitions in 1..50 {
            let partitions = std::num::NonZeroU32::new(partitions).unwrap();
            for key in ["", "a", "é", "order-17"] {
                assert!(partition_of(key.as_bytes(), partitions) < partitions.get());
            }
        }
    }
}
