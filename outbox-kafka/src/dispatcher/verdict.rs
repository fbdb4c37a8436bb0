//! What an error of the client or the broker means. Pure.

use rdkafka::error::RDKafkaErrorCode as Code;

/// Whose fault it is that a record was not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The broker's word about this record's batch: never.
    Refused,
    /// The broker's word about this record's batch, but perhaps not for ever, or not for this record.
    Doubtful,
    /// The topic's: it is not there, or not ours to write.
    Topic,
    /// The network's, the cluster's, or a consequence of another record's failure.
    Transport,
}

/// Whose fault an error is.
///
/// What is not known as somebody else's is doubtful: the record is then tried alone, where it either succeeds or is
/// charged. A fencing error is the producer instance's fault, never the event's.
pub(super) fn fault(code: Code) -> Fault {
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidRecord
        | Code::UnsupportedForMessageFormat => Fault::Refused,

        Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicOrPartition
        | Code::InvalidTopic
        | Code::TopicAuthorizationFailed => Fault::Topic,

        Code::PurgeQueue
        | Code::PurgeInflight
        | Code::Fatal
        // Records have the time of this machine, whose clock is wrong: so would be all others.
        | Code::InvalidTimestamp
        | Code::QueueFull
        | Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::BrokerDestroy
        | Code::Resolve
        | Code::Authentication
        | Code::SSL
        | Code::SaslAuthenticationFailed
        | Code::ClusterAuthorizationFailed
        | Code::BrokerNotAvailable
        | Code::ReplicaNotAvailable
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::NetworkException
        | Code::KafkaStorageError
        | Code::ThrottlingQuotaExceeded
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::InvalidProducerEpoch
        | Code::InvalidProducerIdMapping
        | Code::UnknownProducerId
        | Code::ProducerFenced
        | Code::Fenced
        | Code::InvalidTransactionalState
        | Code::InvalidTransactionTimeout
        | Code::ConcurrentTransactions
        | Code::TransactionCoordinatorFenced
        | Code::TransactionalIdAuthorizationFailed
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::NotCoordinator
        | Code::WaitingForCoordinator
        | Code::FencedLeaderEpoch
        | Code::Inconsistent
        | Code::State => Fault::Transport,

        _ => Fault::Doubtful,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_brokers_word_about_a_record_is_held_against_it() {
        assert_eq!(fault(Code::MessageSizeTooLarge), Fault::Refused);
        assert_eq!(fault(Code::InvalidRecord), Fault::Refused);
        assert_eq!(fault(Code::Unknown), Fault::Doubtful);
        assert_eq!(fault(Code::InvalidMessage), Fault::Doubtful);
        assert_eq!(fault(Code::TopicAuthorizationFailed), Fault::Topic);
        for innocent in [
            Code::InvalidTimestamp,
            Code::PurgeInflight,
            Code::OutOfOrderSequenceNumber,
            Code::ProducerFenced,
            Code::MessageTimedOut,
            Code::NotEnoughReplicas,
            Code::InvalidTransactionalState,
            Code::ConcurrentTransactions,
            Code::TransactionCoordinatorFenced,
            Code::NotCoordinator,
            Code::CoordinatorNotAvailable,
        ] {
            assert_eq!(fault(innocent), Fault::Transport, "{innocent:?}");
        }
    }
}
